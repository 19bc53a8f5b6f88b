//! The contract that every device keeps, on the devices of this crate: the host device with one and two threads, with small and large
//! tiles, and with chaos around it. The null device runs nothing, so only its bookkeeping is tested.

use std::sync::Arc;

use forebay_base::{Command, Region};
use forebay_device::chaos::ChaosDevice;
use forebay_device::host::{HostDevice, HostOptions};
use forebay_device::null::{NullDevice, NullProfile};
use forebay_device::tile_size::TILE_SIZE_BYTES;
use forebay_device::{Device, DeviceError};
use forebay_device_testing::contract::{Bench, MIB, contract, doubled};

/// The usual size of a tile.
const TILE: u64 = TILE_SIZE_BYTES;

fn host(threads: usize) -> Arc<dyn Device> {
    Arc::new(HostDevice::new(&HostOptions { threads: Some(threads), ..HostOptions::default() }).unwrap())
}

fn chaos(seed: u64) -> Arc<dyn Device> {
    Arc::new(ChaosDevice::new(host(2), seed).unwrap())
}

fn host_with_tiles(tile_size_bytes: u64) -> Result<HostDevice, DeviceError> {
    HostDevice::new(&HostOptions { threads: Some(2), tile_size_bytes, ..HostOptions::default() })
}

/// Every device that computes.
fn devices() -> Vec<(&'static str, Arc<dyn Device>)> {
    vec![
        ("host, 1 thread", host(1)),
        ("host, 2 threads", host(2)),
        ("host, small tiles", Arc::new(host_with_tiles(4 << 10).unwrap())),
        ("host, large tiles", Arc::new(host_with_tiles(2 * MIB).unwrap())),
        ("chaos", chaos(1)),
    ]
}

/// Every device that does bookkeeping, including the null device.
fn devices_with_null() -> Vec<(&'static str, Arc<dyn Device>)> {
    let null: Arc<dyn Device> = Arc::new(NullDevice::new(NullProfile::Tiled));
    devices().into_iter().chain([("null", null)]).collect()
}

/// Every device that checks addresses when commands are submitted, which chaos does later.
fn devices_without_chaos() -> Vec<(&'static str, Arc<dyn Device>)> {
    devices().into_iter().filter(|(name, _)| *name != "chaos").collect()
}

contract!(
    devices();
    bytes_survive_the_way_to_the_device_and_back,
    fills_repeat_their_pattern,
    two_reservations_of_one_heap_are_the_same_bytes_and_survive_remapping,
    events_order_streams_and_count_generations,
    launches_run_in_the_order_that_barriers_give,
    indices_out_of_range_are_reported,
    launches_in_host_blocks_run_on_the_host,
    indices_out_of_range_are_reported_on_the_host,
    released_parts_of_host_blocks_come_back,
    absurd_sizes_are_errors_and_harm_nothing,
    a_kernel_that_cannot_run_is_an_error_that_sticks,
    traces_say_what_ran_when,
);
contract!(devices_with_null(); times_of_events_are_those_of_the_latest_generation, usage_counts_what_exists_and_the_most_that_ever_did);
contract!(devices_without_chaos(); commands_on_unmapped_or_missing_bytes_are_errors);

#[test]
fn chaos_exposes_a_missing_barrier_and_never_a_present_one() {
    let wrong = (0..20).filter(|&seed| doubled(chaos(seed), false) != 16.0).count();
    assert!(wrong >= 10, "without barriers only {wrong} of 20 seeds gave a wrong result");
    assert!((0..20).all(|seed| doubled(chaos(seed), true) == 16.0));
}

#[test]
fn a_cap_on_device_memory_is_kept() {
    let options = HostOptions { memory_bytes: Some(4 * TILE), ..HostOptions::default() };
    let device = HostDevice::new(&options).unwrap();
    let heap = device.create_heap(3 * TILE).unwrap();
    assert!(matches!(device.create_placed(2 * TILE), Err(DeviceError::OutOfMemory { .. })));
    device.destroy_heap(heap);
    assert!(device.create_placed(2 * TILE).is_ok());
}

#[test]
fn the_null_device_records_and_knows_its_profile() {
    let device = NullDevice::new(NullProfile::Placed);
    assert!(device.create_reservation(TILE).is_err());
    assert_eq!(NullDevice::new(NullProfile::Direct3D12Like).limits().tensor_elements_max, (1 << 32) - 1);
    let stream = device.create_stream("test", 0).unwrap();
    let event = device.create_event().unwrap();
    let commands = [Command::Barrier { stream }, Command::Record { stream, event, generation: 1 }];
    device.submit(&commands).unwrap();
    assert_eq!(device.commands(), commands);
    device.wait_event(event, 1).unwrap();
    assert!(device.wait_event(event, 2).is_err(), "nothing will ever record it");
}

#[test]
fn a_unified_device_is_read_and_written_in_place() {
    let options = HostOptions { threads: Some(1), unified: true, ..HostOptions::default() };
    for (name, device) in [
        ("host", Arc::new(HostDevice::new(&options).unwrap()) as Arc<dyn Device>),
        ("null", Arc::new(NullDevice::new(NullProfile::Unified))),
    ] {
        assert!(device.limits().unified, "{name}");
        let bench = Bench::new(device, 2 * TILE);
        let placed = Region::new(bench.device.create_placed(TILE).unwrap(), 8, 16);
        let mapped = bench.on_device(TILE - 8, 16);
        bench.device.write_host(mapped, &[7; 16]);
        bench.run(&[bench.copy(mapped, placed)]);
        let mut read = [1; 16];
        bench.device.read_host(placed, &mut read);
        assert_eq!(read, [if name == "null" { 0 } else { 7 }; 16], "{name}");
    }
}

#[test]
#[should_panic(expected = "is not a host block")]
fn without_being_unified_device_memory_is_not_the_hosts() {
    let bench = Bench::new(host(1), 1);
    bench.device.write_host(bench.on_device(0, 4), &[0; 4]);
}

#[test]
fn a_host_device_without_tiles_has_placed_heaps_only() {
    let options = HostOptions { threads: Some(1), tiled: false, ..HostOptions::default() };
    for device in [
        Arc::new(HostDevice::new(&options).unwrap()) as Arc<dyn Device>,
        Arc::new(NullDevice::new(NullProfile::Tiled).without_tiles()),
    ] {
        assert!(!device.limits().tiled);
        assert!(matches!(device.create_reservation(TILE), Err(DeviceError::Unsupported { .. })));
        device.create_placed(TILE).unwrap();
    }
}

#[test]
fn heaps_are_whole_tiles_and_impossible_tiles_are_refused() {
    let host = |tile_size_bytes, heap_bytes_max| {
        let options = HostOptions { threads: Some(1), tile_size_bytes, heap_bytes_max, ..HostOptions::default() };
        HostDevice::new(&options).map(|device| device.limits().clone())
    };
    let null = |tile_size_bytes, heap_bytes_max| {
        let device = NullDevice::new(NullProfile::Tiled).with_heaps(tile_size_bytes, heap_bytes_max);
        device.map(|device| device.limits().clone())
    };
    for (tile, given, found) in [(TILE, 5 * TILE + 1, 5 * TILE), (MIB, 3 * MIB - 1, 2 * MIB), (4096, 4096, 4096)] {
        for limits in [host(tile, given).unwrap(), null(tile, given).unwrap()] {
            assert_eq!((limits.tile_size_bytes, limits.heap_size_max_bytes), (tile, found));
        }
    }
    for (tile, heap) in
        [(0, MIB), (3 << 10, MIB), (3 * TILE, MIB), (1, MIB), (2 * MIB, MIB), (TILE, 1), (1 << 40, 1 << 41)]
    {
        for outcome in [host(tile, heap), null(tile, heap)] {
            assert!(
                matches!(outcome, Err(DeviceError::Setting { .. })),
                "tiles of {tile}, heaps of {heap}: {outcome:?}"
            );
        }
    }
}
