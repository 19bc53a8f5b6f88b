//! What kernels refuse is known before they run.

use forebay_base::kernel::facts::OperandRef;
use forebay_base::kernel::samples::{self, Sample};
use forebay_base::kernel::{Activation, BinaryOp, ReduceOp, UnaryOp};
use forebay_base::{DataType, Kernel, TensorDesc};

use super::testing::{Tensor, desc, outcome};
use super::workspace_bytes;

/// Functions of one and of two variables, and reductions, each with operands in float32.
fn functions() -> Vec<Sample> {
    use BinaryOp::*;
    let unary = [
        UnaryOp::Relu,
        UnaryOp::LeakyRelu { alpha: 0.5 },
        UnaryOp::Clip { low: 0.0, high: 2.0 },
        UnaryOp::Affine { scale: -1.0, shift: 2.0 },
        UnaryOp::Affine { scale: 0.5, shift: 0.0 },
        UnaryOp::Exp,
        UnaryOp::Abs,
        UnaryOp::Sign,
        UnaryOp::Floor,
        UnaryOp::Ceil,
        UnaryOp::Round,
        UnaryOp::Gelu,
        UnaryOp::Not,
    ];
    let mut comparisons = vec![Equal, Less, LessOrEqual, Greater, GreaterOrEqual, And, Or, Xor];
    comparisons.extend([Add, Subtract, Multiply, Divide, Power, Minimum, Maximum, Modulo, Remainder]);
    comparisons.extend([BitAnd, BitOr, BitXor, ShiftLeft, ShiftRight]);
    use ReduceOp::{L1, L2, Max, Mean, Min, Product, Sum, SumSquare};
    let vector = desc(DataType::Float32, &[6]);
    let sample = |kernel, reads: usize, write: &TensorDesc| Sample {
        kernel,
        reads: vec![vector.clone(); reads],
        writes: vec![write.clone()],
    };
    let unary = unary.map(|op| sample(Kernel::Unary(op), 1, &vector));
    let binary = comparisons.into_iter().map(|op| {
        let write = if op.is_comparison() { desc(DataType::Bool, &[6]) } else { vector.clone() };
        sample(Kernel::Binary { op, activation: Activation::None }, 2, &write)
    });
    let one = desc(DataType::Float32, &[1]);
    let reductions = [Sum, Mean, Max, Min, Product, L1, L2, SumSquare];
    let reductions = reductions.into_iter().map(|op| sample(Kernel::Reduce { op, axes: vec![0] }, 1, &one));
    unary.into_iter().chain(binary).chain(reductions).collect()
}

/// The same operands, with another type in place of float32.
fn in_type(descs: &[TensorDesc], data_type: DataType) -> Vec<TensorDesc> {
    let own = |desc: &TensorDesc| match desc.data_type() {
        DataType::Float32 => TensorDesc::strided(data_type, desc.sizes(), &desc.effective_strides()).unwrap(),
        _ => desc.clone(),
    };
    descs.iter().map(own).collect()
}

#[test]
fn whether_a_kernel_takes_a_type_is_known_before_it_runs() {
    let (mut counts, mut surprises) = ([0; 2], Vec::new());
    // Hyperparameters are float32 in every launch, so the types of updates cannot be exchanged as a whole.
    let is_float = |sample: &Sample| sample.reads.first().is_some_and(|read| read.data_type() == DataType::Float32);
    let is_exchanged = |sample: &Sample| is_float(sample) && !sample.kernel.facts().updates_state;
    let samples = samples::on_devices().into_iter().filter(is_exchanged);
    for sample in samples.chain(functions()) {
        // Not every operand of a kernel can be stored in 16 bits; other tests store those that can.
        let is_stored = sample.kernel.facts().sixteen_bit.includes(OperandRef::Read(0));
        for data_type in DataType::NOT_NARROW.into_iter().filter(|one| !(is_stored && one.is_sixteen_bit())) {
            let (reads, writes) = (in_type(&sample.reads, data_type), in_type(&sample.writes, data_type));
            let count = |desc: &TensorDesc| (desc.total_size_bytes() / desc.data_type().size_bytes()) as usize;
            let zeros = |desc: &TensorDesc| Tensor::new(desc, &vec![0.0; count(desc)]);
            let tensors: Vec<Tensor> = reads.iter().map(zeros).collect();
            let predicted = workspace_bytes(&sample.kernel, &reads, &writes);
            let actual = outcome(&sample.kernel, &tensors.iter().collect::<Vec<_>>(), &writes);
            let name = format!("{} of {data_type}", sample.kernel);
            if predicted.is_ok() != actual.is_ok() {
                surprises.push(format!("{name}: predicted {predicted:?}, but {actual:?}"));
            }
            counts[usize::from(actual.is_ok())] += 1;
        }
    }
    assert!(surprises.is_empty(), "{}", surprises.join("\n"));
    assert!(counts.iter().all(|&count| count > 100), "{counts:?}");
}
