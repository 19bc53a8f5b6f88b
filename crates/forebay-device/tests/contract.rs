//! The contract that every device keeps, as one suite run on each of them: the host device with one and two threads, with
//! small and with large tiles, and chaos around it. The null device runs nothing, so it is held to bookkeeping only.

use std::sync::Arc;

use forebay_base::kernel::{Activation, BinaryOp};
use forebay_base::{
    Binding, Command, DataType, EventId, HeapId, Kernel, Launch, MemoryId, Region, StreamId, TensorDesc,
};
use forebay_device::chaos::ChaosDevice;
use forebay_device::host::{HostDevice, HostOptions};
use forebay_device::null::{NullDevice, NullProfile};
use forebay_device::tile_size::TILE_SIZE_BYTES;
use forebay_device::{Device, DeviceError};

/// The usual tile.
const TILE: u64 = TILE_SIZE_BYTES;
const MIB: u64 = 1 << 20;

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

/// A device with a stream and a reservation whose tiles are all mapped.
struct Bench {
    tile: u64,
    device: Arc<dyn Device>,
    stream: StreamId,
    heap: HeapId,
    memory: MemoryId,
    block: MemoryId,
}

impl Bench {
    /// So many bytes, in whole tiles.
    fn new(device: Arc<dyn Device>, bytes: u64) -> Bench {
        let tile = device.limits().tile_size_bytes;
        let bytes = bytes.next_multiple_of(tile);
        let stream = device.create_stream("test", 0).unwrap();
        let heap = device.create_heap(bytes).unwrap();
        let memory = device.create_reservation(bytes).unwrap();
        let region = Region::new(memory, 0, bytes);
        device.submit(&[Command::Map { region, heap, heap_offset_bytes: 0 }]).unwrap();
        let block = device.create_host_block(bytes).unwrap();
        Bench { tile, device, stream, heap, memory, block }
    }

    fn copy(&self, from: Region, to: Region) -> Command {
        Command::Copy { stream: self.stream, from, to }
    }

    fn barrier(&self) -> Command {
        Command::Barrier { stream: self.stream }
    }

    fn on_device(&self, offset: u64, bytes: u64) -> Region {
        Region::new(self.memory, offset, bytes)
    }

    fn on_host(&self, offset: u64, bytes: u64) -> Region {
        Region::new(self.block, offset, bytes)
    }

    fn run(&self, commands: &[Command]) {
        self.device.submit(commands).unwrap();
        self.device.synchronize(self.stream).unwrap();
    }

    fn read(&self, offset: u64, bytes: u64) -> Vec<u8> {
        let mut read = vec![0; bytes as usize];
        self.device.read_host(self.on_host(offset, bytes), &mut read);
        read
    }
}

fn pattern(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn bytes_survive_the_way_to_the_device_and_back() {
    for (name, device) in devices() {
        let bench = Bench::new(device, 4 * MIB);
        let bytes = pattern(2 * MIB);
        let size = bytes.len() as u64;
        bench.device.write_host(bench.on_host(0, size), &bytes);
        bench.run(&[
            bench.copy(bench.on_host(0, size), bench.on_device(48, size)),
            bench.barrier(),
            bench.copy(bench.on_device(48, size), bench.on_host(size, size)),
        ]);
        assert!(bench.read(size, size) == bytes, "{name}");
    }
}

#[test]
fn fills_repeat_their_pattern() {
    for (name, device) in devices() {
        let bench = Bench::new(device, 1);
        let region = bench.on_device(16, 64);
        bench.run(&[
            Command::Fill { stream: bench.stream, region, pattern: [1, 2, 3, 4] },
            bench.barrier(),
            bench.copy(region, bench.on_host(0, 64)),
        ]);
        assert_eq!(bench.read(0, 64), [1, 2, 3, 4].repeat(16), "{name}");
    }
}

#[test]
fn two_reservations_of_one_heap_are_the_same_bytes_and_survive_remapping() {
    for (name, device) in devices() {
        let bench = Bench::new(device.clone(), 2 * device.limits().tile_size_bytes);
        let tile = bench.tile;
        let alias = bench.device.create_reservation(2 * tile).unwrap();
        let crossed = [(0, tile), (tile, 0)].map(|(offset, heap_offset_bytes)| Command::Map {
            region: Region::new(alias, offset, tile),
            heap: bench.heap,
            heap_offset_bytes,
        });
        bench.device.submit(&crossed).unwrap();
        let bytes = pattern(tile);
        bench.device.write_host(bench.on_host(0, tile), &bytes);
        bench.run(&[
            bench.copy(bench.on_host(0, tile), bench.on_device(0, tile)),
            bench.barrier(),
            bench.copy(Region::new(alias, tile, tile), bench.on_host(tile, tile)),
        ]);
        assert!(bench.read(tile, tile) == bytes, "{name}: the alias sees the bytes");
        bench.device.submit(&[Command::Unmap { region: bench.on_device(0, 2 * tile) }]).unwrap();
        bench.run(&[bench.copy(Region::new(alias, tile, tile), bench.on_host(tile, tile))]);
        assert!(bench.read(tile, tile) == bytes, "{name}: unmapping one address keeps the heap's bytes");
    }
}

#[test]
fn commands_on_unmapped_or_missing_bytes_are_errors() {
    for (name, device) in devices().into_iter().filter(|(name, _)| *name != "chaos") {
        let bench = Bench::new(device, 1);
        let empty = bench.device.create_reservation(bench.tile).unwrap();
        for region in
            [Region::new(empty, 0, 64), bench.on_device(bench.tile - 32, 64), Region::new(MemoryId(9999), 0, 64)]
        {
            let outcome = bench.device.submit(&[bench.copy(region, bench.on_host(0, 64))]);
            assert!(matches!(outcome, Err(DeviceError::Lost { .. })), "{name}: {region}");
        }
    }
}

#[test]
fn events_order_streams_and_count_generations() {
    for (name, device) in devices() {
        let bench = Bench::new(device, 4 * MIB);
        let other = bench.device.create_stream("other", 0).unwrap();
        let event = bench.device.create_event().unwrap();
        assert_eq!(bench.device.query_event(event), 0);
        let size = 2 * MIB - 4096;
        for generation in 1..=3u64 {
            let bytes: Vec<u8> = pattern(size).iter().map(|byte| byte ^ generation as u8).collect();
            bench.device.write_host(bench.on_host(0, size), &bytes);
            bench
                .device
                .submit(&[
                    bench.copy(bench.on_host(0, size), bench.on_device(0, size)),
                    Command::Record { stream: bench.stream, event, generation },
                    Command::Wait { stream: other, event, generation },
                    Command::Copy { stream: other, from: bench.on_device(0, size), to: bench.on_host(size, size) },
                ])
                .unwrap();
            bench.device.wait_event(event, generation).unwrap();
            bench.device.synchronize(other).unwrap();
            assert_eq!(bench.device.query_event(event), generation, "{name}");
            assert!(bench.read(size, size) == bytes, "{name}: generation {generation}");
        }
        bench.device.destroy_event(event);
        bench.device.destroy_stream(other);
    }
}

#[test]
fn times_of_events_are_those_of_the_latest_generation() {
    let mut devices = devices();
    devices.push(("null", Arc::new(NullDevice::new(NullProfile::Tiled))));
    for (name, device) in devices {
        let bench = Bench::new(device, MIB);
        let [first, second] = [(); 2].map(|()| bench.device.create_event().unwrap());
        let record = |event, generation| Command::Record { stream: bench.stream, event, generation };
        let work = bench.copy(bench.on_host(0, MIB), bench.on_device(0, MIB));
        assert_eq!(bench.device.event_time(first, 0), None, "{name}");
        bench.run(&[record(first, 1), work.clone(), record(second, 1)]);
        let start = bench.device.event_time(first, 1).unwrap();
        let end = bench.device.event_time(second, 1).unwrap();
        assert!(start < end, "{name}: {start:?} to {end:?}");
        bench.run(&[work, record(first, 2)]);
        let again = bench.device.event_time(first, 2).unwrap();
        assert!(end < again, "{name}: {end:?}, then {again:?}");
        assert_eq!(bench.device.event_time(first, 1), None, "{name}: an earlier generation is forgotten");
        assert_eq!(bench.device.event_time(first, 3), None, "{name}: nothing fired it");
        bench.device.destroy_event(first);
        assert_eq!(bench.device.event_time(first, 2), None, "{name}");
    }
}

/// y = a + b on packed float32 vectors.
fn add(stream: StreamId, a: Region, b: Region, y: Region) -> Command {
    let bind = |region: Region| Binding {
        region,
        desc: TensorDesc::packed(DataType::Float32, &[region.range.len() / 4]).unwrap(),
    };
    let kernel = Kernel::Binary { op: BinaryOp::Add, activation: Activation::None };
    let launch = Launch { kernel, reads: vec![bind(a), bind(b)], writes: vec![bind(y)], scratch: None, label: 0 };
    Command::Launch { stream, launch: Box::new(launch) }
}

/// Doubles a vector of ones four times in a chain; with or without the barriers that the chain needs.
fn doubled(device: Arc<dyn Device>, barriers: bool) -> f32 {
    let bench = Bench::new(device, 5 * 1024);
    let vector = |index: u64| bench.on_device(index * 1024, 1024);
    let ones: Vec<u8> = 1f32.to_le_bytes().repeat(256);
    let zeros = vec![0; 5 * 1024];
    bench.device.write_host(bench.on_host(0, 5 * 1024), &zeros);
    bench.run(&[bench.copy(bench.on_host(0, 5 * 1024), bench.on_device(0, 5 * 1024))]);
    bench.device.write_host(bench.on_host(0, 1024), &ones);
    bench.run(&[bench.copy(bench.on_host(0, 1024), vector(0))]);
    let mut commands = Vec::new();
    for index in 0..4 {
        commands.push(add(bench.stream, vector(index), vector(index), vector(index + 1)));
        if barriers {
            commands.push(bench.barrier());
        }
    }
    bench.run(&commands);
    bench.run(&[bench.copy(vector(4), bench.on_host(0, 1024))]);
    f32::from_le_bytes(bench.read(0, 4).try_into().unwrap())
}

#[test]
fn launches_run_in_the_order_that_barriers_give() {
    for (name, device) in devices() {
        assert_eq!(doubled(device, true), 16.0, "{name}");
    }
}

#[test]
fn chaos_exposes_a_missing_barrier_and_never_a_present_one() {
    let wrong = (0..20).filter(|&seed| doubled(chaos(seed), false) != 16.0).count();
    assert!(wrong >= 10, "without barriers only {wrong} of 20 seeds gave a wrong result");
    assert!((0..20).all(|seed| doubled(chaos(seed), true) == 16.0));
}

#[test]
fn usage_counts_what_exists_and_the_most_that_ever_did() {
    let mut devices = devices();
    devices.push(("null", Arc::new(NullDevice::new(NullProfile::Tiled))));
    for (name, device) in devices {
        let (tile, before) = (device.limits().tile_size_bytes, device.usage());
        let heap = device.create_heap(3 * tile + 1).unwrap();
        let placed = device.create_placed(tile).unwrap();
        let block = device.create_host_block(1000).unwrap();
        assert_eq!(device.usage().heap_bytes, before.heap_bytes + 5 * tile, "{name}: whole tiles");
        assert_eq!(device.usage().host_bytes, before.host_bytes + 1000, "{name}");
        device.destroy_heap(heap);
        device.destroy_memory(placed);
        device.destroy_memory(block);
        let after = device.usage();
        assert_eq!((after.heap_bytes, after.host_bytes), (before.heap_bytes, before.host_bytes), "{name}");
        assert_eq!(after.heap_peak_bytes, before.heap_bytes + 5 * tile, "{name}");
    }
}

#[test]
fn absurd_sizes_are_errors_and_harm_nothing() {
    for (name, device) in devices() {
        for size in [1 << 50, u64::MAX / 2, u64::MAX] {
            assert!(matches!(device.create_heap(size), Err(DeviceError::OutOfMemory { .. })), "{name}: heap of {size}");
            assert!(device.create_placed(size).is_err(), "{name}: placed {size}");
            assert!(device.create_host_block(size).is_err(), "{name}: block of {size}");
        }
        assert_eq!(device.usage().heap_bytes, 0, "{name}");
        Bench::new(device, 1);
    }
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
fn a_kernel_that_cannot_run_is_an_error_that_sticks() {
    for (name, device) in devices() {
        let bench = Bench::new(device, 1);
        let half = |offset| Binding {
            region: bench.on_device(offset, 64),
            desc: TensorDesc::packed(DataType::Float16, &[32]).unwrap(),
        };
        let kernel = Kernel::Binary { op: BinaryOp::Add, activation: Activation::None };
        let launch =
            Launch { kernel, reads: vec![half(0), half(64)], writes: vec![half(128)], scratch: None, label: 7 };
        // The failure may come out of either call.
        let launched = bench.device.submit(&[Command::Launch { stream: bench.stream, launch: Box::new(launch) }]);
        let outcome = launched.and_then(|()| bench.device.synchronize(bench.stream));
        assert!(matches!(outcome, Err(DeviceError::Unsupported { .. })), "{name}: {outcome:?}");
        let event = EventId(12345);
        assert!(bench.device.wait_event(event, 1).is_err(), "{name}: waits end instead of hanging");
    }
}

#[test]
fn traces_say_what_ran_when() {
    for (name, device) in devices() {
        let bench = Bench::new(device, 1);
        bench.device.set_trace(true);
        let vector = |index: u64| bench.on_device(index * 1024, 1024);
        bench.run(&[
            Command::Fill { stream: bench.stream, region: vector(0), pattern: [0; 4] },
            bench.barrier(),
            add(bench.stream, vector(0), vector(0), vector(1)),
        ]);
        let records = bench.device.take_trace();
        assert_eq!(records.len(), 2, "{name}");
        assert_eq!((records[1].name, records[1].label), ("Binary", Some(0)), "{name}");
        assert!(records[0].end <= records[1].start, "{name}: a barrier lies between");
        assert!(bench.device.take_trace().is_empty(), "{name}");
    }
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
