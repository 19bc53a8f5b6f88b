//! Steps computed on the host for folding: those that shape arithmetic and masks need, on small tensors.
//!
//! Steps that move elements work on bytes and accept any type. Arithmetic accepts integers of up to 64 bits, booleans, float32 and float64.
//! It is computed in 64 bits and rounded once, which for float32 gives the correctly rounded result of `+ - * /` and square root.

mod indices;

use forebay_base::data_type::NumberKind;
use forebay_base::kernel::{BinaryOp, PadMode, ReduceOp, UnaryOp};
use forebay_base::{DataType, Kernel, Tensor, narrow};

use super::shapes::packed_strides;
use crate::action::Action;
use crate::graph::TensorType;

/// Largest number of elements of a result that is computed here.
const COUNT_MAX: u64 = 1 << 22;

/// The result of one step, if it can be computed here.
pub(super) fn run(action: &Action, operands: &[Tensor], output: &TensorType) -> Option<Tensor> {
    if output.count() > COUNT_MAX {
        return None;
    }
    let operand = |i: usize| operands.get(i);
    match action {
        Action::Expand => expand(operand(0)?, &output.shape),
        Action::Concatenate(axis) => concatenate(operands, *axis, output),
        Action::Transpose(permutation) => {
            let strides = packed_strides(operand(0)?.shape());
            let strides: Vec<i64> = permutation.iter().map(|&axis| strides[axis] as i64).collect();
            Some(strided(operand(0)?, &output.shape, 0, &strides))
        }
        Action::Kernel(kernel) => match kernel {
            Kernel::Slice { starts, steps } => Some(slice(operand(0)?, &output.shape, starts, steps)),
            Kernel::Gather { axis } => gather(operand(0)?, operand(1)?, *axis, output),
            Kernel::Scatter { op } => indices::scatter(*op, operand(0)?, operand(1)?, operand(2)?, output),
            &Kernel::TopK { axis, largest, nan_first, last } => {
                indices::top_k(axis, [largest, nan_first, last], operand(0)?, output)
            }
            &Kernel::Scan { axis, op, exclusive, reverse } => {
                indices::scan((axis, op), (exclusive, reverse), operand(0)?, output)
            }
            Kernel::Pad { begins, mode: PadMode::Constant(value) } => pad(operand(0)?, begins, *value, output),
            Kernel::Fill { value } => Elements::filled(*value, output)?.write(output),
            Kernel::Cast(_) => Elements::read(operand(0)?)?.cast(output.data_type)?.write(output),
            Kernel::Unary(op) => Elements::read(operand(0)?)?.unary(*op)?.write(output),
            Kernel::Binary { op, .. } => binary(*op, operand(0)?, operand(1)?, output),
            Kernel::Select => select(operands, output),
            Kernel::Reduce { op, axes } => reduce(*op, axes, operand(0)?, output),
            _ => None,
        },
    }
}

/// Numbers in the widest type of their kind.
#[derive(Clone, Debug, PartialEq)]
enum Elements {
    Integers(Vec<i64>),
    Floats(Vec<f64>),
}

impl Elements {
    fn read(tensor: &Tensor) -> Option<Elements> {
        let chunks = |size| tensor.bytes().chunks_exact(size);
        match tensor.data_type() {
            DataType::Float32 => Some(Elements::Floats(
                chunks(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().expect("exact chunk")))).collect(),
            )),
            DataType::Float64 => Some(Elements::Floats(
                chunks(8).map(|b| f64::from_le_bytes(b.try_into().expect("exact chunk"))).collect(),
            )),
            // Values of 2^63 and above would become negative.
            DataType::UInt64 => tensor.to_i64().filter(|v| v.iter().all(|&v| v >= 0)).map(Elements::Integers),
            _ => tensor.to_i64().map(Elements::Integers),
        }
    }

    fn filled(value: f64, ty: &TensorType) -> Option<Elements> {
        let count = ty.count() as usize;
        Some(match ty.data_type.is_float() {
            true => Elements::Floats(vec![value; count]),
            false => Elements::Integers(vec![value as i64; count]),
        })
    }

    /// Converts as the devices do: real numbers saturate, integers wrap, and bool is a comparison with 0. Real numbers that uint64 holds
    /// but int64 does not are not converted here.
    fn cast(self, to: DataType) -> Option<Elements> {
        Some(match (self, to) {
            (Elements::Integers(v), DataType::Bool) => Elements::Integers(v.iter().map(|&v| (v != 0) as i64).collect()),
            (Elements::Floats(v), DataType::Bool) => Elements::Integers(v.iter().map(|&v| (v != 0.0) as i64).collect()),
            // Rounded once, not to float64 first.
            (Elements::Integers(v), DataType::Float32) => {
                Elements::Floats(v.iter().map(|&v| f64::from(v as f32)).collect())
            }
            (Elements::Integers(v), to) if to.is_float() => Elements::Floats(v.iter().map(|&v| v as f64).collect()),
            (Elements::Floats(v), DataType::UInt64) if v.iter().any(|&v| v >= i64::MAX as f64) => return None,
            (Elements::Floats(v), to) if !to.is_float() => {
                let (low, high) = limits(to);
                Elements::Integers(v.iter().map(|&v| (v as i64).clamp(low, high)).collect())
            }
            (elements, _) => elements,
        })
    }

    /// Rounds to the type; integers wrap.
    fn write(self, ty: &TensorType) -> Option<Tensor> {
        let bytes: Vec<u8> = match (self, ty.data_type) {
            (Elements::Floats(v), DataType::Float32) => v.iter().flat_map(|&v| (v as f32).to_le_bytes()).collect(),
            (Elements::Floats(v), DataType::Float64) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
            (Elements::Integers(v), data_type) if data_type.is_integer() && data_type.is_narrow() => {
                v.iter().map(|&v| narrow::encode_integer(data_type, v)).collect()
            }
            (Elements::Integers(v), data_type) if !data_type.is_float() => {
                let size = data_type.size_bytes() as usize;
                v.iter().flat_map(|v| v.to_le_bytes().into_iter().take(size)).collect()
            }
            _ => return None,
        };
        Tensor::new(ty.data_type, &ty.shape, bytes)
    }

    fn unary(self, op: UnaryOp) -> Option<Elements> {
        let v = match self {
            Elements::Floats(v) => return Some(Elements::Floats(v.into_iter().map(float_function(op)?).collect())),
            Elements::Integers(v) => v,
        };
        let whole = |value: f32| (value.fract() == 0.0 && value.abs() < 1e9).then_some(value as i64);
        let map = |f: &dyn Fn(i64) -> i64| Some(Elements::Integers(v.iter().map(|&v| f(v)).collect()));
        match op {
            UnaryOp::Not => map(&|v| (v == 0) as i64),
            UnaryOp::Relu => map(&|v| v.max(0)),
            UnaryOp::Abs => map(&i64::wrapping_abs),
            UnaryOp::Sign => map(&i64::signum),
            UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round => map(&|v| v),
            UnaryOp::Affine { scale, shift } => {
                let (scale, shift) = (whole(scale)?, whole(shift)?);
                map(&|v| v.wrapping_mul(scale).wrapping_add(shift))
            }
            _ => None,
        }
    }
}

/// The smallest and the largest int64 to which real numbers saturate when they become integers of this type. Narrow types wrap instead.
fn limits(data_type: DataType) -> (i64, i64) {
    let spare_bits = 64 - 8 * data_type.size_bytes();
    match data_type.kind() {
        _ if data_type.is_narrow() => (i64::MIN, i64::MAX),
        NumberKind::Signed => (i64::MIN >> spare_bits, i64::MAX >> spare_bits),
        _ => (0, (u64::MAX >> spare_bits).min(i64::MAX as u64) as i64),
    }
}

/// The functions that are available on the host; the others are not folded.
fn float_function(op: UnaryOp) -> Option<Box<dyn Fn(f64) -> f64>> {
    Some(match op {
        UnaryOp::Relu => Box::new(|x| if x < 0.0 { 0.0 } else { x }),
        UnaryOp::Clip { low, high } => Box::new(move |x| {
            if x < f64::from(low) {
                f64::from(low)
            } else if x > f64::from(high) {
                f64::from(high)
            } else {
                x
            }
        }),
        UnaryOp::Affine { scale, shift } => Box::new(move |x| f64::from(scale) * x + f64::from(shift)),
        UnaryOp::Tanh => Box::new(libm::tanh),
        UnaryOp::Exp => Box::new(libm::exp),
        UnaryOp::Log => Box::new(libm::log),
        UnaryOp::Sqrt => Box::new(f64::sqrt),
        UnaryOp::Reciprocal => Box::new(f64::recip),
        UnaryOp::Abs => Box::new(f64::abs),
        UnaryOp::Sign => Box::new(|x| if x == 0.0 || x.is_nan() { x } else { x.signum() }),
        UnaryOp::Floor => Box::new(f64::floor),
        UnaryOp::Ceil => Box::new(f64::ceil),
        UnaryOp::Sin => Box::new(libm::sin),
        UnaryOp::Cos => Box::new(libm::cos),
        UnaryOp::Round => Box::new(f64::round_ties_even),
        _ => return None,
    })
}

/// Elements of a tensor, given by strides in elements, which can be 0 or negative. Every index is within bounds.
fn strided(tensor: &Tensor, shape: &[u64], offset: i64, strides: &[i64]) -> Tensor {
    let from = tensor.bytes();
    let bytes = match tensor.data_type().size_bytes() {
        1 => elements::<1>(from, shape, offset, strides),
        2 => elements::<2>(from, shape, offset, strides),
        4 => elements::<4>(from, shape, offset, strides),
        _ => elements::<8>(from, shape, offset, strides),
    };
    Tensor::new(tensor.data_type(), shape, bytes).expect("as many elements as the shape holds")
}

/// Does the same for elements of `SIZE` bytes.
fn elements<const SIZE: usize>(from: &[u8], shape: &[u64], offset: i64, strides: &[i64]) -> Vec<u8> {
    let (from, _) = from.as_chunks::<SIZE>();
    let (outer, row) = shape.split_at(shape.len().saturating_sub(1));
    let (row, stride) = (row.first().copied().unwrap_or(1), strides.last().copied().unwrap_or(0));
    let rows: u64 = outer.iter().product();
    let mut bytes = Vec::with_capacity((rows * row) as usize * SIZE);
    let mut index = vec![0u64; outer.len()];
    let mut position = offset;
    for _ in 0..rows {
        if stride == 1 && row > 0 {
            bytes.extend_from_slice(from[position as usize..][..row as usize].as_flattened());
        } else {
            (0..row as i64).for_each(|i| bytes.extend_from_slice(&from[(position + i * stride) as usize]));
        }
        for axis in (0..outer.len()).rev() {
            index[axis] += 1;
            position += strides[axis];
            if index[axis] < outer[axis] {
                break;
            }
            position -= strides[axis] * outer[axis] as i64;
            index[axis] = 0;
        }
    }
    bytes
}

/// Concatenates tensors along an axis.
pub(super) fn concatenate(tensors: &[Tensor], axis: usize, output: &TensorType) -> Option<Tensor> {
    let outer: u64 = output.shape[..axis].iter().product();
    let mut bytes = Vec::new();
    for block in 0..outer as usize {
        for tensor in tensors {
            let length = tensor.bytes().len() / outer as usize;
            bytes.extend_from_slice(&tensor.bytes()[block * length..(block + 1) * length]);
        }
    }
    Tensor::new(output.data_type, &output.shape, bytes)
}

fn expand(tensor: &Tensor, shape: &[u64]) -> Option<Tensor> {
    let added = shape.len().checked_sub(tensor.shape().len())?;
    let mut strides = vec![0; added];
    for (&size, &stride) in tensor.shape().iter().zip(&packed_strides(tensor.shape())) {
        strides.push(if size == 1 { 0 } else { stride as i64 });
    }
    Some(strided(tensor, shape, 0, &strides))
}

fn slice(tensor: &Tensor, shape: &[u64], starts: &[u64], steps: &[i64]) -> Tensor {
    let strides = packed_strides(tensor.shape());
    let offset: u64 = starts.iter().zip(&strides).map(|(start, stride)| start * stride).sum();
    let strides: Vec<i64> = strides.iter().zip(steps).map(|(&stride, step)| stride as i64 * step).collect();
    strided(tensor, shape, offset as i64, &strides)
}

fn gather(data: &Tensor, indices: &Tensor, axis: usize, output: &TensorType) -> Option<Tensor> {
    let size = data.shape()[axis] as i64;
    let inner = data.shape()[axis + 1..].iter().product::<u64>() * data.data_type().size_bytes();
    let outer: u64 = data.shape()[..axis].iter().product();
    let indices = indices.to_i64()?;
    let mut bytes = Vec::with_capacity((output.count() * data.data_type().size_bytes()) as usize);
    for block in 0..outer {
        for &index in &indices {
            let index = if index < 0 { index.checked_add(size)? } else { index };
            if !(0..size).contains(&index) {
                return None;
            }
            let start = (block * size as u64 + index as u64) * inner;
            bytes.extend_from_slice(&data.bytes()[start as usize..(start + inner) as usize]);
        }
    }
    Tensor::new(output.data_type, &output.shape, bytes)
}

fn pad(tensor: &Tensor, begins: &[u64], value: f32, output: &TensorType) -> Option<Tensor> {
    let mut bytes = Elements::filled(f64::from(value), output)?.write(output)?.bytes().to_vec();
    let size = tensor.data_type().size_bytes() as usize;
    let strides = packed_strides(&output.shape);
    let from = packed_strides(tensor.shape());
    for (i, element) in tensor.bytes().chunks_exact(size).enumerate() {
        let index = |axis: usize| (i as u64 / from[axis]) % tensor.shape()[axis];
        let position: u64 = (0..begins.len()).map(|axis| (index(axis) + begins[axis]) * strides[axis]).sum();
        let start = position as usize * size;
        bytes[start..start + size].copy_from_slice(element);
    }
    Tensor::new(output.data_type, &output.shape, bytes)
}

fn binary(op: BinaryOp, a: &Tensor, b: &Tensor, output: &TensorType) -> Option<Tensor> {
    let a = Elements::read(&expand(a, &output.shape)?)?;
    let b = Elements::read(&expand(b, &output.shape)?)?;
    let elements = match (a, b) {
        (Elements::Integers(a), Elements::Integers(b)) => {
            let pairs = a.iter().zip(&b);
            Elements::Integers(pairs.map(|(&a, &b)| integer_function(op, a, b)).collect::<Option<_>>()?)
        }
        (Elements::Floats(a), Elements::Floats(b)) if op.is_comparison() => {
            let pairs = a.iter().zip(&b);
            Elements::Integers(pairs.map(|(&a, &b)| compare(op, &a, &b).map(i64::from)).collect::<Option<_>>()?)
        }
        (Elements::Floats(a), Elements::Floats(b)) => {
            let pairs = a.iter().zip(&b);
            Elements::Floats(pairs.map(|(&a, &b)| arithmetic(op, a, b)).collect::<Option<_>>()?)
        }
        _ => return None,
    };
    elements.write(output)
}

fn integer_function(op: BinaryOp, a: i64, b: i64) -> Option<i64> {
    Some(match op {
        BinaryOp::Add => a.wrapping_add(b),
        BinaryOp::Subtract => a.wrapping_sub(b),
        BinaryOp::Multiply => a.wrapping_mul(b),
        BinaryOp::Divide if b == 0 => return None,
        BinaryOp::Divide => a.wrapping_div(b),
        BinaryOp::Power => a.wrapping_pow(u32::try_from(b).ok()?),
        BinaryOp::Minimum => a.min(b),
        BinaryOp::Maximum => a.max(b),
        BinaryOp::And | BinaryOp::BitAnd => a & b,
        BinaryOp::Or | BinaryOp::BitOr => a | b,
        BinaryOp::Xor | BinaryOp::BitXor => a ^ b,
        BinaryOp::Modulo | BinaryOp::Remainder if b == 0 => return None,
        BinaryOp::Remainder => a.wrapping_rem(b),
        BinaryOp::Modulo => {
            let left = a.wrapping_rem(b);
            if left != 0 && (left < 0) != (b < 0) { left + b } else { left }
        }
        BinaryOp::ShiftLeft => u32::try_from(b).ok().and_then(|b| a.checked_shl(b)).unwrap_or(0),
        BinaryOp::ShiftRight => u32::try_from(b).ok().and_then(|b| a.checked_shr(b)).unwrap_or(0),
        _ => i64::from(compare(op, &a, &b)?),
    })
}

fn compare<T: PartialOrd>(op: BinaryOp, a: &T, b: &T) -> Option<bool> {
    Some(match op {
        BinaryOp::Equal => a == b,
        BinaryOp::Less => a < b,
        BinaryOp::LessOrEqual => a <= b,
        BinaryOp::Greater => a > b,
        BinaryOp::GreaterOrEqual => a >= b,
        _ => return None,
    })
}

fn arithmetic(op: BinaryOp, a: f64, b: f64) -> Option<f64> {
    let either_nan = a.is_nan() || b.is_nan();
    Some(match op {
        BinaryOp::Add => a + b,
        BinaryOp::Subtract => a - b,
        BinaryOp::Multiply => a * b,
        BinaryOp::Divide => a / b,
        BinaryOp::Power => libm::pow(a, b),
        BinaryOp::Minimum | BinaryOp::Maximum if either_nan => f64::NAN,
        BinaryOp::Minimum => a.min(b),
        BinaryOp::Maximum => a.max(b),
        BinaryOp::Remainder => a % b,
        _ => return None,
    })
}

fn select(operands: &[Tensor], output: &TensorType) -> Option<Tensor> {
    let [condition, a, b] = operands else { return None };
    let condition = expand(condition, &output.shape)?;
    let (a, b) = (expand(a, &output.shape)?, expand(b, &output.shape)?);
    let size = output.data_type.size_bytes() as usize;
    let pairs = a.bytes().chunks_exact(size).zip(b.bytes().chunks_exact(size));
    let chosen = condition.bytes().iter().zip(pairs).map(|(&is_a, (a, b))| if is_a != 0 { a } else { b });
    Tensor::new(output.data_type, &output.shape, chosen.flatten().copied().collect::<Vec<u8>>())
}

fn reduce(op: ReduceOp, axes: &[usize], x: &Tensor, output: &TensorType) -> Option<Tensor> {
    let strides = packed_strides(x.shape());
    let mut targets = packed_strides(&output.shape);
    for &axis in axes {
        targets[axis] = 0;
    }
    let count = output.count() as usize;
    let target = |i: usize| -> usize {
        let position = |axis: usize| (i as u64 / strides[axis]) % x.shape()[axis] * targets[axis];
        (0..strides.len()).map(position).sum::<u64>() as usize
    };
    if x.count() == 0 {
        return None;
    }
    let elements = match Elements::read(x)? {
        Elements::Integers(v) => {
            let mut results = vec![None; count];
            for (i, &v) in v.iter().enumerate() {
                let result: &mut Option<i64> = &mut results[target(i)];
                *result = Some(match (op, *result) {
                    (ReduceOp::Sum | ReduceOp::Product | ReduceOp::Max | ReduceOp::Min, None) => v,
                    (ReduceOp::Sum, Some(sum)) => sum.wrapping_add(v),
                    (ReduceOp::Product, Some(product)) => product.wrapping_mul(v),
                    (ReduceOp::Max, Some(max)) => max.max(v),
                    (ReduceOp::Min, Some(min)) => min.min(v),
                    _ => return None,
                });
            }
            Elements::Integers(results.into_iter().collect::<Option<_>>()?)
        }
        Elements::Floats(v) => {
            let mut results = vec![None; count];
            for (i, &v) in v.iter().enumerate() {
                let result: &mut Option<f64> = &mut results[target(i)];
                *result = Some(match (op, *result) {
                    (ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Product | ReduceOp::Max | ReduceOp::Min, None) => v,
                    (ReduceOp::Sum | ReduceOp::Mean, Some(sum)) => sum + v,
                    (ReduceOp::Product, Some(product)) => product * v,
                    (ReduceOp::Max, Some(max)) => arithmetic(BinaryOp::Maximum, max, v)?,
                    (ReduceOp::Min, Some(min)) => arithmetic(BinaryOp::Minimum, min, v)?,
                    _ => return None,
                });
            }
            let divisor = if op == ReduceOp::Mean { (x.count() / count as u64) as f64 } else { 1.0 };
            let results = results.into_iter().collect::<Option<Vec<f64>>>()?;
            Elements::Floats(results.into_iter().map(|v| v / divisor).collect())
        }
    };
    elements.write(output)
}
