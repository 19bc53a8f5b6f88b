//! The contract that every device keeps, on this machine's first Vulkan device: with tiles, and as a device without sparse buffers.

use std::sync::Arc;

use forebay_base::{Binding, Command, DataType, Kernel, Launch, TensorDesc};
use forebay_device::{Device, DeviceError};
use forebay_device_testing::contract::{Bench, contract};
use forebay_testing::parts::skipped;
use forebay_vulkan::{VulkanDevice, VulkanOptions, adapters};

fn open(options: VulkanOptions) -> Vec<(&'static str, Arc<dyn Device>)> {
    let name = if options.tiled { "tiled" } else { "placed" };
    match VulkanDevice::open(&options) {
        Ok(device) => vec![(name, Arc::new(device) as Arc<dyn Device>)],
        Err(error) => {
            skipped("vulkan", error);
            Vec::new()
        }
    }
}

/// The available devices. A device without sparse buffers has only placed memory.
fn devices() -> Vec<(&'static str, Arc<dyn Device>)> {
    [true, false]
        .into_iter()
        .flat_map(|tiled| open(VulkanOptions { tiled, cache: None, ..VulkanOptions::default() }))
        .collect()
}

fn tiled_devices() -> Vec<(&'static str, Arc<dyn Device>)> {
    devices().into_iter().filter(|(_, device)| device.limits().tiled).collect()
}

contract!(
    devices();
    bytes_survive_the_way_to_the_device_and_back,
    fills_repeat_their_pattern,
    commands_on_unmapped_or_missing_bytes_are_errors,
    events_order_streams_and_count_generations,
    times_of_events_are_those_of_the_latest_generation,
    launches_run_in_the_order_that_barriers_give,
    indices_out_of_range_are_reported,
    launches_in_host_blocks_run_on_the_host,
    indices_out_of_range_are_reported_on_the_host,
    usage_counts_what_exists_and_the_most_that_ever_did,
    released_parts_of_host_blocks_come_back,
    absurd_sizes_are_errors_and_harm_nothing,
    a_kernel_that_cannot_run_is_an_error_that_sticks,
    traces_say_what_ran_when,
    the_hosts_memory_is_used_in_place,
);
contract!(tiled_devices(); two_reservations_of_one_heap_are_the_same_bytes_and_survive_remapping);

#[test]
fn the_memory_of_a_cpu_is_the_hosts() {
    let kinds: Vec<&str> = adapters().unwrap_or_default().into_iter().map(|adapter| adapter.kind).collect();
    if !kinds.is_empty() && kinds.iter().all(|&kind| kind == "CPU") {
        assert!(devices().iter().all(|(_, device)| device.limits().unified));
    }
}

#[test]
fn a_device_without_tiles_refuses_reservations() {
    for (_, device) in open(VulkanOptions { tiled: false, cache: None, ..VulkanOptions::default() }) {
        assert!(!device.limits().tiled);
        assert!(matches!(device.create_reservation(1), Err(DeviceError::Unsupported { .. })));
    }
}

#[test]
fn a_launch_is_on_the_host_or_on_the_device() {
    for (name, device) in devices() {
        let bench = Bench::new(device, 1);
        let bind = |region| vec![Binding { region, desc: TensorDesc::packed(DataType::Float32, &[4]).unwrap() }];
        let (reads, writes) = (bind(bench.on_device(0, 16)), bind(bench.on_host(0, 16)));
        let launch = Launch { kernel: Kernel::Copy, reads, writes, workspace: None, label: 0 };
        let error =
            bench.device.submit(&[Command::Launch { stream: bench.stream, launch: Box::new(launch) }]).unwrap_err();
        assert!(error.to_string().contains("both in host blocks and in device memory"), "{name}: {error}");
    }
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let options = VulkanOptions { device: Some("no such GPU".to_string()), ..VulkanOptions::default() };
    let error = VulkanDevice::open(&options).map(|_| ()).unwrap_err();
    assert!(matches!(&error, DeviceError::Setting { .. }), "{error:?}");
    assert!(
        error.to_string().contains("no such GPU") || error.to_string().contains("Vulkan is not available"),
        "{error}"
    );
}
