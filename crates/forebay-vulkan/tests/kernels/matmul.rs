//! Matrix products.

use forebay_base::kernel::Activation;
use forebay_base::{DataType, Kernel};

use crate::compare::{compare, packed, strided, Random};

fn kernel(random: &mut Random, summand: bool) -> Kernel {
    Kernel::MatMul {
        transpose_a: random.below(2) == 1,
        transpose_b: random.below(2) == 1,
        alpha: if random.below(2) == 1 { 1.0 } else { -0.75 },
        beta: if summand { 0.5 } else { 0.0 },
        activation: if random.below(2) == 1 { Activation::Relu } else { Activation::None },
    }
}

/// Sums of k terms up to 4 in another order than the host's differ by a few units in the last place of their partial sums.
fn tolerance(k: u64) -> f64 {
    1e-6 * (k as f64).sqrt()
}

/// Compares one product with sizes and a summand of a random kind.
fn check_product(seed: u64, [m, n, k]: [u64; 3]) {
    let mut random = Random::new(seed);
    let summand = random.below(4);
    let kernel = kernel(&mut random, summand > 0);
    let Kernel::MatMul { transpose_a, transpose_b, .. } = kernel else { unreachable!() };
    // Batches that broadcast against each other, from none to two dimensions.
    let outer: Vec<u64> = (0..random.below(3)).map(|_| 1 + random.below(3)).collect();
    let mut operand = |rows: u64, columns: u64, transpose: bool| {
        let missing = random.below(outer.len() as u64 + 1) as usize;
        let own = outer[missing..].iter().map(|&size| if random.below(3) == 0 { 1 } else { size });
        let matrix = if transpose { [columns, rows] } else { [rows, columns] };
        let desc = packed(DataType::Float32, &own.chain(matrix).collect::<Vec<_>>());
        random.tensor(&desc)
    };
    let mut reads = vec![operand(m, k, transpose_a), operand(k, n, transpose_b)];
    let sizes = [&outer[..], &[m, n]].concat();
    let mut strides = vec![0; sizes.len()];
    let rank = sizes.len();
    let c = match summand {
        0 => None,
        1 => Some(packed(DataType::Float32, &sizes)),
        2 => {
            strides[rank - 1] = 1;
            Some(strided(DataType::Float32, &sizes, &strides))
        }
        _ => {
            strides[rank - 2] = 1;
            Some(strided(DataType::Float32, &sizes, &strides))
        }
    };
    reads.extend(c.map(|desc| random.tensor(&desc)));
    // The result has all batches, also those in which both operands broadcast.
    compare(seed, &kernel, &reads, &[packed(DataType::Float32, &sizes)], tolerance(k));
}

#[test]
fn random_products_agree_with_the_host() {
    for seed in 0..40 {
        let mut random = Random::new(1000 + seed);
        check_product(seed, [1 + random.below(40), 1 + random.below(40), 1 + random.below(70)]);
    }
}

#[test]
fn products_at_the_lines_of_tiles_agree_with_the_host() {
    let sizes = [[64, 64, 16], [65, 63, 17], [128, 128, 32], [129, 127, 33], [1, 300, 70], [300, 1, 70], [100, 130, 5]];
    for (seed, sizes) in (100..).zip(sizes) {
        check_product(seed, sizes);
    }
}
