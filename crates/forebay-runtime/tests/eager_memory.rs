//! Memory of eager work: segments with several heaps, refusals by the device, moving tiles.

use std::sync::Arc;

use forebay_base::{Command, DataType};
use forebay_device::Device;
use forebay_device::host::{HostDevice, HostOptions};
use forebay_device::null::{NullDevice, NullProfile};
use forebay_device_testing::Refusing;
use forebay_model::Tensor;
use forebay_runtime::RuntimeError;
use forebay_runtime::eager::{Context, ContextOptions, DeviceTensor, Stream};

const MIB: u64 = 1 << 20;

fn host() -> Arc<HostDevice> {
    Arc::new(HostDevice::new(&HostOptions { threads: Some(2), ..HostOptions::default() }).unwrap())
}

fn recording() -> ContextOptions {
    ContextOptions::default().record(true)
}

fn filled(context: &Context, mib: u64, value: f32) -> DeviceTensor {
    let count = mib * MIB / 4;
    DeviceTensor::from_host(context, &Tensor::from_f32(&[count], &vec![value; count as usize])).unwrap()
}

fn values(tensor: &DeviceTensor) -> Vec<f32> {
    tensor.to_host().unwrap().to_f32().unwrap()
}

#[test]
fn a_segment_has_several_heaps_behind_it_or_is_one_placed_heap() {
    for (profile, tiled) in [(NullProfile::Tiled, true), (NullProfile::Tiled, false), (NullProfile::Placed, true)] {
        let device = Arc::new(NullDevice::new(profile));
        let options = recording().heap_bytes(MIB).tiled(tiled);
        let context = Context::new(device.clone(), &options).unwrap();
        let _tensor = DeviceTensor::zeros(&context, DataType::Float32, &[5 * MIB / 4]).unwrap();
        let maps = device.commands().iter().filter(|command| matches!(command, Command::Map { .. })).count();
        let expected = if tiled && profile == NullProfile::Tiled { 6 } else { 0 };
        assert_eq!((maps, device.usage().heap_bytes), (expected, 6 * MIB), "{profile:?}, tiled: {tiled}");
        context.check().unwrap();
    }
}

#[test]
fn where_tiling_fails_a_placed_heap_serves() {
    let device = host();
    let refusing = Refusing { tiles_refused: true, ..Refusing::new(device.clone(), usize::MAX) };
    let context = Context::new(Arc::new(refusing), &recording()).unwrap();
    assert_eq!(values(&filled(&context, 3, 2.0).add(1.0).unwrap()), vec![3.0; 3 * (MIB as usize) / 4]);
    context.trim().unwrap();
    assert_eq!(device.usage().heap_bytes, 0);
}

/// Whichever call is refused, the error names it, everything is still usable, and nothing leaks.
#[test]
fn a_refused_call_is_reported_and_nothing_leaks() {
    let device = host();
    let host_bytes = device.usage().host_bytes;
    let mut succeeded = false;
    for calls in 0..200 {
        let refusing = Arc::new(Refusing::new(device.clone(), calls));
        let work = |context: &Context| -> Result<f32, RuntimeError> {
            let stream = Stream::new(context, 0)?;
            let a = DeviceTensor::from_host(context, &Tensor::from_f32(&[3 << 18], &[1.0; 3 << 18]))?;
            stream.wait_stream(&context.current_stream())?;
            let _entered = stream.enter();
            let b = a.add(1.0)?;
            drop(a);
            Ok(b.sum()?.to_host()?.to_f32().unwrap_or_default()[0])
        };
        let options = recording().heap_bytes(MIB);
        let result = Context::new(refusing.clone(), &options).and_then(|context| {
            let first = work(&context);
            if first.is_err() {
                refusing.stop_refusing();
                assert_eq!(work(&context).unwrap(), (3 << 19) as f32, "after refusal {calls}");
            }
            first
        });
        let usage = device.usage();
        assert_eq!((usage.heap_bytes, usage.host_bytes), (0, host_bytes), "after refusal {calls}");
        match result {
            // From here on, no call is refused.
            Ok(sum) => {
                assert_eq!(sum, (3 << 19) as f32);
                succeeded = true;
                break;
            }
            Err(error) => assert!(error.to_string().contains("on purpose"), "{calls}: {error}"),
        }
    }
    assert!(succeeded, "200 calls are enough");
}

#[test]
fn free_tiles_become_one_range_without_a_copy() {
    for device in [host() as Arc<dyn Device>, Arc::new(NullDevice::new(NullProfile::Tiled))] {
        let real = device.limits().name.starts_with("host");
        let options = recording().device_memory_bytes(16 * MIB).segment_bytes(4 * MIB);
        let context = Context::new(device.clone(), &options).unwrap();
        let mut tensors: Vec<Option<DeviceTensor>> = (0..16).map(|i| Some(filled(&context, 1, i as f32))).collect();
        // Every other tensor is freed: 8 MiB are free, but no two free blocks are adjacent.
        tensors.iter_mut().step_by(2).for_each(|tensor| *tensor = None);
        let large = filled(&context, 7, -1.0);
        assert_eq!(device.usage().heap_bytes, 16 * MIB);
        if real {
            assert_eq!(values(&large), vec![-1.0; 7 * (MIB as usize) / 4]);
            for (i, tensor) in tensors.iter().enumerate().skip(1).step_by(2) {
                assert_eq!(values(tensor.as_ref().unwrap()), vec![i as f32; MIB as usize / 4]);
            }
        }
        assert!(matches!(
            DeviceTensor::zeros(&context, DataType::Float32, &[2 * MIB / 4]),
            Err(RuntimeError::OutOfMemory(_))
        ));
        drop((large, tensors));
        assert!(DeviceTensor::zeros(&context, DataType::Float32, &[15 * MIB / 4]).is_ok(), "everything comes back");
        context.trim().unwrap();
        assert_eq!(device.usage().heap_bytes, 0);
        context.check().unwrap();
    }
}

#[test]
fn a_context_maps_in_tiles_of_its_own() {
    let device = Arc::new(NullDevice::new(NullProfile::Tiled));
    let options = recording().tile_bytes(MIB).segment_bytes(1).heap_bytes(3 * MIB / 2);
    let context = Context::new(device.clone(), &options).unwrap();
    assert_eq!(context.tile_bytes(), MIB);
    let tensor = DeviceTensor::zeros(&context, DataType::Float32, &[5 * MIB / 2 / 4]).unwrap();
    assert_eq!(device.usage().heap_bytes, 3 * MIB, "whole tiles");
    let maps = device.commands().iter().filter(|command| matches!(command, Command::Map { .. })).count();
    assert_eq!(maps, 3, "a heap holds one tile");
    drop(tensor);
    assert_eq!(Context::new(host(), &recording()).unwrap().tile_bytes(), device.limits().tile_size_bytes);
    let heap_bytes = ContextOptions::default().heap_bytes;
    for (tile_bytes, words) in [
        (0, "power of two"),
        (3 << 16, "power of two"),
        (4096, "opened with tiles of 65536 bytes"),
        (2 * heap_bytes, "cannot hold one"),
    ] {
        let options = recording().tile_bytes(tile_bytes);
        let error = Context::new(host(), &options).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains(&format!("tiles of {tile_bytes} bytes")), "{error}");
    }
}

#[test]
fn without_growth_everything_is_taken_at_the_start() {
    let device = Arc::new(NullDevice::new(NullProfile::Tiled));
    let fixed = recording().growth(false).device_memory_bytes(8 * MIB);
    let context = Context::new(device.clone(), &fixed).unwrap();
    assert_eq!(device.usage().heap_bytes, 8 * MIB);
    let tensor = DeviceTensor::zeros(&context, DataType::Float32, &[6 * MIB / 4]).unwrap();
    assert!(DeviceTensor::zeros(&context, DataType::Float32, &[3 * MIB / 4]).is_err());
    drop(tensor);
    assert_eq!(context.trim(), Ok(0), "it could not be taken again");
    assert!(DeviceTensor::zeros(&context, DataType::Float32, &[8 * MIB / 4]).is_ok());
    assert_eq!(device.usage().heap_peak_bytes, 8 * MIB);
    let without_size = recording().growth(false);
    assert!(Context::new(device, &without_size).unwrap_err().to_string().contains("device_memory_bytes"));
}

#[test]
fn memory_explains_itself() {
    let context = Context::new(host(), &recording().memory_history(2)).unwrap();
    let a = filled(&context, 1, 1.0);
    let stream = Stream::new(&context, 0).unwrap();
    stream.wait_stream(&context.current_stream()).unwrap();
    let b = {
        let _entered = stream.enter();
        context.operation("Add").input(&a).input(1.0).name("the \"sum\" of <all>").run_single().unwrap()
    };
    let live = |context: &Context| -> Vec<(String, Option<u64>)> {
        let json = context.memory_snapshot_json();
        let blocks =
            json["segments"].as_array().unwrap().iter().flat_map(|segment| segment["blocks"].as_array().unwrap());
        let live = blocks.filter(|block| block["state"] == "live" && block["size_bytes"].as_u64() >= Some(MIB));
        live.map(|block| (block["owner"].as_str().unwrap().to_string(), block["stream"].as_u64())).collect()
    };
    assert_eq!(live(&context), [("from_host".to_string(), Some(0)), ("the \"sum\" of <all>".to_string(), Some(1))]);
    drop(a);
    context.synchronize().unwrap();
    let peak = context.memory_statistics().in_use_peak_bytes;
    assert!(peak >= 2 * MIB);
    context.reset_peaks();
    let statistics = context.memory_statistics();
    assert!(statistics.in_use_peak_bytes == statistics.in_use_bytes && statistics.in_use_bytes < peak);
    assert_eq!(context.memory_snapshot_json()["in_use_peak_bytes"], statistics.in_use_bytes);
    drop(b);
    context.trim().unwrap();
    let history = context.memory_history().unwrap();
    assert_eq!(history.blocks().count(), 2, "the last two that went are kept, nothing is live");
    let json = context.memory_history_json();
    assert_eq!(json["events"], history.event_count());
    assert!(json["blocks"].as_array().unwrap().iter().any(|block| block["owner"] == "the \"sum\" of <all>"));
    assert!(json["segments"].as_array().unwrap().iter().all(|segment| segment["end"].is_u64()));
    let svg = history.picture("a test").svg();
    assert!(svg.contains("the \"sum\" of &lt;all&gt;: 1 MiB at"), "{svg}");
    context.start_memory_history(0);
    assert_eq!(context.memory_history(), None);
}
