//! Elementwise kernels against naive models in double precision.

use forebay_base::kernel::{Activation, BinaryOp, UnaryOp};
use forebay_base::narrow::{Narrowing, decode, unpack};
use forebay_base::{DataType, Kernel};

use super::super::testing::{Random, Tensor, assert_close, desc, differences, refusal, run, strided};

fn naive(op: UnaryOp, x: f64) -> f64 {
    match op {
        UnaryOp::Relu => x.max(0.0),
        UnaryOp::LeakyRelu { alpha } => {
            if x >= 0.0 {
                x
            } else {
                alpha as f64 * x
            }
        }
        UnaryOp::Elu { alpha } => {
            if x >= 0.0 {
                x
            } else {
                alpha as f64 * x.exp_m1()
            }
        }
        UnaryOp::Clip { low, high } => x.max(low as f64).min(high as f64),
        UnaryOp::Affine { scale, shift } => scale as f64 * x + shift as f64,
        UnaryOp::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        UnaryOp::HardSigmoid { alpha, beta } => (alpha as f64 * x + beta as f64).clamp(0.0, 1.0),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Exp => x.exp(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Reciprocal => 1.0 / x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::Sign => {
            if x == 0.0 {
                0.0
            } else {
                x.signum()
            }
        }
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Erf => libm::erf(x),
        UnaryOp::Gelu => 0.5 * x * (1.0 + libm::erf(x / 2f64.sqrt())),
        UnaryOp::TanhGelu => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        }
        UnaryOp::Softplus => x.exp().ln_1p(),
        UnaryOp::Silu => x / (1.0 + (-x).exp()),
        UnaryOp::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Round => x.round_ties_even(),
        UnaryOp::Tan => x.tan(),
        UnaryOp::Asin => x.asin(),
        UnaryOp::Acos => x.acos(),
        UnaryOp::Atan => x.atan(),
        UnaryOp::Sinh => x.sinh(),
        UnaryOp::Cosh => x.cosh(),
        UnaryOp::Asinh => x.asinh(),
        UnaryOp::Acosh => x.acosh(),
        UnaryOp::Atanh => x.atanh(),
        UnaryOp::Not => {
            if x == 0.0 {
                1.0
            } else {
                0.0
            }
        }
    }
}

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

/// Inputs away from the kinks and inside the domain of the function.
fn inputs(op: UnaryOp, random: &mut Random, count: usize) -> Vec<f64> {
    let mut values = random.values(count);
    let positive = matches!(op, UnaryOp::Log | UnaryOp::Sqrt | UnaryOp::Reciprocal);
    let bounded = matches!(op, UnaryOp::Tan | UnaryOp::Asin | UnaryOp::Acos | UnaryOp::Atanh);
    values.iter_mut().for_each(|x| {
        *x = match op {
            _ if positive => x.abs() + 0.25,
            _ if bounded => 0.875 * x.sin(),
            UnaryOp::Acosh => x.abs() + 1.25,
            _ => *x + 0.001,
        } as f32 as f64;
    });
    values
}

#[test]
fn unary_functions_and_gradients_match_double_precision() {
    let mut random = Random::new(1);
    for op in REAL_OPS {
        for (data_type, tolerance) in [(DataType::Float32, 5e-7), (DataType::Float64, 1e-14)] {
            let shape = desc(data_type, &[7, 101]);
            let x = Tensor::new(&shape, &inputs(op, &mut random, 707));
            let y = &run(&Kernel::Unary(op), &[&x], std::slice::from_ref(&shape))[0];
            let expected: Vec<f64> = x.values().iter().map(|&x| naive(op, x)).collect();
            assert_close(&y.values(), &expected, tolerance, &format!("{op:?} {data_type}"));

            let dy = Tensor::new(&shape, &random.values(707));
            let source = if op.gradient_uses_output() { y } else { &x };
            let dx = &run(&Kernel::UnaryGradient(op), &[&dy, source], std::slice::from_ref(&shape))[0];
            let slopes: Vec<f64> = x.values().iter().map(|&x| differences(&[x], |x| naive(op, x[0]))[0]).collect();
            let expected: Vec<f64> = dy.values().iter().zip(slopes).map(|(dy, slope)| dy * slope).collect();
            assert_close(&dx.values(), &expected, 2e-6, &format!("gradient of {op:?} {data_type}"));
        }
    }
}

#[test]
fn unary_reads_any_strides() {
    let mut random = Random::new(2);
    let x = Tensor::new(&strided(DataType::Float32, &[3, 5, 40], &[1, 120, 3]), &random.values(600));
    let y = run(&Kernel::Unary(UnaryOp::Relu), &[&x], &[desc(DataType::Float32, &[3, 5, 40])]);
    let expected: Vec<f64> = x.values().iter().map(|x| x.max(0.0)).collect();
    assert_eq!(y[0].values(), expected);
}

#[test]
fn edges_of_the_relus() {
    let shape = desc(DataType::Float32, &[4]);
    let y = Tensor::new(&shape, &[0.0, -0.0, f64::NAN, 1.0]);
    let dy = Tensor::new(&shape, &[1.0; 4]);
    assert_eq!(
        run(&Kernel::UnaryGradient(UnaryOp::Relu), &[&dy, &y], std::slice::from_ref(&shape))[0].values(),
        [0.0, 0.0, 0.0, 1.0]
    );
    assert!(run(&Kernel::Unary(UnaryOp::Relu), &[&y], std::slice::from_ref(&shape))[0].values()[2].is_nan());
    let clip = UnaryOp::Clip { low: 0.0, high: 1.0 };
    assert_eq!(run(&Kernel::UnaryGradient(clip), &[&dy, &y], &[shape])[0].values(), [1.0, 1.0, 0.0, 1.0]);
}

#[test]
fn integers_and_booleans_have_their_functions() {
    for data_type in [DataType::Int32, DataType::Int64] {
        let shape = desc(data_type, &[5]);
        let x = Tensor::new(&shape, &[-3.0, -1.0, 0.0, 2.0, 9.0]);
        let apply = |op| run(&Kernel::Unary(op), &[&x], std::slice::from_ref(&shape))[0].values();
        assert_eq!(apply(UnaryOp::Relu), [0.0, 0.0, 0.0, 2.0, 9.0]);
        assert_eq!(apply(UnaryOp::Affine { scale: -1.0, shift: 0.0 }), [3.0, 1.0, 0.0, -2.0, -9.0]);
        assert_eq!(apply(UnaryOp::Clip { low: f32::NEG_INFINITY, high: 2.0 }), [-3.0, -1.0, 0.0, 2.0, 2.0]);
        assert_eq!(apply(UnaryOp::Abs), [3.0, 1.0, 0.0, 2.0, 9.0]);
        assert_eq!(apply(UnaryOp::Sign), [-1.0, -1.0, 0.0, 1.0, 1.0]);
        assert!(refusal(&Kernel::Unary(UnaryOp::Exp), &[&x], std::slice::from_ref(&shape)).contains("cast to float32"));
    }
    let shape = desc(DataType::Bool, &[2]);
    let x = Tensor::new(&shape, &[0.0, 1.0]);
    assert_eq!(run(&Kernel::Unary(UnaryOp::Not), &[&x], &[shape])[0].values(), [1.0, 0.0]);
}

/// Remainders have the sign of the dividend, moduli that of the divisor; bits are in two's complement.
#[test]
fn remainders_and_bits_of_negative_numbers() {
    let shape = desc(DataType::Int16, &[4]);
    let a = Tensor::new(&shape, &[7.0, -7.0, 7.0, -7.0]);
    let b = Tensor::new(&shape, &[3.0, 3.0, -3.0, -3.0]);
    let apply = |op| {
        let kernel = Kernel::Binary { op, activation: Activation::None };
        run(&kernel, &[&a, &b], std::slice::from_ref(&shape))[0].values()
    };
    assert_eq!(apply(BinaryOp::Modulo), [1.0, 2.0, -2.0, -1.0]);
    assert_eq!(apply(BinaryOp::Remainder), [1.0, -1.0, 1.0, -1.0]);
    assert_eq!(apply(BinaryOp::BitAnd), [3.0, 1.0, 5.0, -7.0]);
    assert_eq!(apply(BinaryOp::BitXor), [4.0, -6.0, -6.0, 4.0]);
    let shape = desc(DataType::UInt8, &[3]);
    let (a, b) = (Tensor::new(&shape, &[129.0, 129.0, 129.0]), Tensor::new(&shape, &[1.0, 7.0, 8.0]));
    let shift = |op| {
        let kernel = Kernel::Binary { op, activation: Activation::None };
        run(&kernel, &[&a, &b], std::slice::from_ref(&shape))[0].values()
    };
    assert_eq!(shift(BinaryOp::ShiftLeft), [2.0, 128.0, 0.0]);
    assert_eq!(shift(BinaryOp::ShiftRight), [64.0, 1.0, 0.0]);
}

fn naive_binary(op: BinaryOp, a: f64, b: f64, integer: bool) -> f64 {
    let flag = |value: bool| value as u8 as f64;
    match op {
        BinaryOp::Add => a + b,
        BinaryOp::Subtract => a - b,
        BinaryOp::Multiply => a * b,
        BinaryOp::Divide if integer => {
            if b == 0.0 {
                0.0
            } else {
                (a / b).trunc()
            }
        }
        BinaryOp::Divide => a / b,
        BinaryOp::Power if integer => a.powf(b).trunc(),
        BinaryOp::Power => a.powf(b),
        BinaryOp::Minimum => a.min(b),
        BinaryOp::Maximum => a.max(b),
        BinaryOp::Equal => flag(a == b),
        BinaryOp::Less => flag(a < b),
        BinaryOp::LessOrEqual => flag(a <= b),
        BinaryOp::Greater => flag(a > b),
        BinaryOp::GreaterOrEqual => flag(a >= b),
        BinaryOp::And => flag(a != 0.0 && b != 0.0),
        BinaryOp::Or => flag(a != 0.0 || b != 0.0),
        BinaryOp::Xor => flag((a != 0.0) != (b != 0.0)),
        BinaryOp::Modulo | BinaryOp::Remainder if integer && b == 0.0 => 0.0,
        BinaryOp::Modulo => a - b * (a / b).floor(),
        BinaryOp::Remainder => a % b,
        BinaryOp::BitAnd => (a as i64 & b as i64) as f64,
        BinaryOp::BitOr => (a as i64 | b as i64) as f64,
        BinaryOp::BitXor => (a as i64 ^ b as i64) as f64,
        BinaryOp::ShiftLeft => a * b.exp2(),
        BinaryOp::ShiftRight => (a / b.exp2()).floor(),
    }
}

const ARITHMETIC: [BinaryOp; 9] = [
    BinaryOp::Add,
    BinaryOp::Subtract,
    BinaryOp::Multiply,
    BinaryOp::Divide,
    BinaryOp::Power,
    BinaryOp::Minimum,
    BinaryOp::Maximum,
    BinaryOp::Modulo,
    BinaryOp::Remainder,
];
const BITS: [BinaryOp; 5] =
    [BinaryOp::BitAnd, BinaryOp::BitOr, BinaryOp::BitXor, BinaryOp::ShiftLeft, BinaryOp::ShiftRight];
const COMPARISONS: [BinaryOp; 5] =
    [BinaryOp::Equal, BinaryOp::Less, BinaryOp::LessOrEqual, BinaryOp::Greater, BinaryOp::GreaterOrEqual];

/// An operand of the given sizes that is packed, padded, transposed or broadcast along some dimensions.
fn operand(random: &mut Random, data_type: DataType, sizes: &[u64]) -> Tensor {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    if random.below(3) == 0 {
        order.reverse();
    }
    let broadcast = random.below(2) == 0;
    let mut strides = vec![0; sizes.len()];
    let mut next = 1;
    for &dimension in order.iter().rev() {
        if broadcast && random.below(2) == 0 {
            continue;
        }
        strides[dimension] = next;
        next *= sizes[dimension] + if random.below(4) == 0 { 1 } else { 0 };
    }
    let shape = strided(data_type, sizes, &strides);
    let count = (shape.total_size_bytes() / data_type.size_bytes()) as usize;
    let values = random.values(count);
    let values: Vec<f64> = match data_type {
        DataType::Bool => values.iter().map(|x| (*x > 0.0) as u8 as f64).collect(),
        DataType::Float32 | DataType::Float64 => values,
        _ => values.iter().map(|x| (x * 1.5).abs().floor()).collect(),
    };
    Tensor::new(&shape, &values)
}

#[test]
fn binary_functions_match_for_every_layout() {
    let types =
        [DataType::Float32, DataType::Float64, DataType::Int64, DataType::Int32, DataType::UInt8, DataType::Int8];
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let sizes = random.sizes(4, 12);
        let data_type = types[random.below(6) as usize];
        let a = operand(&mut random, data_type, &sizes);
        let b = operand(&mut random, data_type, &sizes);
        let operands = || a.values().into_iter().zip(b.values());
        let of_bits = BITS.into_iter().filter(|_| data_type.is_integer());
        for op in ARITHMETIC.into_iter().chain(COMPARISONS).chain(of_bits) {
            let result_type = if op.is_comparison() { DataType::Bool } else { data_type };
            if op == BinaryOp::Subtract && data_type == DataType::UInt8 {
                continue;
            }
            let kernel = Kernel::Binary { op, activation: Activation::None };
            let y = run(&kernel, &[&a, &b], &[desc(result_type, &sizes)]);
            let expected: Vec<f64> = operands().map(|(a, b)| naive_binary(op, a, b, data_type.is_integer())).collect();
            assert_close(&y[0].values(), &expected, 1e-6, &format!("seed {seed}: {op:?} {} {}", a.desc, b.desc));
        }
        let kernel = Kernel::Binary { op: BinaryOp::Add, activation: Activation::Relu };
        let y = run(&kernel, &[&a, &b], &[desc(data_type, &sizes)]);
        let expected: Vec<f64> = operands().map(|(a, b)| (a + b).max(0.0)).collect();
        assert_close(&y[0].values(), &expected, 1e-6, &format!("seed {seed}: Add and Relu"));
        if data_type.is_float() {
            let kernel = Kernel::Binary { op: BinaryOp::Add, activation: Activation::Clip { low: -0.5, high: 1.0 } };
            let y = run(&kernel, &[&a, &b], &[desc(data_type, &sizes)]);
            let expected: Vec<f64> = operands().map(|(a, b)| (a + b).clamp(-0.5, 1.0)).collect();
            assert_close(&y[0].values(), &expected, 1e-6, &format!("seed {seed}: Add and Clip"));
            let kernel = Kernel::Binary { op: BinaryOp::Add, activation: Activation::of(UnaryOp::Abs) };
            let y = run(&kernel, &[&a, &b], &[desc(data_type, &sizes)]);
            let expected: Vec<f64> = operands().map(|(a, b)| (a + b).abs()).collect();
            assert_close(&y[0].values(), &expected, 1e-6, &format!("seed {seed}: Add and Abs"));
        }

        let (a, b) = (operand(&mut random, DataType::Bool, &sizes), operand(&mut random, DataType::Bool, &sizes));
        for op in [BinaryOp::And, BinaryOp::Or, BinaryOp::Xor, BinaryOp::Equal] {
            let kernel = Kernel::Binary { op, activation: Activation::None };
            let y = run(&kernel, &[&a, &b], &[desc(DataType::Bool, &sizes)]);
            let expected: Vec<f64> =
                a.values().into_iter().zip(b.values()).map(|(a, b)| naive_binary(op, a, b, false)).collect();
            assert_eq!(y[0].values(), expected, "seed {seed}: {op:?}");
        }
    }
}

#[test]
fn large_operands_in_several_chunks() {
    let mut random = Random::new(9);
    let shape = desc(DataType::Float32, &[3, 50, 401]);
    let a = Tensor::new(&shape, &random.values(3 * 50 * 401));
    let b = Tensor::new(&strided(DataType::Float32, &[3, 50, 401], &[0, 1, 0]), &random.values(50));
    let kernel = Kernel::Binary { op: BinaryOp::Add, activation: Activation::Relu };
    let y = run(&kernel, &[&a, &b], &[shape]);
    let expected: Vec<f64> =
        a.values().iter().zip(b.values()).map(|(&a, b)| (a as f32 + b as f32).max(0.0) as f64).collect();
    assert_eq!(y[0].values(), expected);
}

#[test]
fn integer_division_and_powers_never_panic() {
    let shape = desc(DataType::Int32, &[4]);
    let a = Tensor::new(&shape, &[i32::MIN as f64, 7.0, -1.0, 2.0]);
    let b = Tensor::new(&shape, &[-1.0, 0.0, -3.0, -2.0]);
    let apply = |op| {
        run(&Kernel::Binary { op, activation: Activation::None }, &[&a, &b], std::slice::from_ref(&shape))[0].values()
    };
    assert_eq!(apply(BinaryOp::Divide)[..2], [i32::MIN as f64, 0.0]);
    assert_eq!(apply(BinaryOp::Power)[1..], [1.0, -1.0, 0.0]);
}

#[test]
fn casts_convert_between_all_types() {
    for from in DataType::NOT_NARROW {
        for to in DataType::NOT_NARROW {
            let values: &[f64] = match from {
                DataType::Bool => &[0.0, 1.0, 1.0, 0.0],
                _ if from.is_float() => &[0.0, 1.75, 100.5, 3.0],
                _ => &[0.0, 1.0, 100.0, 3.0],
            };
            let y = run(&Kernel::cast(), &[&Tensor::new(&desc(from, &[4]), values)], &[desc(to, &[4])])[0].values();
            let expected: Vec<f64> = values
                .iter()
                .map(|x| match to {
                    DataType::Bool => (*x != 0.0) as u8 as f64,
                    _ if to.is_float() => *x,
                    _ => x.trunc(),
                })
                .collect();
            assert_eq!(y, expected, "{from} to {to}");
        }
    }
    let x = Tensor::new(&desc(DataType::Int32, &[3]), &[-1.0, 300.0, 70000.0]);
    assert_eq!(run(&Kernel::cast(), &[&x], &[desc(DataType::UInt8, &[3])])[0].values(), [255.0, 44.0, 112.0]);
    let x = Tensor::new(&desc(DataType::Float32, &[2]), &[-2.7, 0.1]);
    assert_eq!(run(&Kernel::cast(), &[&x], &[desc(DataType::Int64, &[2])])[0].values(), [-2.0, 0.0]);
}

/// All codes of narrow types, through all other types and back.
#[test]
fn casts_of_narrow_types_lose_nothing_that_the_other_type_holds() {
    for narrow in DataType::ALL.into_iter().filter(|data_type| data_type.is_narrow()) {
        let codes = 0..1u64 << narrow.file_bits();
        let values: Vec<f64> = codes.map(|code| decode(narrow, narrow_code(narrow, code))).collect();
        let (x, sizes) = (Tensor::new(&desc(narrow, &[values.len() as u64]), &values), [values.len() as u64]);
        for wide in DataType::NOT_NARROW {
            let y = run(&Kernel::cast(), &[&x], &[desc(wide, &sizes)]).remove(0);
            let is_exact = |&(value, found): &(&f64, &f64)| value == found || value.is_nan() && found.is_nan();
            let found = y.values();
            if matches!(wide, DataType::Float64 | DataType::Float32) {
                assert!(values.iter().zip(&found).all(|pair| is_exact(&pair)), "{narrow} to {wide}");
            }
            let back = run(&Kernel::cast(), &[&y], &[desc(narrow, &sizes)]).remove(0).values();
            // Casts to narrow types saturate: infinity becomes the largest number.
            let kept = values.iter().zip(&found).zip(&back);
            let kept = kept.filter(|(pair, _)| is_exact(pair) && !pair.0.is_infinite());
            let all = kept.clone().count();
            assert!(all >= 1, "{narrow} to {wide}: {all} numbers");
            // NaN in a type without NaN would become another number.
            kept.for_each(|((value, _), back)| {
                assert!(is_exact(&(value, back)), "{narrow} by {wide}: {value}, {back}")
            });
        }
    }
    let x = Tensor::new(&desc(DataType::Float32, &[4]), &[-9.0, 8.0, 2.9, -1.0]);
    let to = |data_type| run(&Kernel::cast(), &[&x], &[desc(data_type, &[4])])[0].values();
    assert_eq!(to(DataType::Int4), [7.0, -8.0, 2.0, -1.0]);
    assert_eq!(to(DataType::UInt2), [3.0, 0.0, 2.0, 3.0]);
    let unsaturated = Kernel::Cast(Narrowing { saturate: false, ..Narrowing::default() });
    let x = Tensor::new(&desc(DataType::Int64, &[2]), &[1e6, -1e6]);
    assert_eq!(
        run(&unsaturated, &[&x], &[desc(DataType::Float8E5M2, &[2])])[0].values(),
        [f64::INFINITY, f64::NEG_INFINITY]
    );
    assert_eq!(run(&Kernel::cast(), &[&x], &[desc(DataType::Float8E5M2, &[2])])[0].values(), [57344.0, -57344.0]);
}

/// Returns the byte of the element that has these lowest bits.
fn narrow_code(data_type: DataType, bits: u64) -> u8 {
    let mut element = [0];
    unpack(data_type, &[bits as u8], 0, &mut element);
    element[0]
}

#[test]
fn fill_converts_to_every_type() {
    for data_type in DataType::ALL {
        let y = run(&Kernel::Fill { value: 3.0 }, &[], &[desc(data_type, &[3, 5])]);
        let expected = match data_type {
            DataType::Bool => 1.0,
            // 3 is not a power of two, and does not fit into two bits with a sign.
            DataType::Float8E8M0 => 4.0,
            DataType::Int2 => -1.0,
            _ => 3.0,
        };
        assert_eq!(y[0].values(), vec![expected; 15], "{data_type}");
    }
}

#[test]
fn select_takes_by_condition_and_broadcasts() {
    let condition = Tensor::new(&strided(DataType::Bool, &[2, 3], &[0, 1]), &[1.0, 0.0, 1.0]);
    let a = Tensor::new(&desc(DataType::Float32, &[2, 3]), &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let b = Tensor::new(&strided(DataType::Float32, &[2, 3], &[0, 0]), &[f64::NEG_INFINITY]);
    let y = run(&Kernel::Select, &[&condition, &a, &b], &[desc(DataType::Float32, &[2, 3])]);
    assert_eq!(y[0].values(), [1.0, f64::NEG_INFINITY, 3.0, 4.0, f64::NEG_INFINITY, 6.0]);
}
