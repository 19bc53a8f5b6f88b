//! `forebay devices`: the available devices and their capabilities.

use forebay::DeviceDescription;
use forebay::format_bytes;
use serde_json::json;

use crate::arguments::DevicesArguments;
use crate::failure::Failure;
use crate::output;

/// Lists the devices.
///
/// # Errors
/// Fails if the system refuses what a device needs.
pub fn devices(arguments: &DevicesArguments) -> Result<(), Failure> {
    let devices = forebay::devices()?;
    if arguments.json {
        let devices: Vec<_> = devices.iter().map(object).collect();
        output::say(&format!("{:#}", json!({ "devices": devices })));
        return Ok(());
    }
    output::say(&row(["device", "memory", "lanes", "tile", "copies", "matrices", "description"]));
    devices.iter().for_each(|device| output::say(&line(device)));
    Ok(())
}

/// Formats a line of the table.
fn row([name, memory, workers, tile, copies, matrices, description]: [&str; 7]) -> String {
    format!("{name:<8} {memory:>12} {workers:>6} {tile:>10} {copies:<12} {matrices:<17} {description}")
}

fn line(device: &DeviceDescription) -> String {
    let DeviceDescription { name, description, limits, .. } = device;
    let limits = match limits {
        Ok(limits) => limits,
        Err(reason) => return format!("{name:<8} cannot be used: {reason}"),
    };
    let tile = if limits.tiled { format_bytes(limits.tile_size_bytes) } else { "none".to_owned() };
    let copies = if limits.copy_streams { "concurrent" } else { "sequential" };
    let matrices = match matrix_types(device) {
        types if types.is_empty() => "none".to_owned(),
        types => types.join(" "),
    };
    row([name, &format_bytes(limits.memory_bytes), &limits.workers.to_string(), &tile, copies, &matrices, description])
}

/// Returns the names of the types for which subgroups multiply matrices cooperatively.
fn matrix_types(device: &DeviceDescription) -> Vec<String> {
    device.matrix_types.iter().map(ToString::to_string).collect()
}

fn object(device: &DeviceDescription) -> serde_json::Value {
    let limits = match &device.limits {
        Ok(limits) => limits,
        Err(reason) => {
            return json!({ "name": device.name, "description": device.description, "usable": false, "reason": reason });
        }
    };
    json!({
        "name": device.name,
        "description": device.description,
        "usable": true,
        "memory_bytes": limits.memory_bytes,
        "lanes": limits.workers,
        "tiled": limits.tiled,
        "unified": limits.unified,
        "tile_size_bytes": limits.tile_size_bytes,
        "heap_size_max_bytes": limits.heap_size_max_bytes,
        "offset_alignment_bytes": limits.offset_alignment_bytes,
        "tensor_elements_max": limits.tensor_elements_max,
        "copy_streams": limits.copy_streams,
        "copies_use_lanes": limits.copies_use_workers,
        "cooperative_matrices": matrix_types(device),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay::DataType;

    #[test]
    fn matrices_are_told_in_both_forms() {
        let mut device = forebay::devices().unwrap().into_iter().find(|device| device.name == "null").unwrap();
        assert!(line(&device).contains(" none "), "{}", line(&device));
        assert_eq!(object(&device)["cooperative_matrices"], json!([]));
        device.matrix_types = vec![DataType::Float16, DataType::BFloat16];
        assert!(line(&device).contains(" float16 bfloat16 "), "{}", line(&device));
        assert_eq!(object(&device)["cooperative_matrices"], json!(["float16", "bfloat16"]));
        device.limits = Err("it is elsewhere".to_owned());
        assert_eq!(line(&device), "null     cannot be used: it is elsewhere");
    }
}
