#!/usr/bin/env bash
# Everything that a machine with a GPU should be asked, in one command: the Vulkan suites, and speed beside PyTorch and wgpu in the
# same run.
#
#   benches/gpu.sh [DEVICE]      DEVICE as in `forebay devices` (vulkan)
#
# The U-Net at full size: FOREBAY_GPU_MODEL=model_full.onnx FOREBAY_GPU_DATA=FOLDER FOREBAY_GPU_SIZES='192 224 192'.
#
# Needs Rust and a Vulkan driver; PyTorch with the card for the comparisons, which are left out without it.
set -euo pipefail
cd "$(dirname "$0")/.."
device=${1:-vulkan}
model=${FOREBAY_GPU_MODEL:-examples/brain/unet3d.onnx}
data=${FOREBAY_GPU_DATA:-examples/brain}
steps=${FOREBAY_GPU_STEPS:-5}
sizes=${FOREBAY_GPU_SIZES:-96 112 96} # of the model's input, for PyTorch

has_card=false
if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    has_card=true
fi

cargo build --release --quiet
forebay=target/release/forebay
echo "## Devices"
"$forebay" devices

echo "## Suites on this machine's first Vulkan device (FOREBAY_REQUIRE=vulkan)"
FOREBAY_REQUIRE=vulkan cargo test --release --quiet -p forebay-vulkan
FOREBAY_REQUIRE=vulkan cargo test --release --quiet -p forebay --test vulkan

echo "## Products and convolutions, as a share of what PyTorch reaches on the same card"
cargo bench --quiet -p forebay-vulkan --bench kernels -- "$device" | tee /tmp/forebay-gpu-kernels.$$
if $has_card; then
    python3 benches/gpu_peer.py </tmp/forebay-gpu-kernels.$$
else
    echo "(no PyTorch with a card: nothing to compare with)"
fi
rm -f /tmp/forebay-gpu-kernels.$$

echo "## $model: in core, at a quarter and at a tenth of its memory"
for budget in 100% 25% 10%; do
    echo "--- within $budget"
    "$forebay" train "$model" --data "$data" --device "$device" --device-memory "$budget" --steps "$steps" --momentum 0.9 |
        tail -n 8
done
if $has_card; then
    # shellcheck disable=SC2086
    python3 benches/gpu_training.py --sizes $sizes --steps "$steps"
else
    echo "(no PyTorch with a card: nothing to compare with)"
fi

echo "## Training steps beside wgpu running the same dispatches"
if cargo build --release --quiet --manifest-path benches/wgpu/Cargo.toml; then
    cargo run --release --quiet --manifest-path benches/wgpu/Cargo.toml -- --device "$device"
else
    echo "(wgpu cannot be built here: nothing to compare with)"
fi
