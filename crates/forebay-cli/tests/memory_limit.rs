//! A limit on the memory of the whole process, held to what the system counts.

mod common;

use common::{assert_says, example, failure, forebay, json, Folder};
use serde_json::Value;

/// Two training steps of the brain's U-Net.
fn train<'a>(model: &'a str, data: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["train", model, "--data", data, "--steps", "2", "--momentum", "0.9", "--no-compare", "--threads", "2"], more]
        .concat()
}

fn bytes(report: &Value, key: &str) -> u64 {
    report[key].as_u64().unwrap_or_else(|| panic!("{key} in {report}"))
}

fn losses(report: &Value) -> Vec<f64> {
    report["steps"].as_array().unwrap().iter().map(|step| step["loss"].as_f64().unwrap()).collect()
}

#[test]
fn the_process_stays_within_its_limit_and_losses_are_the_same_bits() {
    let (model, data) = (example("brain/unet3d.onnx"), example("brain"));
    let free = json(&train(&model, &data, &[]));
    let free_bytes = bytes(&free, "resident_peak_bytes");
    assert!(free_bytes > 400 << 20, "{free_bytes}");
    for percent in [75, 55] {
        let limit_bytes = free_bytes / 100 * percent;
        let limit = format!("{}KiB", limit_bytes / 1024);
        let limited = json(&train(&model, &data, &["--memory-limit", &limit]));
        let peak_bytes = bytes(&limited, "resident_peak_bytes");
        assert!(peak_bytes <= limit_bytes, "{percent} %: {peak_bytes} of {limit_bytes} bytes");
        assert_eq!(losses(&limited), losses(&free), "{percent} %");
        assert_eq!(limited["spill_bytes"], 0);
        // Nothing but the inputs comes to the device, and nothing but the loss leaves it.
        for key in ["bytes_to_device", "bytes_from_device"] {
            assert_eq!(limited[key], free[key], "{percent} %: {key}");
        }
    }
}

#[test]
fn a_limit_that_cannot_be_met_is_refused_with_the_least_that_can() {
    let (model, data) = (example("brain/unet3d.onnx"), example("brain"));
    let error = failure(1, &train(&model, &data, &["--memory-limit", "40MiB"]));
    assert_says(&error, &["a memory limit of 40 MiB is too small", "give at least"]);
    let least = error.split("give at least ").nth(1).unwrap().split(',').next().unwrap();
    let limited = json(&train(&model, &data, &["--memory-limit", least]));
    assert!(bytes(&limited, "resident_peak_bytes") <= least.trim_end_matches("KiB").parse::<u64>().unwrap() * 1024);
}

#[test]
fn what_recomputation_cannot_do_goes_to_disk_where_that_is_allowed() {
    let (model, data, folder) = (example("brain/unet3d.onnx"), example("brain"), Folder::new());
    let least = failure(1, &train(&model, &data, &["--memory-limit", "40MiB"]));
    let least = least.split("give at least ").nth(1).unwrap().split("KiB").next().unwrap().parse::<u64>().unwrap();
    let limit_bytes = least * 1024 / 10 * 9;
    let limit = format!("{}KiB", limit_bytes / 1024);
    let spilling = json(&train(&model, &data, &["--memory-limit", &limit, "--spill-dir", &folder.text("")]));
    assert!(bytes(&spilling, "spill_bytes") > 0);
    assert!(bytes(&spilling, "resident_peak_bytes") <= limit_bytes, "{spilling}");
}

#[test]
fn a_limit_stands_alone_and_needs_memory_that_is_the_hosts() {
    let (model, data) = (example("brain/unet3d.onnx"), example("brain"));
    let error = failure(2, &train(&model, &data, &["--memory-limit", "1GiB", "--device-memory", "1GiB"]));
    assert_says(&error, &["--memory-limit", "--device-memory"]);
    let output =
        forebay(&["plan", &model, "--train", "--device", "null", "--memory-limit", "300MiB"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_says(&text, &["only where device memory is the host's"]);
}
