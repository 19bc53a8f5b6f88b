//! The contract that every device must keep, as functions that take a device; the crate of each device runs all of them on its device. They
//! panic if the device breaks the contract; `name` identifies the device in the message.

use std::sync::Arc;

use forebay_base::kernel::{Activation, BinaryOp, ScatterOp, UnaryOp};
use forebay_base::{
    Binding, Command, DataType, EventId, HeapId, Kernel, Launch, MemoryId, Region, StreamId, TensorDesc,
};
use forebay_device::{Device, DeviceError, IndexFault};

/// Bytes in a mebibyte.
pub const MIB: u64 = 1 << 20;

/// Makes a test of each listed function of the suite, which runs on all `$devices`.
#[macro_export]
macro_rules! contract {
    ($devices:expr; $($test:ident),* $(,)?) => {
        $(
            #[test]
            fn $test() {
                for (name, device) in $devices {
                    $crate::contract::$test(name, device);
                }
            }
        )*
    };
}
pub use contract;

/// A device with a stream and a reservation whose tiles are all mapped.
pub struct Bench {
    /// The size of a tile in bytes.
    pub tile: u64,
    /// The device.
    pub device: Arc<dyn Device>,
    /// The device's stream.
    pub stream: StreamId,
    /// The heap behind the reservation; `None` without tiles.
    pub heap: Option<HeapId>,
    /// The reservation or the placed heap.
    pub memory: MemoryId,
    /// A host block of the same size.
    pub block: MemoryId,
}

impl Bench {
    /// Creates memory of at least this size, in whole tiles; without tiles, a placed heap.
    pub fn new(device: Arc<dyn Device>, bytes: u64) -> Bench {
        let tile = device.limits().tile_size_bytes;
        let bytes = bytes.next_multiple_of(tile);
        let stream = device.create_stream("test", 0).unwrap();
        let (heap, memory) = if device.limits().tiled {
            let (heap, memory) = (device.create_heap(bytes).unwrap(), device.create_reservation(bytes).unwrap());
            let region = Region::new(memory, 0, bytes);
            device.submit(&[Command::Map { region, heap, heap_offset_bytes: 0 }]).unwrap();
            (Some(heap), memory)
        } else {
            (None, device.create_placed(bytes).unwrap())
        };
        let block = device.create_host_block(bytes).unwrap();
        Bench { tile, device, stream, heap, memory, block }
    }

    /// Returns a copy on the stream.
    pub fn copy(&self, from: Region, to: Region) -> Command {
        Command::Copy { stream: self.stream, from, to }
    }

    /// Returns a barrier on the stream.
    pub fn barrier(&self) -> Command {
        Command::Barrier { stream: self.stream }
    }

    /// Returns a region of the device memory.
    pub fn on_device(&self, offset: u64, bytes: u64) -> Region {
        Region::new(self.memory, offset, bytes)
    }

    /// Returns a region of the host block.
    pub fn on_host(&self, offset: u64, bytes: u64) -> Region {
        Region::new(self.block, offset, bytes)
    }

    /// Submits commands and waits for the stream.
    pub fn run(&self, commands: &[Command]) {
        self.device.submit(commands).unwrap();
        self.device.synchronize(self.stream).unwrap();
    }

    /// Returns bytes of the host block.
    pub fn read(&self, offset: u64, bytes: u64) -> Vec<u8> {
        let mut read = vec![0; bytes as usize];
        self.device.read_host(self.on_host(offset, bytes), &mut read);
        read
    }
}

fn pattern(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Bytes are the same after a copy to the device and back.
pub fn bytes_survive_the_way_to_the_device_and_back(name: &str, device: Arc<dyn Device>) {
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

/// A fill repeats its four bytes.
pub fn fills_repeat_their_pattern(name: &str, device: Arc<dyn Device>) {
    let bench = Bench::new(device, 1);
    let region = bench.on_device(16, 64);
    bench.run(&[
        Command::Fill { stream: bench.stream, region, pattern: [1, 2, 3, 4] },
        bench.barrier(),
        bench.copy(region, bench.on_host(0, 64)),
    ]);
    assert_eq!(bench.read(0, 64), [1, 2, 3, 4].repeat(16), "{name}");
}

/// Tiles that are mapped twice have the same bytes, and keep them when one mapping ends.
pub fn two_reservations_of_one_heap_are_the_same_bytes_and_survive_remapping(name: &str, device: Arc<dyn Device>) {
    let bench = Bench::new(device.clone(), 2 * device.limits().tile_size_bytes);
    let tile = bench.tile;
    let alias = bench.device.create_reservation(2 * tile).unwrap();
    let crossed = [(0, tile), (tile, 0)].map(|(offset, heap_offset_bytes)| Command::Map {
        region: Region::new(alias, offset, tile),
        heap: bench.heap.unwrap(),
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

/// If memory is the host's, the host writes what launches read, and reads what they wrote, across tiles and without copies.
pub fn the_hosts_memory_is_used_in_place(name: &str, device: Arc<dyn Device>) {
    if !device.limits().unified {
        return;
    }
    let bench = Bench::new(device.clone(), 3 * device.limits().tile_size_bytes);
    let (tile, count) = (bench.tile, bench.tile / 4);
    let [read, written] = [(0, tile + 4096), (tile + 4096, tile + 4096)].map(|(at, size)| bench.on_device(at, size));
    let placed = Region::new(device.create_placed(tile).unwrap(), 256, 64);
    let values = |factor: f32| (0..count + 1024).flat_map(|i| (i as f32 * factor).to_le_bytes()).collect::<Vec<u8>>();
    device.write_host(read, &values(1.0));
    let desc = TensorDesc::packed(DataType::Float32, &[count + 1024]).unwrap();
    let [x, y] = [read, written].map(|region| Binding { region, desc: desc.clone() });
    let kernel = Kernel::Binary { op: BinaryOp::Add, activation: Activation::None };
    let launch = Launch { kernel, reads: vec![x.clone(), x], writes: vec![y], workspace: None, label: 0 };
    let launch = Command::Launch { stream: bench.stream, launch: Box::new(launch) };
    bench.run(&[launch, bench.barrier(), bench.copy(bench.on_device(tile + 4096, 64), placed)]);
    let mut found = vec![0; (tile + 4096) as usize];
    device.read_host(written, &mut found);
    assert!(found == values(2.0), "{name}: sums across tiles");
    let mut first = [0; 64];
    device.read_host(placed, &mut first);
    assert!(first[..] == found[..64], "{name}: a copy to a placed heap");
}

/// A command on bytes that do not exist is an error, not a crash.
pub fn commands_on_unmapped_or_missing_bytes_are_errors(name: &str, device: Arc<dyn Device>) {
    let bench = Bench::new(device, 1);
    let unmapped =
        bench.device.limits().tiled.then(|| Region::new(bench.device.create_reservation(bench.tile).unwrap(), 0, 64));
    let missing = [bench.on_device(bench.tile - 32, 64), Region::new(MemoryId(9999), 0, 64)];
    for region in missing.into_iter().chain(unmapped) {
        let outcome = bench.device.submit(&[bench.copy(region, bench.on_host(0, 64))]);
        assert!(matches!(outcome, Err(DeviceError::Lost { .. })), "{name}: {region}");
    }
}

/// A wait holds a stream back until the record, for each generation.
pub fn events_order_streams_and_count_generations(name: &str, device: Arc<dyn Device>) {
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

/// An event tells when its latest generation fired.
pub fn times_of_events_are_those_of_the_latest_generation(name: &str, device: Arc<dyn Device>) {
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

/// y = a + b on packed float32 vectors.
fn add(stream: StreamId, a: Region, b: Region, y: Region) -> Command {
    let bind = |region: Region| Binding {
        region,
        desc: TensorDesc::packed(DataType::Float32, &[region.range.len() / 4]).unwrap(),
    };
    let kernel = Kernel::Binary { op: BinaryOp::Add, activation: Activation::None };
    let launch = Launch { kernel, reads: vec![bind(a), bind(b)], writes: vec![bind(y)], workspace: None, label: 0 };
    Command::Launch { stream, launch: Box::new(launch) }
}

/// Doubles a vector of ones four times in a chain, with or without the barriers that the chain needs.
pub fn doubled(device: Arc<dyn Device>, barriers: bool) -> f32 {
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

/// Barriers order launches.
pub fn launches_run_in_the_order_that_barriers_give(name: &str, device: Arc<dyn Device>) {
    assert_eq!(doubled(device, true), 16.0, "{name}");
}

/// Memory that is obtained and given back is counted, and the peak is kept.
pub fn usage_counts_what_exists_and_the_most_that_ever_did(name: &str, device: Arc<dyn Device>) {
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

/// A host block can start without memory, lose a part of it and get it again; what was not released stays.
pub fn released_parts_of_host_blocks_come_back(name: &str, device: Arc<dyn Device>) {
    let part_bytes = MIB as usize;
    let bytes = |number: u8| vec![number; part_bytes];
    let before = device.usage();
    let block = device.create_released_host_block(3 * MIB).unwrap();
    assert_eq!(device.usage().host_bytes, before.host_bytes + 3 * MIB, "{name}");
    let part = |number: u64| Region::new(block, number * MIB, MIB);
    (0..3).for_each(|number| device.write_host(part(number), &bytes(number as u8 + 1)));
    device.release_host(part(1));
    device.fill_host(block).unwrap();
    let read = |number: u64| {
        let mut found = bytes(0);
        device.read_host(part(number), &mut found);
        found
    };
    assert!(read(0) == bytes(1) && read(2) == bytes(3), "{name}: what was not released stays");
    device.write_host(part(1), &bytes(9));
    assert!(read(1) == bytes(9), "{name}: what was released can be written");
    device.destroy_memory(block);
    assert_eq!(device.usage().host_bytes, before.host_bytes, "{name}");
}

/// Sizes that no machine has are errors.
pub fn absurd_sizes_are_errors_and_harm_nothing(name: &str, device: Arc<dyn Device>) {
    for size in [1 << 50, u64::MAX / 2, u64::MAX] {
        assert!(matches!(device.create_heap(size), Err(DeviceError::OutOfMemory { .. })), "{name}: heap of {size}");
        assert!(device.create_placed(size).is_err(), "{name}: placed {size}");
        assert!(device.create_host_block(size).is_err(), "{name}: block of {size}");
    }
    assert_eq!(device.usage().heap_bytes, 0, "{name}");
    Bench::new(device, 1);
}

/// A kernel that the device lacks is an error, and all later calls report it, too.
pub fn a_kernel_that_cannot_run_is_an_error_that_sticks(name: &str, device: Arc<dyn Device>) {
    let bench = Bench::new(device, 1);
    let half = |offset| Binding {
        region: bench.on_device(offset, 64),
        desc: TensorDesc::packed(DataType::Float16, &[32]).unwrap(),
    };
    let kernel = Kernel::Binary { op: BinaryOp::Xor, activation: Activation::None };
    let launch = Launch { kernel, reads: vec![half(0), half(64)], writes: vec![half(128)], workspace: None, label: 7 };
    // Either call can report the failure.
    let launched = bench.device.submit(&[Command::Launch { stream: bench.stream, launch: Box::new(launch) }]);
    let outcome = launched.and_then(|()| bench.device.synchronize(bench.stream));
    assert!(matches!(outcome, Err(DeviceError::Unsupported { .. })), "{name}: {outcome:?}");
    let event = EventId(12345);
    assert!(bench.device.wait_event(event, 1).is_err(), "{name}: waits end instead of hanging");
}

/// The first index out of range is reported once, with its position.
pub fn indices_out_of_range_are_reported(name: &str, device: Arc<dyn Device>) {
    const COUNT: u64 = 600;
    let bench = Bench::new(device, 64 << 10);
    let kernels =
        [Kernel::Gather { axis: 0 }, Kernel::GatherGradient { axis: 0 }, Kernel::Scatter { op: ScatterOp::Replace }];
    for (index_type, kernel) in
        [DataType::Int64, DataType::Int32].into_iter().flat_map(|ty| kernels.clone().map(|kernel| (ty, kernel)))
    {
        let bind = |offset: u64, data_type, sizes: &[u64]| {
            let desc = TensorDesc::packed(data_type, sizes).unwrap();
            Binding { region: bench.on_device(offset, desc.total_size_bytes()), desc }
        };
        let (table, rows) = (bind(0, DataType::Float32, &[7, 3]), bind(1024, DataType::Float32, &[COUNT, 3]));
        let indices = bind(16 << 10, index_type, &[COUNT]);
        for wrong in [None, Some((577, 7)), Some((0, -8)), Some((599, i64::from(i32::MIN)))] {
            let index = |i: u64| wrong.filter(|&(at, _)| at == i).map_or(i as i64 % 14 - 7, |(_, index)| index);
            let bytes: Vec<u8> = (0..COUNT)
                .flat_map(|i| match index_type {
                    DataType::Int64 => index(i).to_le_bytes().to_vec(),
                    _ => (index(i) as i32).to_le_bytes().to_vec(),
                })
                .collect();
            let size = bytes.len() as u64;
            bench.device.write_host(bench.on_host(0, size), &bytes);
            let (reads, write) = match kernel {
                Kernel::Gather { .. } => (vec![&table, &indices], &rows),
                Kernel::Scatter { .. } => (vec![&table, &indices, &rows], &table),
                _ => (vec![&rows, &indices], &table),
            };
            let (reads, writes) = (reads.into_iter().cloned().collect(), vec![write.clone()]);
            let launch = Launch { kernel: kernel.clone(), reads, writes, workspace: None, label: 31 };
            bench.run(&[
                bench.copy(bench.on_host(0, size), indices.region),
                bench.barrier(),
                Command::Launch { stream: bench.stream, launch: Box::new(launch) },
            ]);
            let expected = wrong.map(|(element, index)| IndexFault { label: 31, element, index, limit: 7 });
            let what = format!("{name}, {} of {index_type}: {wrong:?}", kernel.name());
            assert_eq!(bench.device.take_index_fault(), expected, "{what}");
            assert_eq!(bench.device.take_index_fault(), None, "{what}: it is told once");
        }
    }
}

/// A launch whose operands are in host blocks runs on the host, between copies and barriers like any other; what waits for it in other
/// streams sees what it wrote, and a trace says when it ran.
pub fn launches_in_host_blocks_run_on_the_host(name: &str, device: Arc<dyn Device>) {
    const COUNT: u64 = 30_000;
    let size = COUNT * 8;
    let bench = Bench::new(device, 4 * MIB);
    let other = bench.device.create_stream("other", 0).unwrap();
    let [event, back] = [(); 2].map(|()| bench.device.create_event().unwrap());
    let desc = TensorDesc::packed(DataType::Float64, &[COUNT]).unwrap();
    let kernel = Kernel::Unary(UnaryOp::Sqrt);
    assert_eq!(
        bench.device.host_workspace_bytes(&kernel, std::slice::from_ref(&desc), std::slice::from_ref(&desc)),
        Ok(0),
        "{name}"
    );
    let values: Vec<f64> = (0..COUNT).map(|i| i as f64 / 7.0).collect();
    let bytes = |values: &[f64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let [from, staged, result, returned] = [0, 1, 2, 3].map(|part| bench.on_host(part * 512 * 1024, size));
    let (there, there_too) = (bench.on_device(0, size), bench.on_device(512 * 1024, size));
    bench.device.set_trace(true);
    for round in 1..=3u64 {
        let values: Vec<f64> = values.iter().map(|value| value * round as f64).collect();
        bench.device.write_host(from, &bytes(&values));
        let bind = |region| vec![Binding { region, desc: desc.clone() }];
        let (reads, writes) = (bind(staged), bind(result));
        let launch = Launch { kernel: kernel.clone(), reads, writes, workspace: None, label: 5 };
        bench
            .device
            .submit(&[
                bench.copy(from, there),
                bench.barrier(),
                bench.copy(there, staged),
                bench.barrier(),
                Command::Launch { stream: bench.stream, launch: Box::new(launch) },
                Command::Record { stream: bench.stream, event, generation: round },
                Command::Wait { stream: other, event, generation: round },
                Command::Copy { stream: other, from: result, to: there_too },
                Command::Record { stream: other, event: back, generation: round },
                Command::Wait { stream: bench.stream, event: back, generation: round },
                bench.copy(there_too, returned),
            ])
            .unwrap();
        bench.device.synchronize(bench.stream).unwrap();
        let mut found = vec![0; size as usize];
        bench.device.read_host(returned, &mut found);
        let expected: Vec<f64> = values.iter().map(|value| value.sqrt()).collect();
        assert!(found == bytes(&expected), "{name}, round {round}");
        let records = bench.device.take_trace();
        let launches: Vec<_> = records.iter().filter(|record| record.name == "Unary").collect();
        assert_eq!((records.len(), launches.len()), (5, 1), "{name}: {records:?}");
        assert_eq!(launches[0].label, Some(5), "{name}");
    }
    bench.device.destroy_stream(other);
}

/// A launch on the host reports an index out of range like any other.
pub fn indices_out_of_range_are_reported_on_the_host(name: &str, device: Arc<dyn Device>) {
    let bench = Bench::new(device, 64 << 10);
    let bind = |offset: u64, data_type, sizes: &[u64]| {
        let desc = TensorDesc::packed(data_type, sizes).unwrap();
        Binding { region: bench.on_host(offset, desc.total_size_bytes()), desc }
    };
    let (table, indices) = (bind(0, DataType::Float32, &[7, 3]), bind(1024, DataType::Int64, &[2]));
    let rows = bind(2048, DataType::Float32, &[2, 3]);
    bench.device.write_host(indices.region, &[1i64, 9].map(i64::to_le_bytes).concat());
    let (reads, writes) = (vec![table, indices], vec![rows]);
    let launch = Launch { kernel: Kernel::Gather { axis: 0 }, reads, writes, workspace: None, label: 3 };
    bench.run(&[Command::Launch { stream: bench.stream, launch: Box::new(launch) }]);
    let expected = Some(IndexFault { label: 3, element: 1, index: 9, limit: 7 });
    assert_eq!(bench.device.take_index_fault(), expected, "{name}");
}

/// A trace has one record for each command that did work, with times in order.
pub fn traces_say_what_ran_when(name: &str, device: Arc<dyn Device>) {
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
