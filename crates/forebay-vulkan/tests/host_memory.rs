//! The host memory that a device takes for itself while lists of commands run.

#![cfg(target_os = "linux")]

use forebay_base::kernel::UnaryOp;
use forebay_base::{Binding, Command, DataType, Kernel, Launch, Region, StreamId, TensorDesc};
use forebay_device::Device;
use forebay_testing::parts::skipped;
use forebay_vulkan::{VulkanDevice, VulkanOptions};

const MIB: u64 = 1 << 20;

/// A device without validation, which has memory of its own, and a stream.
fn device() -> Option<(VulkanDevice, StreamId)> {
    match VulkanDevice::open(&VulkanOptions { validate: false, cache: None, ..VulkanOptions::default() }) {
        Ok(device) => {
            let stream = device.create_stream("memory", 0).unwrap();
            Some((device, stream))
        }
        Err(error) => {
            skipped("vulkan", error);
            None
        }
    }
}

/// The bytes of this process's address space.
fn address_space_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// By how much the address space grows while commands run.
fn growth_bytes(device: &VulkanDevice, stream: StreamId, commands: &[Command]) -> u64 {
    let before = address_space_bytes();
    device.submit(commands).unwrap();
    let after = address_space_bytes();
    device.synchronize(stream).unwrap();
    after.saturating_sub(before)
}

/// All copies of a list between device memory and files pass through the same host memory, which counts as such.
#[test]
fn copies_to_and_from_files_share_host_memory() {
    let Some((device, stream)) = device() else { return };
    let size_bytes = 4 * MIB;
    let before = device.usage().host_bytes;
    let file = device.create_spill(&std::env::temp_dir(), size_bytes).unwrap();
    let counted_bytes = device.usage().host_bytes - before;
    let memory = device.create_placed(size_bytes).unwrap();
    let [on_device, on_disk] = [memory, file].map(|memory| Region::new(memory, 0, size_bytes));
    let copies = |_| {
        let barrier = Command::Barrier { stream };
        let copy = |from, to| Command::Copy { stream, from, to };
        [copy(on_device, on_disk), barrier.clone(), copy(on_disk, on_device), barrier]
    };
    let growth_bytes = growth_bytes(&device, stream, &(0..25).flat_map(copies).collect::<Vec<_>>());
    // 8 MiB, and what the driver's threads reserve: 64 MiB each for the C library's allocator.
    assert!(growth_bytes < 150 * MIB, "{growth_bytes} bytes for 50 copies of 4 MiB");
    assert!(counted_bytes >= 2 * size_bytes, "{counted_bytes} bytes are counted");
}

/// A batch of one launch needs little, whatever the number of batches.
#[test]
fn batches_of_one_launch_are_small() {
    let Some((device, stream)) = device() else { return };
    let memory = device.create_placed(512).unwrap();
    let desc = TensorDesc::packed(DataType::Float32, &[4]).unwrap();
    let [reads, writes] =
        [0, 256].map(|start| vec![Binding { region: Region::new(memory, start, 16), desc: desc.clone() }]);
    let launch = Launch { kernel: Kernel::Unary(UnaryOp::Relu), reads, writes, workspace: None, label: 0 };
    let event = device.create_event().unwrap();
    let batch = |generation| {
        let launch = Command::Launch { stream, launch: Box::new(launch.clone()) };
        [launch, Command::Barrier { stream }, Command::Record { stream, event, generation }]
    };
    // The first list compiles the shader.
    growth_bytes(&device, stream, &batch(1));
    let growth_bytes = growth_bytes(&device, stream, &(2..=2000).flat_map(batch).collect::<Vec<_>>());
    assert!(growth_bytes < 100 * MIB, "{growth_bytes} bytes for 1999 batches of one launch");
}
