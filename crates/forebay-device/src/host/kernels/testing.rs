//! How kernels are tested: every run is repeated with 1, 2 and 3 threads and with every in-place pair that the kernel allows, and all runs
//! must give the same bits.

use std::sync::{Barrier, Mutex, OnceLock, PoisonError};

use forebay_base::{DataType, Kernel, TensorDesc, narrow};
pub(super) use forebay_testing::Random;
use half::{bf16, f16};

use super::super::pool::{self, ThreadPool};
use super::View;
use super::thread_buffer::{ELEMENTS_MAX, with_buffer};
use crate::device::DeviceError;

/// A packed descriptor.
pub(super) fn desc(data_type: DataType, sizes: &[u64]) -> TensorDesc {
    TensorDesc::packed(data_type, sizes).unwrap()
}

/// A strided descriptor.
pub(super) fn strided(data_type: DataType, sizes: &[u64], strides: &[u64]) -> TensorDesc {
    TensorDesc::strided(data_type, sizes, strides).unwrap()
}

/// A tensor that owns its bytes, aligned to 16 bytes.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub desc: TensorDesc,
    storage: Vec<u128>,
}

impl Tensor {
    /// A tensor whose bytes are all 0xa5, so that anything that a kernel forgets to write is noticed.
    pub fn unwritten(desc: &TensorDesc) -> Tensor {
        let words = desc.total_size_bytes().div_ceil(16) as usize;
        Tensor { desc: desc.clone(), storage: vec![u128::from_le_bytes([0xa5; 16]); words] }
    }

    /// A tensor with the given elements in memory order.
    pub fn new(desc: &TensorDesc, values: &[f64]) -> Tensor {
        let mut tensor = Tensor::unwritten(desc);
        assert!(values.len() as u64 * desc.data_type().size_bytes() <= tensor.storage.len() as u64 * 16);
        values.iter().enumerate().for_each(|(offset, &value)| tensor.set(offset, value));
        tensor
    }

    /// A tensor with the given elements in row-major order, and bits of 1 in gaps: NaN, if elements are floats.
    pub fn arranged(desc: &TensorDesc, values: &[f64]) -> Tensor {
        let mut tensor = Tensor::unwritten(desc);
        tensor.bytes_mut().fill(0xff);
        offsets(desc).into_iter().zip(values).for_each(|(offset, &value)| tensor.set(offset, value));
        tensor
    }

    /// Writes an element, given its offset in elements.
    fn set(&mut self, offset: usize, value: f64) {
        let (data_type, size) = (self.desc.data_type(), self.desc.data_type().size_bytes() as usize);
        let bytes = super::element::bits_of(value, data_type).to_le_bytes();
        self.bytes_mut()[offset * size..(offset + 1) * size].copy_from_slice(&bytes[..size]);
    }

    /// Whether all bytes that belong to no element are unwritten.
    pub fn has_untouched_gaps(&self) -> bool {
        let size = self.desc.data_type().size_bytes() as usize;
        let mut is_gap = vec![true; self.bytes().len()];
        offsets(&self.desc).into_iter().for_each(|offset| is_gap[offset * size..(offset + 1) * size].fill(false));
        self.bytes().iter().zip(is_gap).all(|(&byte, is_gap)| !is_gap || byte == 0xa5)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: any bytes are valid u8, and the storage is as long.
        unsafe { std::slice::from_raw_parts(self.storage.as_ptr().cast(), self.storage.len() * 16) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `bytes`, and exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.storage.as_mut_ptr().cast(), self.storage.len() * 16) }
    }

    fn element(&self, index: usize) -> f64 {
        let size = self.desc.data_type().size_bytes() as usize;
        let mut word = [0; 8];
        word[..size].copy_from_slice(&self.bytes()[index * size..(index + 1) * size]);
        let bits = u64::from_le_bytes(word);
        match self.desc.data_type() {
            DataType::Float64 => f64::from_bits(bits),
            DataType::Float32 => f32::from_bits(bits as u32) as f64,
            DataType::Float16 => f16::from_bits(bits as u16).to_f64(),
            DataType::BFloat16 => bf16::from_bits(bits as u16).to_f64(),
            DataType::Int64 => bits as i64 as f64,
            DataType::Int32 => bits as i32 as f64,
            DataType::Int16 => bits as i16 as f64,
            DataType::Int8 => bits as i8 as f64,
            DataType::UInt64 | DataType::UInt32 | DataType::UInt16 | DataType::UInt8 | DataType::Bool => bits as f64,
            data_type @ (DataType::Float8E4M3FN
            | DataType::Float8E4M3FNUZ
            | DataType::Float8E5M2
            | DataType::Float8E5M2FNUZ
            | DataType::Float8E8M0
            | DataType::Float4E2M1
            | DataType::Int4
            | DataType::UInt4
            | DataType::Int2
            | DataType::UInt2) => narrow::decode(data_type, bits as u8),
        }
    }

    /// The elements in row-major order.
    pub fn values(&self) -> Vec<f64> {
        offsets(&self.desc).into_iter().map(|offset| self.element(offset)).collect()
    }

    fn view(&mut self) -> View<'_> {
        View { desc: &self.desc, pointer: self.storage.as_mut_ptr().cast() }
    }
}

/// The offsets of elements, counted in elements, in row-major order.
fn offsets(desc: &TensorDesc) -> Vec<usize> {
    let strides = desc.effective_strides();
    let offset = |mut element: u64| {
        let mut offset = 0;
        for (&size, stride) in desc.sizes().iter().zip(&strides).rev() {
            offset += element % size * stride;
            element /= size;
        }
        offset as usize
    };
    (0..desc.element_count()).map(offset).collect()
}

fn pools() -> &'static [ThreadPool; 3] {
    static POOLS: OnceLock<[ThreadPool; 3]> = OnceLock::new();
    POOLS.get_or_init(|| [1, 2, 3].map(|count| ThreadPool::new(count, "test", || ()).unwrap()))
}

/// Fills the buffers of all threads with NaN: no kernel may depend on their previous contents.
pub(super) fn spoil_buffers() {
    // Two tests at once would wait for each other's threads.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    pools().iter().for_each(|pool| {
        // No thread takes a second task before each has taken one.
        let all = Barrier::new(pool.threads());
        let spoil = |_| {
            with_buffer(ELEMENTS_MAX, |buffer| buffer.fill(f32::NAN));
            all.wait();
        };
        pool.install(|| pool::for_each(pool.threads(), &spoil));
    });
}

fn run_once(
    kernel: &Kernel,
    reads: &[&Tensor],
    writes: &[TensorDesc],
    in_place: Option<(usize, usize)>,
    pool: &ThreadPool,
) -> Vec<Tensor> {
    let mut read_tensors: Vec<Tensor> = reads.iter().map(|&tensor| tensor.clone()).collect();
    let mut write_tensors: Vec<Tensor> = writes.iter().map(Tensor::unwritten).collect();
    let read_views: Vec<View> = read_tensors.iter_mut().map(Tensor::view).collect();
    let mut write_views: Vec<View> = write_tensors.iter_mut().map(Tensor::view).collect();
    if let Some((write, read)) = in_place {
        write_views[write].pointer = read_views[read].pointer;
    }
    let descs = |tensors: &[&Tensor]| tensors.iter().map(|tensor| tensor.desc.clone()).collect::<Vec<_>>();
    let workspace_bytes = super::workspace_bytes(kernel, &descs(reads), writes).unwrap();
    let mut workspace = Tensor::unwritten(&desc(DataType::UInt8, &[workspace_bytes.max(1)]));
    let workspace = workspace.view();
    // SAFETY: the tensors are live, aligned and belong to no one else; only the pair that the kernel names shares bytes.
    pool.install(|| unsafe { super::run(kernel, &read_views, &write_views, Some(workspace)) }).unwrap();
    if let Some((write, read)) = in_place {
        write_tensors[write].storage.clone_from(&read_tensors[read].storage);
    }
    write_tensors
}

/// Runs a kernel with 1, 2 and 3 threads, and in place if it allows that, checks that all runs give the same bits, and returns the results.
pub(super) fn run(kernel: &Kernel, reads: &[&Tensor], writes: &[TensorDesc]) -> Vec<Tensor> {
    let outputs = run_once(kernel, reads, writes, None, &pools()[0]);
    let check = |others: Vec<Tensor>, what: &str| {
        for (i, (output, other)) in outputs.iter().zip(&others).enumerate() {
            let length = (output.desc.element_count() * output.desc.data_type().size_bytes()) as usize;
            let packed = output.desc.is_packed();
            let same = if packed {
                output.bytes()[..length] == other.bytes()[..length]
            } else {
                output.values() == other.values()
            };
            assert!(same, "{kernel}: output {i} differs {what}");
        }
    };
    for (pool, name) in pools()[1..].iter().zip(["with 2 threads", "with 3 threads"]) {
        check(run_once(kernel, reads, writes, None, pool), name);
    }
    for &(write, read) in kernel.in_place() {
        let (Some(target), Some(source)) = (writes.get(write), reads.get(read)) else {
            continue;
        };
        let same_layout = source.desc.is_packed()
            && target.is_packed()
            && source.desc.sizes() == target.sizes()
            && source.desc.data_type().size_bytes() == target.data_type().size_bytes();
        if same_layout {
            let pool = &pools()[1];
            check(run_once(kernel, reads, writes, Some((write, read)), pool), &format!("in place ({write}, {read})"));
        }
    }
    outputs
}

/// The reason for which a kernel refuses operands.
pub(super) fn refusal(kernel: &Kernel, reads: &[&Tensor], writes: &[TensorDesc]) -> String {
    outcome(kernel, reads, writes).unwrap_err().to_string()
}

/// Runs a kernel once, and returns whether it accepts its operands.
pub(super) fn outcome(kernel: &Kernel, reads: &[&Tensor], writes: &[TensorDesc]) -> Result<(), DeviceError> {
    let descs: Vec<TensorDesc> = reads.iter().map(|tensor| tensor.desc.clone()).collect();
    let workspace_bytes = super::workspace_bytes(kernel, &descs, writes).unwrap_or(0);
    let mut workspace = Tensor::unwritten(&desc(DataType::UInt8, &[workspace_bytes.max(1)]));
    let workspace = (workspace_bytes > 0).then(|| workspace.view());
    let mut read_tensors: Vec<Tensor> = reads.iter().map(|&tensor| tensor.clone()).collect();
    let mut write_tensors: Vec<Tensor> = writes.iter().map(Tensor::unwritten).collect();
    let read_views: Vec<View> = read_tensors.iter_mut().map(Tensor::view).collect();
    let write_views: Vec<View> = write_tensors.iter_mut().map(Tensor::view).collect();
    // SAFETY: the tensors are live, aligned and belong to no one else.
    unsafe { super::run(kernel, &read_views, &write_views, workspace) }
}

/// Asserts that values agree within `tolerance` x (1 + magnitude).
#[track_caller]
pub(super) fn assert_close(values: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(values.len(), expected.len(), "{what}: lengths");
    for (i, (value, expected)) in values.iter().zip(expected).enumerate() {
        let same = value == expected || (value.is_nan() && expected.is_nan());
        let close = (value - expected).abs() <= tolerance * (1.0 + expected.abs());
        assert!(same || close, "{what}: element {i} is {value}, expected {expected}");
    }
}

/// The gradient of `loss` with respect to `x`, by central differences.
pub(super) fn differences(x: &[f64], loss: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let step = 1e-5;
    (0..x.len())
        .map(|i| {
            let at = |delta: f64| {
                let mut moved = x.to_vec();
                moved[i] += delta;
                loss(&moved)
            };
            (at(step) - at(-step)) / (2.0 * step)
        })
        .collect()
}

/// Sum of products.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Converts a tensor to another type with the kernel for that.
fn converted(tensor: &Tensor, data_type: DataType) -> Tensor {
    match tensor.desc.data_type() == data_type {
        true => tensor.clone(),
        false => run(&Kernel::cast(), &[tensor], &[desc(data_type, tensor.desc.sizes())]).remove(0),
    }
}

/// Checks that a launch gives the same bits as the launch in float32 with conversions around it.
#[track_caller]
pub(super) fn assert_bits_of_conversions(kernel: &Kernel, reads: &[Tensor], writes: &[TensorDesc]) {
    let own = run(kernel, &reads.iter().collect::<Vec<_>>(), writes);
    let wide = |desc: &TensorDesc| desc.data_type().computed_in();
    let wide_reads: Vec<Tensor> = reads.iter().map(|read| converted(read, wide(&read.desc))).collect();
    let wide_writes: Vec<TensorDesc> = writes.iter().map(|write| desc(wide(write), write.sizes())).collect();
    let results = run(kernel, &wide_reads.iter().collect::<Vec<_>>(), &wide_writes);
    for (own, result) in own.iter().zip(&results) {
        let expected = converted(result, own.desc.data_type());
        let bits = |tensor: &Tensor| tensor.values().iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(own), bits(&expected), "{kernel}: {}", own.desc);
    }
}
