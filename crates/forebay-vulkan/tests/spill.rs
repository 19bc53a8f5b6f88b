//! Spill files of a Vulkan device: bytes come back as they were written, through host memory and through device memory.

use std::sync::Arc;

use forebay_base::{Command, MemoryId, Region};
use forebay_device::{Device, DeviceError, Readable};
use forebay_device_testing::read_only::bytes_that_are_only_read;
use forebay_testing::Random;
use forebay_testing::parts::skipped;
use forebay_vulkan::{VulkanDevice, VulkanOptions};

/// More bytes than pass through host memory at once.
const BYTES: u64 = 9 << 20;

fn device() -> Option<VulkanDevice> {
    match VulkanDevice::open(&VulkanOptions { cache: None, ..VulkanOptions::default() }) {
        Ok(device) => Some(device),
        Err(error) => {
            skipped("vulkan", error);
            None
        }
    }
}

/// Random copies of any bytes between a host block, device memory and a file, compared with plain vectors.
#[test]
fn bytes_come_back_as_they_were_written() {
    let Some(device) = device() else { return };
    let folder = std::env::temp_dir();
    for seed in 1..=3u64 {
        let mut random = Random::new(seed);
        let block = device.create_host_block(BYTES).unwrap();
        let memories: [MemoryId; 3] =
            [block, device.create_placed(BYTES).unwrap(), device.create_spill(&folder, BYTES).unwrap()];
        let stream = device.create_stream("spill", 0).unwrap();
        let first: Vec<u8> = (0..BYTES).map(|index| (index * 31 + index / 253 + seed) as u8).collect();
        let all = |memory| Region::new(memory, 0, BYTES);
        let copy = |from, to| [Command::Copy { stream, from, to }, Command::Barrier { stream }];
        device.write_host(all(block), &first);
        let begin: Vec<Command> = [copy(all(block), all(memories[1])), copy(all(memories[1]), all(memories[2]))]
            .into_iter()
            .flatten()
            .collect();
        device.submit(&begin).unwrap();
        let mut model = [first.clone(), first.clone(), first];
        for _ in 0..20 {
            let from = random.below(3) as usize;
            let to = (from + 1 + random.below(2) as usize) % 3;
            let limit = if random.below(4) == 0 { BYTES } else { 10_000 };
            let size = 1 + random.below(limit);
            let (source, target) = (random.below(BYTES - size + 1), random.below(BYTES - size + 1));
            let pair = copy(Region::new(memories[from], source, size), Region::new(memories[to], target, size));
            device.submit(&pair).unwrap();
            let moved = model[from][source as usize..][..size as usize].to_vec();
            model[to][target as usize..][..size as usize].copy_from_slice(&moved);
        }
        for (memory, expected) in memories.into_iter().zip(&model) {
            let commands: Vec<Command> = copy(all(memory), all(block)).into();
            if memory != block {
                device.submit(&commands).unwrap();
            }
            device.synchronize(stream).unwrap();
            let mut found = vec![0; BYTES as usize];
            device.read_host(all(block), &mut found);
            let same = found.iter().zip(expected).position(|(found, expected)| found != expected);
            assert_eq!(same, None, "seed {seed}, {memory}");
        }
        device.destroy_stream(stream);
        memories.into_iter().for_each(|memory| device.destroy_memory(memory));
        assert_eq!(device.usage().disk_bytes, 0);
    }
}

/// A stream that waits for a file does not hold up others, and events order the two.
#[test]
fn events_order_files_and_kernels_streams() {
    let Some(device) = device() else { return };
    let (block, memory) = (device.create_host_block(BYTES).unwrap(), device.create_placed(BYTES).unwrap());
    let file = device.create_spill(&std::env::temp_dir(), BYTES).unwrap();
    let [disk, compute] = ["disk", "compute"].map(|name| device.create_stream(name, 0).unwrap());
    let [written, read] = [(); 2].map(|()| device.create_event().unwrap());
    let all = |memory| Region::new(memory, 0, BYTES);
    for generation in 1..=3u64 {
        let commands = [
            Command::Fill { stream: compute, region: all(memory), pattern: [generation as u8; 4] },
            Command::Record { stream: compute, event: written, generation },
            Command::Wait { stream: disk, event: written, generation },
            Command::Copy { stream: disk, from: all(memory), to: all(file) },
            Command::Barrier { stream: disk },
            Command::Copy { stream: disk, from: all(file), to: all(block) },
            Command::Record { stream: disk, event: read, generation },
            Command::Wait { stream: compute, event: read, generation },
            Command::Fill { stream: compute, region: all(memory), pattern: [0; 4] },
        ];
        device.submit(&commands).unwrap();
        device.wait_event(read, generation).unwrap();
        let mut found = vec![0; BYTES as usize];
        device.read_host(all(block), &mut found);
        assert!(found.iter().all(|&byte| byte == generation as u8), "generation {generation}");
        device.synchronize(compute).unwrap();
    }
}

/// Bytes that cannot be read.
#[derive(Debug)]
struct Unreadable;

impl Readable for Unreadable {
    fn size_bytes(&self) -> u64 {
        BYTES
    }

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), String> {
        Err("the file is gone".to_string())
    }
}

/// A stream is destroyed only when its commands are complete, also if another stream has failed meanwhile.
#[test]
fn a_stream_that_is_destroyed_after_a_failure_is_done() {
    let Some(device) = device() else { return };
    const WORK_BYTES: u64 = 64 << 20;
    let file = device.create_read_only(Arc::new(Unreadable)).unwrap();
    let (block, memory) = (device.create_host_block(BYTES).unwrap(), device.create_placed(WORK_BYTES).unwrap());
    let [disk, compute] = ["disk", "compute"].map(|name| device.create_stream(name, 0).unwrap());
    let all = Region::new(memory, 0, WORK_BYTES);
    // Takes longer than the failure.
    let fill = |pattern: u8| {
        [Command::Fill { stream: compute, region: all, pattern: [pattern; 4] }, Command::Barrier { stream: compute }]
    };
    device.submit(&(1..=40).flat_map(fill).collect::<Vec<_>>()).unwrap();
    let (from, to) = (Region::new(file, 0, BYTES), Region::new(block, 0, BYTES));
    device.submit(&[Command::Copy { stream: disk, from, to }]).unwrap();
    let failure = loop {
        match device.submit(&[]) {
            Ok(()) => std::thread::yield_now(),
            Err(failure) => break failure,
        }
    };
    assert_eq!(failure, DeviceError::Read { reason: "the file is gone".to_string() });
    device.destroy_stream(compute);
    if device.limits().unified {
        let mut last = [0; 4];
        device.read_host(Region::new(memory, WORK_BYTES - 4, 4), &mut last);
        assert_eq!(last, [40; 4]);
    }
    device.destroy_memory(memory);
    device.recover().unwrap();
    device.synchronize(disk).unwrap();
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let Some(device) = device() else { return };
    let error = device.create_spill("/no/such/folder".as_ref(), 1).unwrap_err();
    assert!(matches!(&error, DeviceError::Spill { .. }), "{error:?}");
    assert!(error.to_string().contains("/no/such/folder"), "{error}");
}

#[test]
fn bytes_that_are_only_read_come_as_they_are() {
    let Some(device) = device() else { return };
    bytes_that_are_only_read(&device);
}
