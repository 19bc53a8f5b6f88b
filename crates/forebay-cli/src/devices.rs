//! `forebay devices`: what there is, and what it can do.

use forebay::budget::format_bytes;
use forebay::serde_json::json;
use forebay::DeviceDescription;

use crate::arguments::DevicesArguments;
use crate::failure::Failure;
use crate::output;

/// Lists the devices.
///
/// # Errors
/// Where the system refuses what a device needs.
pub fn devices(arguments: &DevicesArguments) -> Result<(), Failure> {
    let devices = forebay::devices()?;
    if arguments.json {
        let devices: Vec<_> = devices.iter().map(object).collect();
        output::say(&format!("{:#}", json!({ "devices": devices })));
        return Ok(());
    }
    output::say(&format!(
        "{:<8} {:>12} {:>6} {:>10} {:<12} description",
        "device", "memory", "lanes", "tile", "copies"
    ));
    for DeviceDescription { name, description, limits } in &devices {
        match limits {
            Ok(limits) => {
                let tile = if limits.tiled { format_bytes(limits.tile_size_bytes) } else { "none".to_owned() };
                let copies = if limits.copy_streams { "beside work" } else { "in turn" };
                let memory = format_bytes(limits.memory_bytes);
                let lanes = limits.lanes;
                output::say(&format!("{name:<8} {memory:>12} {lanes:>6} {tile:>10} {copies:<12} {description}"));
            }
            Err(reason) => output::say(&format!("{name:<8} cannot be used: {reason}")),
        }
    }
    Ok(())
}

fn object(device: &DeviceDescription) -> forebay::serde_json::Value {
    let limits = match &device.limits {
        Ok(limits) => limits,
        Err(reason) => {
            return json!({ "name": device.name, "description": device.description, "usable": false, "reason": reason })
        }
    };
    json!({
        "name": device.name,
        "description": device.description,
        "usable": true,
        "memory_bytes": limits.memory_bytes,
        "lanes": limits.lanes,
        "tiled": limits.tiled,
        "unified": limits.unified,
        "tile_size_bytes": limits.tile_size_bytes,
        "heap_size_max_bytes": limits.heap_size_max_bytes,
        "offset_alignment_bytes": limits.offset_alignment_bytes,
        "tensor_elements_max": limits.tensor_elements_max,
        "copy_streams": limits.copy_streams,
        "copies_use_lanes": limits.copies_use_lanes,
    })
}
