//! Flags in a file, and dry runs.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::common::{Folder, assert_says, digits_data, digits_model, failure, forebay, json, success};

/// A file of flags for the digits network.
fn configuration(folder: &Folder, more: &str) -> String {
    let text = format!(
        "model = {:?}\ndata = {:?}\nbatch-size = 50\ninput_scale = 0.0625\nthreads = 1\nlearning-rate = 0.05\n\
         epochs = 1\nno-compare = true\n{more}",
        digits_model(),
        format!("{}#0..150", digits_data()),
    );
    folder.write("run.toml", text.as_bytes())
}

#[test]
fn a_file_of_flags_is_the_same_run_and_the_run_keeps_it() {
    let folder = Folder::new();
    let (saved, checkpoint) =
        (["a", "b", "c"].map(|name| folder.text(&format!("{name}.onnx"))), folder.text("checkpoint"));
    let file = configuration(&folder, "momentum = 0.9\n");
    let of_file = json(&["train", &file, "--checkpoint", &checkpoint, "--save", &saved[0]]);
    assert_eq!(of_file["steps"].as_array().unwrap().len(), 3);
    let (model, data) = (digits_model(), format!("{}#0..150", digits_data()));
    let flags = ["--batch-size", "50", "--input-scale", "0.0625", "--threads", "1", "--learning-rate", "0.05"];
    let others = ["--momentum", "0.9", "--save", &saved[1]];
    success(&[&["train", &model, "--data", &data], flags.as_slice(), &others].concat());
    let kept = folder.text("checkpoint/config.toml");
    let text = std::fs::read_to_string(&kept).unwrap();
    assert!(text.contains("batch-size = 50") && text.contains("momentum = 0.9"), "{text}");
    success(&["train", &kept, "--checkpoint", &folder.text("again"), "--save", &saved[2]]);
    let bytes = saved.map(|path| std::fs::read(path).unwrap());
    assert!(bytes[0] == bytes[1] && bytes[0] == bytes[2]);
    // Flags on the command line take precedence, even over flags that cannot be combined with them.
    let report = json(&["train", &file, "--steps", "1", "--batch-size=25"]);
    assert_eq!((report["steps"].as_array().unwrap().len(), report["batch_size"].as_u64()), (1, Some(25)));
}

#[test]
fn mistakes_in_a_file_are_named() {
    let folder = Folder::new();
    let file = configuration(&folder, "learning_rat = 0.1\n");
    assert_says(&failure(2, &["train", &file]), &["run.toml", "'learning_rat'", "'learning-rate'"]);
    let file = configuration(&folder, "momentum = \"much\"\n");
    assert_says(&failure(2, &["train", &file]), &["--momentum", "much", "run.toml"]);
    assert_says(&failure(2, &["train", &folder.text("none.toml")]), &["none.toml", "No such file"]);
}

#[test]
fn a_dry_run_says_what_a_run_takes_and_leaves_nothing() {
    let folder = Folder::new();
    let file = configuration(&folder, "validate-every = 2\n");
    let validation = format!("{}#150..200", digits_data());
    let files = ["checkpoint", "log.csv", "trained.onnx"].map(|name| folder.text(name));
    let flags = ["--checkpoint", &files[0], "--log", &files[1], "--save", &files[2], "--validate", &validation];
    let text = success(&[&["train", &file, "--dry-run"], flags.as_slice()].concat());
    let wanted =
        ["150 samples", "50 samples", "x: uint8[1, 8, 8]", "least possible", "s/step", "an epoch of 3 steps", " free)"];
    assert_says(&text, &wanted);
    assert_eq!(std::fs::read_dir(folder.path("")).unwrap().count(), 1, "only the file of flags is there");
    let report =
        json(&[&["train", &file, "--dry-run", "--epochs", "2", "--device-memory", "60%"], flags.as_slice()].concat());
    assert_eq!((report["ready"].as_bool(), report["steps_to_train"].as_u64()), (Some(true), Some(6)));
    let [step, epoch, all] = ["step", "epoch", "seconds"].map(|key| match key {
        "seconds" => report["predicted_seconds"].as_f64().unwrap(),
        _ => report[format!("predicted_{key}_seconds")].as_f64().unwrap(),
    });
    assert!(step > 0.0 && (epoch - 3.0 * step).abs() < 1e-9 && (all - 6.0 * step).abs() < 1e-9, "{report}");
    assert!(report["disk"][0]["free_bytes"].as_u64().unwrap() >= report["disk"][0]["needed_bytes"].as_u64().unwrap());
    assert!(report["model"]["parameters"].as_u64().unwrap() > 1000);
    // Only checkpoints that the run writes take space.
    let all = ["--keep-checkpoints", "1000000000000000", "--checkpoint-every", "2"];
    let kept = json(&[&["train", &file, "--dry-run", "--epochs", "2"], flags.as_slice(), &all].concat());
    let bytes = |report: &serde_json::Value| report["disk"][0]["needed_bytes"].as_u64().unwrap();
    assert_eq!(bytes(&kept), bytes(&report) / 2 * 5);
    // Errors are reported as in a real run.
    let dry = ["train", file.as_str(), "--dry-run", "--validate", &validation];
    assert_says(&failure(1, &[dry.as_slice(), &["--simulate-device", "1KiB"]].concat()), &["at least"]);
    assert_says(&failure(1, &[dry.as_slice(), &["--data", "none.npz"]].concat()), &["none.npz"]);
    let below = format!("{file}/below");
    assert_says(&failure(1, &[dry.as_slice(), &["--tensorboard", &below]].concat()), &["below"]);
    assert_says(&failure(2, &[dry.as_slice(), &["--data-memory", "10KiB"]].concat()), &["too small"]);
}

#[test]
fn a_dry_run_takes_paths_of_any_bytes() {
    let folder = Folder::new();
    let model = folder.path("").join(OsStr::from_bytes(b"m\xff.onnx"));
    std::fs::copy(digits_model(), &model).unwrap();
    let mut command = forebay(&["train"]);
    command.arg(&model).args(["--data", &digits_data(), "--batch-size", "50", "--dry-run", "--json"]);
    let output = command.arg("--checkpoint").arg(model.with_extension("checkpoint")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["model"]["path"].as_str().unwrap().ends_with("m\u{fffd}.onnx"), "{report}");
}
