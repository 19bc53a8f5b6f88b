//! What streams of the host device guarantee beyond the contract suite: records that hold nothing up, lists that are accepted as a whole
//! or not at all, failures that end every wait, and a link that does not occupy a worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::{Binding, Command, DataType, EventId, Kernel, Launch, MemoryId, Region, StreamId, TensorDesc};
use forebay_device::host::{HostDevice, HostOptions};
use forebay_device::null::{NullDevice, NullProfile};
use forebay_device::{Device, DeviceError};

const TILE: u64 = 64 * 1024;
const SIZE: u64 = 4 << 20;

fn host(threads: usize, link_bytes_per_second: Option<u64>) -> HostDevice {
    let options = HostOptions { threads: Some(threads), link_bytes_per_second, ..HostOptions::default() };
    HostDevice::new(&options).expect("a host device")
}

fn fill(stream: StreamId, region: Region, byte: u8) -> Command {
    Command::Fill { stream, region, pattern: [byte; 4] }
}

fn read(device: &dyn Device, region: Region) -> Vec<u8> {
    let mut bytes = vec![0; region.range.len() as usize];
    device.read_host(region, &mut bytes);
    bytes
}

/// A copy through a link on which it takes a second.
struct SlowCopy {
    device: HostDevice,
    stream: StreamId,
    block: MemoryId,
    placed: MemoryId,
    command: Command,
}

fn slow_copy(threads: usize) -> SlowCopy {
    let device = host(threads, Some(SIZE));
    let stream = device.create_stream("slow", 0).expect("a stream");
    let block = device.create_host_block(SIZE).expect("a block");
    let placed = device.create_placed(SIZE + TILE).expect("a placed heap");
    let command = Command::Copy { stream, from: Region::new(block, 0, SIZE), to: Region::new(placed, 0, SIZE) };
    SlowCopy { device, stream, block, placed, command }
}

#[test]
fn a_record_waits_for_what_is_before_it_and_holds_up_nothing_behind() {
    let SlowCopy { device, stream, placed, command, .. } = slow_copy(1);
    let [before, behind] = [(); 2].map(|()| device.create_event().expect("an event"));
    let other = device.create_stream("other", 0).expect("a stream");
    let result = device.create_host_block(64).expect("a block");
    let start = Instant::now();
    device
        .submit(&[
            command,
            Command::Record { stream, event: before, generation: 1 },
            fill(stream, Region::new(placed, SIZE, 64), 9),
        ])
        .expect("three commands");
    // The fill after the record is done long before the copy, although the only worker serves both.
    let mut seen = [0; 64];
    while seen != [9; 64] {
        assert_eq!(device.query_event(before), 0, "the fill waited for the record");
        let to = Region::new(result, 0, 64);
        let commands = [
            Command::Copy { stream: other, from: Region::new(placed, SIZE, 64), to },
            Command::Record { stream: other, event: behind, generation: 1 },
        ];
        // The slow copy occupies the link in the other direction only.
        device.submit(&commands).expect("a copy");
        device.synchronize(other).expect("a copy");
        seen.copy_from_slice(&read(&device, to));
    }
    assert_eq!((device.query_event(before), device.query_event(behind)), (0, 1));
    device.wait_event(before, 1).expect("the copy");
    assert!(start.elapsed() >= Duration::from_millis(990), "{:?} for a second of link", start.elapsed());
    device.synchronize(stream).expect("everything");
}

#[test]
fn records_fire_in_order_and_thousands_at_once() {
    for threads in [1, 2] {
        let device = host(threads, None);
        let stream = device.create_stream("records", 0).expect("a stream");
        let (block, event) =
            (device.create_host_block(SIZE).expect("a block"), device.create_event().expect("an event"));
        let mut commands = vec![fill(stream, Region::new(block, 0, SIZE), 1)];
        commands.extend((1..=50_000).map(|generation| Command::Record { stream, event, generation }));
        device.submit(&commands).expect("records");
        device.synchronize(stream).expect("records");
        assert_eq!(device.query_event(event), 50_000, "{threads} threads: synchronized means fired");
    }
}

/// Streams pass a counter around repeatedly, and each adds its byte after the one before it.
#[test]
fn many_streams_take_turns_by_events() {
    for threads in [1, 2] {
        let device = host(threads, None);
        let streams: Vec<StreamId> = (0..4).map(|_| device.create_stream("turn", 0).expect("a stream")).collect();
        let block = device.create_host_block(65 * 64).expect("a block");
        let event = device.create_event().expect("an event");
        let place = |index: u64| Region::new(block, index * 64, 64);
        let mut commands =
            vec![fill(streams[0], place(0), 7), Command::Record { stream: streams[0], event, generation: 1 }];
        for index in 0..64 {
            let stream = streams[(index as usize + 1) % 4];
            commands.push(Command::Wait { stream, event, generation: index + 1 });
            commands.push(Command::Copy { stream, from: place(index), to: place(index + 1) });
            commands.push(Command::Record { stream, event, generation: index + 2 });
        }
        device.submit(&commands).expect("turns");
        device.wait_event(event, 65).expect("the last turn");
        assert_eq!(read(&device, place(64)), [7; 64], "{threads} threads");
    }
}

#[test]
fn a_list_is_accepted_whole_or_not_at_all() {
    let device = host(2, None);
    let stream = device.create_stream("list", 0).expect("a stream");
    let (block, event) = (device.create_host_block(128).expect("a block"), device.create_event().expect("an event"));
    let good = fill(stream, Region::new(block, 0, 128), 5);
    let bad = [
        fill(stream, Region::new(block, 64, 128), 5),
        fill(StreamId(9999), Region::new(block, 0, 64), 5),
        Command::Wait { stream, event, generation: 1 },
        Command::Wait { stream, event: EventId(9999), generation: 1 },
        Command::Copy { stream, from: Region::new(block, 0, 64), to: Region::new(block, 32, 64) },
    ];
    for bad in bad {
        let outcome = device.submit(&[good.clone(), bad.clone()]);
        assert!(matches!(outcome, Err(DeviceError::Lost { .. })), "{bad}: {outcome:?}");
        device.synchronize(stream).expect("nothing runs, and the device is well");
        assert_eq!(read(&device, Region::new(block, 0, 128)), [0; 128], "{bad}");
    }
    device.submit(&[good]).expect("a list that is right");
    device.synchronize(stream).expect("a fill");
    assert_eq!(read(&device, Region::new(block, 0, 128)), [5; 128]);
}

/// A launch without the operands that its kernel indexes. Callers validate, so the kernel can panic, but nothing hangs.
#[test]
fn a_kernel_that_panics_ends_every_wait_with_the_same_error() {
    for threads in [1, 2] {
        let device = Arc::new(host(threads, None));
        let [failing, waiting] = [(); 2].map(|()| device.create_stream("panic", 0).expect("a stream"));
        let [first, second] = [(); 2].map(|()| device.create_event().expect("an event"));
        let block = device.create_host_block(64).expect("a block");
        let desc = TensorDesc::packed(DataType::Float32, &[16]).expect("a descriptor");
        let writes = vec![Binding { region: Region::new(block, 0, 64), desc }];
        let launch = Launch { kernel: Kernel::Select, reads: Vec::new(), writes, workspace: None, label: 3 };
        let commands = [
            Command::Launch { stream: failing, launch: Box::new(launch) },
            Command::Record { stream: failing, event: first, generation: 1 },
            Command::Wait { stream: waiting, event: first, generation: 1 },
            fill(waiting, Region::new(block, 0, 64), 1),
            Command::Record { stream: waiting, event: second, generation: 1 },
        ];
        device.submit(&commands).expect("commands that look right");
        let failure = device.wait_event(second, 1).expect_err("a panic");
        assert!(matches!(&failure, DeviceError::Lost { reason } if reason.contains("Select")), "{failure}");
        assert_eq!(device.synchronize(waiting), Err(failure.clone()), "{threads} threads");
        assert_eq!(device.submit(&[]), Err(failure), "the failure sticks");
    }
}

#[test]
fn a_slow_link_leaves_the_only_worker_free() {
    let SlowCopy { device, stream, block, placed, command } = slow_copy(1);
    let other = device.create_stream("other", 0).expect("a stream");
    device.set_trace(true);
    let start = Instant::now();
    device.submit(&[command, fill(other, Region::new(placed, SIZE, TILE), 1)]).expect("a copy and a fill");
    device.synchronize(other).expect("a fill");
    device.synchronize(stream).expect("a copy");
    assert!(start.elapsed() >= Duration::from_millis(990), "the copy took {:?}", start.elapsed());
    device.set_trace(false);
    device.submit(&[fill(other, Region::new(block, 0, 64), 1)]).expect("a fill");
    device.synchronize(other).expect("a fill");
    let names: Vec<_> = device.take_trace().iter().map(|record| (record.name, record.bytes)).collect();
    assert_eq!(names, [("fill", TILE), ("copy", SIZE)], "the fill first; records outlive recording, and none is added");
}

#[test]
fn host_memory_has_a_cap_that_packing_buffers_count_in() {
    let options = HostOptions { threads: Some(1), host_memory_bytes: Some(1), ..HostOptions::default() };
    assert!(matches!(HostDevice::new(&options), Err(DeviceError::OutOfMemory { .. })));
    let packing_bytes = host(1, None).usage().host_bytes;
    let options = HostOptions { host_memory_bytes: Some(packing_bytes + TILE), ..options };
    let device = HostDevice::new(&options).expect("a device");
    let block = device.create_host_block(TILE).expect("a block");
    assert!(matches!(device.create_host_block(1), Err(DeviceError::OutOfMemory { .. })));
    device.destroy_memory(block);
    device.create_host_block(1).expect("a block in place of the other");
}

#[test]
fn null_blocks_hold_bytes_and_absurd_ones_are_refused() {
    for profile in [NullProfile::Tiled, NullProfile::Placed, NullProfile::Direct3D12Like] {
        let device = NullDevice::new(profile);
        let block = device.create_host_block(16).expect("a block");
        device.write_host(Region::new(block, 4, 4), &[1, 2, 3, 4]);
        assert_eq!(read(&device, Region::new(block, 2, 8)), [0, 0, 1, 2, 3, 4, 0, 0], "{profile:?}");
        for size_bytes in [1 << 45, u64::MAX] {
            let outcome = device.create_host_block(size_bytes);
            assert!(matches!(outcome, Err(DeviceError::OutOfMemory { .. })), "{profile:?}: {size_bytes} bytes");
        }
        let reserved = device.create_reservation(TILE);
        let tiled = profile != NullProfile::Placed;
        assert_eq!(reserved.is_ok(), tiled);
        assert!(tiled || matches!(reserved, Err(DeviceError::Unsupported { .. })));
    }
}
