//! Spill files: bytes come back as they were written, whatever the offsets; what a disk does wrong is reported once and for all; and
//! nothing is left behind in the folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::{Command, MemoryId, Region, StreamId};
use forebay_device::chaos::ChaosDevice;
use forebay_device::host::{HostDevice, HostOptions};
use forebay_device::null::{NullDevice, NullProfile};
use forebay_device::{Device, DeviceError, Readable};
use forebay_device_testing::read_only::{a_wait_after_a_failure_is_for_what_is_running, bytes_that_are_only_read};
use forebay_testing::Random;

const MIB: u64 = 1 << 20;

/// A folder that disappears with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("spill-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn entries(&self) -> usize {
        std::fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn host(options: HostOptions) -> HostDevice {
    HostDevice::new(&HostOptions { threads: Some(2), ..options }).unwrap()
}

/// A device with a stream and memory of every space, and the expected contents of the file.
struct Bench {
    device: Arc<dyn Device>,
    stream: StreamId,
    placed: MemoryId,
    block: MemoryId,
    spill: MemoryId,
    model: Vec<u8>,
}

impl Bench {
    fn new(device: Arc<dyn Device>, folder: &Folder, size_bytes: u64) -> Bench {
        let stream = device.create_stream("test", 0).unwrap();
        let placed = device.create_placed(size_bytes).unwrap();
        let block = device.create_host_block(2 * size_bytes).unwrap();
        let spill = device.create_spill(&folder.0, size_bytes).unwrap();
        Bench { device, stream, placed, block, spill, model: vec![0; size_bytes as usize] }
    }

    /// Commands that copy through the device's memory, or only through the host's.
    fn way(&self, through_device: bool, from: Region, to: Region) -> Vec<Command> {
        let (stream, barrier) = (self.stream, Command::Barrier { stream: self.stream });
        if !through_device {
            return vec![Command::Copy { stream, from, to }, barrier];
        }
        let middle = Region::new(self.placed, 0, from.range.len());
        let first = Command::Copy { stream, from, to: middle };
        vec![first, barrier.clone(), Command::Copy { stream, from: middle, to }, barrier]
    }

    /// Writes random bytes to a random part of the file, or reads a part and compares it.
    fn step(&mut self, random: &mut Random, what: &str) {
        let size_bytes = self.model.len() as u64;
        let aligned = random.below(2) == 0;
        let snap = |bytes: u64| if aligned { bytes / 4096 * 4096 } else { bytes };
        let offset = snap(random.below(size_bytes));
        let length = snap(random.below(size_bytes - offset) + 1).max(1);
        let on_disk = Region::new(self.spill, offset, length);
        let (input, output) = (Region::new(self.block, 3, length), Region::new(self.block, size_bytes, length));
        let through_device = random.below(2) == 0;
        if random.below(2) == 0 {
            let seed = random.below(u64::MAX);
            let bytes: Vec<u8> = (0..length).map(|i| (i.wrapping_mul(seed | 1) >> 7) as u8).collect();
            self.device.write_host(input, &bytes);
            self.device.submit(&self.way(through_device, input, on_disk)).unwrap();
            self.model[offset as usize..][..length as usize].copy_from_slice(&bytes);
            self.device.synchronize(self.stream).unwrap();
        } else {
            self.device.submit(&self.way(through_device, on_disk, output)).unwrap();
            self.device.synchronize(self.stream).unwrap();
            let mut bytes = vec![0; length as usize];
            self.device.read_host(output, &mut bytes);
            let expected = &self.model[offset as usize..][..length as usize];
            assert!(bytes == expected, "{what}: bytes {on_disk} are others than were written");
        }
    }
}

#[test]
fn bytes_come_back_as_they_were_written() {
    let folder = Folder::new("bytes");
    for seed in 1..4 {
        let chaos = ChaosDevice::new(Arc::new(host(HostOptions::default())), seed).unwrap();
        let devices: [Arc<dyn Device>; 2] = [Arc::new(host(HostOptions::default())), Arc::new(chaos)];
        for (name, device) in ["host", "chaos"].into_iter().zip(devices) {
            let mut bench = Bench::new(device, &folder, 5 * MIB / 2);
            let mut random = Random::new(seed);
            for step in 0..16 {
                bench.step(&mut random, &format!("{name}, seed {seed}, step {step}"));
            }
            assert_eq!(folder.entries(), 0, "the file has no name");
        }
    }
}

/// Many concurrent copies share the few buffers, in both directions, and neighbors in one block do not harm each other.
#[test]
fn copies_in_flight_do_not_mix() {
    let folder = Folder::new("flight");
    let size_bytes = 4 * MIB;
    let Bench { device, block, spill, .. } = Bench::new(Arc::new(host(HostOptions::default())), &folder, size_bytes);
    let streams = [(); 3].map(|()| device.create_stream("copies", 0).unwrap());
    let bytes: Vec<u8> = (0..size_bytes).map(|i| ((i * i) >> 9) as u8).collect();
    device.write_host(Region::new(block, 0, size_bytes), &bytes);
    let (mut parts, mut offset, mut random) = (Vec::new(), 0, Random::new(5));
    while offset < size_bytes {
        let length = (1 + random.below(MIB)).min(size_bytes - offset);
        parts.push((offset, length));
        offset += length;
    }
    for to_disk in [true, false] {
        let commands: Vec<Command> = parts
            .iter()
            .enumerate()
            .map(|(i, &(offset, length))| {
                let stream = streams[i % streams.len()];
                let on_disk = Region::new(spill, offset, length);
                let in_memory = Region::new(block, if to_disk { offset } else { size_bytes + offset }, length);
                let (from, to) = if to_disk { (in_memory, on_disk) } else { (on_disk, in_memory) };
                Command::Copy { stream, from, to }
            })
            .collect();
        device.submit(&commands).unwrap();
        streams.iter().for_each(|&stream| device.synchronize(stream).unwrap());
    }
    let mut returned = vec![0; bytes.len()];
    device.read_host(Region::new(block, size_bytes, size_bytes), &mut returned);
    assert!(returned == bytes);
}

#[test]
fn files_and_their_buffers_are_counted() {
    let folder = Folder::new("counted");
    for device in
        [Box::new(host(HostOptions::default())) as Box<dyn Device>, Box::new(NullDevice::new(NullProfile::Tiled))]
    {
        let one = device.create_spill(&folder.0, MIB).unwrap();
        let buffers = device.usage().host_bytes;
        let other = device.create_spill(&folder.0, MIB).unwrap();
        assert_eq!((device.usage().disk_bytes, device.usage().host_bytes), (2 * MIB, buffers));
        device.destroy_memory(one);
        device.destroy_memory(other);
        assert_eq!((device.usage().disk_bytes, device.usage().disk_peak_bytes), (0, 2 * MIB));
    }
    let packing_bytes = host(HostOptions::default()).usage().host_bytes;
    let tight = host(HostOptions { host_memory_bytes: Some(packing_bytes + 1), ..HostOptions::default() });
    assert!(matches!(tight.create_spill(&folder.0, MIB), Err(DeviceError::OutOfMemory { .. })));
    assert_eq!(tight.usage().host_bytes, packing_bytes);
}

#[test]
fn what_cannot_be_is_said_before_anything_runs() {
    let folder = Folder::new("refused");
    let device = host(HostOptions::default());
    let missing = folder.0.join("missing");
    let error = device.create_spill(&missing, MIB).unwrap_err();
    assert!(matches!(&error, DeviceError::Spill { action: "create", folder, .. } if *folder == missing), "{error}");
    for size_bytes in [1 << 50, u64::MAX / 2, u64::MAX] {
        let error = device.create_spill(&folder.0, size_bytes).unwrap_err();
        assert!(matches!(error, DeviceError::Spill { action: "reserve", .. }), "{error}");
    }
    assert_eq!((device.usage().disk_bytes, folder.entries()), (0, 0));
    let stream = device.create_stream("test", 0).unwrap();
    let (block, spill) = (device.create_host_block(MIB).unwrap(), device.create_spill(&folder.0, MIB).unwrap());
    let other = device.create_spill(&folder.0, MIB).unwrap();
    let region = |memory, length| Region::new(memory, 0, length);
    let (all, beyond) = (region(spill, MIB), Region::new(spill, 4096, MIB));
    for command in [
        Command::Copy { stream, from: region(other, MIB), to: all },
        Command::Copy { stream, from: region(block, MIB), to: beyond },
        Command::Fill { stream, region: all, pattern: [0; 4] },
    ] {
        assert!(device.submit(std::slice::from_ref(&command)).is_err(), "{command}");
    }
    device.submit(&[Command::Copy { stream, from: region(block, MIB), to: all }]).unwrap();
    device.synchronize(stream).unwrap();
}

#[test]
fn a_write_that_fails_sticks_and_says_where() {
    let folder = Folder::new("failing");
    let failing = || host(HostOptions { disk_writes_before_failure: Some(3), ..HostOptions::default() });
    for device in [Arc::new(failing()) as Arc<dyn Device>, Arc::new(ChaosDevice::new(Arc::new(failing()), 1).unwrap())]
    {
        fails_and_recovers(&folder, device);
    }
}

fn fails_and_recovers(folder: &Folder, device: Arc<dyn Device>) {
    let bench = Bench::new(device, folder, 8 * MIB);
    let (from, to) = (Region::new(bench.block, 0, 8 * MIB), Region::new(bench.spill, 0, 8 * MIB));
    bench.device.submit(&bench.way(false, from, to)).unwrap();
    let error = bench.device.synchronize(bench.stream).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, DeviceError::Spill { action: "write", bytes: MIB, .. }), "{text}");
    assert!(text.contains("No space left on device") && text.contains("--spill-dir"), "{text}");
    assert!(text.contains(&folder.0.display().to_string()), "{text}");
    assert!(text.contains("free space"), "{text}");
    assert_eq!(bench.device.submit(&[]).unwrap_err(), error);
    assert_eq!(folder.entries(), 0);
    // Memory is as usable as before; writing fails again.
    bench.device.recover().unwrap();
    let here = Region::new(bench.placed, 0, 64);
    let fill = Command::Fill { stream: bench.stream, region: here, pattern: [7; 4] };
    bench.device.submit(&[fill, Command::Barrier { stream: bench.stream }]).unwrap();
    bench.device.submit(&bench.way(false, here, Region::new(bench.block, 0, 64))).unwrap();
    bench.device.synchronize(bench.stream).unwrap();
    let mut seen = [0; 64];
    bench.device.read_host(Region::new(bench.block, 0, 64), &mut seen);
    assert_eq!(seen, [7; 64]);
    bench.device.submit(&bench.way(false, from, to)).unwrap();
    assert!(bench.device.synchronize(bench.stream).is_err());
}

#[test]
fn a_slow_disk_takes_its_time_and_no_worker() {
    let folder = Folder::new("slow");
    let options = HostOptions { disk_bytes_per_second: Some(4 * MIB), ..HostOptions::default() };
    let device = HostDevice::new(&HostOptions { threads: Some(1), ..options }).unwrap();
    let mut bench = Bench::new(Arc::new(device), &folder, 2 * MIB);
    let event = bench.device.create_event().unwrap();
    let other = bench.device.create_stream("other", 0).unwrap();
    let input = Region::new(bench.block, 0, 2 * MIB);
    let start = Instant::now();
    bench.device.submit(&bench.way(false, input, Region::new(bench.spill, 0, 2 * MIB))).unwrap();
    bench.device.submit(&[Command::Record { stream: bench.stream, event, generation: 1 }]).unwrap();
    // Meanwhile, the only worker is free for other work.
    let region = Region::new(bench.placed, 0, 64);
    bench.device.submit(&[Command::Fill { stream: other, region, pattern: [1; 4] }]).unwrap();
    bench.device.synchronize(other).unwrap();
    assert_eq!(bench.device.query_event(event), 0, "the fill waited for the disk");
    bench.device.wait_event(event, 1).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(490), "2 MiB at 4 MiB/s took {:?}", start.elapsed());
    bench.step(&mut Random::new(9), "after the slow copy");
}

#[test]
fn bytes_that_are_only_read_come_as_they_are() {
    bytes_that_are_only_read(&host(HostOptions::default()));
    // The buffers for spill files do not fit, and are not needed.
    let tight = HostOptions { host_memory_bytes: Some(10 * MIB), ..HostOptions::default() };
    bytes_that_are_only_read(&host(tight));
}

#[test]
fn a_read_that_fails_is_no_matter_of_space() {
    let (folder, reason) = ("here".into(), "Input/output error".to_string());
    let text = DeviceError::Spill { folder, action: "read", bytes: 4096, reason }.to_string();
    assert!(text.contains("cannot read 4096 bytes of a spill file in here: Input/output error"), "{text}");
    assert!(text.contains("--spill-dir") && !text.contains("free space"), "{text}");
}

/// Bytes whose reader has a fault.
#[derive(Debug)]
struct Faulty;

impl Readable for Faulty {
    fn size_bytes(&self) -> u64 {
        MIB
    }

    fn read(&self, offset_bytes: u64, _: &mut [u8]) -> Result<(), String> {
        panic!("no byte {offset_bytes}")
    }
}

#[test]
fn a_read_that_panics_is_a_failure() {
    let device = host(HostOptions::default());
    let file = device.create_read_only(Arc::new(Faulty)).unwrap();
    let block = device.create_host_block(MIB).unwrap();
    let stream = device.create_stream("test", 0).unwrap();
    let [from, to] = [file, block].map(|memory| Region::new(memory, 0, MIB));
    device.submit(&[Command::Copy { stream, from, to }]).unwrap();
    let error = device.synchronize(stream).unwrap_err();
    assert!(matches!(error, DeviceError::Lost { .. }), "{error}");
    assert!(error.to_string().contains("panicked: no byte 0"), "{error}");
}

#[test]
fn after_a_failure_waits_are_for_what_is_running() {
    a_wait_after_a_failure_is_for_what_is_running(&host(HostOptions::default()));
    for seed in 1..=4 {
        let inner = Arc::new(host(HostOptions::default()));
        a_wait_after_a_failure_is_for_what_is_running(&ChaosDevice::new(inner, seed).unwrap());
    }
}
