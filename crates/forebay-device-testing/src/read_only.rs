//! Bytes that a device can only read, and what it must do with them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_base::{Command, Region};
use forebay_device::{Device, DeviceError, Readable};
use forebay_testing::Random;

/// More than passes through a buffer at once, and not a whole number of blocks.
const BYTES: u64 = (5 << 20) + 1234;

/// Bytes that can be read, or that fail to be read.
#[derive(Debug)]
struct Numbers {
    fail: AtomicBool,
}

impl Numbers {
    fn at(offset_bytes: u64) -> u8 {
        (offset_bytes.wrapping_mul(0x9E37_79B9) >> 11) as u8
    }
}

impl Readable for Numbers {
    fn size_bytes(&self) -> u64 {
        BYTES
    }

    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), String> {
        assert!(offset_bytes + into.len() as u64 <= BYTES, "{offset_bytes} + {}", into.len());
        if self.fail.load(Ordering::Relaxed) {
            return Err("the file 'weights' is gone".to_string());
        }
        (offset_bytes..).zip(into).for_each(|(offset, byte)| *byte = Numbers::at(offset));
        Ok(())
    }
}

/// Checks that copies bring the bytes to host and device memory, from any offset to any offset; that they take no disk space or host
/// memory; that nothing can write to them; and that, if they cannot be read, the step fails with the reason and later steps run.
///
/// # Panics
/// If the device does anything else.
pub fn bytes_that_are_only_read(device: &dyn Device) {
    let before = device.usage();
    let numbers = Arc::new(Numbers { fail: AtomicBool::new(false) });
    let file = device.create_read_only(numbers.clone()).unwrap();
    let after = device.usage();
    assert_eq!((after.disk_bytes, after.host_bytes), (before.disk_bytes, before.host_bytes));
    let (block, placed) = (device.create_host_block(BYTES).unwrap(), device.create_placed(BYTES).unwrap());
    let stream = device.create_stream("read", 0).unwrap();
    let mut random = Random::new(7);
    let commands = |from: Region, through_device: bool, to: Region| {
        let barrier = Command::Barrier { stream };
        let middle = Region::new(placed, from.range.start / 2, from.range.len());
        match through_device {
            false => vec![Command::Copy { stream, from, to }, barrier],
            true => vec![
                Command::Copy { stream, from, to: middle },
                barrier.clone(),
                Command::Copy { stream, from: middle, to },
                barrier,
            ],
        }
    };
    for round in 0..12 {
        let (start, through_device) = (random.below(BYTES), round % 2 == 0);
        let length = if round < 2 { BYTES - start } else { 1 + random.below((BYTES - start).min(70_000)) };
        let to = Region::new(block, random.below(BYTES - length + 1), length);
        device.submit(&commands(Region::new(file, start, length), through_device, to)).unwrap();
        device.synchronize(stream).unwrap();
        let mut found = vec![0; length as usize];
        device.read_host(to, &mut found);
        let wrong = (start..).zip(&found).find(|(offset, found)| **found != Numbers::at(*offset));
        assert_eq!(wrong, None, "round {round}: {length} bytes from {start}");
    }
    let (whole, all) = (Region::new(file, 0, BYTES), Region::new(block, 0, BYTES));
    let beyond = Region::new(file, BYTES - 1, 2);
    for command in [
        Command::Copy { stream, from: all, to: whole },
        Command::Copy { stream, from: beyond, to: Region::new(block, 0, 2) },
        Command::Fill { stream, region: whole, pattern: [0; 4] },
    ] {
        assert!(device.submit(std::slice::from_ref(&command)).is_err(), "{command}");
    }
    numbers.fail.store(true, Ordering::Relaxed);
    device.submit(&commands(whole, true, all)).unwrap();
    let error = device.synchronize(stream).unwrap_err();
    assert_eq!(error, DeviceError::Read { reason: "the file 'weights' is gone".to_string() });
    assert_eq!(error.to_string(), "the file 'weights' is gone");
    device.recover().unwrap();
    numbers.fail.store(false, Ordering::Relaxed);
    device.submit(&commands(whole, true, all)).unwrap();
    device.synchronize(stream).unwrap();
    let mut last = [0];
    device.read_host(Region::new(block, BYTES - 1, 1), &mut last);
    assert_eq!(last, [Numbers::at(BYTES - 1)]);
    device.destroy_stream(stream);
    [file, block, placed].into_iter().for_each(|memory| device.destroy_memory(memory));
}

/// Bytes that are slow to read.
#[derive(Debug, Default)]
struct Slow {
    is_read_now: AtomicBool,
}

impl Readable for Slow {
    fn size_bytes(&self) -> u64 {
        BYTES
    }

    fn read(&self, _: u64, into: &mut [u8]) -> Result<(), String> {
        self.is_read_now.store(true, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(50));
        into.fill(1);
        self.is_read_now.store(false, Ordering::SeqCst);
        Ok(())
    }
}

/// Checks that a wait for a stream is for the copy that is running there, even if the device has failed meanwhile: its memory can be freed
/// afterwards.
///
/// # Panics
/// If the device does anything else.
pub fn a_wait_after_a_failure_is_for_what_is_running(device: &dyn Device) {
    const SIZE_BYTES: u64 = 4096;
    let (slow, broken) = (Arc::new(Slow::default()), Arc::new(Numbers { fail: AtomicBool::new(true) }));
    let files = [device.create_read_only(slow.clone()).unwrap(), device.create_read_only(broken).unwrap()];
    let block = device.create_host_block(2 * SIZE_BYTES).unwrap();
    let streams = [(); 2].map(|()| device.create_stream("read", 0).unwrap());
    let copy = |number: usize| Command::Copy {
        stream: streams[number],
        from: Region::new(files[number], 0, SIZE_BYTES),
        to: Region::new(block, number as u64 * SIZE_BYTES, SIZE_BYTES),
    };
    device.submit(&[copy(0), copy(1)]).unwrap();
    while device.submit(&[]).is_ok() {
        std::thread::yield_now();
    }
    assert!(device.synchronize(streams[0]).is_err());
    assert!(!slow.is_read_now.load(Ordering::SeqCst), "the copy is still running");
    device.recover().unwrap();
    streams.into_iter().for_each(|stream| device.destroy_stream(stream));
    files.into_iter().chain([block]).for_each(|memory| device.destroy_memory(memory));
}
