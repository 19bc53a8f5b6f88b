#!/usr/bin/env bash
# Everything that a machine with a GPU should be asked, in one command: the Vulkan suites, products and convolutions in float32,
# bfloat16 and float16 as a share of PyTorch's on the same card, training steps of the U-Net at 192 x 224 x 192 in core, within a
# quarter and a tenth of its memory, beside PyTorch in core and with activation checkpointing, and steps beside wgpu.
#
#   benches/gpu.sh [DEVICE]      DEVICE as in `forebay devices` (vulkan)
#
# Where only a CPU stands for a GPU, models and sizes are small. FOREBAY_GPU_STEPS says how many steps are trained; another model:
# FOREBAY_GPU_MODEL=model.onnx FOREBAY_GPU_DATA=FOLDER FOREBAY_GPU_SIZES='96 112 96' (of the input, for PyTorch).
#
# Each part writes a record to benches/results, which `cargo xtask results` renders; see benches/results/README.md.
#
# Needs Rust, Python, a Vulkan driver and the Khronos validation layer; for the comparisons PyTorch with the card and NumPy: without a
# card they are left out. What fails says so, keeps nothing else from being tried, and makes the command end with 1.
set -euo pipefail
cd "$(dirname "$0")/.."
device=${1:-vulkan}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

failed=()
fail() {
    echo "FAILED: $1"
    failed+=("$1")
}
# Runs a command under a title.
part() {
    printf '\n## %s\n' "$1"
    "${@:2}" || fail "$1"
}

cargo build --release --quiet
forebay=target/release/forebay

# Whether the device is a GPU, rather than a CPU that stands for one: `forebay devices` says so in its descriptions.
is_gpu() {
    "$forebay" devices | grep '^vulkan:' | grep -v 'cannot be used' |
        case $device in
        vulkan) cat ;;
        vulkan:[0-9]*) grep "^$device " ;;
        *) grep -iF -- "${device#vulkan:}" ;;
        esac | grep ' GPU; ' >"$work/gpus"
}
suites() {
    FOREBAY_REQUIRE=vulkan cargo test --release --quiet --no-fail-fast "$@"
}
kernels() {
    cargo bench --quiet -p forebay-vulkan --bench kernels -- "$device" | tee "$work/kernels"
}
kernels_peer() {
    python3 benches/gpu_peer.py <"$work/kernels"
}
train() {
    python3 benches/gpu_steps.py "$model" "$data" --device "$device" --steps "$steps" --sizes "${sizes// / x }" --budgets 25% 10%
}
train_peer() {
    # shellcheck disable=SC2086
    python3 benches/gpu_training.py --sizes $sizes --steps "$steps"
}
wgpu() {
    cargo run --release --quiet --manifest-path benches/wgpu/Cargo.toml -- --device "$device" "$@"
}

part "Devices" "$forebay" devices

# PyTorch's first card: where there are several, CUDA_VISIBLE_DEVICES makes it the one that Vulkan takes.
has_card=false
if card=$(python3 -c 'import torch; print(torch.cuda.get_device_name())' 2>/dev/null); then
    has_card=true
    echo "PyTorch's card: $card"
fi
if is_gpu; then
    steps=${FOREBAY_GPU_STEPS:-10} wgpu_words=()
    model=$work/brain/unet3d.onnx data=$work/brain sizes='192 224 192'
    if [ -z "${FOREBAY_GPU_MODEL:-}" ] && ! python3 benches/full_unet.py "$work/brain"; then
        fail "cannot make the U-Net at full size; the one at 96 x 112 x 96 is used instead"
        model=examples/brain/unet3d.onnx data=examples/brain sizes='96 112 96'
    fi
else
    steps=${FOREBAY_GPU_STEPS:-2} wgpu_words=(--rounds 1 digits-cnn)
    model=testdata/golden/unet3d/model.onnx data=testdata/golden/unet3d/inputs.npz sizes='48 48 48'
    echo "(no GPU here: everything runs at small sizes, and the times mean nothing)"
    if $has_card && [ "$device" = vulkan ]; then
        fail "PyTorch finds a card that Vulkan does not: its Vulkan driver is missing"
    fi
    has_card=false
fi
model=${FOREBAY_GPU_MODEL:-$model} data=${FOREBAY_GPU_DATA:-$data} sizes=${FOREBAY_GPU_SIZES:-$sizes}

part "Suites of the device, on this machine's first Vulkan device" suites -p forebay-vulkan
part "Suite of the product, on the same device" suites --workspace --test vulkan # of which there is one; the workspace is built already

part "Products and convolutions" kernels
if $has_card; then
    part "The same, as a share of what PyTorch reaches on the same card" kernels_peer
fi

name="Training the U-Net at ${sizes// / x }"
part "$name in core, within a quarter and within a tenth of its memory" train
if $has_card; then
    part "$name with PyTorch" train_peer
else
    printf '\n(no PyTorch with a card: nothing to compare with)\n'
fi

part "Training steps beside wgpu running the same dispatches" wgpu "${wgpu_words[@]}"

echo
if [ ${#failed[@]} -gt 0 ]; then
    printf 'FAILED: %s\n' "${failed[@]}"
    exit 1
fi
echo "Everything ran."
