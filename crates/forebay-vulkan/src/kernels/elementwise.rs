//! One result per element, from the elements at the same place.

use forebay_base::kernel::{Activation, BinaryOp, UnaryOp};
use forebay_base::{DataType, Kernel, TensorDesc};
use forebay_device::DeviceError;

use super::elements::{bits_of, Elements, Kind, Layout, Task};
use super::{shaders, unsupported, Dispatch, Lowered, Offer, Operand};

/// How a kernel of this family runs.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    offer: &Offer,
) -> Result<Lowered, DeviceError> {
    let dispatches = match *kernel {
        Kernel::Unary(op) => unary(op, reads, &writes[0], offer),
        Kernel::UnaryGradient(op) => unary_gradient(op, reads, &writes[0], offer),
        Kernel::Binary { op, activation } => binary(op, activation, reads, &writes[0], offer),
        Kernel::Select => select(reads, &writes[0], offer),
        Kernel::Cast => cast(reads, &writes[0], offer),
        Kernel::Fill { value } => fill(value, &writes[0], offer),
        Kernel::Dropout { ratio, seed, node, first } => dropout((ratio, first), (seed, node), reads, writes, offer),
        _ => Err("not an elementwise kernel".to_owned()),
    };
    let dispatches = dispatches.map_err(|reason| unsupported(kernel, reason))?;
    Ok(Lowered { dispatches, workspace_bytes: 0 })
}

/// The number by which shaders know a function, and its arguments.
fn unary_code(op: UnaryOp) -> (u32, [f32; 2]) {
    match op {
        UnaryOp::Relu => (0, [0.0; 2]),
        UnaryOp::LeakyRelu { alpha } => (1, [alpha, 0.0]),
        UnaryOp::Elu { alpha } => (2, [alpha, 0.0]),
        UnaryOp::Clip { low, high } => (3, [low, high]),
        UnaryOp::Affine { scale, shift } => (4, [scale, shift]),
        UnaryOp::Sigmoid => (5, [0.0; 2]),
        UnaryOp::HardSigmoid { alpha, beta } => (6, [alpha, beta]),
        UnaryOp::Tanh => (7, [0.0; 2]),
        UnaryOp::Exp => (8, [0.0; 2]),
        UnaryOp::Log => (9, [0.0; 2]),
        UnaryOp::Sqrt => (10, [0.0; 2]),
        UnaryOp::Reciprocal => (11, [0.0; 2]),
        UnaryOp::Abs => (12, [0.0; 2]),
        UnaryOp::Sign => (13, [0.0; 2]),
        UnaryOp::Floor => (14, [0.0; 2]),
        UnaryOp::Ceil => (15, [0.0; 2]),
        UnaryOp::Erf => (16, [0.0; 2]),
        UnaryOp::Gelu => (17, [0.0; 2]),
        UnaryOp::Softplus => (18, [0.0; 2]),
        UnaryOp::Silu => (19, [0.0; 2]),
        UnaryOp::Sin => (20, [0.0; 2]),
        UnaryOp::Cos => (21, [0.0; 2]),
        UnaryOp::Not => (22, [0.0; 2]),
    }
}

/// The number by which shaders know a function.
fn binary_code(op: BinaryOp) -> u32 {
    match op {
        BinaryOp::Add => 0,
        BinaryOp::Subtract => 1,
        BinaryOp::Multiply => 2,
        BinaryOp::Divide => 3,
        BinaryOp::Power => 4,
        BinaryOp::Minimum => 5,
        BinaryOp::Maximum => 6,
        BinaryOp::Equal => 7,
        BinaryOp::Less => 8,
        BinaryOp::LessOrEqual => 9,
        BinaryOp::Greater => 10,
        BinaryOp::GreaterOrEqual => 11,
        BinaryOp::And => 12,
        BinaryOp::Or => 13,
        BinaryOp::Xor => 14,
    }
}

/// What elements of a type are to shaders that compute with them.
fn kind_of(data_type: DataType, offer: &Offer) -> Result<Kind, String> {
    match data_type {
        DataType::Float64 if !offer.float64 => {
            Err("the device does not compute with float64; cast to float32 first".to_owned())
        }
        DataType::Float16 | DataType::BFloat16 => {
            Err(format!("data type {data_type} is not supported; cast to float32 first"))
        }
        _ => Ok(Kind::of(data_type)),
    }
}

fn unary(op: UnaryOp, reads: &[TensorDesc], write: &TensorDesc, offer: &Offer) -> Result<Vec<Dispatch>, String> {
    let data_type = reads[0].data_type();
    let kind = kind_of(data_type, offer)?;
    let (operation, numbers) = unary_code(op);
    let undefined = || format!("{op:?} is not defined for {data_type}; cast to float32 first");
    let bits = |value: f32| bits_of(value as f64, data_type);
    let arguments = match (kind, op) {
        (Kind::Real, UnaryOp::Not) => return Err(undefined()),
        (Kind::Real, _) if data_type == DataType::Float64 && !is_algebraic(op) => {
            return Err(format!("the Vulkan device has no {op:?} for float64; cast to float32 first"));
        }
        (Kind::Real, _) => numbers.map(bits),
        (Kind::Boolean, UnaryOp::Not) => [0; 2],
        (Kind::Boolean, _) => return Err(undefined()),
        (_, UnaryOp::Affine { scale, shift }) if scale.fract() == 0.0 && shift.fract() == 0.0 => {
            // Through wrapping arithmetic, so that negation works for unsigned types and the smallest number too.
            [scale, shift].map(|value| if value < 0.0 { bits(value.abs()).wrapping_neg() } else { bits(value) })
        }
        (_, UnaryOp::Clip { .. }) => numbers.map(bits),
        (_, UnaryOp::Relu | UnaryOp::Abs | UnaryOp::Sign | UnaryOp::Floor | UnaryOp::Ceil) => [0; 2],
        _ => return Err(undefined()),
    };
    let (shader, arguments) = match data_type {
        DataType::Float64 => (&shaders::ELEMENTWISE_DOUBLE_UNARY, words_of(arguments).to_vec()),
        DataType::Int64 | DataType::UInt64 => (&shaders::ELEMENTWISE_WIDE_UNARY, words_of(arguments).to_vec()),
        _ => (&shaders::ELEMENTWISE_UNARY, arguments.map(|argument| argument as u32).to_vec()),
    };
    let task = Task { shader, constants: vec![operation, kind as u32], arguments };
    Elements::of(reads, write)?.dispatches(&task, offer)
}

fn words_of([a, b]: [u64; 2]) -> [u32; 4] {
    [a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32]
}

/// Whether a function needs no more than arithmetic and roots, which is what devices have in double precision.
fn is_algebraic(op: UnaryOp) -> bool {
    matches!(
        op,
        UnaryOp::Relu
            | UnaryOp::LeakyRelu { .. }
            | UnaryOp::Clip { .. }
            | UnaryOp::Affine { .. }
            | UnaryOp::HardSigmoid { .. }
            | UnaryOp::Sqrt
            | UnaryOp::Reciprocal
            | UnaryOp::Abs
            | UnaryOp::Sign
            | UnaryOp::Floor
            | UnaryOp::Ceil
    )
}

fn unary_gradient(
    op: UnaryOp,
    reads: &[TensorDesc],
    write: &TensorDesc,
    offer: &Offer,
) -> Result<Vec<Dispatch>, String> {
    require_single(&reads[0])?;
    if op == UnaryOp::Not {
        return Err("Not has no gradient".to_owned());
    }
    let (operation, arguments) = unary_code(op);
    let task = Task {
        shader: &shaders::ELEMENTWISE_UNARY_GRADIENT,
        constants: vec![operation],
        arguments: arguments.map(f32::to_bits).to_vec(),
    };
    Elements::of(reads, write)?.dispatches(&task, offer)
}

fn binary(
    op: BinaryOp,
    activation: Activation,
    reads: &[TensorDesc],
    write: &TensorDesc,
    offer: &Offer,
) -> Result<Vec<Dispatch>, String> {
    let [a, b] = [reads[0].data_type(), reads[1].data_type()];
    if a != b {
        return Err(format!("operands of {a} and {b} differ; cast one first"));
    }
    if op.is_comparison() && activation != Activation::None {
        return Err(format!("{op:?} gives bool, which has no {activation:?}"));
    }
    let kind = kind_of(a, offer)?;
    let is_logic = matches!(op, BinaryOp::And | BinaryOp::Or | BinaryOp::Xor);
    if kind == Kind::Boolean && !is_logic && op != BinaryOp::Equal {
        return Err(format!("{op:?} is not defined for bool; cast to int32 first"));
    }
    if kind != Kind::Boolean && is_logic {
        return Err(format!("{op:?} is defined for bool, not for {a}"));
    }
    let shader = match a.size_bytes() {
        8 if op.is_comparison() => &shaders::ELEMENTWISE_WIDE_COMPARISON,
        8 if kind == Kind::Real && op == BinaryOp::Power => {
            return Err("the Vulkan device has no Power for float64; cast to float32 first".to_owned());
        }
        8 if kind == Kind::Real => &shaders::ELEMENTWISE_DOUBLE_BINARY,
        8 => &shaders::ELEMENTWISE_WIDE_BINARY,
        _ => &shaders::ELEMENTWISE_BINARY,
    };
    let constants = vec![binary_code(op), kind as u32, (activation == Activation::Relu) as u32];
    let task = Task { shader, constants, arguments: Vec::new() };
    Elements::of(reads, write)?.dispatches(&task, offer)
}

fn select(reads: &[TensorDesc], write: &TensorDesc, offer: &Offer) -> Result<Vec<Dispatch>, String> {
    let task = Task { shader: &shaders::ELEMENTWISE_SELECT, constants: Vec::new(), arguments: Vec::new() };
    Elements::of(reads, write)?.in_words().dispatches(&task, offer)
}

/// A type as `elementwise_cast.slang` is told of it: what it is, its bits, and those of its exponent and fraction.
fn type_code(data_type: DataType) -> u32 {
    let (exponent_bits, fraction_bits) = match data_type {
        DataType::Float64 => (11, 52),
        DataType::Float32 => (8, 23),
        DataType::Float16 => (5, 10),
        DataType::BFloat16 => (8, 7),
        _ => (0, 0),
    };
    Kind::of(data_type) as u32 | (data_type.size_bits() as u32) << 8 | exponent_bits << 16 | fraction_bits << 24
}

fn cast(reads: &[TensorDesc], write: &TensorDesc, offer: &Offer) -> Result<Vec<Dispatch>, String> {
    let is_wide = write.data_type().size_bytes() == 8;
    let shader = if is_wide { &shaders::ELEMENTWISE_CAST_WIDE } else { &shaders::ELEMENTWISE_CAST };
    let arguments = vec![type_code(reads[0].data_type()), type_code(write.data_type())];
    Elements::of(reads, write)?.dispatches(&Task { shader, constants: Vec::new(), arguments }, offer)
}

fn fill(value: f64, write: &TensorDesc, offer: &Offer) -> Result<Vec<Dispatch>, String> {
    let bits = bits_of(value, write.data_type());
    let is_wide = write.data_type().size_bytes() == 8;
    let words = [bits as u32, if is_wide { (bits >> 32) as u32 } else { bits as u32 }];
    let task = Task { shader: &shaders::ELEMENTWISE_FILL, constants: Vec::new(), arguments: words.to_vec() };
    Elements::of(&[], write)?.in_words().dispatches(&task, offer)
}

fn dropout(
    (ratio, first): (f32, u64),
    (seed, node): (u64, u64),
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    offer: &Offer,
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
    let words = |word: u64| [word as u32, (word >> 32) as u32];
    if reads[1].data_type() != DataType::Int64 {
        return Err(format!("a step must be int64, not {}", reads[1].data_type()));
    }
    let arguments = [&words(mix(seed))[..], &words(node), &[threshold, scale.to_bits()]].concat();
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
        dispatches.extend(Elements::new(sizes, layouts).counted_from(first).dispatches(&task, offer)?);
    }
    Ok(dispatches)
}

/// The finaliser of SplitMix64, as the shader and the host compute it.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn require_single(desc: &TensorDesc) -> Result<(), String> {
    match desc.data_type() {
        DataType::Float32 => Ok(()),
        other => Err(format!("the Vulkan device does not compute with {other} here; cast to float32 first")),
    }
}
