//! Hints of a program about its use of managed memory: prefetches, which can be recalled, advice, and upcoming uses.

use std::sync::Arc;

use forebay_base::DataType;
use forebay_device::null::{NullDevice, NullProfile};
use forebay_memory::eviction::{Advice, Location, Policy};
use forebay_model::Tensor;
use forebay_runtime::RuntimeError;
use forebay_runtime::eager::{Context, ContextOptions, DeviceTensor, ManagedBuffer, ManagedMemory};

use super::{POLICIES, UNIT_BYTES, bytes, filled, host, options, recording};

#[test]
fn prefetches_come_early_and_can_be_recalled() {
    for policy in POLICIES {
        let context = recording(host());
        let memory = ManagedMemory::new(&context, &options(4, policy)).unwrap();
        let buffer = memory.buffer(4 * UNIT_BYTES).unwrap();
        buffer.write(0, &bytes(&vec![3.0; 4 * UNIT_BYTES as usize / 4])).unwrap();
        assert_eq!(buffer.resident_bytes(), 0);
        buffer.prefetch(.., Location::Device).unwrap();
        memory.synchronize().unwrap();
        assert_eq!(buffer.resident_bytes(), 4 * UNIT_BYTES);
        buffer.fill([0; 4]).unwrap();
        buffer.prefetch(..UNIT_BYTES, Location::Host).unwrap();
        memory.synchronize().unwrap();
        let statistics = memory.statistics();
        assert_eq!((statistics.faults, statistics.prefetches, statistics.copied_back_bytes), (0, 5, UNIT_BYTES));
        assert_eq!(buffer.resident_bytes(), 4 * UNIT_BYTES, "a prefetch to the host leaves the copy on the device");
        context.check().unwrap();
    }
}

#[test]
fn a_prefetch_that_waits_can_be_recalled() {
    // The null device fires events immediately, so the thread is kept busy with many units.
    let context = Context::new(Arc::new(NullDevice::new(NullProfile::Tiled)), &ContextOptions::default()).unwrap();
    for (policy, recalled) in [(Policy::Touch, true), (Policy::Driver, false)] {
        let memory = ManagedMemory::new(&context, &options(64, policy)).unwrap();
        let buffer = memory.buffer(64 * UNIT_BYTES).unwrap();
        let mut count = 0;
        for _ in 0..100 {
            buffer.write(0, &vec![1; buffer.size_bytes() as usize]).unwrap();
            buffer.prefetch(.., Location::Device).unwrap();
            count += buffer.cancel_prefetch(..).unwrap();
            memory.synchronize().unwrap();
        }
        assert_eq!(count > 0, recalled);
    }
}

/// The prefetch thread waits for the device, too, and can be the first to do so after a failed operation.
#[test]
fn a_prefetch_leaves_index_faults_to_those_who_wait_for_results() {
    let context = Context::new(host(), &ContextOptions::default()).unwrap();
    let memory = ManagedMemory::new(&context, &options(8, Policy::Touch)).unwrap();
    let buffer = memory.buffer(8 * UNIT_BYTES).unwrap();
    let table = DeviceTensor::from_host(&context, &Tensor::from_f32(&[3, 1], &[1.0; 3])).unwrap();
    let indices = DeviceTensor::from_host(&context, &Tensor::from_i64(&[2], &[0, 3])).unwrap();
    let looked_up = context.operation("Gather").input(&table).input(&indices).run_single().unwrap();
    while !context.default_stream().query().unwrap() {
        std::thread::yield_now();
    }
    buffer.write(0, &vec![1; buffer.size_bytes() as usize]).unwrap();
    buffer.prefetch(.., Location::Device).unwrap();
    while memory.statistics().prefetches < 8 {
        std::thread::yield_now();
    }
    let error = looked_up.to_host().unwrap_err();
    assert!(matches!(error, RuntimeError::Index { element: 1, index: 3, limit: 3, .. }), "{error}");
    assert_eq!(table.to_host().unwrap().to_f32().unwrap(), [1.0; 3], "it is reported once");
}

#[test]
fn advice_lets_host_writes_follow_to_the_device() {
    let context = recording(host());
    let memory = ManagedMemory::new(&context, &options(4, Policy::Touch)).unwrap();
    let (a, b) = (filled(&memory, 1, 1.0), filled(&memory, 1, 2.0));
    a.advise(.., Advice::AccessedBy(Location::Device)).unwrap();
    [&a, &b].into_iter().for_each(|buffer| buffer.write(4, &5.0f32.to_le_bytes()).unwrap());
    assert_eq!((a.resident_bytes(), b.resident_bytes()), (UNIT_BYTES, 0));
    for (buffer, number) in [(&a, 1.0), (&b, 2.0)] {
        let tensor = buffer.tensor(DataType::Float32, &[3], 0).unwrap();
        assert_eq!(tensor.add(1.0).unwrap().to_host().unwrap().to_f32().unwrap(), [number + 1.0, 6.0, number + 1.0]);
    }
    a.withdraw_advice(.., Advice::AccessedBy(Location::Device)).unwrap();
    a.write(4, &6.0f32.to_le_bytes()).unwrap();
    assert_eq!(a.resident_bytes(), 0);
    context.check().unwrap();
}

#[test]
fn what_is_used_farthest_in_the_future_goes() {
    let context = recording(host());
    let run = |policy: Policy, set_next_uses: bool| {
        let memory = ManagedMemory::new(&context, &options(3, policy)).unwrap();
        let buffers: Vec<ManagedBuffer> = (0..4).map(|i| filled(&memory, 1, i as f32)).collect();
        let order: Vec<usize> = (0..6).flat_map(|_| 0..4).collect();
        if set_next_uses {
            memory.set_next_uses(&order.iter().map(|&i| vec![&buffers[i]]).collect::<Vec<_>>());
        }
        for &i in &order {
            let tensor = buffers[i].tensor(DataType::Float32, &[1], 0).unwrap();
            assert_eq!(tensor.sum().unwrap().to_host().unwrap().to_f32().unwrap(), [i as f32]);
        }
        memory.statistics().faults
    };
    let (touch, planned) = (run(Policy::Touch, false), run(Policy::Planned, true));
    assert_eq!(touch, 4 + 24, "round and round, the oldest is always the next");
    assert!(planned <= 4 + 10, "{planned}");
}
