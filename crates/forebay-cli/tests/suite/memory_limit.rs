//! A limit on the memory of the whole process, compared with the system's own count.

use crate::common::group::Group;
use crate::common::{
    Folder, assert_says, digits_data, digits_model, example, failure, forebay, json, least_kib, losses, texts, zeros,
};
use forebay::Tensor;
use forebay::data::npy;
use forebay_testing::onnx;
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder};
use serde_json::Value;

/// Two training steps of the brain U-Net.
fn train<'a>(model: &'a str, data: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["train", model, "--data", data, "--steps", "2", "--momentum", "0.9", "--no-compare", "--threads", "2"], more]
        .concat()
}

fn bytes(report: &Value, key: &str) -> u64 {
    report[key].as_u64().unwrap_or_else(|| panic!("{key} in {report}"))
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
        // Nothing is copied to the device, where the inputs are written directly, and only the loss leaves it.
        assert_eq!(limited["bytes_to_device"], 0, "{percent} %");
        assert_eq!(limited["bytes_from_device"], free["bytes_from_device"], "{percent} %");
    }
}

#[test]
fn validation_stays_within_the_limit() {
    let (model, data) = (example("brain/unet3d.onnx"), example("brain"));
    let validating = ["--validate", &data, "--validate-every", "1", "--metrics", "iou,perplexity"];
    let free = json(&train(&model, &data, &validating));
    let limited = json(&train(&model, &data, &[&validating[..], &["--memory-limit", "42%"]].concat()));
    let (peak_bytes, limit_bytes) = (bytes(&limited, "resident_peak_bytes"), bytes(&limited, "memory_limit_bytes"));
    assert!(peak_bytes <= limit_bytes, "{peak_bytes} of {limit_bytes} bytes");
    assert_eq!(limited["validations"], free["validations"]);
}

/// Parameters and velocities take 40 MiB. They leave the device for each validation, and come back to it.
#[test]
fn values_that_come_back_from_memory_are_never_held_twice() {
    let folder = Folder::new();
    let mut graph = GraphBuilder::new().input("h0", FLOAT, &["8", "1024"]);
    for layer in 0..5 {
        let [weight, from, to] = [format!("w{layer}"), format!("h{layer}"), format!("h{}", layer + 1)];
        graph = graph.floats(&weight, &[1024, 1024], &vec![1e-3; 1 << 20]).node("MatMul", &[&from, &weight], &[&to]);
    }
    let model = folder.write("model.onnx", &graph.output("h5", FLOAT, &["8", "1024"]).build());
    let rows = Tensor::from_f32(&[16, 1024], &vec![0.5; 16 << 10]);
    let data = folder.archive("data.npz", &[("h0", &rows), ("y", &rows)]);
    let flags = ["--loss", "mse", "--validate", &data, "--validate-every", "1"];
    let free = json(&train(&model, &data, &flags));
    let limited = json(&train(&model, &data, &[&flags[..], &["--memory-limit", "100%"]].concat()));
    let (peak_bytes, limit_bytes) = (bytes(&limited, "resident_peak_bytes"), bytes(&limited, "memory_limit_bytes"));
    assert!(peak_bytes <= limit_bytes, "{peak_bytes} of {limit_bytes} bytes");
    assert_eq!(limited["validations"], free["validations"]);
}

/// Looking for the smallest budget takes memory: after training and while the model's values were on the device, 10 MiB beyond the limit.
#[test]
fn a_report_looks_for_nothing_that_a_limit_leaves_no_room_for() {
    let (model, data, folder) = (digits_model(), digits_data(), Folder::new());
    npy::write(&folder.path("x.npy"), &zeros(3)).unwrap();
    let input = format!("x={}", folder.text("x.npy"));
    let train = ["train", &model, "--data", &data, "--batch-size", "50", "--steps", "1", "--no-compare"];
    for command in [&train[..], &[&train[..], &["--dry-run"]].concat(), &["run", &model, "--input", &input]] {
        let least = |flags: &[&str]| json(&[command, flags].concat())["minimum_budget_bytes"].clone();
        assert!(least(&[]).as_u64().is_some_and(|bytes| bytes > 0), "{command:?}");
        assert_eq!(least(&["--memory-limit", "1GiB"]), Value::Null, "{command:?}");
    }
}

#[test]
fn steps_that_show_gradients_stay_within_the_limit() {
    let (model, data, folder) = (example("brain/unet3d.onnx"), example("brain"), Folder::new());
    let free = json(&train(&model, &data, &[]));
    let events = folder.text("events");
    let showing = ["--tensorboard", &events, "--histograms-every", "2", "--histograms", "parameters,gradients"];
    let limited = json(&train(&model, &data, &[&showing[..], &["--memory-limit", "55%"]].concat()));
    let (peak_bytes, limit_bytes) = (bytes(&limited, "resident_peak_bytes"), bytes(&limited, "memory_limit_bytes"));
    assert!(peak_bytes <= limit_bytes, "{peak_bytes} of {limit_bytes} bytes");
    assert_eq!(losses(&limited), losses(&free));
    let error = failure(1, &train(&model, &data, &[&showing[..], &["--simulate-device", "64KiB"]].concat()));
    assert_says(&error, &["too small", "pass at least --simulate-device"]);
}

#[test]
fn a_limit_that_cannot_be_met_is_refused_with_the_least_that_can() {
    let (model, data) = (example("brain/unet3d.onnx"), example("brain"));
    let error = failure(1, &train(&model, &data, &["--memory-limit", "40MiB"]));
    assert_says(&error, &["a memory limit of 40 MiB is too small", "pass at least"]);
    let least_kib = least_kib(&error, "pass at least ");
    let limited = json(&train(&model, &data, &["--memory-limit", &format!("{least_kib}KiB")]));
    assert!(bytes(&limited, "resident_peak_bytes") <= least_kib * 1024);
}

#[test]
fn a_refusal_advises_only_what_was_not_done() {
    let (model, data, folder) = (digits_model(), digits_data(), Folder::new());
    let refused = |more: &[&str]| {
        let flags = ["train", &model, "--data", &data, "--input-scale", "0.0625", "--batch-size", "50"];
        failure(1, &[&flags[..], &["--steps", "1", "--no-compare", "--memory-limit", "4MiB"], more].concat())
    };
    assert_says(&refused(&[]), &["use a smaller batch, or name a folder to spill to)"]);
    assert_says(&refused(&["--spill-dir", &folder.text("")]), &["KiB or use a smaller batch)"]);
}

/// For a small model of many launches, planning takes more memory than a step.
#[test]
fn planning_stays_within_the_limit_or_the_limit_is_refused() {
    let [model, data] =
        ["model.onnx", "inputs.npz"].map(|name| example(&format!("../testdata/golden/tiny-gpt/{name}")));
    let step = ["train", &model, "--data", &data, "--class-axis", "-1", "--optimizer", "adamw", "--steps", "2"];
    let adapters = ["--lora", "*", "--precision", "f16", "--no-compare", "--json", "--memory-limit"];
    let train = |limit_kib: u64| {
        let limit = format!("{limit_kib}KiB");
        let output = forebay(&[&step[..], &adapters, &[&limit]].concat()).output();
        let (stdout, stderr) = texts(&output.expect("the program starts"));
        match serde_json::from_str::<Value>(&stdout) {
            Ok(report) => {
                assert!(bytes(&report, "resident_peak_bytes") <= limit_kib * 1024, "{limit_kib} KiB: {report}");
                None
            }
            Err(_) => {
                assert_says(&stderr, &["too small", "pass at least"]);
                Some(least_kib(&stderr, "pass at least "))
            }
        }
    };
    let least_kib = train(1024).expect("a MiB is too little");
    assert_eq!(train(least_kib), None);
    for percent in [70, 75, 80, 85, 90, 95] {
        train(least_kib * percent / 100);
    }
}

#[test]
fn what_recomputation_cannot_do_goes_to_disk_where_that_is_allowed() {
    let (model, data, folder) = (example("brain/unet3d.onnx"), example("brain"), Folder::new());
    let error = failure(1, &train(&model, &data, &["--memory-limit", "40MiB"]));
    // The named minimum is a limit that was found to work; slightly smaller ones may work, too.
    let limit_bytes = least_kib(&error, "pass at least ") * 1024 / 4 * 3;
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
    assert_says(&text, &["only applies if device memory is the host's"]);
}

#[test]
fn device_memory_of_a_cpu_is_the_same_limit_and_a_simulated_device_is_not() {
    let (model, data) = (example("brain/unet3d.onnx"), example("brain"));
    let free = json(&train(&model, &data, &[]));
    let limited = json(&train(&model, &data, &["--device-memory", "300MiB"]));
    assert!(bytes(&limited, "resident_peak_bytes") <= 300 << 20, "{limited}");
    assert_eq!(limited["bytes_to_device"], 0, "nothing is copied from memory to itself");
    let simulated = json(&train(&model, &data, &["--simulate-device", "192MiB"]));
    assert!(bytes(&simulated, "device_peak_bytes") <= 192 << 20, "{simulated}");
    assert!(bytes(&simulated, "bytes_to_device") > 100 << 20, "what does not fit is copied");
    assert_eq!([losses(&limited), losses(&simulated)], [losses(&free), losses(&free)]);
}

#[test]
fn a_limit_below_what_the_program_itself_takes_says_so() {
    let (model, data) = (example("brain/unet3d.onnx"), example("brain"));
    let error = failure(1, &train(&model, &data, &["--memory-limit", "4MiB"]));
    assert_says(&error, &["a memory limit of 4 MiB is too small", "the rest of the process alone takes"]);
    let slow = failure(2, &train(&model, &data, &["--memory-limit", "1GiB", "--link-speed", "1GB"]));
    assert_says(&slow, &["a link speed only applies to a simulated device"]);
    let other = failure(2, &train(&model, &data, &["--device", "null", "--link-speed", "1GB"]));
    assert_says(&other, &["a link speed only applies to a simulated device", "not to null", "leave it out"]);
}

#[test]
fn a_plan_for_a_simulated_device_takes_the_speed_of_its_link() {
    let model = example("brain/unet3d.onnx");
    let planned = |speed| json(&["plan", &model, "--train", "--simulate-device", "50%", "--link-speed", speed]);
    let [slow, fast] = ["100MB/s", "8GB"].map(planned);
    assert!(bytes(&fast, "bytes_to_device") > 0);
    let seconds = |report: &Value| report["predicted_seconds"].as_f64().unwrap();
    assert!(seconds(&slow) > seconds(&fast), "{slow} {fast}");
}

#[test]
fn device_memory_that_is_too_little_for_the_process_bounds_tensors_alone() {
    let (model, data) = (example("brain/unet3d.onnx"), example("brain"));
    let flags = ["--device-memory", "64MiB"];
    let output = forebay(&[&train(&model, &data, &flags)[..], &["--json"]].concat()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert_says(&said, &["the whole process cannot stay within --device-memory 64 MiB", "--simulate-device"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(bytes(&report, "device_peak_bytes") <= 64 << 20, "{report}");
    assert!(report["memory_limit_bytes"].is_null(), "{report}");
    assert_eq!(losses(&report), losses(&json(&train(&model, &data, &["--simulate-device", "64MiB"]))));
    assert_says(&failure(1, &train(&model, &data, &["--device-memory", "1MiB"])), &["at least --device-memory"]);
}

/// Returns the largest resident memory that a run in the group reports, and its messages.
fn in_group(group: &Group, flags: &[&str]) -> Option<(Value, String)> {
    let (model, data) = (example("brain/unet3d.onnx"), example("brain"));
    let output = group.run(&[&train(&model, &data, flags)[..], &["--json"]].concat())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{:?}: {said}", output.status);
    Some((serde_json::from_slice(&output.stdout).unwrap(), said))
}

#[test]
fn without_a_flag_a_run_stays_within_what_is_free() {
    let (model, data) = (example("brain/unet3d.onnx"), example("brain"));
    let free = json(&train(&model, &data, &[]));
    let Some(group) = Group::new(360 << 20) else { return };
    let Some((report, said)) = in_group(&group, &[]) else { return };
    assert_says(&said, &["note: this would take", "is available, which becomes the", "--memory-limit none"]);
    assert!(bytes(&report, "resident_peak_bytes") < 320 << 20, "{report}");
    assert_eq!((losses(&report), bytes(&report, "bytes_to_device")), (losses(&free), 0));
    // A share of the free memory is a limit like any other.
    let Some((report, said)) = in_group(&group, &["--memory-limit", "90%free"]) else { return };
    assert!(bytes(&report, "resident_peak_bytes") < 288 << 20 && !said.contains("note:"), "{said} {report}");
    assert_eq!(losses(&report), losses(&free));
}

#[test]
fn what_does_not_fit_what_is_free_is_refused_before_the_first_step() {
    let Some(group) = Group::new(160 << 20) else { return };
    let (model, data) = (example("brain/unet3d.onnx"), example("brain"));
    let Some(output) = group.run(&train(&model, &data, &[])) else { return };
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert_says(&error, &["of memory is free for this process", "it needs at least", "a memory limit of none"]);
}

/// The system counts all pages of a run: in a group that may use 5 % more than the limit, nothing is killed.
#[test]
fn a_run_lives_in_a_control_group_of_its_limit_and_a_twentieth() {
    const LIMIT_MIB: u64 = 300;
    let Some(group) = Group::new((LIMIT_MIB << 20) / 100 * 105) else { return };
    let limit = format!("{LIMIT_MIB}MiB");
    let Some((report, _)) = in_group(&group, &["--memory-limit", &limit]) else { return };
    assert!(bytes(&report, "resident_peak_bytes") <= LIMIT_MIB << 20, "{report}");
}

#[test]
fn inputs_are_in_memory_once_even_if_the_limit_nearly_fits_everything() {
    let (folder, inputs, outputs) = (Folder::new(), 1 << 16, 8);
    let nodes = [onnx::node("MatMul", &["x", "w"], "y", &[])];
    let weights = onnx::floats("w", &[inputs, outputs], &vec![0.5; inputs * outputs]);
    let model = onnx::model(&nodes, &[weights], ("x", &[128, inputs]), ("y", &[128, outputs]));
    let model = folder.write("product.onnx", &model);
    for percent in ["95%", "75%"] {
        let plan = json(&["plan", &model, "--train", "--loss", "mse", "--memory-limit", percent]);
        assert_eq!(bytes(&plan, "bytes_to_device"), 0, "{percent}: {plan}");
    }
}

/// Runs with a limit. Returns the limit that the refusal names, in KiB; `None` if the run succeeds.
fn named_least(arguments: &[&str], limit_kib: u64) -> Option<u64> {
    let output = forebay(&[arguments, &["--json", "--memory-limit", &format!("{limit_kib}KiB")]].concat()).output();
    let (stdout, stderr) = texts(&output.expect("the program starts"));
    match serde_json::from_str::<Value>(&stdout) {
        Ok(report) => {
            assert!(bytes(&report, "resident_peak_bytes") <= limit_kib * 1024, "{limit_kib} KiB: {report}");
            None
        }
        Err(_) => Some(least_kib(&stderr, "pass at least ")),
    }
}

#[test]
fn every_limit_that_is_too_small_names_the_same_least_and_a_disk_does_not_raise_it() {
    let (model, data, folder) = (example("digits/model.onnx"), example("digits/digits.npz"), Folder::new());
    // The last batches of both sets are short.
    let flags = ["--batch-size", "40", "--steps", "2", "--split", "90/10", "--no-compare", "--threads", "2"];
    let train = [&["train", &model, "--data", &data], &flags[..]].concat();
    let least_kib = named_least(&train, 1024).expect("a MiB is too little");
    assert_eq!(named_least(&train, least_kib), None);
    for below_kib in [12 << 10, 4 << 10, 2 << 10] {
        let named_kib = named_least(&train, least_kib - below_kib).expect("less than the least");
        assert!(named_kib.abs_diff(least_kib) <= 1 << 10, "{below_kib} KiB below {least_kib}: {named_kib}");
    }
    let spill = folder.text("");
    let spilling = [&train[..], &["--spill-dir", &spill]].concat();
    let named_kib = named_least(&spilling, 1024).expect("a MiB is too little");
    assert!(named_kib <= least_kib + (1 << 10), "{named_kib} {least_kib}");
    assert_eq!(named_least(&spilling, named_kib), None);
}

#[test]
fn validation_that_a_limit_does_not_allow_is_refused_before_the_first_step() {
    let (model, data) = (example("digits/model.onnx"), example("digits/digits.npz"));
    let train = ["train", &model, "--data", &data, "--batch-size", "40", "--steps", "1", "--no-compare"];
    let validating = [&train[..], &["--validate", &data, "--optimizer", "adam", "--threads", "1"]].concat();
    let least_kib = named_least(&validating, 1024).expect("a MiB is too little");
    assert_eq!(named_least(&validating, least_kib), None);
    let limit = format!("{}KiB", least_kib - (3 << 10));
    let output = forebay(&[&validating[..], &["--memory-limit", &limit]].concat()).output();
    let (steps, error) = texts(&output.expect("the program starts"));
    assert!(!steps.contains("step 1/1") && error.contains("too small"), "{steps}{error}");
}
