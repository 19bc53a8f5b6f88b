//! Bytes of eager work: slices and their bounds, copies in every direction, the ring of host blocks, memory that is the host's.

use std::sync::Arc;

use forebay_base::{Command, DataType};
use forebay_device::Device;
use forebay_device::chaos::ChaosDevice;
use forebay_device::host::{HostDevice, HostOptions};
use forebay_device::null::{NullDevice, NullProfile};
use forebay_model::Tensor;
use forebay_runtime::RuntimeError;
use forebay_runtime::eager::managed::Policy;
use forebay_runtime::eager::{Context, ContextOptions, DeviceTensor, ManagedMemory, ManagedOptions, Slice, Stream};

const MIB: u64 = 1 << 20;

fn host(unified: bool) -> Arc<dyn Device> {
    Arc::new(HostDevice::new(&HostOptions { threads: Some(2), unified, ..HostOptions::default() }).unwrap())
}

fn context(device: Arc<dyn Device>) -> Context {
    Context::new(device, &ContextOptions::default().record(true)).unwrap()
}

/// Every device that computes, unified or not.
fn devices() -> Vec<Arc<dyn Device>> {
    let chaos = |unified| Arc::new(ChaosDevice::new(host(unified), 3).unwrap()) as Arc<dyn Device>;
    vec![host(false), host(true), chaos(false), chaos(true)]
}

fn bytes(count: u64, seed: u64) -> Vec<u8> {
    (0..count).map(|i| (i * 13 + i / 257 + seed) as u8).collect()
}

#[test]
fn slices_are_written_copied_filled_and_read() {
    for device in devices() {
        let context = context(device);
        let (one, other) =
            (context.allocate(3 * MIB + 8, "one").unwrap(), context.allocate(3 * MIB + 8, "other").unwrap());
        let mut expected = bytes(3 * MIB + 8, 1);
        one.write(&expected).unwrap();
        other.copy_from(&one).unwrap();
        other.part(4..4 + MIB).unwrap().fill([1, 2, 3, 4]).unwrap();
        other.part(2 * MIB..).unwrap().part(8..=15).unwrap().zero().unwrap();
        other.part(..3).unwrap().write(&[9; 3]).unwrap();
        other.part(MIB + 100..MIB + 200).unwrap().copy_from(&one.part(1..101).unwrap()).unwrap();
        let moved = expected[1..101].to_vec();
        expected[4..4 + MIB as usize].copy_from_slice(&[1, 2, 3, 4].repeat(MIB as usize / 4));
        expected[2 * MIB as usize + 8..][..8].fill(0);
        expected[..3].fill(9);
        expected[MIB as usize + 100..][..100].copy_from_slice(&moved);
        assert!(other.read().unwrap() == expected, "{context:?}");
        let parts = [other.part(..5).unwrap(), other.part(7..7).unwrap(), other.part(MIB + 50..MIB + 150).unwrap()];
        let read = context.read(&parts.iter().collect::<Vec<&Slice>>()).unwrap();
        assert_eq!(read, [&expected[..5], &[], &expected[MIB as usize + 50..][..100]], "{context:?}");
        context.check().unwrap();
    }
}

#[test]
fn what_leaves_its_block_is_an_error() {
    let context = context(host(false));
    let slice = context.allocate(64, "slice").unwrap();
    let refused = |result: Result<(), RuntimeError>, words: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(slice.part(60..65).map(|_| ()), "60..65");
    refused(slice.part(u64::MAX..).map(|_| ()), "64 bytes");
    #[allow(clippy::reversed_empty_ranges, reason = "that is the error")]
    let reversed = slice.part(9..8);
    refused(reversed.map(|_| ()), "9..8");
    refused(slice.write(&[0; 65]), "65 bytes");
    refused(slice.part(1..5).unwrap().fill([0; 4]), "multiples of 4");
    refused(slice.part(..6).unwrap().zero(), "multiples of 4");
    refused(slice.part(..8).unwrap().copy_from(&slice.part(4..12).unwrap()), "overlap");
    refused(slice.part(..8).unwrap().copy_from(&slice.part(8..12).unwrap()), "4 bytes cannot be copied to 8");
    refused(slice.tensor(DataType::Float32, &[17]).map(|_| ()), "68 bytes");
    refused(slice.part(4..).unwrap().tensor(DataType::Float32, &[1]).map(|_| ()), "multiple of 256");
    let elsewhere = self::context(host(false)).allocate(64, "elsewhere").unwrap();
    refused(slice.copy_from(&elsewhere), "different contexts");
    refused(context.read(&[&elsewhere]).map(|_| ()), "different contexts");
    slice.part(8..16).unwrap().copy_from(&slice.part(8..16).unwrap()).unwrap();
    slice.part(..0).unwrap().zero().unwrap();
}

#[test]
fn a_slice_outlives_the_tensor_that_it_was_cut_from() {
    for device in devices() {
        let context = context(device);
        let values: Vec<f32> = (0..256).map(|i| i as f32).collect();
        let tensor = DeviceTensor::from_host(&context, &Tensor::from_f32(&[4, 64], &values)).unwrap();
        let row = tensor.slice().part(256..512).unwrap().tensor(DataType::Float32, &[64]).unwrap();
        drop(tensor);
        let sum = row.add(1.0).unwrap();
        assert_eq!(sum.to_host().unwrap().to_f32().unwrap(), (65..129).map(|i| i as f32).collect::<Vec<_>>());
        context.check().unwrap();
    }
}

#[test]
fn many_tensors_are_read_with_one_wait() {
    let device = Arc::new(NullDevice::new(NullProfile::Tiled));
    let context = context(device.clone());
    let tensors: Vec<DeviceTensor> =
        (1..100).map(|size| DeviceTensor::zeros(&context, DataType::UInt8, &[size]).unwrap()).collect();
    let before = device.commands().len();
    let arrays = context.to_host(&tensors.iter().collect::<Vec<_>>()).unwrap();
    assert!(arrays.iter().zip(1..).all(|(array, size)| array.shape() == [size] && array.bytes().len() as u64 == size));
    let records =
        device.commands()[before..].iter().filter(|command| matches!(command, Command::Record { .. })).count();
    assert_eq!(records, 1);
}

#[test]
fn all_elements_get_one_value() {
    for device in devices() {
        let context = context(device);
        let full = |value: &Tensor| {
            let tensor = DeviceTensor::full(&context, &[3, 5], value).unwrap();
            let read = tensor.to_host().unwrap();
            assert_eq!(
                (read.shape(), read.bytes()),
                (&[3, 5][..], &value.bytes().repeat(15)[..]),
                "{:?}",
                value.data_type()
            );
            tensor
        };
        for value in [
            Tensor::from_f32(&[], &[1.5]),
            Tensor::from_i64(&[1], &[-1]),
            Tensor::from_i64(&[], &[1 << 40]),
            Tensor::new(DataType::UInt8, &[], vec![7]).unwrap(),
            Tensor::new(DataType::Float64, &[], 0.1f64.to_le_bytes().to_vec()).unwrap(),
        ] {
            full(&value);
        }
        let tensor = full(&Tensor::from_i64(&[], &[5]));
        for value in [i64::MIN, 0, 6] {
            tensor.fill(&Tensor::from_i64(&[], &[value])).unwrap();
            assert_eq!(tensor.to_host().unwrap().bytes(), value.to_le_bytes().repeat(15));
        }
        assert!(tensor.fill(&Tensor::from_f32(&[], &[1.0])).is_err());
        assert!(DeviceTensor::full(&context, &[2], &Tensor::from_f32(&[2], &[1.0, 2.0])).is_err());
        context.check().unwrap();
    }
}

#[test]
fn a_small_ring_serves_many_threads() {
    let options = ContextOptions::default().staging_bytes(2 * MIB);
    let device = host(false);
    let context = Context::new(device.clone(), &options).unwrap();
    let own_bytes = device.usage().host_bytes;
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let context = &context;
            scope.spawn(move || {
                let stream = Stream::new(context, 0).unwrap();
                let _entered = stream.enter();
                let slices = [3 * MIB, 100, MIB].map(|size| context.allocate(size, "slice").unwrap());
                let contents: Vec<Vec<u8>> = slices.iter().map(|slice| bytes(slice.size_bytes(), thread)).collect();
                for (slice, bytes) in slices.iter().zip(&contents) {
                    slice.write(bytes).unwrap();
                }
                assert!(context.read(&slices.each_ref()).unwrap() == contents, "thread {thread}");
            });
        }
    });
    assert!(device.usage().host_peak_bytes <= own_bytes + 2 * MIB);
}

#[test]
fn the_ring_shrinks_when_less_of_it_is_used_and_at_trim() {
    let device = host(false);
    let context = Context::new(device.clone(), &ContextOptions::default()).unwrap();
    let own_bytes = device.usage().host_bytes;
    let ring_bytes = || device.usage().host_bytes - own_bytes;
    let large = context.allocate(16 * MIB, "large").unwrap();
    large.read().unwrap();
    assert_eq!(ring_bytes(), 8 * MIB, "a burst takes all of it");
    let small = large.part(..4).unwrap();
    (0..150).for_each(|_| drop(small.read().unwrap()));
    assert!(ring_bytes() <= 2 * MIB, "{} bytes are kept for 4", ring_bytes());
    large.read().unwrap();
    assert_eq!(ring_bytes(), 8 * MIB);
    assert!(context.trim().unwrap() >= 8 * MIB);
    assert_eq!(ring_bytes(), 0);
}

#[test]
fn memory_that_is_the_hosts_needs_no_host_blocks() {
    let device = host(true);
    let context = context(device.clone());
    let own_bytes = device.usage().host_peak_bytes;
    let stream = Stream::new(&context, 0).unwrap();
    for round in 0..20 {
        let array = Tensor::from_f32(&[1 << 16], &vec![round as f32; 1 << 16]);
        let tensor = DeviceTensor::from_host(&context, &array).unwrap();
        stream.wait_stream(&context.current_stream()).unwrap();
        let _entered = stream.enter();
        let sum = tensor.add(1.0).unwrap();
        // The bytes are released while the addition may still read them; the host must not write them until the addition has read them.
        drop(tensor);
        assert_eq!(sum.to_host().unwrap().to_f32().unwrap(), vec![round as f32 + 1.0; 1 << 16]);
    }
    assert_eq!(device.usage().host_peak_bytes, own_bytes);
    context.check().unwrap();
    let null = Arc::new(NullDevice::new(NullProfile::Unified));
    let context = self::context(null.clone());
    let tensor = DeviceTensor::from_host(&context, &Tensor::from_f32(&[2], &[1.0, 2.0])).unwrap();
    tensor.slice().write(&[0; 8]).unwrap();
    tensor.to_host().unwrap();
    assert_eq!(null.commands().iter().filter(|command| command.is_work()).count(), 0);
    assert_eq!(null.usage().host_peak_bytes, 0);
}

#[test]
fn managed_bytes_are_slices_as_well() {
    let context = context(host(false));
    let mut options = ManagedOptions::new(4 * MIB, Policy::Touch);
    options.unit_bytes = Some(64 << 10);
    let memory = ManagedMemory::new(&context, &options).unwrap();
    let (buffer, own) = (memory.buffer(8 * MIB).unwrap(), context.allocate(MIB, "own").unwrap());
    let contents = bytes(8 * MIB, 5);
    buffer.slice().write(&contents).unwrap();
    own.copy_from(&buffer.slice().part(5 * MIB + 3..6 * MIB + 3).unwrap()).unwrap();
    buffer.slice().part(..MIB).unwrap().copy_from(&own).unwrap();
    buffer.slice().part(MIB..2 * MIB).unwrap().zero().unwrap();
    let parts = [own, buffer.slice().part(..2 * MIB).unwrap(), buffer.slice().part(8 * MIB - 1..).unwrap()];
    let read = context.read(&parts.each_ref()).unwrap();
    let moved = &contents[5 * MIB as usize + 3..][..MIB as usize];
    assert!(read[0] == moved && read[1][..MIB as usize] == *moved);
    assert!(read[1][MIB as usize..].iter().all(|&byte| byte == 0) && read[2] == contents[8 * MIB as usize - 1..]);
    assert!(matches!(buffer.slice().zero(), Err(RuntimeError::Managed(_))), "not all of it fits the device");
    context.check().unwrap();
}
