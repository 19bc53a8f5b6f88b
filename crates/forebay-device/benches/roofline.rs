//! Convolutions of known networks and the roofline of the processor: for each, in the forward direction and for both gradients, the time on
//! one thread and the minimum time that its multiply-adds or its bytes allow.
//!
//! `cargo bench -p forebay-device --bench roofline [-- NETWORK]` measures the processor first: multiply-adds in registers, and copies of
//! several sizes, so that operands that fit a cache are compared with copies within it. Layers of a network with the same sizes share a
//! row.

mod launching;
mod layers;

use std::error::Error;

use forebay_bench_record::{Column, Record, Table};
use forebay_device::host::peak;

use launching::Machine;
use layers::Layer;

/// The convolution and its two gradients, in the order of [`Layer::directions`].
const DIRECTIONS: [&str; 3] = ["forwards", "by x", "by w"];

/// The convolutions of a network for one image, each with its number of occurrences.
struct Network {
    layers: Vec<(Layer, u64)>,
    /// Channels and spatial sizes that the next layer reads.
    channels: u64,
    sizes: Vec<u64>,
}

impl Network {
    fn of(channels: u64, sizes: &[u64]) -> Network {
        Network { channels, sizes: sizes.to_vec(), layers: Vec::new() }
    }

    /// Adds a convolution, padded so that a stride of 1 keeps the sizes.
    fn convolution(&mut self, channels: u64, kernel: u64, stride: u64, groups: u64) {
        let rank = self.sizes.len();
        let layer = Layer {
            x: [&[1, self.channels], &self.sizes[..]].concat(),
            w: [&[channels, self.channels / groups][..], &vec![kernel; rank]].concat(),
            stride,
            pad: (kernel - 1) / 2,
        };
        self.channels = channels;
        self.sizes = layer.y()[2..].to_vec();
        self.add(layer);
    }

    fn add(&mut self, layer: Layer) {
        match self.layers.iter_mut().find(|(known, _)| *known == layer) {
            Some((_, count)) => *count += 1,
            None => self.layers.push((layer, 1)),
        }
    }

    fn pool(&mut self) {
        self.sizes.iter_mut().for_each(|size| *size = size.div_ceil(2));
    }

    /// He et al., "Deep Residual Learning", table 1; strides are those of the window, as in torchvision.
    fn resnet_50() -> Network {
        let mut network = Network::of(3, &[224, 224]);
        network.convolution(64, 7, 2, 1);
        network.pool();
        for (stage, (channels, blocks)) in [(64, 3), (128, 4), (256, 6), (512, 3)].into_iter().enumerate() {
            for block in 0..blocks {
                let stride = if block == 0 && stage > 0 { 2 } else { 1 };
                let (before, sizes) = (network.channels, network.sizes.clone());
                network.convolution(channels, 1, 1, 1);
                network.convolution(channels, 3, stride, 1);
                network.convolution(4 * channels, 1, 1, 1);
                if block == 0 {
                    (network.channels, network.sizes) = (before, sizes);
                    network.convolution(4 * channels, 1, stride, 1);
                }
            }
        }
        network
    }

    /// A depthwise convolution between two 1 x 1 convolutions, the first of which is omitted if it would add no channels.
    fn inverted(&mut self, expansion: u64, kernel: u64, channels: u64, stride: u64) {
        let inner = expansion * self.channels;
        if expansion > 1 {
            self.convolution(inner, 1, 1, 1);
        }
        self.convolution(inner, kernel, stride, inner);
        self.convolution(channels, 1, 1, 1);
    }

    /// Groups of blocks between a stem and a head: each has an expansion, a window, channels, a number of blocks and the first one's
    /// stride.
    fn of_inverted_blocks(blocks: &[(u64, u64, u64, usize, u64)]) -> Network {
        let mut network = Network::of(3, &[224, 224]);
        network.convolution(32, 3, 2, 1);
        for &(expansion, kernel, channels, count, stride) in blocks {
            for number in 0..count {
                network.inverted(expansion, kernel, channels, if number == 0 { stride } else { 1 });
            }
        }
        network.convolution(1280, 1, 1, 1);
        network
    }

    /// Sandler et al., "MobileNetV2", table 2.
    fn mobilenet_v2() -> Network {
        Network::of_inverted_blocks(&[
            (1, 3, 16, 1, 1),
            (6, 3, 24, 2, 2),
            (6, 3, 32, 3, 2),
            (6, 3, 64, 4, 2),
            (6, 3, 96, 3, 1),
            (6, 3, 160, 3, 2),
            (6, 3, 320, 1, 1),
        ])
    }

    /// Tan and Le, "EfficientNet", table 1, without the products of its squeeze and excitation.
    fn efficientnet_b0() -> Network {
        Network::of_inverted_blocks(&[
            (1, 3, 16, 1, 1),
            (6, 3, 24, 2, 2),
            (6, 5, 40, 2, 2),
            (6, 3, 80, 3, 2),
            (6, 5, 112, 3, 1),
            (6, 5, 192, 4, 2),
            (6, 3, 320, 1, 1),
        ])
    }

    /// A U-Net: two convolutions at each level, and transposed convolutions of size 2 between levels on the way up.
    fn u_net(sizes: &[u64], levels: &[u64], classes: u64) -> Network {
        let mut network = Network::of(1, sizes);
        for (level, &channels) in levels.iter().enumerate() {
            if level > 0 {
                network.pool();
            }
            network.convolution(channels, 3, 1, 1);
            network.convolution(channels, 3, 1, 1);
        }
        for pair in levels.windows(2).rev() {
            let [channels, below] = *pair else { continue };
            let rank = network.sizes.len();
            network.sizes.iter_mut().for_each(|size| *size *= 2);
            // Computed as the gradient of a convolution from the larger sizes to the smaller.
            network.add(Layer {
                x: [&[1, channels], &network.sizes[..]].concat(),
                w: [&[below, channels][..], &vec![2; rank]].concat(),
                stride: 2,
                pad: 0,
            });
            network.channels = 2 * channels;
            network.convolution(channels, 3, 1, 1);
            network.convolution(channels, 3, 1, 1);
        }
        network.convolution(classes, 1, 1, 1);
        network
    }
}

fn networks() -> [(&'static str, Network); 5] {
    [
        ("ResNet-50", Network::resnet_50()),
        ("MobileNet v2", Network::mobilenet_v2()),
        ("EfficientNet B0", Network::efficientnet_b0()),
        ("U-Net 2-D", Network::u_net(&[256, 256], &[32, 64, 128, 256], 2)),
        ("U-Net 3-D", Network::u_net(&[96, 112, 96], &[8, 16, 32, 64], 3)),
    ]
}

/// The peak performance of the processor on one thread.
struct Peaks {
    operations_per_second: f64,
    /// Bytes per second by size of the operands, ascending.
    copies: Vec<(u64, f64)>,
}

impl Peaks {
    fn measured() -> Peaks {
        let copies = (14..=28).map(|exponent| (1 << exponent, peak::copied_bytes_per_second(1 << exponent)));
        Peaks { operations_per_second: peak::operations_per_second(), copies: copies.collect() }
    }

    /// Returns the speed of copying this many bytes.
    fn copied_per_second(&self, bytes: u64) -> f64 {
        let larger = self.copies.iter().find(|(size, _)| *size >= bytes);
        larger.or(self.copies.last()).map_or(f64::INFINITY, |&(_, rate)| rate)
    }
}

fn by(sizes: &[u64]) -> String {
    sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ")
}

fn main() -> Result<(), Box<dyn Error>> {
    let given = forebay_bench_record::arguments()?;
    let filter = given.words.iter().find(|argument| !argument.starts_with('-')).cloned().unwrap_or_default();
    let machine = Machine::new(Some(1))?;
    let peaks = Peaks::measured();
    let mut processor = Table::new(
        "processor",
        [Column::text("what one thread does at most"), Column::number("rate", "G/s", 1).of("best")],
    );
    processor.print(["operations of float32".into(), (peaks.operations_per_second / 1e9).into()]);
    for (bytes, rate) in &peaks.copies {
        processor.print([format!("bytes of {} KiB, copied", bytes >> 10).into(), (rate / 1e9).into()]);
    }
    let mut layers = Table::new(
        "layers",
        [
            Column::text("network"),
            Column::text("x"),
            Column::text("w"),
            Column::count("stride"),
            Column::count("times"),
            Column::text("direction"),
            Column::number("time", "ms", 3).of("best"),
            Column::number("speed", "GFLOP/s", 0).of("best"),
            Column::text("limit"),
            Column::number("of it", "%", 0),
        ],
    );
    let mut whole = Table::new(
        "networks",
        [
            Column::text("network"),
            Column::text("direction"),
            Column::number("time", "ms", 1).of("best"),
            Column::number("least by its limits", "ms", 1),
            Column::number("of it", "%", 0),
            Column::count("layers"),
            Column::count("within 15 %"),
        ],
    );
    for (name, network) in networks().iter().filter(|(name, _)| name.contains(&filter)) {
        let mut sums = [(0.0, 0.0, 0u64, 0u64); DIRECTIONS.len()];
        for (layer, count) in &network.layers {
            let runs = layer.directions()?;
            for ((run, direction), sum) in runs.iter().zip(DIRECTIONS).zip(&mut sums) {
                let seconds = machine.time(run)?.as_secs_f64();
                let bytes = run.reads.iter().chain(&run.writes).map(|desc| desc.total_size_bytes()).sum();
                let computing = layer.operations() / peaks.operations_per_second;
                let copying = bytes as f64 / peaks.copied_per_second(bytes);
                let least = computing.max(copying);
                let times = *count as f64;
                *sum = (
                    sum.0 + times * seconds,
                    sum.1 + times * least,
                    sum.2 + 1,
                    sum.3 + u64::from(seconds <= 1.15 * least),
                );
                layers.print([
                    (*name).into(),
                    by(&layer.x[1..]).into(),
                    by(&layer.w).into(),
                    layer.stride.into(),
                    (*count).into(),
                    direction.into(),
                    (seconds * 1e3).into(),
                    (layer.operations() / seconds / 1e9).into(),
                    (if computing >= copying { "multiply-adds" } else { "bytes" }).into(),
                    (100.0 * least / seconds).into(),
                ]);
            }
        }
        for ((seconds, least, count, close), direction) in sums.into_iter().zip(DIRECTIONS) {
            let share = 100.0 * least / seconds;
            let times = [(seconds * 1e3).into(), (least * 1e3).into(), share.into()];
            whole.print(
                [[(*name).into(), direction.into()].to_vec(), times.to_vec(), vec![count.into(), close.into()]]
                    .concat(),
            );
        }
    }
    let what = "Convolutions and the roofline of the processor";
    let record = Record::new("roofline", what, "cargo bench -p forebay-device --bench roofline --", &given.words);
    record.with(processor).with(whole).with(layers).save(given.output.as_deref())?;
    Ok(())
}
