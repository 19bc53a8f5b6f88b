//! Elementwise kernels, which compute each result from the elements at the same position.

use forebay_base::kernel::{Activation, BinaryOp, UnaryOp};
use forebay_base::{DataType, Kernel, TensorDesc};

use super::elements::{Elements, Kind, Layout, Task, bits_of};
use super::operands::{format_of, require_computed_in_single};
use super::{Dispatch, Lowered, Operand, Target, Unsupported, shaders, unsupported};

/// Lowers a kernel of this family.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    let dispatches = match *kernel {
        Kernel::Unary(op) => unary(op, reads, &writes[0], gpu),
        Kernel::UnaryGradient(op) => unary_gradient(op, reads, &writes[0], gpu),
        Kernel::Binary { op, activation } => binary(op, activation, reads, &writes[0], gpu),
        Kernel::Select => select(reads, &writes[0], gpu),
        Kernel::Cast(_) => cast(reads, &writes[0], gpu),
        Kernel::Fill { value } => fill(value, &writes[0], gpu),
        Kernel::Random { node, first } => random(node, first, reads, writes, gpu),
        Kernel::Dropout { ratio, node, first } => dropout((ratio, first), node, reads, writes, gpu),
        _ => Err("not an elementwise kernel".to_owned()),
    };
    let dispatches = dispatches.map_err(|reason| unsupported(kernel, reason))?;
    Ok(Lowered::from(dispatches))
}

/// Returns the arguments of a function.
fn arguments_of(op: UnaryOp) -> [f32; 2] {
    match op {
        UnaryOp::LeakyRelu { alpha } | UnaryOp::Elu { alpha } => [alpha, 0.0],
        UnaryOp::Clip { low, high } => [low, high],
        UnaryOp::Affine { scale, shift } => [scale, shift],
        UnaryOp::HardSigmoid { alpha, beta } => [alpha, beta],
        UnaryOp::Relu
        | UnaryOp::Sigmoid
        | UnaryOp::Tanh
        | UnaryOp::Exp
        | UnaryOp::Log
        | UnaryOp::Sqrt
        | UnaryOp::Reciprocal
        | UnaryOp::Abs
        | UnaryOp::Sign
        | UnaryOp::Floor
        | UnaryOp::Ceil
        | UnaryOp::Erf
        | UnaryOp::Gelu
        | UnaryOp::TanhGelu
        | UnaryOp::Softplus
        | UnaryOp::Silu
        | UnaryOp::HardSwish
        | UnaryOp::Sin
        | UnaryOp::Cos
        | UnaryOp::Not
        | UnaryOp::Round
        | UnaryOp::Tan
        | UnaryOp::Asin
        | UnaryOp::Acos
        | UnaryOp::Atan
        | UnaryOp::Sinh
        | UnaryOp::Cosh
        | UnaryOp::Asinh
        | UnaryOp::Acosh
        | UnaryOp::Atanh => [0.0; 2],
    }
}

/// Returns the kind that elements of a type have in shaders that compute with them.
fn kind_of(data_type: DataType) -> Result<Kind, String> {
    match data_type.is_narrow() {
        true => Err(no_shader(data_type)),
        false => Ok(Kind::of(data_type)),
    }
}

/// Returns the formats of operands, as constants of shaders that compute with them in float32.
fn formats<'a>(operands: impl IntoIterator<Item = &'a TensorDesc>) -> Vec<u32> {
    operands.into_iter().map(|desc| format_of(desc.data_type())).collect()
}

fn unary(op: UnaryOp, reads: &[TensorDesc], write: &TensorDesc, gpu: &Target) -> Result<Vec<Dispatch>, String> {
    let data_type = reads[0].data_type().computed_in();
    require_type_of_result(write, data_type)?;
    let kind = kind_of(data_type)?;
    let numbers = arguments_of(op);
    let undefined = || format!("{op:?} is not defined for {data_type}; cast to float32 first");
    let bits = |value: f32| bits_of(value as f64, data_type);
    let arguments = match (kind, op) {
        (Kind::Real, UnaryOp::Not) => return Err(undefined()),
        (Kind::Real, _) if data_type == DataType::Float64 && !is_algebraic(op) => {
            return Err(format!("the Vulkan device does not support {op:?} for float64; cast to float32 first"));
        }
        (Kind::Real, _) => numbers.map(bits),
        (Kind::Boolean, UnaryOp::Not) => [0; 2],
        (Kind::Boolean, _) => return Err(undefined()),
        (_, UnaryOp::Affine { scale, shift }) if scale.fract() == 0.0 && shift.fract() == 0.0 => {
            // Wrapping arithmetic makes negation work for unsigned types and the smallest number, too.
            [scale, shift].map(|value| if value < 0.0 { bits(value.abs()).wrapping_neg() } else { bits(value) })
        }
        (_, UnaryOp::Clip { .. }) => numbers.map(bits),
        (_, UnaryOp::Relu | UnaryOp::Abs | UnaryOp::Sign | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round) => [0; 2],
        _ => return Err(undefined()),
    };
    let mut constants = vec![op.opcode(), kind.opcode()];
    let (shader, arguments) = match data_type {
        DataType::Float64 => (&shaders::ELEMENTWISE_DOUBLE_UNARY, words_of(arguments).to_vec()),
        DataType::Int64 | DataType::UInt64 => (&shaders::ELEMENTWISE_WIDE_UNARY, words_of(arguments).to_vec()),
        _ => {
            constants.extend(formats([&reads[0], write]));
            (&shaders::ELEMENTWISE_UNARY, arguments.map(|argument| argument as u32).to_vec())
        }
    };
    Elements::of(reads, write)?.dispatches(&Task { shader, constants, arguments }, gpu)
}

fn words_of([a, b]: [u64; 2]) -> [u32; 4] {
    [a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32]
}

/// Returns whether a function needs only arithmetic and roots, which is what devices have in double precision.
fn is_algebraic(op: UnaryOp) -> bool {
    matches!(
        op,
        UnaryOp::Relu
            | UnaryOp::LeakyRelu { .. }
            | UnaryOp::Clip { .. }
            | UnaryOp::Affine { .. }
            | UnaryOp::HardSigmoid { .. }
            | UnaryOp::HardSwish
            | UnaryOp::Sqrt
            | UnaryOp::Reciprocal
            | UnaryOp::Abs
            | UnaryOp::Sign
            | UnaryOp::Floor
            | UnaryOp::Ceil
            | UnaryOp::Round
    )
}

fn unary_gradient(
    op: UnaryOp,
    reads: &[TensorDesc],
    write: &TensorDesc,
    gpu: &Target,
) -> Result<Vec<Dispatch>, String> {
    for desc in reads.iter().chain([write]) {
        require_computed_in_single(desc)?;
    }
    if op == UnaryOp::Not {
        return Err("Not has no gradient".to_owned());
    }
    let arguments = arguments_of(op);
    let task = Task {
        shader: &shaders::ELEMENTWISE_UNARY_GRADIENT,
        constants: [op.opcode()].into_iter().chain(formats(reads.iter().chain([write]))).collect(),
        arguments: arguments.map(f32::to_bits).to_vec(),
    };
    Elements::of(reads, write)?.dispatches(&task, gpu)
}

fn binary(
    op: BinaryOp,
    activation: Activation,
    reads: &[TensorDesc],
    write: &TensorDesc,
    gpu: &Target,
) -> Result<Vec<Dispatch>, String> {
    let [a, b] = [&reads[0], &reads[1]].map(|desc| desc.data_type().computed_in());
    if !op.is_comparison() {
        require_type_of_result(write, a)?;
    }
    if a != b {
        return Err(format!("operand types {a} and {b} differ; cast one first"));
    }
    if op.is_comparison() && activation != Activation::None {
        return Err(format!("{op:?} returns bool, which does not support {activation:?}"));
    }
    let kind = kind_of(a)?;
    let is_logic = matches!(op, BinaryOp::And | BinaryOp::Or | BinaryOp::Xor);
    if kind == Kind::Boolean && !is_logic && op != BinaryOp::Equal {
        return Err(format!("{op:?} is not defined for bool; cast to int32 first"));
    }
    if kind != Kind::Boolean && is_logic {
        return Err(format!("{op:?} is defined for bool, not for {a}"));
    }
    if matches!(activation, Activation::Clip { .. }) && a != DataType::Float32 {
        return Err(format!("{activation:?} supports only float32, not {a}"));
    }
    if kind == Kind::Real && is_of_bits(op) {
        return Err(format!("{op:?} is defined for integers, not for {a}"));
    }
    let shader = match a.size_bytes() {
        8 if op.is_comparison() => &shaders::ELEMENTWISE_WIDE_COMPARISON,
        8 if kind == Kind::Real && matches!(op, BinaryOp::Power | BinaryOp::Modulo | BinaryOp::Remainder) => {
            return Err(format!("the Vulkan device does not support {op:?} for float64; cast to float32 first"));
        }
        8 if kind == Kind::Real => &shaders::ELEMENTWISE_DOUBLE_BINARY,
        8 => &shaders::ELEMENTWISE_WIDE_BINARY,
        _ => &shaders::ELEMENTWISE_BINARY,
    };
    let applied = match activation {
        Activation::None | Activation::Function(_) => 0,
        Activation::Relu => 1,
        Activation::Clip { .. } => 2,
    };
    let (mut constants, mut limits) = (vec![op.opcode(), kind.opcode(), applied], Vec::new());
    // Wide elements have no limits other than those of ReLU.
    if a.size_bytes() < 8 {
        constants.extend(formats(reads.iter().chain([write])));
        limits.extend(activation.limits().map(f32::to_bits));
    }
    let task = Task { shader, constants, arguments: limits };
    Elements::of(reads, write)?.dispatches(&task, gpu)
}

/// Returns whether a function operates on bits.
fn is_of_bits(op: BinaryOp) -> bool {
    matches!(op, BinaryOp::BitAnd | BinaryOp::BitOr | BinaryOp::BitXor | BinaryOp::ShiftLeft | BinaryOp::ShiftRight)
}

fn select(reads: &[TensorDesc], write: &TensorDesc, gpu: &Target) -> Result<Vec<Dispatch>, String> {
    let task = Task { shader: &shaders::ELEMENTWISE_SELECT, constants: Vec::new(), arguments: Vec::new() };
    Elements::of(reads, write)?.in_words().dispatches(&task, gpu)
}

/// Returns a type in the encoding of `elementwise_cast.slang`: its kind, and the number of bits of the type, its exponent and its fraction.
fn type_code(data_type: DataType) -> u32 {
    let (exponent_bits, fraction_bits) = match data_type {
        DataType::Float64 => (11, 52),
        DataType::Float32 => (8, 23),
        DataType::Float16 => (5, 10),
        DataType::BFloat16 => (8, 7),
        _ => (0, 0),
    };
    Kind::of(data_type).opcode() | (data_type.size_bits() as u32) << 8 | exponent_bits << 16 | fraction_bits << 24
}

/// Returns the reason why a narrow type is neither computed with nor converted.
fn no_shader(data_type: DataType) -> String {
    format!(
        "GPUs can move elements of {data_type}, but can neither convert them nor compute with them; run on the host \
         device"
    )
}

fn cast(reads: &[TensorDesc], write: &TensorDesc, gpu: &Target) -> Result<Vec<Dispatch>, String> {
    let types = [reads[0].data_type(), write.data_type()];
    if let Some(narrow) = types.into_iter().find(|data_type| data_type.is_narrow()) {
        return Err(no_shader(narrow));
    }
    let is_wide = write.data_type().size_bytes() == 8;
    let shader = if is_wide { &shaders::ELEMENTWISE_CAST_WIDE } else { &shaders::ELEMENTWISE_CAST };
    let arguments = vec![type_code(reads[0].data_type()), type_code(write.data_type())];
    Elements::of(reads, write)?.dispatches(&Task { shader, constants: Vec::new(), arguments }, gpu)
}

fn fill(value: f64, write: &TensorDesc, gpu: &Target) -> Result<Vec<Dispatch>, String> {
    let bits = bits_of(value, write.data_type());
    let is_wide = write.data_type().size_bytes() == 8;
    let words = [bits as u32, if is_wide { (bits >> 32) as u32 } else { bits as u32 }];
    let task = Task { shader: &shaders::ELEMENTWISE_FILL, constants: Vec::new(), arguments: words.to_vec() };
    Elements::of(&[], write)?.in_words().dispatches(&task, gpu)
}

fn dropout(
    (ratio, first): (f32, u64),
    node: u64,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Vec<Dispatch>, String> {
    if !(0.0..1.0).contains(&ratio) {
        return Err(format!("the ratio must be in 0..1, not {ratio}"));
    }
    require_single(&reads[0])?;
    if let Some(strided) = reads.iter().chain(writes).find(|desc| !desc.is_packed()) {
        return Err(format!("{strided} must be packed"));
    }
    let threshold = (ratio as f64 * 4_294_967_296.0) as u32;
    let scale = (1.0 / (1.0 - ratio as f64)) as f32;
    require_step(&reads[1])?;
    let arguments = [&words(node)[..], &[threshold, scale.to_bits()]].concat();
    let outputs = [(&shaders::ELEMENTWISE_DROPOUT, &reads[..1]), (&shaders::ELEMENTWISE_DROPOUT_MASK, &[][..])];
    let mut dispatches = Vec::new();
    for (number, (write, (shader, operands))) in writes.iter().zip(outputs).enumerate() {
        let sizes = write.sizes();
        let mut layouts = vec![Layout::whole(Operand::Read(1), &reads[1], sizes)];
        for (number, desc) in operands.iter().enumerate() {
            layouts.push(Layout::broadcast(Operand::Read(number), desc, sizes)?);
        }
        layouts.push(Layout::broadcast(Operand::Write(number), write, sizes)?);
        let task = Task { shader, constants: Vec::new(), arguments: arguments.clone() };
        dispatches.extend(Elements::new(sizes, layouts).counted_from(first).dispatches(&task, gpu)?);
    }
    Ok(dispatches)
}

/// Returns a 64-bit number as words for the shader.
fn words(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

fn require_step(step: &TensorDesc) -> Result<(), String> {
    if step.data_type() != DataType::Int64 || step.element_count() != 2 {
        return Err(format!("a step and a seed must be int64[2], not {step}"));
    }
    Ok(())
}

fn random(
    node: u64,
    first: u64,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Vec<Dispatch>, String> {
    let ([step], [y]) = (reads, writes) else { return Err(format!("{} operands", reads.len() + writes.len())) };
    require_step(step)?;
    require_single(y)?;
    if !y.is_packed() {
        return Err(format!("{y} must be packed"));
    }
    let sizes = y.sizes();
    let layouts = vec![Layout::whole(Operand::Read(0), step, sizes), Layout::broadcast(Operand::Write(0), y, sizes)?];
    // The threshold and the scale of dropout are not used.
    let arguments = [&words(node)[..], &[0, 0]].concat();
    let task = Task { shader: &shaders::ELEMENTWISE_RANDOM, constants: Vec::new(), arguments };
    Elements::new(sizes, layouts).counted_from(first).dispatches(&task, gpu)
}

/// # Errors
/// If a result is not computed in this type.
fn require_type_of_result(write: &TensorDesc, data_type: DataType) -> Result<(), String> {
    match write.data_type().computed_in() == data_type {
        true => Ok(()),
        false => Err(format!("a result of {data_type} cannot be written as {write}; cast it")),
    }
}

fn require_single(desc: &TensorDesc) -> Result<(), String> {
    match desc.data_type() {
        DataType::Float32 => Ok(()),
        other => Err(format!("the Vulkan device does not support {other} here; cast to float32 first")),
    }
}
