//! Products and convolutions of 16-bit numbers, in float32: convolutions widen what they pack block by block, other operands are widened in
//! the workspace, and results are rounded once.

use forebay_base::kernel::ProductPart;
use forebay_base::{DataType, Kernel, TensorDesc};

use super::block::map1;
use super::{convolution, matmul, unsupported, View};
use crate::device::DeviceError;

/// Where operands begin in the workspace.
const ALIGNMENT_BYTES: u64 = 256;

/// Runs a product or a convolution, whatever its type.
///
/// # Safety
/// As [`super::run`]; the workspace is as long as [`workspace_bytes`] says.
pub(super) unsafe fn run(
    kernel: &Kernel,
    reads: &[View],
    writes: &[View],
    workspace: Option<View>,
) -> Result<(), DeviceError> {
    let refuse = |reason: String| unsupported(kernel, reason);
    if !reads.iter().chain(writes).any(|view| view.desc.data_type().is_sixteen_bit()) {
        // SAFETY: the caller's promises.
        return unsafe { run_float32(kernel, reads, writes, workspace) };
    }
    if matches!(kernel, Kernel::MatMul { part: ProductPart::Columns { .. }, .. }) {
        return Err(refuse("sums that were rounded to 16 bits are not gone on from".to_string()));
    }
    let descs = |views: &[View]| views.iter().map(|view| view.desc.clone()).collect::<Vec<_>>();
    let Widened { reads: wide_reads, writes: wide_writes } =
        Widened::of(kernel, &descs(reads), &descs(writes)).map_err(refuse)?;
    let mut room = Room { workspace, taken_bytes: 0 };
    // SAFETY: the caller's promises: the workspace holds every operand that is widened, one after the other.
    let (own_reads, own_writes) =
        unsafe { (room.views(kernel, reads, &wide_reads)?, room.views(kernel, writes, &wide_writes)?) };
    let rest = room.rest().map_err(refuse)?;
    let rest = rest.as_ref().map(|(desc, pointer)| View { desc, pointer: *pointer });
    // SAFETY: the caller's promises; what is taken of the workspace is no one else's.
    unsafe {
        for (read, own) in moved(reads, &own_reads) {
            widen(read, own).map_err(refuse)?;
        }
        run_float32(kernel, &own_reads, &own_writes, rest)?;
        for (write, own) in moved(writes, &own_writes) {
            round(own, write).map_err(refuse)?;
        }
    }
    Ok(())
}

/// A workspace, of which operands take bytes one after the other.
struct Room<'a> {
    workspace: Option<View<'a>>,
    taken_bytes: u64,
}

impl Room<'_> {
    /// Operands where they are in float32, those that stay as they are where they are.
    ///
    /// # Safety
    /// There must be room for them.
    unsafe fn views<'a>(
        &mut self,
        kernel: &Kernel,
        views: &[View<'a>],
        wide: &'a [Option<TensorDesc>],
    ) -> Result<Vec<View<'a>>, DeviceError> {
        let mut own = Vec::with_capacity(views.len());
        for (&view, desc) in views.iter().zip(wide) {
            let Some(desc) = desc else {
                own.push(view);
                continue;
            };
            let missing = || unsupported(kernel, "its scratch is missing".to_string());
            let workspace = self.workspace.ok_or_else(missing)?;
            // SAFETY: the caller's promise.
            own.push(View { desc, pointer: unsafe { workspace.pointer.add(self.taken_bytes as usize) } });
            self.taken_bytes += desc.total_size_bytes().next_multiple_of(ALIGNMENT_BYTES);
        }
        Ok(own)
    }

    /// What is left, if there is a workspace.
    fn rest(&self) -> Result<Option<(TensorDesc, *mut u8)>, String> {
        let Some(workspace) = &self.workspace else { return Ok(None) };
        let left_bytes = workspace.desc.total_size_bytes().saturating_sub(self.taken_bytes).max(1);
        let desc = TensorDesc::packed(DataType::UInt8, &[left_bytes]).map_err(|error| error.to_string())?;
        Ok(Some((desc, workspace.pointer.wrapping_add(self.taken_bytes as usize))))
    }
}

/// Those operands that are elsewhere in float32, and where.
fn moved<'v, 'a>(views: &'v [View<'a>], own: &'v [View<'a>]) -> impl Iterator<Item = (&'v View<'a>, &'v View<'a>)> {
    views.iter().zip(own).filter(|(view, own)| view.pointer != own.pointer)
}

/// Temporary bytes that a product or a convolution needs.
pub(super) fn workspace_bytes(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
) -> Result<u64, DeviceError> {
    if !reads.iter().chain(writes).any(|desc| desc.data_type().is_sixteen_bit()) {
        return workspace_bytes_in_float32(kernel, reads, writes);
    }
    let widened = Widened::of(kernel, reads, writes).map_err(|reason| unsupported(kernel, reason))?;
    let sizes_bytes = widened.reads.iter().chain(&widened.writes).flatten();
    let sizes_bytes = sizes_bytes.map(|desc| desc.total_size_bytes().next_multiple_of(ALIGNMENT_BYTES));
    let own = |descs: &[TensorDesc], wide: &[Option<TensorDesc>]| {
        descs.iter().zip(wide).map(|(desc, wide)| wide.as_ref().unwrap_or(desc).clone()).collect::<Vec<_>>()
    };
    let (reads, writes) = (own(reads, &widened.reads), own(writes, &widened.writes));
    Ok(sizes_bytes.sum::<u64>() + workspace_bytes_in_float32(kernel, &reads, &writes)?)
}

/// # Safety
/// As [`run`], with operands in float32 but for those that convolutions pack.
unsafe fn run_float32(
    kernel: &Kernel,
    reads: &[View],
    writes: &[View],
    workspace: Option<View>,
) -> Result<(), DeviceError> {
    // SAFETY: the caller's promises.
    unsafe {
        match kernel {
            Kernel::MatMul { .. } => matmul::run(kernel, reads, writes),
            _ => convolution::run(kernel, reads, writes, workspace),
        }
    }
}

fn workspace_bytes_in_float32(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
) -> Result<u64, DeviceError> {
    match kernel {
        Kernel::MatMul { .. } => Ok(0),
        _ => convolution::workspace_bytes(kernel, reads, writes),
    }
}

/// Operands as they are in float32, without gaps between their elements; none for those that stay as they are.
struct Widened {
    reads: Vec<Option<TensorDesc>>,
    writes: Vec<Option<TensorDesc>>,
}

impl Widened {
    /// # Errors
    /// Where operands are not all of one type.
    fn of(kernel: &Kernel, reads: &[TensorDesc], writes: &[TensorDesc]) -> Result<Widened, String> {
        let data_type = reads[0].data_type();
        if let Some(desc) = reads.iter().chain(writes).find(|desc| desc.data_type() != data_type) {
            return Err(format!("{desc} is not {data_type}, as {} is", reads[0]));
        }
        let packed = if matches!(kernel, Kernel::MatMul { .. }) { 0 } else { convolution::reads_packed(kernel) };
        let wide = |desc: &TensorDesc| widened_desc(desc).map(Some);
        let own = |(number, desc): (usize, &TensorDesc)| if number < packed { Ok(None) } else { wide(desc) };
        Ok(Widened {
            reads: reads.iter().enumerate().map(own).collect::<Result<_, _>>()?,
            writes: writes.iter().map(wide).collect::<Result<_, _>>()?,
        })
    }
}

/// The sizes of the elements that there are: where a dimension repeats one element, 1.
fn distinct_sizes(desc: &TensorDesc) -> Vec<u64> {
    let sizes = desc.sizes().iter().zip(desc.effective_strides());
    sizes.map(|(&size, stride)| if stride == 0 { 1 } else { size }).collect()
}

/// An operand in float32: packed, but for dimensions that repeat one element.
fn widened_desc(desc: &TensorDesc) -> Result<TensorDesc, String> {
    let distinct = distinct_sizes(desc);
    let mut strides = forebay_base::tensor::packed_strides(&distinct);
    for (stride, own) in strides.iter_mut().zip(desc.effective_strides()) {
        *stride *= u64::from(own != 0);
    }
    TensorDesc::strided(DataType::Float32, desc.sizes(), &strides).map_err(|error| error.to_string())
}

/// The elements that an operand and its copy in float32 have.
fn distinct(sixteen_bit: &TensorDesc) -> Result<(TensorDesc, TensorDesc), String> {
    let sizes = distinct_sizes(sixteen_bit);
    let own = TensorDesc::strided(sixteen_bit.data_type(), &sizes, &sixteen_bit.effective_strides());
    let wide = TensorDesc::packed(DataType::Float32, &sizes);
    own.and_then(|own| wide.map(|wide| (own, wide))).map_err(|error| error.to_string())
}

/// Copies an operand to its place in float32.
///
/// # Safety
/// The first must be readable, the second writable, with the elements of [`distinct`].
unsafe fn widen(from: &View, to: &View) -> Result<(), String> {
    let (own, wide) = distinct(from.desc)?;
    let (from, to) = (View { desc: &own, ..*from }, View { desc: &wide, ..*to });
    // SAFETY: the caller's promises.
    unsafe { map1(&from, &to, |x: f32| x) }
}

/// Rounds a result to the nearest numbers of its type, to even ones in between.
///
/// # Safety
/// As [`widen`].
unsafe fn round(from: &View, to: &View) -> Result<(), String> {
    let (own, wide) = distinct(to.desc)?;
    let (from, to) = (View { desc: &wide, ..*from }, View { desc: &own, ..*to });
    // SAFETY: the caller's promises.
    unsafe { map1(&from, &to, |x: f32| x) }
}

#[cfg(test)]
mod tests {
    use forebay_base::kernel::Activation;

    use super::super::testing::{assert_close, desc, refusal, run, strided, Random, Tensor};
    use super::*;

    const PRODUCT: Kernel = Kernel::MatMul {
        transpose_a: false,
        transpose_b: true,
        alpha: -0.75,
        beta: 0.5,
        activation: Activation::Relu,
        part: ProductPart::Whole,
    };

    /// Half a unit in the last place, relative to a number.
    fn rounding(data_type: DataType) -> f64 {
        if data_type == DataType::Float16 {
            1.0 / 2048.0
        } else {
            1.0 / 256.0
        }
    }

    #[test]
    fn products_are_rounded_once() {
        for seed in 0..30 {
            let mut random = Random::new(seed);
            let data_type = [DataType::Float16, DataType::BFloat16][seed as usize % 2];
            let [m, n, k] = [40, 40, 300].map(|limit| 1 + random.below(limit));
            let [a, b] = [[2, m, k], [1, n, k]].map(|sizes| {
                Tensor::new(&desc(data_type, &sizes), &random.values(sizes.iter().product::<u64>() as usize))
            });
            // A summand that is the same in every row; where k is small, the result may take its place.
            let c = strided(data_type, &[2, m, n], &[0, 0, 1]);
            let c = if seed % 3 == 0 { desc(data_type, &[2, m, n]) } else { c };
            let c = Tensor::new(&c, &random.values((c.total_size_bytes() / 2) as usize));
            let (av, bv, cv) = (a.values(), b.values(), c.values());
            let y = run(&PRODUCT, &[&a, &b, &c], &[desc(data_type, &[2, m, n])]).remove(0).values();
            for (i, (value, summand)) in y.into_iter().zip(cv).enumerate() {
                let (row, column) = (i / n as usize * k as usize, i % n as usize * k as usize);
                let terms = || (0..k as usize).map(|term| av[row + term] * bv[column + term]);
                let expected = (0.5 * summand - 0.75 * terms().sum::<f64>()).max(0.0);
                let magnitude = summand.abs() + terms().map(f64::abs).sum::<f64>();
                let error_max = rounding(data_type) * expected + 2e-6 * magnitude;
                assert!((value - expected).abs() <= error_max, "seed {seed}, {i}: {value}, expected {expected}");
            }
        }
    }

    #[test]
    fn sums_are_wider_than_what_is_written() {
        // 2048 and 1: in float16, every second sum would be lost.
        let a = Tensor::new(&desc(DataType::Float16, &[1, 2049]), &[vec![2048.0], vec![1.0; 2048]].concat());
        let b = Tensor::new(&desc(DataType::Float16, &[1, 2049]), &[1.0; 2049]);
        let kernel = Kernel::product(false, true);
        let y = run(&kernel, &[&a, &b], &[desc(DataType::Float16, &[1, 1])]);
        assert_close(&y[0].values(), &[4096.0], 0.0, "a long sum");
    }

    #[test]
    fn operands_of_several_types_are_refused() {
        let tensor = |data_type| Tensor::new(&desc(data_type, &[2, 2]), &[1.0; 4]);
        let (half, brain, single) = (tensor(DataType::Float16), tensor(DataType::BFloat16), tensor(DataType::Float32));
        for (reads, write) in [([&half, &brain], &half), ([&half, &single], &half), ([&half, &half], &single)] {
            let reason = refusal(&PRODUCT, &reads, std::slice::from_ref(&write.desc));
            assert!(reason.contains("float16") || reason.contains("bfloat16"), "{reason}");
        }
    }
}
