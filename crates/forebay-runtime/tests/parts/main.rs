//! Launches in parts compute the same bits as whole launches: every kernel that can be cut, with random windows and sizes. The checker
//! objects to each part that is slightly wrong.

mod models;
mod mutation;
mod programs;

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::{DataType, TensorDesc};
use forebay_device::Device;
use forebay_device::host::{HostDevice, HostOptions};
use forebay_model::program::{NamedOperand, Program, ProgramLaunch};
use forebay_model::training::Optimizer;
use forebay_plan::cost::estimate;
use forebay_plan::{PlanOptions, plan};
use forebay_runtime::Executor;
use forebay_testing::Random;

use mutation::{Tried, mutate};
use programs::{attention, product, program, sequence};

fn bytes_of_floats(random: &mut Random, count: u64) -> Vec<u8> {
    (0..count).flat_map(|_| random.float().to_le_bytes()).collect()
}

fn outputs(program: &Program, device: &Arc<HostDevice>, budget: Option<u64>, seed: u64) -> (Vec<Vec<u8>>, usize, u64) {
    let options = PlanOptions { device_budget_bytes: budget, check: true, ..PlanOptions::default() };
    let planned = plan(program, &options, device.limits(), &estimate(program, device.limits())).unwrap();
    let (cut, minimum) = (planned.statistics.launches_cut, planned.statistics.minimum_budget_bytes);
    let mut executor = Executor::new(device.clone(), planned, &BTreeMap::new()).unwrap();
    let mut random = Random::new(seed + 77);
    for named in &program.inputs {
        let count = named.operand.desc.element_count();
        let bytes = match named.operand.desc.data_type() {
            DataType::Int64 => (0..count).flat_map(|_| (random.below(8) as i64).to_le_bytes()).collect(),
            _ => bytes_of_floats(&mut random, count),
        };
        executor.write_input(&named.name, &bytes).unwrap();
    }
    executor.run().unwrap();
    let read = |named: &NamedOperand| executor.read_output(&named.name).unwrap().bytes().to_vec();
    (program.outputs.iter().map(read).collect(), cut, minimum)
}

/// Runs programs whole and within the smallest budget; returns how many launches were cut.
fn cut_launches(seeds: std::ops::Range<u64>, program: impl Fn(&mut Random, u64) -> Program) -> usize {
    let options = HostOptions { threads: Some(2), tile_size_bytes: 4096, ..HostOptions::default() };
    let device = Arc::new(HostDevice::new(&options).unwrap());
    let mut cut = 0;
    for seed in seeds {
        let mut program = program(&mut Random::new(seed), seed);
        let workspace = |launch: &ProgramLaunch, reads: &[TensorDesc], writes: &[TensorDesc]| {
            device.workspace_bytes(&launch.kernel, reads, writes)
        };
        program.set_workspace(workspace).unwrap();
        let (whole, none, minimum) = outputs(&program, &device, None, seed);
        assert_eq!(none, 0);
        let (parts, launches, _) = outputs(&program, &device, Some(minimum), seed);
        assert_eq!(parts, whole, "seed {seed}");
        cut += launches;
    }
    cut
}

#[test]
fn parts_give_the_bits_of_the_whole() {
    let cut = cut_launches(1..16, |random, seed| program(random, if seed % 3 == 0 { 5 } else { 1 }));
    assert!(cut > 50, "only {cut} launches were cut");
}

#[test]
fn parts_of_products_give_the_bits_of_the_whole() {
    let cut = cut_launches(1..80, |random, _| product(random));
    assert!(cut > 30, "only {cut} products were cut");
}

#[test]
fn parts_of_sequences_give_the_bits_of_the_whole() {
    let cut = cut_launches(1..15, |random, seed| sequence(random, [1, 2, 5][seed as usize % 3]));
    assert!(cut > 50, "only {cut} launches were cut");
}

#[test]
fn parts_of_attention_give_the_bits_of_the_whole() {
    let cut = cut_launches(1..60, |random, _| attention(random));
    assert!(cut > 80, "only {cut} launches were cut");
}

/// Prints what has been tried, and checks that it was enough.
fn tried_enough(tried: &Tried, changes: usize) {
    println!("{tried:?}, each change found out");
    assert!(tried.changes > changes, "{tried:?}");
}

#[test]
fn the_checker_objects_to_each_wrong_part_of_images() {
    let mut tried = Tried::default();
    for seed in 1..12 {
        let program = program(&mut Random::new(seed), if seed % 3 == 0 { 5 } else { 1 });
        mutate(&format!("images {seed}"), &program, &mut tried);
    }
    tried_enough(&tried, 5000);
}

#[test]
fn the_checker_objects_to_each_wrong_part_of_products() {
    let mut tried = Tried::default();
    for seed in 1..60 {
        mutate(&format!("product {seed}"), &product(&mut Random::new(seed)), &mut tried);
    }
    tried_enough(&tried, 1000);
}

#[test]
fn the_checker_objects_to_each_wrong_part_of_sequences() {
    let mut tried = Tried::default();
    for seed in 1..12 {
        let program = sequence(&mut Random::new(seed), [1, 2, 5][seed as usize % 3]);
        mutate(&format!("sequences {seed}"), &program, &mut tried);
    }
    tried_enough(&tried, 3000);
}

#[test]
fn the_checker_objects_to_each_wrong_part_of_attention() {
    let mut tried = Tried::default();
    for seed in 1..40 {
        mutate(&format!("attention {seed}"), &attention(&mut Random::new(seed)), &mut tried);
    }
    tried_enough(&tried, 1000);
}

#[test]
fn the_checker_objects_to_each_wrong_part_of_the_test_models() {
    let mut tried = Tried::default();
    for name in ["digits-cnn", "resnet20", "tiny-gpt", "unet3d"] {
        mutate(name, &models::training(name), &mut tried);
    }
    tried_enough(&tried, 5000);
}

#[test]
fn the_checker_objects_to_each_wrong_part_of_updates_in_blocks() {
    let mut tried = Tried::default();
    // The last quantization block of a matrix of 77 x 110 is only partly filled.
    for (name, least) in [("resnet20", 12), ("tiny-gpt", 4), ("77 x 110", 1)] {
        let optimizer = Optimizer::adamw_8_bit(1e-3);
        let program = match name {
            "77 x 110" => models::product(77, 110, optimizer),
            _ => models::training_by(name, optimizer),
        };
        let updates = program.launches[program.update_start..].iter();
        let launches: Vec<_> = updates.filter(|launch| launch.kernel.facts().is_in_blocks()).cloned().collect();
        assert!(launches.len() >= least, "{name}");
        mutate(name, &Program { launches, update_start: 0, ..program }, &mut tried);
    }
    tried_enough(&tried, 1000);
}
