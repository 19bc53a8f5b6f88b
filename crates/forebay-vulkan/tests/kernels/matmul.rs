//! Matrix products.

use forebay_base::kernel::{Activation, BinaryOp, PRODUCT_TERMS, ProductPart};
use forebay_base::{DataType, Kernel, sum_tree};

use half::{bf16, f16};

use crate::compare::{self, Random, RandomTensors, Tensor, compare, element, packed, rounding, strided, vulkan};
use crate::elementwise::applied;
use crate::sums::{apply, same};

const TYPES: [DataType; 3] = [DataType::Float32, DataType::Float16, DataType::BFloat16];

fn kernel(random: &mut Random, summand: bool) -> Kernel {
    Kernel::MatMul {
        transpose_a: random.below(2) == 1,
        transpose_b: random.below(2) == 1,
        alpha: if random.below(2) == 1 { 1.0 } else { -0.75 },
        beta: if summand { 0.5 } else { 0.0 },
        activation: applied(random),
        part: ProductPart::Whole,
    }
}

/// Sums of k terms of at most 4 in a different order from the host's differ by a few units in the last place of their partial sums.
fn tolerance(k: u64) -> f64 {
    1e-6 * (k as f64).sqrt()
}

/// Compares one product of these sizes, with a random kind of summand.
fn check_product(seed: u64, data_type: DataType, [m, n, k]: [u64; 3]) {
    let mut random = Random::new(seed);
    let summand = random.below(4);
    let kernel = kernel(&mut random, summand > 0);
    let Kernel::MatMul { transpose_a, transpose_b, .. } = kernel else { unreachable!() };
    // Batches of zero to two dimensions that broadcast against each other.
    let outer: Vec<u64> = (0..random.below(3)).map(|_| 1 + random.below(3)).collect();
    let mut operand = |rows: u64, columns: u64, transpose: bool| {
        let missing = random.below(outer.len() as u64 + 1) as usize;
        let own = outer[missing..].iter().map(|&size| if random.below(3) == 0 { 1 } else { size });
        let matrix = if transpose { [columns, rows] } else { [rows, columns] };
        let desc = packed(data_type, &own.chain(matrix).collect::<Vec<_>>());
        random.tensor(&desc)
    };
    let mut reads = vec![operand(m, k, transpose_a), operand(k, n, transpose_b)];
    let sizes = [&outer[..], &[m, n]].concat();
    let mut strides = vec![0; sizes.len()];
    let rank = sizes.len();
    let c = match summand {
        0 => None,
        1 => Some(packed(data_type, &sizes)),
        2 => {
            strides[rank - 1] = 1;
            Some(strided(data_type, &sizes, &strides))
        }
        _ => {
            strides[rank - 2] = 1;
            Some(strided(data_type, &sizes, &strides))
        }
    };
    reads.extend(c.map(|desc| random.tensor(&desc)));
    // The result has all batches, including those in which both operands broadcast.
    compare(seed, &kernel, &reads, &[packed(data_type, &sizes)], tolerance(k) + rounding(data_type));
}

#[test]
fn random_products_agree_with_the_host() {
    for seed in 0..60 {
        let mut random = Random::new(1000 + seed);
        let data_type = TYPES[seed as usize % 3];
        check_product(seed, data_type, [1 + random.below(40), 1 + random.below(40), 1 + random.below(70)]);
    }
}

#[test]
fn products_at_the_lines_of_tiles_agree_with_the_host() {
    let sizes = [[64, 64, 16], [65, 63, 17], [128, 128, 32], [129, 127, 33], [1, 300, 70], [300, 1, 70], [100, 130, 5]];
    for (seed, sizes) in (100..).zip(sizes) {
        check_product(seed, DataType::Float32, sizes);
    }
}

/// Enough tiles of 128 rows and columns for the device to use them, with and without rows that begin at multiples of 16 bytes. Drivers
/// that run on a processor take many seconds to compile each of these.
#[test]
fn products_of_many_tiles_agree_with_the_host() {
    let cases = [
        (DataType::Float32, [136, 144, 264], (false, false)),
        (DataType::Float32, [136, 144, 264], (true, true)),
        (DataType::Float32, [135, 144, 263], (false, true)),
        (DataType::BFloat16, [136, 144, 264], (false, true)),
    ];
    for (seed, (data_type, [m, n, k], (transpose_a, transpose_b))) in (180..).zip(cases) {
        let mut random = Random::new(seed);
        let mut operand = |rows: u64, columns: u64, transpose: bool| {
            let sizes = if transpose { [33, columns, rows] } else { [33, rows, columns] };
            random.tensor(&packed(data_type, &sizes))
        };
        let reads = [operand(m, k, transpose_a), operand(k, n, transpose_b)];
        let kernel = Kernel::product(transpose_a, transpose_b);
        compare(seed, &kernel, &reads, &[packed(data_type, &[33, m, n])], tolerance(k) + rounding(data_type));
    }
}

#[test]
fn products_of_16_bits_at_the_lines_of_tiles_agree_with_the_host() {
    let sizes = [[65, 63, 17], [128, 128, 32], [1, 300, 70], [300, 1, 70], [100, 130, 5]];
    for (seed, sizes) in (150..).zip(sizes) {
        check_product(seed, TYPES[1 + seed as usize % 2], sizes);
    }
}

/// Some indices of an axis of a packed matrix, as a matrix whose rows can have gaps between them.
fn slice((desc, values): &Tensor, axis: usize, first: u64, end: u64) -> Tensor {
    let strides = desc.effective_strides();
    let mut sizes = desc.sizes().to_vec();
    sizes[axis] = end - first;
    let part = strided(desc.data_type(), &sizes, &strides);
    let start = first * strides[axis];
    let span = 1 + sizes.iter().zip(&strides).map(|(size, stride)| (size - 1) * stride).sum::<u64>();
    (part, values[start as usize..(start + span) as usize].to_vec())
}

/// Rows, columns and terms that are computed in parts, cut at the lines that forebay-base defines, have the bits of the whole, and parts
/// agree with the host's. The results of 16-bit factors are float32; those in columns also have 16 bits.
#[test]
fn products_in_parts_have_the_bits_of_the_whole() {
    let Some(machine) = vulkan() else { return };
    for seed in 0..8 {
        let mut random = Random::new(2000 + seed);
        let (transpose_a, transpose_b) = (seed % 2 == 1, seed / 2 % 2 == 1);
        let [m, n] = [200, 300].map(|least| least + random.below(70));
        // Up to five blocks.
        let k = [300, 300, 300, 300, 600, 300, 1100, 600][seed as usize] + random.below(70);
        let data_type = TYPES[seed as usize % 3];
        let matrix = |rows: u64, columns: u64, transpose: bool| {
            packed(data_type, &if transpose { [columns, rows] } else { [rows, columns] })
        };
        let a = random.tensor(&matrix(m, k, transpose_a));
        let b = random.tensor(&matrix(k, n, transpose_b));
        let desc = packed(DataType::Float32, &[m, n]);
        let kernel = |activation: Activation, part: ProductPart| Kernel::MatMul {
            transpose_a,
            transpose_b,
            alpha: 1.0,
            beta: 0.0,
            activation,
            part,
        };
        let one = std::slice::from_ref(&desc);
        let (none, relu) = (Activation::None, Activation::Relu);
        let whole = apply(machine, &kernel(relu, ProductPart::Whole), &[a.clone(), b.clone()], one).remove(0);
        let (axis_of_terms, b_rows) = (usize::from(!transpose_a), usize::from(transpose_b));

        let rows = [slice(&a, 1 - axis_of_terms, 0, 128), slice(&a, 1 - axis_of_terms, 128, m)];
        let whole_part = kernel(relu, ProductPart::Whole);
        let of_rows = |part: Tensor| {
            let desc = packed(DataType::Float32, &[part.0.sizes()[1 - axis_of_terms], n]);
            apply(machine, &whole_part, &[part, b.clone()], &[desc]).remove(0).1
        };
        same("rows", seed, &rows.into_iter().flat_map(of_rows).collect::<Vec<_>>(), &whole.1);

        let terms = |first, end| [slice(&a, axis_of_terms, first, end), slice(&b, b_rows, first, end)].to_vec();
        // The halves of the tree.
        let middle = sum_tree::middle(&(0..k.div_ceil(PRODUCT_TERMS))).unwrap() * PRODUCT_TERMS;
        let halves = [(0, middle), (middle, k)]
            .map(|(first, end)| apply(machine, &kernel(none, ProductPart::Whole), &terms(first, end), one).remove(0));
        let add = Kernel::Binary { op: BinaryOp::Add, activation: relu };
        let both = apply(machine, &add, &halves, one).remove(0);
        same("terms", seed, &both.1, &whole.1);
        compare(seed, &kernel(relu, ProductPart::Whole), &[a.clone(), b.clone()], one, tolerance(k));

        let columns = |first, end| vec![a.clone(), slice(&b, 1 - b_rows, first, end)];
        let results = if data_type == DataType::Float32 { vec![data_type] } else { vec![DataType::Float32, data_type] };
        for desc in results.into_iter().map(|result| packed(result, &[m, n])) {
            let (one, tolerance) = (std::slice::from_ref(&desc), tolerance(k) + rounding(desc.data_type()));
            let factors = [a.clone(), b.clone()];
            let whole = apply(machine, &kernel(relu, ProductPart::Whole), &factors, one).remove(0);
            let first = kernel(relu, ProductPart::Columns { first: 0 });
            let begun = apply(machine, &first, &columns(0, 256), one).remove(0);
            let reads = [columns(256, n), vec![begun]].concat();
            let last = kernel(relu, ProductPart::Columns { first: 256 });
            for machine in [machine, compare::host()] {
                let bytes = compare::run(machine, &last, &reads, one, &[(0, 2)]).unwrap().remove(0);
                let values: Vec<f64> = (0..(m * n) as usize).map(|at| element(&desc, &bytes, at)).collect();
                let differs = values.iter().zip(&whole.1).any(|(part, whole)| (part - whole).abs() > tolerance * 30.0);
                assert!(!differs, "columns, seed {seed}");
                if std::ptr::eq(machine, vulkan().unwrap()) {
                    // A tensor ends with a whole word.
                    same("columns", seed, &values, &whole.1[..values.len()]);
                }
            }
        }
    }
}

/// Products of two 16-bit numbers are exact in float32, so only how numbers are widened and rounded is left to compare.
#[test]
fn numbers_of_16_bits_are_widened_and_rounded_as_on_the_host() {
    let kernel = Kernel::product(false, false);
    let mut random = Random::new(7);
    // All numbers, and some whose products are rounded, overflow, or become denormal.
    let all = |value: fn(u16) -> f64| (0..=u16::MAX).map(value).collect::<Vec<_>>();
    let half = all(|bits| f16::from_bits(bits).to_f64());
    let factors = (0..6).map(|_| half[random.below(0x7c00) as usize]).chain([1.0]).collect();
    check_factors(&kernel, DataType::Float16, half, factors);
    // Devices can treat denormal float32 numbers as 0, and bfloat16 has the same range.
    let mut brain = all(|bits| bf16::from_bits(bits).to_f64());
    brain.retain(|&value| value == 0.0 || value.is_nan() || value.abs() > 1e-37);
    let factors = (0..6).map(|_| 1.0 + random.below(128) as f64 / 128.0).collect();
    check_factors(&kernel, DataType::BFloat16, brain, factors);
}

fn check_factors(kernel: &Kernel, data_type: DataType, rows: Vec<f64>, columns: Vec<f64>) {
    let sizes = [rows.len() as u64, columns.len() as u64];
    let reads = [(packed(data_type, &[sizes[0], 1]), rows), (packed(data_type, &[1, sizes[1]]), columns)];
    compare(0, kernel, &reads, &[packed(data_type, &sizes)], 0.0);
}
