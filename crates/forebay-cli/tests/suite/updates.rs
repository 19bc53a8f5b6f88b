//! Updates on the host from the command line: the same bits, no state on the link, and the message if they change nothing.

use crate::common::{Folder, assert_says, digits_data, digits_model, failure, forebay, json, success, texts};
use serde_json::Value;

fn train<'a>(model: &'a str, data: &'a str, saved: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let usual = ["train", model, "--data", data, "--batch-size", "50", "--optimizer", "adam", "--no-compare"];
    [&usual[..], &["--save", saved], more].concat()
}

/// Returns whether a plan copies optimizer state.
fn moves_state(plan: &Value) -> bool {
    let moves = plan["movements"].as_array().unwrap();
    moves.iter().any(|moved| moved["name"].as_str().unwrap().contains("moment"))
}

#[test]
fn training_has_the_bits_of_updates_on_the_device_and_resumes_with_the_other_choice() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let [whole, half, rest] = ["whole.onnx", "half.onnx", "rest.onnx"].map(|name| folder.text(name));
    let checkpoint = folder.text("checkpoint");
    let on_host = ["--simulate-device", "512KiB", "--updates", "host", "--check"];
    success(&train(&model, &data, &whole, &["--steps", "6", "--simulate-device", "512KiB"]));
    let first = [&["--steps", "3", "--checkpoint", checkpoint.as_str()], &on_host[..]].concat();
    let report = json(&train(&model, &data, &half, &first));
    assert!(report["host_updates"].as_u64().unwrap() > 0, "{report}");
    success(&train(&model, &data, &rest, &["--steps", "6", "--resume", &checkpoint]));
    assert!(std::fs::read(&whole).unwrap() == std::fs::read(&rest).unwrap(), "other bits");
    success(&train(&model, &data, &rest, &[&["--steps", "6"], &on_host[..]].concat()));
    assert!(std::fs::read(&whole).unwrap() == std::fs::read(&rest).unwrap(), "other bits");
}

#[test]
fn a_plan_for_a_machine_has_no_copy_of_state() {
    let model = digits_model();
    let plan = |updates: &str| {
        let machine = ["--machine", "laptop-8gb", "--device-memory", "2MiB", "--updates", updates, "--check"];
        let usual = ["plan", &model, "--train", "--batch-size", "50", "--optimizer", "adam", "--moves"];
        json(&[&usual[..], &machine[..]].concat())
    };
    let (device, host) = (plan("device"), plan("host"));
    assert!(device["host_updates"] == 0 && host["host_updates"].as_u64().unwrap() > 0, "{host}");
    assert!(!moves_state(&host), "{host}");
}

#[test]
fn several_processes_update_on_the_host() {
    let model = digits_model();
    for shard in [None, Some("state"), Some("gradients"), Some("parameters")] {
        let usual = ["plan", &model, "--train", "--batch-size", "50", "--optimizer", "adam", "--machine", "laptop-8gb"];
        let mut arguments =
            [&usual[..], &["--device-memory", "2MiB", "--updates", "host", "--ranks", "2", "--check"]].concat();
        arguments.extend(shard.iter().flat_map(|shard| ["--shard", shard]));
        let plan = json(&arguments);
        assert!(plan["host_updates"].as_u64().unwrap() > 0, "{shard:?}: {plan}");
    }
}

#[test]
fn where_updates_on_the_host_change_nothing_a_note_says_so() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let saved = folder.text("saved.onnx");
    let output = forebay(&train(&model, &data, &saved, &["--steps", "1", "--updates", "host"])).output().unwrap();
    let (_, notes) = texts(&output);
    assert_says(&notes, &["--updates host has no effect"]);
    let managed = ["--steps", "1", "--updates", "host", "--memory", "automatic"];
    assert_says(&failure(2, &train(&model, &data, &saved, &managed)), &["--updates host", "--memory"]);
    assert_says(&failure(2, &train(&model, &data, &saved, &["--updates", "disk"])), &["device, host"]);
}

#[test]
fn a_file_of_settings_says_where_to_update() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let text = format!(
        "model = {model:?}\ndata = {data:?}\nbatch-size = 50\nsteps = 1\nsimulate-device = \"512KiB\"\nupdates = \"host\"\n"
    );
    let report = json(&["train", &folder.write("run.toml", text.as_bytes()), "--no-compare"]);
    assert!(report["host_updates"].as_u64().unwrap() > 0, "{report}");
}
