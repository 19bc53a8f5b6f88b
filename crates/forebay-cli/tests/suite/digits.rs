//! The program on the digits network: its output, its files and its promises.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::common::{Folder, digits_data, digits_model, example, forebay, json, losses, success, zeros};
use forebay::data::{npy, npz};

/// Keys that `--json` promises.
const KEYS: [&str; 12] = [
    "steps",
    "seconds_median",
    "device_budget_bytes",
    "device_peak_bytes",
    "in_core_peak_bytes",
    "minimum_budget_bytes",
    "bytes_to_device",
    "bytes_from_device",
    "launches",
    "barriers",
    "waits",
    "stall_seconds",
];

/// Asserts that `--help` of a command explains all keys of its report and of the first element of a list there.
fn assert_explained(command: &str, report: &serde_json::Value, list: &str) {
    let help = success(&[command, "--help"]);
    let words: Vec<&str> = help.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    for object in [report, &report[list][0]] {
        for key in object.as_object().expect("an object").keys() {
            assert!(words.contains(&key.as_str()), "{command}: {key}");
        }
    }
}

fn train<'a>(model: &'a str, data: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    let common = ["--batch-size", "50", "--input-scale", "0.0625", "--learning-rate", "0.05", "--momentum", "0.9"];
    [&["train", model, "--data", data], common.as_slice(), flags].concat()
}

#[test]
fn a_run_writes_its_outputs() {
    let (folder, model) = (Folder::new(), digits_model());
    npy::write(&folder.path("x.npy"), &zeros(3)).unwrap();
    let input = format!("x={}", folder.text("x.npy"));
    let results = folder.text("results");
    let text = success(&["run", &model, "--input", &input, "--output-dir", &results]);
    assert!(text.contains("logits: float32[3, 10]"), "{text}");
    let by_input = npy::read(&folder.path("results/logits.npy")).unwrap();
    assert_eq!(by_input.shape(), [3, 10]);
    let report = json(&["run", &model, "--inputs", &folder.text(""), "--repeat", "4", "--output-dir", &results]);
    for key in KEYS {
        assert!(report.get(key).is_some(), "{key}");
    }
    assert_explained("run", &report, "steps");
    assert_eq!(report["steps"].as_array().unwrap().len(), 4);
    assert_eq!(npy::read(&folder.path("results/logits.npy")).unwrap(), by_input);
    assert_eq!(std::fs::read_dir(folder.path("results")).unwrap().count(), 1);
}

#[test]
fn every_memory_mode_gives_the_same_losses_and_says_what_it_moved() {
    let (model, data) = (digits_model(), digits_data());
    let flags = |mode| ["--steps", "3", "--simulate-device", "1536KiB", "--no-compare", "--memory", mode];
    let planned = json(&train(&model, &data, &flags("planned")));
    assert!(planned.get("faults").is_none());
    for mode in ["direct", "cooperative", "automatic"] {
        let report = json(&train(&model, &data, &flags(mode)));
        assert_eq!(losses(&planned), losses(&report), "{mode}");
        for key in KEYS.into_iter().chain(["evictions", "prefetches", "memory_stalls", "memory_stall_seconds"]) {
            assert!(report.get(key).is_some(), "{mode}: {key}");
        }
        assert_eq!(report["faults"].as_u64() == Some(0), mode == "direct", "{mode}: {report}");
        assert!(report["bytes_to_device"].as_u64() > Some(0), "{mode}");
        assert!(report["device_peak_bytes"].as_u64() <= report["device_budget_bytes"].as_u64(), "{mode}");
    }
    let mut by_variable = forebay(&train(&model, &data, &["--steps", "1", "--no-compare"]));
    let output = by_variable.env("FOREBAY_MEMORY", "automatic").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("managed memory") && text.contains("faults"), "{text}");
}

#[test]
fn memory_that_does_not_grow_is_the_whole_budget_from_the_start() {
    let (model, data) = (digits_model(), digits_data());
    let run = |flags: &[&str], growth: &str| {
        let usual = ["--steps", "2", "--device-memory", "32MiB", "--no-compare", "--memory", "automatic", "--json"];
        let arguments = train(&model, &data, &[usual.as_slice(), flags].concat());
        let output = forebay(&arguments).env("FOREBAY_GROWTH", growth).output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (losses(&report), report["device_peak_bytes"].as_u64())
    };
    let (grown, grown_bytes) = run(&["--tile-size", "4KiB"], "1");
    assert!(grown_bytes < Some(16 << 20), "{grown_bytes:?}");
    assert_eq!(run(&["--no-growth"], "1"), (grown.clone(), Some(32 << 20)));
    assert_eq!(run(&[], "0"), (grown, Some(32 << 20)));
}

#[test]
fn a_budget_changes_no_bit_and_is_kept() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let saved = [folder.text("free.onnx"), folder.text("tight.onnx")];
    let free = json(&train(&model, &data, &["--steps", "10", "--save", &saved[0], "--threads", "1"]));
    let flags = ["--steps", "10", "--save", &saved[1], "--simulate-device", "60%", "--check", "--threads", "2"];
    let tight = json(&train(&model, &data, &flags));
    assert_eq!(losses(&free), losses(&tight));
    assert!(losses(&free)[9] < losses(&free)[0]);
    assert!(std::fs::read(&saved[0]).unwrap() == std::fs::read(&saved[1]).unwrap(), "the saved models differ");
    for key in KEYS {
        assert!(tight.get(key).is_some(), "{key}");
    }
    assert_explained("train", &tight, "steps");
    assert!(tight["device_peak_bytes"].as_u64() <= tight["device_budget_bytes"].as_u64());
    assert!(tight["bytes_to_device"].as_u64() > Some(0));
    assert_eq!(free["device_budget_bytes"], serde_json::Value::Null);
    assert_eq!(tight["comparison"]["losses_identical"], true);
}

#[test]
fn a_budget_file_is_followed_while_training_runs() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let saved = [folder.text("free.onnx"), folder.text("followed.onnx")];
    success(&train(&model, &data, &["--steps", "60", "--save", &saved[0]]));
    let file = folder.text("budget");
    std::fs::write(&file, "60%\n").unwrap();
    let flags = ["--steps", "60", "--save", &saved[1], "--simulate-device", "1GiB", "--device-memory-file", &file];
    let mut program = forebay(&train(&model, &data, &flags)).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut seen = Vec::new();
    let mut wait_for = |text: &str| {
        let found = lines.by_ref().inspect(|line| seen.push(line.clone())).any(|line| line.contains(text));
        assert!(found, "no '{text}' in {seen:?}");
    };
    wait_for("step 1/60");
    std::fs::write(&file, "much").unwrap();
    wait_for("the budget is unchanged");
    std::fs::write(&file, "1KiB").unwrap();
    wait_for("pass at least --simulate-device ");
    std::fs::write(&file, "80%").unwrap();
    wait_for("the device budget is");
    wait_for("saved");
    assert!(program.wait().unwrap().success());
    assert!(std::fs::read(&saved[0]).unwrap() == std::fs::read(&saved[1]).unwrap(), "the saved models differ");
}

#[test]
fn a_resumed_run_goes_on_bit_for_bit_under_another_budget() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let (straight, resumed, checkpoint) = (folder.text("a.onnx"), folder.text("b.onnx"), folder.text("run"));
    // 170 samples: the fourth step of each epoch has 20.
    let data = format!("{data}#0..170");
    let whole = json(&train(&model, &data, &["--steps", "10", "--shuffle", "5", "--save", &straight]));
    let first = ["--steps", "6", "--shuffle", "5", "--checkpoint", &checkpoint, "--checkpoint-every", "4"];
    let first = json(&train(&model, &data, &first));
    let second = ["--steps", "10", "--resume", &checkpoint, "--save", &resumed, "--simulate-device", "70%"];
    let second = json(&train(&model, &data, &second));
    assert_eq!(losses(&whole), [losses(&first), losses(&second)].concat());
    assert!(std::fs::read(straight).unwrap() == std::fs::read(resumed).unwrap(), "the saved models differ");
}

#[test]
fn an_interrupted_run_leaves_a_checkpoint() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let checkpoint = folder.text("run");
    let arguments = train(&model, &data, &["--steps", "1000000", "--checkpoint", &checkpoint]);
    // As `nohup` starts a program.
    let mut program = Command::new("sh");
    program.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_forebay")]).args(&arguments);
    let mut child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first_line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first_line).unwrap();
    assert!(first_line.starts_with("step 1/1000000"), "{first_line}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    assert!(ignored.ends_with(['1', '3', '5', '7', '9', 'b', 'd', 'f']), "hang-ups are not ignored: {ignored}");
    let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("--resume"), "{stderr}");
    let done = forebay::Checkpoint::read(folder.path("run")).unwrap().step;
    let report = json(&train(&model, &data, &["--steps", &(done + 1).to_string(), "--resume", &checkpoint]));
    assert_eq!(losses(&report).len(), 1);
}

#[test]
fn validation_counts_what_is_right() {
    let (model, data) = (digits_model(), digits_data());
    let (training, test) = (format!("{data}#0..1500"), format!("{data}#1500..1797"));
    let report = json(&train(&model, &training, &["--epochs", "5", "--validate", &test]));
    let validation = &report["validation"];
    assert_eq!(report["steps"].as_array().unwrap().len(), 150);
    assert_eq!(validation["count"], 297);
    assert!(validation["right"].as_u64().unwrap() > 270, "{validation}");
    let text = success(&train(&model, &training, &["--steps", "1", "--validate", &test]));
    assert!(text.contains("accuracy") && text.contains("of 297)"), "{text}");
    assert!(!text.contains("Dice"), "{text}");
}

#[test]
fn a_saved_model_runs() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let saved = folder.text("trained.onnx");
    success(&train(&model, &data, &["--steps", "1", "--save", &saved]));
    let inputs = folder.archive("x.npz", &[("x", &zeros(2))]);
    let text = success(&["run", &saved, "--inputs", &inputs]);
    assert!(text.contains("logits: float32[2, 10]"), "{text}");
}

#[test]
fn a_trace_is_an_object_of_events() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let trace = folder.text("trace.json");
    success(&train(&model, &data, &["--steps", "2", "--trace", &trace, "--simulate-device", "70%", "--no-compare"]));
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().or(trace.as_array()).expect("a list of events");
    assert!(events.iter().any(|event| event["ph"] == "X") && events.iter().any(|event| event["ph"] == "C"));
}

#[test]
fn plans_are_explained_without_running() {
    let model = digits_model();
    let report = json(&["plan", &model, "--train", "--batch-size", "50", "--simulate-device", "70%"]);
    for key in KEYS {
        assert!(report.get(key).is_some(), "{key}");
    }
    assert!(report["movements"].as_array().unwrap().iter().all(|movement| movement["reason"].as_str() != Some("")));
    assert!(report["device_peak_bytes"].as_u64() <= report["device_budget_bytes"].as_u64());
    let text = success(&["plan", &model, "--batch-size", "2", "--commands"]);
    assert!(text.contains("barriers") && text.contains("launch"), "{text}");
    // The full-size brain network needs far more memory than a test should use, but planning needs none.
    let report = json(&["plan", &example("brain/unet3d.onnx"), "--train"]);
    assert!(report["in_core_peak_bytes"].as_u64() > Some(100 << 20));
}

#[test]
fn devices_are_listed() {
    let text = success(&["devices"]);
    assert!(text.contains("host") && text.lines().next().unwrap().contains("matrices"), "{text}");
    let report = json(&["devices"]);
    assert_explained("devices", &report, "devices");
    let host = report["devices"].as_array().unwrap().iter().find(|device| device["name"] == "host").unwrap();
    assert_eq!(host["cooperative_matrices"].as_array().map(Vec::len), Some(0), "{host}");
}

#[test]
fn the_brain_folder_is_read_as_the_recipe_says() {
    let folder = example("brain");
    let input = forebay::data::InputDescription {
        name: "x".to_owned(),
        data_type: forebay::DataType::Float32,
        sample_shape: vec![1, 96, 112, 96],
    };
    let requirements = forebay::data::Requirements {
        inputs: vec![input],
        input_scale: 1.0,
        labels: forebay::data::LabelKind::Classes,
        label_shape: vec![96, 112, 96],
    };
    let mut set = forebay::data::open(&folder, &requirements).unwrap();
    assert_eq!(set.sample_count(), 1);
    let batch = set.batch(&[0]).unwrap();
    let values = forebay_data::convert::to_f64(&batch.inputs["x"]);
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    // The mean and standard deviation are those in the golden log; the air around the head is 0.
    assert_eq!(least as f32, (-40.383575560554625f64 / 75.79854689613617) as f32);
    let mut counts = [0; 3];
    forebay_data::convert::to_f64(&batch.labels).into_iter().for_each(|label| counts[label as usize] += 1);
    assert_eq!(counts, [820014, 136351, 75827]);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let arguments = ["plan", &digits_model(), "--train", "--batch-size", "50", "--commands"];
    let mut child = forebay(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn archives_that_numpy_wrote_are_read() {
    let mut archive = npz::Archive::open(std::path::Path::new(&digits_data())).unwrap();
    assert_eq!(archive.names(), ["x", "y"]);
    assert_eq!(archive.read("x").unwrap().shape(), [1797, 1, 8, 8]);
}

#[test]
fn a_batch_larger_than_the_data_is_told() {
    let data = format!("{}#0..30", digits_data());
    let train = |batch: &str| {
        let arguments = ["train", &digits_model(), "--data", &data, "--batch-size", batch, "--steps", "1", "--json"];
        let output = forebay(&arguments).output().expect("the program starts");
        let object: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (object["batch_size"].clone(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (batch_size, said) = train("50");
    assert_eq!(batch_size, 30);
    assert!(said.contains("note: ") && said.contains("30 samples, fewer than a batch of 50"), "{said}");
    let (batch_size, said) = train("30");
    assert_eq!(batch_size, 30);
    assert!(!said.contains("fewer than"), "{said}");
}
