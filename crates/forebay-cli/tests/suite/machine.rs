//! Costs in files, and plans for machines that are only described.

use crate::common::{Folder, assert_says, digits_data, digits_model, example, failure, forebay, json, success};

/// A machine description with these lines replaced.
fn described(folder: &Folder, name: &str, changes: &[(&str, &str)]) -> String {
    let path = format!("{}/../forebay-plan/machines/cpu-2core-nvme.toml", env!("CARGO_MANIFEST_DIR"));
    let mut text = std::fs::read_to_string(path).unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    folder.write(name, text.as_bytes())
}

#[test]
fn every_machine_that_comes_along_plans_the_digits_network() {
    let model = digits_model();
    let plan = |machine: &str| json(&["plan", &model, "--train", "--batch-size", "50", "--machine", machine]);
    let plans = ["h200", "laptop-8gb", "cpu-2core-nvme"].map(plan);
    for plan in &plans {
        assert!(plan["device_peak_bytes"].as_u64() <= plan["device_budget_bytes"].as_u64(), "{plan}");
        assert!(plan["costs"]["launches"].as_array().unwrap().len() == plan["launches"].as_u64().unwrap() as usize);
    }
    let seconds = plans.each_ref().map(|plan| plan["predicted_seconds"].as_f64().unwrap());
    assert!(seconds[0] < seconds[2] && seconds[1] < seconds[2], "{seconds:?}");
    assert_eq!(plans[0]["device_budget_bytes"].as_u64(), Some(141_000_000_000));
}

#[test]
fn a_machine_says_what_fits() {
    let (folder, model) = (Folder::new(), digits_model());
    let arguments = ["plan", &model, "--train", "--batch-size", "50", "--machine"];
    let with = |more: &[&str]| success(&[&arguments[..], more].concat());
    assert_says(&with(&["h200"]), &["NVIDIA H200", "everything at once", "predicted time"]);
    let small = described(&folder, "small.toml", &[("device_memory = \"4GiB\"", "device_memory = \"1536KiB\"")]);
    assert_says(&with(&[&small]), &["% at once", "1.5 MiB on the device", "moved per step, by layer"]);
    assert_says(&with(&[&small, "--device-memory", "1GiB"]), &["everything at once"]);
    let tiny = described(&folder, "tiny.toml", &[("device_memory = \"4GiB\"", "device_memory = \"64KiB\"")]);
    assert_says(&failure(1, &[&arguments[..], &[&tiny]].concat()), &["65536 bytes is too small"]);
}

#[test]
fn what_describes_no_machine_is_named() {
    let (folder, model) = (Folder::new(), digits_model());
    let error = |code, machine: &str| failure(code, &["plan", &model, "--batch-size", "50", "--machine", machine]);
    assert_says(&error(2, "h2000"), &["h2000", "h200, laptop-8gb, cpu-2core-nvme"]);
    for (from, to, words) in [
        ("lanes = 2", "lanes = 2\ncores = 2", "cores"),
        ("lanes = 2", "lanes = -2", "-2"),
        ("[disk]", "[disc]", "disc"),
        ("duplex = false", "", "duplex"),
        ("float32 = 70e9", "float32 = nan", "float32 is NaN"),
    ] {
        let machine = described(&folder, "bad.toml", &[(from, to)]);
        assert_says(&error(1, &machine), &["bad.toml", words]);
    }
    assert_says(&failure(2, &["plan", &model, "--machine", "h200", "--device", "null"]), &["--machine"]);
}

/// The disk's latency of a day is stretched as its copies cross the link, which is a trillion times slower.
#[test]
fn a_plan_for_an_absurd_machine_takes_forever() {
    let (folder, model) = (Folder::new(), digits_model());
    let slow = [
        ("device_memory = \"4GiB\"", "device_memory = \"600KiB\""),
        ("host_memory = \"4GiB\"", "host_memory = \"2MiB\""),
        ("carries_disk = false", "carries_disk = true"),
        ("to_device = { bytes_per_second = 10e9", "to_device = { bytes_per_second = 1e6"),
        ("bytes_per_second = 1e9, latency_ns = 100_000", "bytes_per_second = 1e18, latency_ns = 86_400_000_000_000"),
    ];
    let machine = described(&folder, "slow.toml", &slow);
    let plan = json(&["plan", &model, "--train", "--batch-size", "50", "--optimizer", "adam", "--machine", &machine]);
    assert!(plan["predicted_seconds"].as_f64() >= plan["lower_bound_seconds"].as_f64(), "{plan}");
    assert!(plan["bytes_from_disk"].as_u64() > Some(0), "{plan}");
}

#[test]
fn costs_of_one_run_feed_the_plan_of_the_next() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let costs = folder.text("costs.json");
    let train = |more: &[&str]| {
        let common = ["train", &model, "--data", &data, "--batch-size", "50", "--steps", "2"];
        json(&[&common[..], more].concat())
    };
    train(&["--save-costs", &costs]);
    let plan = ["plan", &model, "--train", "--batch-size", "50", "--costs", &costs];
    let planned = json(&plan);
    let saved: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&costs).unwrap()).unwrap();
    assert_eq!(planned["costs"], saved, "the plan is a function of the file");
    assert_ne!(json(&plan[..5])["costs"], saved, "estimates are others");
    train(&["--costs", &costs]);
    // Another batch size has almost nothing in common with it, only small launches on parameters.
    let other = forebay(&["plan", &model, "--train", "--batch-size", "49", "--costs", &costs]).output().unwrap();
    assert!(other.status.success());
    assert_says(&String::from_utf8_lossy(&other.stderr), &["warning: --costs has no durations for"]);
    let unet = example("brain/unet3d.onnx");
    assert_says(&failure(1, &["plan", &unet, "--costs", &costs]), &["another model or batch size"]);
    let text = std::fs::read_to_string(&costs).unwrap();
    for (from, to, words) in [
        ("forebay-costs-1", "forebay-costs-9", "forebay-costs-9"),
        ("\"duplex\"", "\"triplex\"", "triplex"),
        ("\"bytes_per_second\": ", "\"bytes_per_second\": -", "link.to_device.bytes_per_second is -"),
        ("\"latency_ns\": ", "\"latency_ns\": -", "-5000"),
    ] {
        let bad = folder.write("bad.json", text.replacen(from, to, 1).as_bytes());
        assert_says(&failure(1, &["plan", &model, "--batch-size", "50", "--costs", &bad]), &["bad.json", words]);
    }
    assert_says(&failure(1, &["plan", &model, "--costs", &folder.text("none.json")]), &["none.json", "cannot read"]);
    let flags = ["train", &model, "--data", &data, "--memory", "direct", "--save-costs", &costs];
    assert_says(&failure(2, &flags), &["--save-costs"]);
}

#[test]
fn costs_of_training_are_not_asked_of_a_short_batch_of_the_validation() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let costs = folder.text("costs.json");
    // A batch of 50 and one of 3; none of the latter's launches was measured.
    let few = format!("{data}#0..53");
    let train = |more: &[&str]| {
        let common = ["train", &model, "--data", &data, "--batch-size", "50", "--steps", "2", "--validate", &few];
        json(&[&common[..], more].concat())["validation"]["loss"].clone()
    };
    let expected = train(&["--save-costs", &costs]);
    assert!(expected.as_f64().is_some_and(f64::is_finite), "{expected}");
    assert_eq!(train(&["--costs", &costs]), expected, "durations are no matter of results");
}

#[test]
fn a_trace_is_replayed_on_another_machine() {
    let trace = example("traces/bert-b256.jsonl.gz");
    let report = json(&["replay", &trace, "--machine", "h200"]);
    assert_eq!(report["device_memory_bytes"].as_u64(), Some(141_000_000_000));
    assert_eq!(report["time_over_ideal"].as_f64(), Some(1.0), "{report}");
    let half = json(&["replay", &trace, "--machine", "h200", "--device-memory", "50%"]);
    assert_eq!(half["device_memory_bytes"].as_u64(), Some(70_500_000_000), "a share of the machine's");
}
