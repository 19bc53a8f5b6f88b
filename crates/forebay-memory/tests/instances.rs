//! Whole instances: MiniMalloc's, and traces like those of training a U-Net.

use std::ops::Range;
use std::time::Instant;

use forebay_base::ByteRange;
use forebay_memory::{Effort, Item, Piece, Placement, load_bound_bytes, place, verify};
use forebay_testing::Random;

fn plain(time: Range<u32>, size_bytes: u64, alignment_bytes: u64) -> Item {
    Item::new(alignment_bytes, vec![Piece { time, bytes: ByteRange::new(0, size_bytes) }])
}

/// Places, verifies, and says how close to the load bound it came.
fn placed(name: &str, items: &[Item], capacity_bytes: Option<u64>, effort: Effort) -> Placement {
    let started = Instant::now();
    let placement = place(items, capacity_bytes, effort).unwrap_or_else(|error| panic!("{name}: {error}"));
    let spent = started.elapsed();
    assert_eq!(verify(items, &placement), Ok(()), "{name}");
    let load = load_bound_bytes(items);
    let ratio = placement.height_bytes as f64 / load as f64;
    println!("{name}: {} items, height {} = {ratio:.4} load, {spent:?}", items.len(), placement.height_bytes);
    placement
}

/// One of MiniMalloc's instances: lines of `id,lower,upper,size`.
fn minimalloc(text: &str) -> Vec<Item> {
    let item = |line: &str| {
        let numbers: Vec<u64> = line.split(',').map(|number| number.parse().unwrap()).collect();
        plain(numbers[1] as u32..numbers[2] as u32, numbers[3], 1)
    };
    text.lines().skip(1).map(item).collect()
}

#[test]
fn minimalloc_instances_are_placed_within_their_capacity() {
    let capacity_bytes = 1_048_576;
    let instances = [
        ("A", include_str!("data/A.1048576.csv")),
        ("C", include_str!("data/C.1048576.csv")),
        ("E", include_str!("data/E.1048576.csv")),
        ("K", include_str!("data/K.1048576.csv")),
    ];
    for (name, text) in instances {
        let items = minimalloc(text);
        let height_bytes = placed(name, &items, Some(capacity_bytes), Effort::THOROUGH).height_bytes;
        assert!(height_bytes <= capacity_bytes, "{name}: {height_bytes}");
    }
}

/// A rectangle of time and memory, cut again and again from edge to edge: the pieces fit without any waste.
fn cut_rectangle(random: &mut Random, count: usize, duration: u32, size_bytes: u64) -> Vec<Item> {
    let mut pieces = vec![(0..duration, size_bytes)];
    while pieces.len() < count {
        let index = random.below(pieces.len() as u64) as usize;
        let (time, bytes) = pieces[index].clone();
        let (length, by_time) = (time.end - time.start, random.below(2) == 0);
        if by_time && length > 1 {
            let cut = time.start + 1 + random.below(u64::from(length - 1)) as u32;
            pieces[index] = (time.start..cut, bytes);
            pieces.push((cut..time.end, bytes));
        } else if !by_time && bytes > 1 {
            let cut = 1 + random.below(bytes - 1);
            pieces[index] = (time.clone(), cut);
            pieces.push((time, bytes - cut));
        }
    }
    pieces.into_iter().map(|(time, bytes)| plain(time, bytes, 1)).collect()
}

#[test]
fn pieces_of_a_rectangle_are_placed_without_waste() {
    for seed in 1..=8u64 {
        let count = 50 + 20 * seed as usize;
        let size_bytes = 1 << 24;
        let mut items = cut_rectangle(&mut Random::new(seed), count, 1000, size_bytes);
        items.sort_by_key(|item| item.size_bytes() * 7919 % 1009);
        assert_eq!(load_bound_bytes(&items), size_bytes, "seed {seed}");
        placed(&format!("rectangle of {count} pieces"), &items, Some(size_bytes), Effort::THOROUGH);
    }
}

/// Training a U-Net: parameters all the time, activations from their layer to its gradient, gradients and workspace in
/// between, skips across levels. With `swapped`, large early activations leave the device in the middle.
fn unet(levels: u32, layers: u32, swapped: bool) -> Vec<Item> {
    let total = 2 * levels * layers;
    let steps = 3 * total;
    let mut items = Vec::new();
    for layer in 0..total {
        let depth = (layer / layers).min(2 * levels - 1 - layer / layers);
        let channels = 16u64 << depth;
        let bytes = (channels * (1 << 20)) >> (3 * depth).min(14);
        let weights = channels * channels * 27 * 4;
        let (forward, backward) = (layer, steps - 1 - 2 * layer);
        items.push(plain(0..steps, weights, 256));
        let head = bytes / 5;
        let pieces = if swapped && layer < total / 4 {
            let resident =
                [(forward..forward + 3, bytes), (forward + 3..backward - 3, head), (backward - 3..backward + 1, bytes)];
            resident.into_iter().map(|(time, end)| Piece { time, bytes: ByteRange::new(0, end) }).collect()
        } else {
            vec![Piece { time: forward..backward + 1, bytes: ByteRange::new(0, bytes) }]
        };
        items.push(Item::new(256, pieces));
        // The activation before its normalization, the gradient on its way down, the weights' gradient and workspace.
        items.push(plain(forward..forward + 2, bytes, 256));
        items.push(plain(backward - 1..backward + 2, bytes, 256));
        items.push(plain(backward..steps, weights, 256));
        items.push(plain(forward..forward + 1, 3 * bytes / 4, 256));
        items.push(plain(backward..backward + 1, bytes / 2 + weights, 256));
    }
    items
}

#[test]
fn training_traces_are_placed_within_two_percent_of_the_load() {
    for (levels, layers, swapped) in [(4, 4, false), (5, 8, false), (4, 4, true), (5, 8, true)] {
        let items = unet(levels, layers, swapped);
        let name = format!("U-Net of {levels} levels of {layers} layers{}", if swapped { ", swapped" } else { "" });
        let height_bytes = placed(&name, &items, None, Effort::default()).height_bytes;
        assert!(height_bytes * 100 <= load_bound_bytes(&items) * 102, "{name}");
    }
}

#[test]
fn three_thousand_items_are_placed_at_once() {
    let mut random = Random::new(1);
    let items: Vec<Item> = (0..3000)
        .map(|_| {
            let start = random.below(3000) as u32;
            plain(start..start + 1 + random.below(1500) as u32, 256 << random.below(12), 256)
        })
        .collect();
    placed("random", &items, None, Effort { passes: 0, nodes: 0 });
}

#[test]
fn very_many_items_are_placed_before_anyone_loses_patience() {
    let count = 100_000;
    let mut random = Random::new(2);
    let patient = |name: &str, items: &[Item]| {
        let started = Instant::now();
        let placement = placed(name, items, None, Effort::THOROUGH);
        assert!(started.elapsed().as_secs() < 60, "{name}: {:?}", started.elapsed());
        placement
    };
    // Few of them are there at a time.
    let chain: Vec<Item> = (0..count).map(|start| plain(start..start + 2, 64, 1)).collect();
    assert_eq!(patient("chain", &chain).height_bytes, 128);
    let sizes: Vec<Item> = (0..count).map(|start| plain(start..start + 2, 64 * (1 + random.below(999)), 1)).collect();
    patient("chain of many sizes", &sizes);
    // All of them are.
    let nested: Vec<Item> = (0..count).map(|start| plain(start..2 * count - start, 64, 64)).collect();
    assert_eq!(patient("one within the other", &nested).height_bytes, 64 * u64::from(count));
    // And where nothing lower exists, though the bytes are fewer: each takes a whole unit.
    let small: Vec<Item> = (0..6000).map(|_| plain(0..1, 16, 64)).collect();
    assert_eq!(patient("smaller than their alignment", &small).height_bytes, 64 * 5999 + 16);
}
