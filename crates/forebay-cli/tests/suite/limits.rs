//! Small machines and endless files: an error with the limit and a remedy, never a kill or an abort.

use std::fs::File;
use std::process::{Command, Output};

use crate::common::group::{Group, after};
use crate::common::{
    Folder, assert_says, digits_data, digits_model, example, failure, forebay, json, least_kib, one_node_model,
    success, texts,
};
use crate::common::{message, number};

/// Returns the error message; the program must have ended with one error and exit code 1.
fn refusal(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{:?}: {error}", output.status);
    assert!(error.lines().last().is_some_and(|line| line.starts_with("error: ")), "{error}");
    assert!(!error.contains("panicked"), "{error}");
    error
}

/// From an address space that does not even hold the threads' stacks to one that is large enough.
#[test]
fn every_small_address_space_is_an_error_or_enough() {
    let unet = example("brain/unet3d.onnx");
    let (mut named, mut last_words, mut planned) = (0, 0, 0);
    for kib in (40_000..160_000).step_by(1000) {
        let output = after(&format!("ulimit -v {kib}"), &["plan", &unet, "--train", "--threads", "2"]);
        // Below this, the system cannot load the program.
        if output.stderr.is_empty() && !output.status.success() || output.status.code() == Some(127) {
            assert_eq!(planned, 0, "{kib} KiB: {:?}", output.status);
            continue;
        }
        if output.status.success() {
            planned += 1;
            if planned == 3 {
                break;
            }
            continue;
        }
        let error = refusal(&output);
        named += usize::from(error.contains("(RLIMIT_AS, ulimit -v), "));
        last_words += usize::from(error.contains("out of memory: the system refused "));
    }
    assert!(planned > 0 && named > 0 && last_words > 0, "{planned} planned, {named} named, {last_words} last words");
}

#[test]
fn threads_that_the_system_does_not_give_are_said_to_be_threads() {
    // A thread's stack counts as data, too.
    let output = after("ulimit -d 16000", &["plan", &digits_model(), "--batch-size", "2", "--threads", "2"]);
    assert_says(&refusal(&output), &["the system refused to provide 2 threads", "--threads"]);
}

/// An abort for a reason other than memory stays an abort.
#[test]
fn a_signal_to_abort_aborts() {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::ExitStatusExt;
    let (model, data) = (digits_model(), digits_data());
    let mut train = forebay(&["train", &model, "--data", &data, "--batch-size", "50", "--steps", "1000000"]);
    let mut child = train.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(Command::new("kill").args(["-ABRT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().signal(), Some(6), "{line}");
}

#[test]
fn device_memory_beyond_the_address_space_names_the_limit() {
    let (unet, data) = (example("brain/unet3d.onnx"), example("brain"));
    let train = ["train", &unet, "--data", &data, "--steps", "1", "--threads", "2", "--no-compare"];
    let error = refusal(&after("ulimit -v 400000", &[&train[..], &["--memory-limit", "none"]].concat()));
    let limit = "of 390.6 MiB are left (RLIMIT_AS, ulimit -v)";
    assert_says(&error, &[limit, "would be needed", "--device-memory", "--spill-dir"]);
}

#[test]
fn a_control_group_is_the_machine() {
    let Some(group) = Group::new(300 << 20) else { return };
    let (unet, data) = (example("brain/unet3d.onnx"), example("brain"));
    let train = ["train", &unet, "--data", &data, "--steps", "1", "--threads", "2", "--no-compare"];
    let Some(output) = group.run(&[&train[..], &["--memory-limit", "none"]].concat()) else { return };
    let run = |arguments: &[&str]| group.run(arguments).expect("a process in the group");
    let (left, limit) = ("of 300.0 MiB are left (control group /", format!(": {}), ", group.limit));
    assert_says(&refusal(&output), &[left, &limit, "64.0 MiB of which must stay free", "--device-memory"]);
    // The remedy that the error suggests.
    let spill = Folder::new();
    let (spill_dir, budget) = (spill.text(""), "64MiB");
    let ways = ["--device-memory", budget, "--host-memory", budget, "--spill-dir", &spill_dir];
    let output = run(&[&train[..], &ways].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // A model and an input that would fill it. They are sparse, so only reading them takes memory.
    let folder = Folder::new();
    File::create(folder.path("large.onnx")).unwrap().set_len(1 << 30).unwrap();
    let error = refusal(&run(&["plan", &folder.text("large.onnx")]));
    assert_says(&error, &["large.onnx", "2.0 GiB would", left, &limit]);
    let wide = folder.write("wide.onnx", &one_node_model("Relu", "r", &[1 << 28]));
    let input = folder.write("x.npy", &npy_header(1 << 28));
    File::options().write(true).open(&input).unwrap().set_len((1 << 30) + 128).unwrap();
    let error = refusal(&run(&["run", &wide, "--input", &format!("x={input}")]));
    assert_says(&error, &["x.npy", "would be needed", left, &limit]);
    let devices = run(&["devices"]);
    assert_says(&String::from_utf8_lossy(&devices.stdout), &["300 MiB", group.limit]);
}

/// The header of a NumPy file of float32, 128 bytes long.
fn npy_header(count: u64) -> Vec<u8> {
    let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({count},), }}");
    [b"\x93NUMPY\x01\x00\x76\x00".as_slice(), format!("{text:117}\n").as_bytes()].concat()
}

#[test]
fn endless_files_end_in_an_error() {
    let folder = Folder::new();
    let (model, data) = (digits_model(), digits_data());
    let zero = folder.text("zero");
    std::os::unix::fs::symlink("/dev/zero", &zero).unwrap();
    std::fs::create_dir(folder.path("checkpoint")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", folder.path("checkpoint/checkpoint.json")).unwrap();
    let pipe = folder.text("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let train = ["train", &model, "--data", &data, "--batch-size", "50", "--steps", "1"];
    let ends = "it does not end within the limit of";
    for (arguments, words) in [
        (vec!["plan", &zero], ends),
        (vec!["place", &zero], ends),
        (vec!["replay", &zero], ends),
        (vec!["plan", &model, "--batch-size", "2", "--machine", &zero], ends),
        (vec!["plan", &model, "--batch-size", "2", "--costs", &zero], ends),
        ([&train[..], &["--resume", &folder.text("checkpoint")]].concat(), ends),
        ([&train[..], &["--device-memory-file", &zero]].concat(), "not a regular file"),
        ([&train[..], &["--device-memory-file", &pipe]].concat(), "not a regular file"),
        (vec!["train", &model, "--batch-size", "2", "--data", &zero], "not a regular file"),
        (vec!["run", &model, "--input", &format!("x={pipe}")], "not a regular file"),
        (vec!["run", &model, "--inputs", &pipe], "not a regular file"),
    ] {
        assert_says(&failure(1, &arguments), &[words]);
    }
    let huge = folder.text("huge");
    File::create(&huge).unwrap().set_len(1 << 42).unwrap();
    assert_says(&failure(1, &["plan", &huge]), &["huge", "8.0 TiB would be needed"]);
    for arguments in [vec!["place", &huge], vec!["replay", &huge], vec!["plan", &model, "--costs", &huge]] {
        assert_says(&failure(1, &arguments), &["huge", "it has 4.0 TiB, more than the limit of"]);
    }
}

#[test]
fn more_threads_than_help_are_not_made() {
    let (model, data) = (digits_model(), digits_data());
    let train = ["train", &model, "--data", &data, "--batch-size", "50", "--steps", "1", "--threads", "5000"];
    let output = forebay(&train).output().unwrap();
    let (said, warned) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{warned}");
    assert_says(&said, &["step 1/1"]);
    let count = std::thread::available_parallelism().unwrap().get().max(256);
    assert_says(&warned, &["warning: --threads 5000", &format!("using {count} threads")]);
}

#[test]
fn names_of_files_and_nodes_tell_the_terminal_nothing() {
    let folder = Folder::new();
    let name = "\u{1b}[31mred\u{7f}\u{9b}2J";
    let unknown = folder.write("model\u{1b}]0;x\u{7}.onnx", &one_node_model("Teleport", name, &[2]));
    let known = folder.write("known\u{1b}.onnx", &one_node_model("Relu", name, &[2]));
    let runs = [
        vec!["plan", &unknown],
        vec!["plan", &unknown[..unknown.len() - 1]],
        vec!["plan", &known, "--commands"],
        vec!["plan", &known, "--commands", "--json"],
    ];
    let mut seen = String::new();
    for arguments in runs {
        let output = forebay(&arguments).output().unwrap();
        let all = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!all.contains(|c: char| c.is_control() && !"\n\t".contains(c)), "{all:?}");
        seen.push_str(&all);
    }
    assert_says(&seen, &["\\u001b[31mred\\u007f\\u009b2J", "model\\u001b]0;x\\u0007"]);
    let report = json(&["plan", &known, "--commands"]);
    let commands = report["commands"].as_array().unwrap();
    assert!(commands.iter().any(|line| line.as_str().unwrap().contains(name)), "{commands:?}");
    let picture = folder.text("picture.svg");
    success(&["plan", &known, "--memory-svg", &picture]);
    let svg = std::fs::read_to_string(picture).unwrap();
    assert!(!svg.contains(|c: char| c.is_control() && c != '\n'), "{svg}");
}

/// A model that consists only of constants.
#[test]
fn a_model_without_inputs_runs_without_them() {
    let folder = Folder::new();
    let tensor = [number(1, 3), number(2, 1), message(8, b"c"), message(9, &[0, 0, 128, 63].repeat(3))].concat();
    let info =
        [message(1, b"y"), message(2, &message(1, &[number(1, 1), message(2, &message(1, &number(1, 3)))].concat()))];
    let node = [message(1, b"c"), message(2, b"y"), message(4, b"Neg")].concat();
    let graph = [message(1, &node), message(2, b"graph"), message(5, &tensor), message(12, &info.concat())].concat();
    let model = [number(1, 8), message(7, &graph), message(8, &[message(1, b""), number(2, 17)].concat())].concat();
    let model = folder.write("constant.onnx", &model);
    assert_says(&success(&["run", &model, "--output-dir", &folder.text("out")]), &["y: float32[3]"]);
    let y = forebay::data::npy::read(&folder.path("out/y.npy")).unwrap();
    assert_eq!(y, forebay::Tensor::from_f32(&[3], &[-1.0; 3]));
    assert_says(&failure(2, &["run", &digits_model()]), &["input 'x: float32[", "--input NAME=FILE.npy"]);
}

#[test]
fn a_budget_that_is_too_small_for_validation_is_named_before_the_first_step() {
    let golden = |file: &str| example(&format!("../testdata/golden/unet3d/{file}"));
    let (unet, data) = (golden("model.onnx"), golden("inputs.npz"));
    let run = |budget: &str| {
        let flags = ["--steps", "1", "--simulate-device", budget, "--validate", &data, "--no-compare"];
        forebay(&[&["train", &unet, "--data", &data], flags.as_slice()].concat()).output().unwrap()
    };
    // Training needs part of the volume at a time; validation needs the predictions for all of it.
    let tight = run("2MiB");
    let (steps, text) = texts(&tight);
    assert!(tight.status.code() == Some(1) && !steps.contains("step 1/1"), "{steps}{text}");
    assert_says(&text, &["error: validation on ", "--simulate-device "]);
    let flags = ["--simulate-device", "2MiB", "--validate", &data, "--dry-run"];
    assert_says(&failure(1, &[&["train", &unet, "--data", &data], flags.as_slice()].concat()), &["validation on "]);
    let enough = run("6MiB");
    let text = texts(&enough).1;
    assert!(enough.status.success() && !text.contains("warning"), "{text}");
}

/// Training alone needs less of the host than validation, whose predictions are copied there.
#[test]
fn the_host_budget_that_a_refusal_names_is_enough_for_validation() {
    let golden = |file: &str| example(&format!("../testdata/golden/tiny-gpt/{file}"));
    let (model, data) = (golden("model.onnx"), golden("inputs.npz"));
    let train = ["train", &model, "--data", &data, "--class-axis", "-1", "--steps", "1", "--no-compare"];
    let train = [&train[..], &["--simulate-device", "64MiB"]].concat();
    let named = |flags: &[&str]| {
        let error = failure(1, &[&train[..], &["--host-memory", "1MiB"], flags].concat());
        least_kib(&error, "pass at least --host-memory ")
    };
    let (alone_kib, kib) = (named(&[]), named(&["--validate", &data]));
    assert!(alone_kib < kib, "{alone_kib} {kib}");
    success(&[&train[..], &["--validate", &data, "--host-memory", &format!("{kib}KiB")]].concat());
}
