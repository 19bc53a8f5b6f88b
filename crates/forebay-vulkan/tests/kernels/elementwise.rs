//! Elementwise kernels.

use forebay_base::kernel::{Activation, BinaryOp, UnaryOp};
use forebay_base::{DataType, Kernel, TensorDesc};

use crate::compare::{Random, RandomTensors, Tensor, compare, host, packed, run, vulkan};
use crate::layout::{ALL, read, written};

const REAL_OPS: [UnaryOp; 34] = [
    UnaryOp::Relu,
    UnaryOp::LeakyRelu { alpha: 0.1 },
    UnaryOp::Elu { alpha: 0.7 },
    UnaryOp::Clip { low: -0.5, high: 1.25 },
    UnaryOp::Affine { scale: -1.5, shift: 0.25 },
    UnaryOp::Sigmoid,
    UnaryOp::HardSigmoid { alpha: 0.3, beta: 0.5 },
    UnaryOp::Tanh,
    UnaryOp::Exp,
    UnaryOp::Log,
    UnaryOp::Sqrt,
    UnaryOp::Reciprocal,
    UnaryOp::Abs,
    UnaryOp::Sign,
    UnaryOp::Floor,
    UnaryOp::Ceil,
    UnaryOp::Erf,
    UnaryOp::Gelu,
    UnaryOp::TanhGelu,
    UnaryOp::Softplus,
    UnaryOp::Silu,
    UnaryOp::HardSwish,
    UnaryOp::Sin,
    UnaryOp::Cos,
    UnaryOp::Round,
    UnaryOp::Tan,
    UnaryOp::Asin,
    UnaryOp::Acos,
    UnaryOp::Atan,
    UnaryOp::Sinh,
    UnaryOp::Cosh,
    UnaryOp::Asinh,
    UnaryOp::Acosh,
    UnaryOp::Atanh,
];

/// Functions that the device computes in double precision.
const DOUBLE_OPS: [UnaryOp; 13] = [
    UnaryOp::Relu,
    UnaryOp::LeakyRelu { alpha: 0.1 },
    UnaryOp::Clip { low: -0.5, high: 1.25 },
    UnaryOp::Affine { scale: -1.5, shift: 0.25 },
    UnaryOp::HardSigmoid { alpha: 0.3, beta: 0.5 },
    UnaryOp::Sqrt,
    UnaryOp::Reciprocal,
    UnaryOp::Abs,
    UnaryOp::Sign,
    UnaryOp::Floor,
    UnaryOp::Ceil,
    UnaryOp::Round,
    UnaryOp::HardSwish,
];

const BINARY_OPS: [BinaryOp; 15] = [
    BinaryOp::Add,
    BinaryOp::Subtract,
    BinaryOp::Multiply,
    BinaryOp::Divide,
    BinaryOp::Power,
    BinaryOp::Minimum,
    BinaryOp::Maximum,
    BinaryOp::Equal,
    BinaryOp::Less,
    BinaryOp::LessOrEqual,
    BinaryOp::Greater,
    BinaryOp::GreaterOrEqual,
    BinaryOp::And,
    BinaryOp::Or,
    BinaryOp::Xor,
];

const REMAINDERS: [BinaryOp; 2] = [BinaryOp::Modulo, BinaryOp::Remainder];

const BITS: [BinaryOp; 5] =
    [BinaryOp::BitAnd, BinaryOp::BitOr, BinaryOp::BitXor, BinaryOp::ShiftLeft, BinaryOp::ShiftRight];

const INTEGERS: [DataType; 8] = [
    DataType::Int64,
    DataType::Int32,
    DataType::Int16,
    DataType::Int8,
    DataType::UInt64,
    DataType::UInt32,
    DataType::UInt16,
    DataType::UInt8,
];

/// Values at which functions have edge cases.
const EDGES: [f64; 18] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.25,
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    3.0,
    -3.0,
    88.0,
    -87.0,
    1e30,
    -1e30,
    1e-30,
    -1e-30,
];

/// No activation, a ReLU or limits.
pub fn applied(random: &mut Random) -> Activation {
    [Activation::None, Activation::Relu, Activation::Clip { low: -0.5, high: 1.25 }][random.below(3) as usize]
}

/// The largest difference of results from the host's, relative to 1 + their magnitude.
fn tolerance(op: UnaryOp) -> f64 {
    match op {
        UnaryOp::Relu
        | UnaryOp::LeakyRelu { .. }
        | UnaryOp::Clip { .. }
        | UnaryOp::Affine { .. }
        | UnaryOp::HardSigmoid { .. }
        | UnaryOp::Abs
        | UnaryOp::Sign
        | UnaryOp::Floor
        | UnaryOp::Ceil
        | UnaryOp::Round => 0.0,
        _ => 5e-7,
    }
}

/// Numbers of every magnitude and of both signs, after the edges.
fn wild(random: &mut Random, desc: &TensorDesc) -> Tensor {
    let count = (desc.total_size_bytes() / desc.data_type().size_bytes()) as usize;
    let mut number = |i: usize| match EDGES.get(i) {
        Some(&edge) => edge,
        None => {
            let exponent = random.below(70) as i32 - 35;
            let mantissa = random.below(1 << 23) as f64 / (1u64 << 22) as f64 - 1.0;
            (mantissa * 2f64.powi(exponent)) as f32 as f64
        }
    };
    (desc.clone(), (0..count).map(&mut number).collect())
}

#[test]
fn functions_of_one_variable_agree_in_every_layout() {
    // Layouts affect all functions in the same way, and every function takes time to compile.
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let op = REAL_OPS[seed as usize % 4];
        let sizes = random.sizes(4, 9);
        let (x, y) = (read(&mut random, DataType::Float32, &sizes), written(&mut random, DataType::Float32, &sizes));
        compare(seed, &Kernel::Unary(op), &[random.tensor(&x)], &[y], tolerance(op));
    }
}

#[test]
fn functions_of_one_variable_agree_at_their_edges() {
    for (seed, op) in (100..).zip(REAL_OPS) {
        let desc = packed(DataType::Float32, &[5, 700]);
        let x = wild(&mut Random::new(seed), &desc);
        compare(seed, &Kernel::Unary(op), &[x], &[desc], tolerance(op));
    }
}

#[test]
fn zeros_have_the_signs_of_the_host() {
    let Some(machine) = vulkan() else { return };
    let desc = packed(DataType::Float32, &[2]);
    let reads = [(desc.clone(), vec![0.0, -0.0])];
    let negation = UnaryOp::Affine { scale: -1.0, shift: -0.0 };
    for op in REAL_OPS.into_iter().chain([negation]) {
        let values = |machine| -> Vec<f32> {
            let outputs = run(machine, &Kernel::Unary(op), &reads, std::slice::from_ref(&desc), &[]).unwrap();
            outputs[0].chunks(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect()
        };
        for (value, expected) in values(machine).into_iter().zip(values(host())) {
            assert!(expected != 0.0 || value.to_bits() == expected.to_bits(), "{op:?}: {value:?}, not {expected:?}");
        }
    }
}

#[test]
fn gradients_agree() {
    for (seed, op) in (200..).zip(REAL_OPS) {
        let mut random = Random::new(seed);
        if op == UnaryOp::Relu {
            let sizes = random.sizes(3, 9);
            let [dy, value] = [0, 1].map(|_| read(&mut random, DataType::Float32, &sizes));
            let dx = written(&mut random, DataType::Float32, &sizes);
            let reads = [random.tensor(&dy), random.tensor(&value)];
            compare(seed, &Kernel::UnaryGradient(op), &reads, &[dx], 1e-6);
        }
        let desc = packed(DataType::Float32, &[3000]);
        let reads = [random.tensor(&desc), wild(&mut random, &desc)];
        compare(seed, &Kernel::UnaryGradient(op), &reads, &[desc], 1e-6);
    }
}

#[test]
fn integers_of_every_width_agree() {
    let ops = [
        UnaryOp::Relu,
        UnaryOp::Clip { low: -20.5, high: 90.5 },
        UnaryOp::Affine { scale: -1.0, shift: 3.0 },
        UnaryOp::Affine { scale: 300.0, shift: -70_000.0 },
        UnaryOp::Abs,
        UnaryOp::Sign,
        UnaryOp::Floor,
    ];
    for seed in 0..14 {
        let mut random = Random::new(300 + seed);
        let data_type = INTEGERS[random.below(8) as usize];
        let sizes = random.sizes(4, 9);
        let [a, b] = [0, 1].map(|_| read(&mut random, data_type, &sizes));
        let reads = [random.tensor(&a), random.tensor(&b)];
        let y = written(&mut random, data_type, &sizes);
        compare(seed, &Kernel::Unary(ops[seed as usize % ops.len()]), &reads[..1], std::slice::from_ref(&y), 0.0);
        let op = BINARY_OPS[seed as usize % 12];
        let y = if op.is_comparison() { written(&mut random, DataType::Bool, &sizes) } else { y };
        let relu = random.below(2) == 0 && !op.is_comparison();
        let activation = if relu { Activation::Relu } else { Activation::None };
        compare(seed, &Kernel::Binary { op, activation }, &reads, &[y], 0.0);
    }
}

#[test]
fn integers_agree_at_their_edges() {
    let edges = [i32::MIN as i64, i32::MAX as i64, 0, 1, -1, 2, -3, 127, -128, 255, 65_535, 7, i64::MIN, i64::MAX];
    for (seed, op) in (350..).zip(BINARY_OPS[..7].iter().chain(&REMAINDERS).chain(&BITS)) {
        let pairs = [[DataType::Int64, DataType::UInt32], [DataType::UInt64, DataType::Int32]];
        for data_type in pairs[seed as usize % 2] {
            let desc = packed(data_type, &[edges.len() as u64, edges.len() as u64]);
            let padded = desc.total_size_bytes() / data_type.size_bytes() == desc.element_count();
            assert!(padded, "no gaps to fill");
            let rows = edges.iter().flat_map(|&a| edges.map(|_| a as f64)).collect();
            let columns = edges.iter().flat_map(|_| edges.map(|b| b as f64)).collect();
            let kernel = Kernel::Binary { op: *op, activation: Activation::None };
            compare(seed, &kernel, &[(desc.clone(), rows), (desc.clone(), columns)], &[desc], 0.0);
        }
    }
}

#[test]
fn double_precision_agrees() {
    for seed in 0..14 {
        let mut random = Random::new(380 + seed);
        let op = BINARY_OPS[seed as usize % 12];
        if op != BinaryOp::Power {
            let result = if op.is_comparison() { DataType::Bool } else { DataType::Float64 };
            let desc = packed(DataType::Float64, &[300]);
            let reads = [wild(&mut random, &desc), random.integers(&desc, -2, 2)];
            let kernel = Kernel::Binary { op, activation: Activation::None };
            compare(seed, &kernel, &reads, &[packed(result, &[300])], 0.0);
        }
        let op = DOUBLE_OPS[seed as usize % DOUBLE_OPS.len()];
        let desc = packed(DataType::Float64, &[5, 60]);
        compare(seed, &Kernel::Unary(op), &[wild(&mut random, &desc)], &[desc], 0.0);
    }
}

#[test]
fn logic_agrees() {
    for seed in 0..20 {
        let mut random = Random::new(400 + seed);
        let sizes = random.sizes(4, 9);
        let [a, b] = [0, 1].map(|_| read(&mut random, DataType::Bool, &sizes));
        let y = written(&mut random, DataType::Bool, &sizes);
        let reads = [random.tensor(&a), random.tensor(&b)];
        for op in [BinaryOp::And, BinaryOp::Or, BinaryOp::Xor, BinaryOp::Equal] {
            let kernel = Kernel::Binary { op, activation: Activation::None };
            compare(seed, &kernel, &reads, std::slice::from_ref(&y), 0.0);
        }
        compare(seed, &Kernel::Unary(UnaryOp::Not), &reads[..1], &[y], 0.0);
    }
}

#[test]
fn functions_of_two_variables_agree_in_every_layout() {
    for seed in 0..48 {
        let mut random = Random::new(500 + seed);
        let op = BINARY_OPS[[0, 3, 8][seed as usize % 3]];
        let result = if op.is_comparison() { DataType::Bool } else { DataType::Float32 };
        let sizes = random.sizes(5, 7);
        let [a, b] = [0, 1].map(|_| read(&mut random, DataType::Float32, &sizes));
        let y = written(&mut random, result, &sizes);
        // Few distinct numbers, so that comparisons encounter equal ones.
        let reads = [random.integers(&a, -3, 3), random.integers(&b, -3, 3)];
        let activation = if op.is_comparison() { Activation::None } else { applied(&mut random) };
        let kernel = Kernel::Binary { op, activation };
        compare(seed, &kernel, &reads, std::slice::from_ref(&y), real_tolerance(op));
        let reads = [random.tensor(&a), random.tensor(&b)];
        compare(seed, &kernel, &reads, &[y], real_tolerance(op));
    }
}

/// The quotients of a device are within 2.5 units in the last place.
fn real_tolerance(op: BinaryOp) -> f64 {
    match op {
        BinaryOp::Divide => 3e-7,
        BinaryOp::Power => 1e-6,
        _ => 0.0,
    }
}

#[test]
fn functions_of_two_variables_agree_at_their_edges() {
    for (seed, op) in (600..).zip(BINARY_OPS[..12].iter().chain(&REMAINDERS)) {
        let mut random = Random::new(seed);
        // Every pair of edges.
        let desc = packed(DataType::Float32, &[EDGES.len() as u64, EDGES.len() as u64]);
        let rows = EDGES.iter().flat_map(|&a| EDGES.map(|_| a)).collect();
        let columns = EDGES.iter().flat_map(|_| EDGES).collect();
        let result = if op.is_comparison() { DataType::Bool } else { DataType::Float32 };
        let y = packed(result, desc.sizes());
        let kernel = Kernel::Binary { op: *op, activation: Activation::None };
        compare(seed, &kernel, &[(desc.clone(), rows), (desc, columns)], &[y], real_tolerance(*op));
        let desc = packed(DataType::Float32, &[4000]);
        let mut moderate = random.tensor(&desc);
        moderate.1.iter_mut().for_each(|value| *value = value.abs() * 9.0);
        let exponents = random.tensor(&desc);
        let reads = if *op == BinaryOp::Power { [moderate, exponents] } else { [moderate, wild(&mut random, &desc)] };
        compare(seed, &kernel, &reads, &[packed(result, &[4000])], real_tolerance(*op));
    }
}

#[test]
fn selections_agree_for_every_type() {
    for (seed, data_type) in (700..).zip(ALL.into_iter().cycle().take(26)) {
        let mut random = Random::new(seed);
        let sizes = random.sizes(4, 9);
        let condition = read(&mut random, DataType::Bool, &sizes);
        let [a, b] = [0, 1].map(|_| read(&mut random, data_type, &sizes));
        let y = written(&mut random, data_type, &sizes);
        let reads = [random.tensor(&condition), random.tensor(&a), random.tensor(&b)];
        compare(seed, &Kernel::Select, &reads, &[y], 0.0);
    }
}

#[test]
fn casts_agree_between_all_types() {
    for (seed, (from, to)) in (800..).zip(ALL.iter().flat_map(|&from| ALL.map(|to| (from, to)))) {
        let mut random = Random::new(seed);
        if seed % 12 == 0 {
            let sizes = random.sizes(3, 9);
            let x = read(&mut random, from, &sizes);
            compare(seed, &Kernel::cast(), &[random.tensor(&x)], &[packed(to, &sizes)], 0.0);
        }
        let desc = packed(from, &[1001]);
        let mut values = wild(&mut random, &desc).1;
        // Ties and limits of narrower types.
        let limits =
            [127.5, -128.5, 255.5, 256.0, 65_504.0, 65_520.0, 2147483647.5, -2147483649.0, 4294967296.0, 1.0e19];
        let fine = [2049.0, 2051.0, 257.0, 16_777_217.0, 6e-8, 2.9e-8, 6.1e-5, 1e-40, -1e-41];
        for (value, special) in values.iter_mut().rev().zip(limits.into_iter().chain(fine)) {
            *value = special;
        }
        compare(seed, &Kernel::cast(), &[(desc, values)], &[packed(to, &[1001])], 0.0);
    }
}

#[test]
fn fills_agree_for_every_type() {
    for (seed, data_type) in (1100..).zip(ALL.into_iter().cycle().take(39)) {
        let mut random = Random::new(seed);
        let sizes = random.sizes(4, 9);
        let y = written(&mut random, data_type, &sizes);
        let value = [0.0, 1.0, -7.5, 300.25][random.below(4) as usize];
        compare(seed, &Kernel::Fill { value }, &[], &[y], 0.0);
    }
}

#[test]
fn dropout_has_the_very_mask_of_the_host() {
    for seed in 0..20 {
        let mut random = Random::new(1200 + seed);
        let sizes = random.sizes(3, 20);
        let x = packed(DataType::Float32, &sizes);
        let ratio = [0.0, 0.1, 0.5, 0.999][random.below(4) as usize];
        let kernel = Kernel::Dropout { ratio, node: random.word(), first: random.below(1 << 40) };
        let step = (packed(DataType::Int64, &[2]), (0..2).map(|_| (random.word() >> 11) as f64).collect());
        let reads = [random.tensor(&x), step];
        compare(seed, &kernel, &reads, std::slice::from_ref(&x), 0.0);
        compare(seed, &kernel, &reads, &[x.clone(), packed(DataType::Bool, &sizes)], 0.0);
        let kernel = Kernel::Random { node: random.word(), first: random.below(1 << 40) };
        compare(seed, &kernel, &reads[1..], &[x], 0.0);
    }
}
