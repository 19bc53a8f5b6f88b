//! The kernels of the Vulkan device, each compared with the host's, for random shapes and values, in place where that is allowed, and
//! always twice, which must give the same bits.

mod attention;
mod compare;
mod convolution;
mod elementwise;
mod integer;
mod large;
mod layout;
mod local_response;
mod loss;
mod matmul;
mod movement;
mod normalization;
mod optimizer;
mod pooling;
mod recurrent;
mod reduce;
mod samples;
mod scan;
mod spatial;
mod sums;

use compare::{Random, RandomTensors, check, host, packed, strided};
use forebay_base::kernel::{Activation, BinaryOp};
use forebay_base::{DataType, Kernel};

const ADD: Kernel = Kernel::Binary { op: BinaryOp::Add, activation: Activation::None };

/// Tests how a comparison judges a device that computes something else, simulated by operands that differ by `error`.
fn host_against_itself(error: f64) {
    let mut random = Random::new(7);
    let desc = strided(DataType::Float32, &[3, 4], &[5, 1]);
    let (a, b) = (random.tensor(&desc), random.tensor(&desc));
    let mut other = b.clone();
    other.1[11] += error;
    let expected = compare::run(host(), &ADD, &[a.clone(), b], std::slice::from_ref(&desc), &[]).unwrap();
    let values = compare::run(host(), &ADD, &[a, other], std::slice::from_ref(&desc), &[]).unwrap();
    compare::agree(&ADD, 7, &[desc], &values, &expected, 1e-6);
}

#[test]
fn the_host_agrees_with_itself() {
    host_against_itself(0.0);
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let sizes = random.sizes(4, 9);
        let desc = packed(DataType::Float32, &sizes);
        check(host(), seed, &ADD, &[random.tensor(&desc), random.tensor(&desc)], &[desc], 0.0);
        let (rows, indices) = (packed(DataType::Float16, &[5, 3]), packed(DataType::Int64, &sizes));
        let reads = [random.tensor(&rows), random.integers(&indices, -5, 4)];
        let gathered = packed(DataType::Float16, &[sizes, vec![3]].concat());
        check(host(), seed, &Kernel::Gather { axis: 0 }, &reads, &[gathered], 0.0);
    }
}

#[test]
#[should_panic(expected = "output 0 of Binary differs at [2, 1]")]
fn a_difference_is_found() {
    host_against_itself(1e-3);
}
