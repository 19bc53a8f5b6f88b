//! `--spill-dir`: whatever exceeds both budgets goes to a folder, in which nothing is ever visible.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::common::{Folder, assert_says, digits_data, digits_model, failure, forebay, json, least_kib, losses};

const TRAIN: [&str; 7] = ["train", "--batch-size", "50", "--input-scale", "0.0625", "--threads", "2"];

/// Arguments for training within the smallest budgets for device and host, with a folder for the rest and these flags.
fn spilling(folder: &Folder, flags: &[&str]) -> Vec<String> {
    let plan = json(&["plan", &digits_model(), "--train", "--batch-size", "50"]);
    let device_bytes = plan["minimum_budget_bytes"].as_u64().expect("a number").to_string();
    std::fs::create_dir_all(folder.path("spill")).expect("a folder");
    let within = |host_memory: &str| -> Vec<String> {
        let (model, data, spill) = (digits_model(), digits_data(), folder.text("spill"));
        let files = [&model, "--data", &data, "--spill-dir", &spill, "--no-compare"];
        let budgets = ["--device-memory", &device_bytes, "--host-memory", host_memory];
        [&TRAIN[..], &files, &budgets, flags].concat().into_iter().map(str::to_owned).collect()
    };
    let error = failure(1, &texts(&within("1KiB")));
    within(&format!("{}KiB", least_kib(&error, "--host-memory ")))
}

fn texts(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

fn entries(folder: &Folder) -> usize {
    std::fs::read_dir(folder.path("spill")).expect("the folder").count()
}

#[test]
fn a_disk_changes_no_bit() {
    let folder = Folder::new();
    let (free, spilled) = (folder.text("free.onnx"), folder.text("spilled.onnx"));
    let (model, data) = (digits_model(), digits_data());
    let common = [&TRAIN[..], &[&model, "--data", &data, "--steps", "4", "--save"]].concat();
    let whole = json(&[&common[..], &[&free]].concat());
    let arguments = spilling(&folder, &["--steps", "4", "--save", &spilled]);
    let report = json(&texts(&arguments));
    for key in ["spill_bytes", "bytes_to_disk", "bytes_from_disk"] {
        assert!(report[key].as_u64() > Some(0), "{key}");
        assert_eq!(whole[key], 0, "{key}");
    }
    assert_eq!(losses(&whole), losses(&report));
    assert!(std::fs::read(free).unwrap() == std::fs::read(spilled).unwrap(), "the saved models differ");
    assert_eq!(entries(&folder), 0);
}

/// The memory that the plan of a step prints is what it needs, including the host memory of the device and the executor.
#[test]
fn the_host_memory_that_a_plan_prints_is_enough() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let spill = folder.text("");
    let common = [&model, "--batch-size", "50", "--threads", "2", "--spill-dir", &spill, "--simulate-device", "60%"];
    let plan = |more: &[&str]| json(&[&["plan", common[0], "--train"], &common[1..], more].concat());
    let train = |more: &[&str]| {
        let files = ["train", common[0], "--data", &data, "--steps", "1", "--no-compare"];
        forebay(&[&files[..], &common[1..], more].concat()).output().unwrap()
    };
    let roomy = plan(&[]);
    let needed = roomy["host_bytes"].as_u64().unwrap();
    assert!(needed > 9 << 20, "{needed} bytes are less than what the device itself takes");
    assert_eq!(roomy["spill_bytes"], 0);
    let tight = (needed - (64 << 10)).to_string();
    let planned = plan(&["--host-memory", &tight]);
    assert_eq!(planned["host_budget_bytes"].as_u64(), tight.parse().ok());
    for budget in [needed, planned["host_bytes"].as_u64().unwrap()] {
        let output = train(&["--host-memory", &budget.to_string()]);
        assert!(output.status.success(), "{budget}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let error = failure(1, &[&["plan", common[0], "--train"], &common[1..], &["--host-memory", "1KiB"]].concat());
    let least_kib = least_kib(&error, "--host-memory ");
    assert_says(&error, &["of which buffers for copies and values of other plans take "]);
    assert!(!error.contains("smaller batch"), "a batch has no part in it: {error}");
    let least_planned = plan(&["--host-memory", &format!("{least_kib}KiB")])["host_bytes"].as_u64().unwrap();
    assert!(least_planned.div_ceil(1024) <= least_kib, "{least_planned} within {least_kib} KiB");
}

#[test]
fn a_process_that_is_killed_leaves_nothing_and_can_start_again() {
    let folder = Folder::new();
    let endless = spilling(&folder, &["--steps", "1000000"]);
    let mut child = forebay(&texts(&endless)).stdout(Stdio::piped()).spawn().unwrap();
    let mut first_line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first_line).unwrap();
    // One step is done and the next is running, so there is a spill file.
    assert!(first_line.starts_with("step 1/1000000"), "{first_line}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(entries(&folder), 0, "nothing is left of it");
    assert_eq!(json(&texts(&spilling(&folder, &["--steps", "2"])))["steps"].as_array().unwrap().len(), 2);
    assert_eq!(entries(&folder), 0);
}

#[test]
fn folders_that_cannot_be_used_are_named_with_a_way_out() {
    let folder = Folder::new();
    let file = folder.write("file", b"no folder");
    for bad in [folder.text("missing"), file] {
        let arguments = ["plan", &digits_model(), "--batch-size", "2", "--spill-dir", &bad];
        assert_says(&failure(1, &arguments), &[&bad, "--spill-dir"]);
        let output = forebay(&arguments[..4]).env("FOREBAY_SPILL_DIR", &bad).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "the environment names the folder as well");
    }
}

/// The system would respond to a file beyond its limit with a signal.
#[test]
fn a_disk_without_room_is_an_error_and_no_signal() {
    let folder = Folder::new();
    let script = "ulimit -f 0; exec \"$0\" \"$@\"";
    let mut limited = Command::new("sh");
    limited.args(["-c", script, env!("CARGO_BIN_EXE_forebay"), "plan", &digits_model(), "--batch-size", "2"]);
    let output = limited.args(["--spill-dir", &folder.text("")]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_says(&text, &["cannot reserve", "File too large", "--spill-dir", &folder.text("")]);
}
