//! Giving back the memory of host blocks and of device memory. The test is alone in its process, whose memory it measures.
#![cfg(target_os = "linux")]

use forebay_base::{Command, Region};
use forebay_device::Device;
use forebay_device::host::{HostDevice, HostOptions};

const MIB: u64 = 1 << 20;

/// The number of bytes that this process has in memory now.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("the system counts");
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn what_is_released_goes_back_to_the_system() {
    let device = HostDevice::new(&HostOptions::default()).unwrap();
    let before = resident_bytes();
    let grown_by = |low: u64, high: u64, what: &str| {
        let grown = resident_bytes().saturating_sub(before);
        assert!((low * MIB..=high * MIB).contains(&grown), "{what}: {} MiB", grown / MIB);
    };
    let full = device.create_host_block(64 * MIB).unwrap();
    grown_by(64, 72, "a block");
    device.release_host(Region::new(full, 16 * MIB + 1, 40 * MIB));
    grown_by(23, 33, "a block without 40 MiB");
    let empty = device.create_released_host_block(64 * MIB).unwrap();
    grown_by(23, 33, "a second block that is empty");
    device.write_host(Region::new(empty, 0, 8 * MIB), &vec![1; 8 * MIB as usize]);
    grown_by(31, 49, "a second block with 8 MiB");
    device.destroy_memory(full);
    device.fill_host(empty).unwrap();
    grown_by(64, 80, "the second block, whole");
    assert!(device.fill_host(full).is_err(), "a block that is gone");
    let heap = device.create_placed(64 * MIB).unwrap();
    grown_by(128, 144, "device memory");
    device.release_host(Region::new(heap, 16 * MIB + 1, 40 * MIB));
    grown_by(87, 105, "device memory without 40 MiB");
    let (ones, found) = (Region::new(empty, 0, 8 * MIB), Region::new(empty, 8 * MIB, 8 * MIB));
    device.write_host(ones, &vec![1; 8 * MIB as usize]);
    let (stream, part) = (device.create_stream("copy", 0).unwrap(), Region::new(heap, 20 * MIB, 8 * MIB));
    for (from, to) in [(ones, part), (part, found)] {
        device.submit(&[Command::Copy { stream, from, to }]).unwrap();
        device.synchronize(stream).unwrap();
    }
    let mut bytes = vec![0; 8 * MIB as usize];
    device.read_host(found, &mut bytes);
    assert!(bytes.iter().all(|&byte| byte == 1), "what was released can be written");
    drop(bytes);
    grown_by(95, 123, "device memory without 32 MiB");
}
