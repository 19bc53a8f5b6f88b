//! Training flags on the digits network: their effects, and resumed runs that match uninterrupted ones.

use crate::common::{self, Folder, assert_says, digits_data, digits_model, failure, json, success};
use serde_json::Value;

/// Arguments that train on few samples: an epoch is three steps.
fn train<'a>(model: &'a str, data: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    let common = ["--batch-size", "50", "--input-scale", "0.0625", "--threads", "1"];
    [&["train", model, "--data", data], common.as_slice(), flags].concat()
}

fn data() -> String {
    format!("{}#0..150", digits_data())
}

/// Returns a number of every step.
fn numbers(report: &Value, key: &str) -> Vec<f32> {
    report["steps"].as_array().unwrap().iter().map(|step| step[key].as_f64().unwrap() as f32).collect()
}

#[test]
fn the_rate_follows_its_schedule_and_the_report_shows_it() {
    let (folder, model, data) = (Folder::new(), digits_model(), data());
    let report = json(&train(&model, &data, &["--steps", "3"]));
    assert_eq!(numbers(&report, "learning_rate"), [0.01; 3]);
    let flags = ["--steps", "6", "--learning-rate", "0.1", "--schedule", "linear", "--warmup", "2"];
    let report = json(&train(&model, &data, &flags));
    assert_eq!(numbers(&report, "learning_rate"), [0.0, 0.05, 0.1, 0.075, 0.05, 0.025]);
    let table = folder.write("rates.csv", b"step,rate\n1,0.5\n3,0.25\n");
    let text = success(&train(&model, &data, &["--steps", "3", "--rates", &table]));
    assert!(text.contains("rate 0.5 ") && text.contains("rate 0.25 "), "{text}");
}

#[test]
fn a_resumed_run_goes_on_with_its_schedule() {
    let (folder, model, data) = (Folder::new(), digits_model(), data());
    // An epoch is three steps, and no epoch is much better than the first.
    let plateau =
        ["--schedule", "plateau", "--plateau-patience", "0", "--plateau-threshold", "0.9", "--plateau-factor", "0.5"];
    for schedule in [["--schedule", "cosine", "--warmup", "3", "--schedule-steps", "7"].as_slice(), &plateau] {
        let run = |steps, flags: &[&str]| json(&train(&model, &data, &[&["--steps", steps], schedule, flags].concat()));
        let saved = [folder.text("whole.onnx"), folder.text("resumed.onnx")];
        let whole = run("10", &["--save", &saved[0]]);
        let checkpoint = folder.text("checkpoint");
        let first = run("5", &["--checkpoint", &checkpoint]);
        let rest = run("10", &["--resume", &checkpoint, "--save", &saved[1]]);
        for key in ["learning_rate", "loss"] {
            let parts = [numbers(&first, key), numbers(&rest, key)].concat();
            assert_eq!(numbers(&whole, key), parts, "{schedule:?}: {key}");
        }
        assert!(std::fs::read(&saved[0]).unwrap() == std::fs::read(&saved[1]).unwrap(), "{schedule:?}");
        let rates = numbers(&whole, "learning_rate");
        assert!(rates[9] < rates[3], "{schedule:?}: {rates:?}");
    }
}

#[test]
fn flags_without_a_meaning_are_refused_before_anything_is_read() {
    for (flags, words) in [
        (["--schedule", "cosine", "--gamma", "0.1"].as_slice(), "--gamma cannot be used with --schedule cosine"),
        (&["--rates", "none.csv"], "none.csv"),
        (&["--schedule", "step"], "--step-size"),
    ] {
        let exit_code = if flags[0] == "--rates" { 1 } else { 2 };
        let error = failure(exit_code, &train("there-is-none.onnx", "none.npz", flags));
        assert_says(&error, &[words]);
    }
}

#[test]
fn limits_groups_and_averages_reach_the_trainer() {
    let (folder, model, data) = (Folder::new(), digits_model(), data());
    let plain = json(&train(&model, &data, &["--steps", "3", "--gradient-norm"]));
    assert!(plain["steps"][0].get("skipped") == Some(&false.into()));
    let norms = numbers(&plain, "gradient_norm");
    let limit = (norms[0] / 2.0).to_string();
    let limited = json(&train(&model, &data, &["--steps", "3", "--clip-global-norm", &limit]));
    assert_eq!(numbers(&limited, "gradient_norm")[0], norms[0]);
    assert_ne!(numbers(&limited, "loss")[2], numbers(&plain, "loss")[2]);
    let files = [folder.text("trained.onnx"), folder.text("average.onnx")];
    let flags = ["--steps", "3", "--ema", "0.9", "--save", &files[0], "--save-ema", &files[1], "--group", "*:lr=0"];
    let frozen = json(&train(&model, &data, &flags));
    assert!(frozen["steps"][0].get("gradient_norm").is_none());
    // Parameters that do not change equal their own average.
    let validation = |file: &str| {
        let report = json(&train(file, &data, &["--steps", "1", "--learning-rate", "0", "--validate", &data]));
        report["validation"]["loss"].as_f64().unwrap()
    };
    assert!((validation(&files[0]) - validation(&files[1])).abs() < 1e-6);
    for (flags, words) in [
        (["--group", "none*:lr=1"].as_slice(), "'none*' matches no parameter for a group"),
        (&["--group", "conv"], "PATTERN:SETTING"),
        (&["--clip-norm", "1", "--clip-value", "1"], "cannot be used with"),
        (&["--save-ema", "x.onnx"], "--ema"),
    ] {
        let arguments = train(&model, &data, flags);
        let output = common::forebay(&arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(words), "{flags:?}: {text}");
    }
}

#[test]
fn accumulation_takes_several_batches_for_a_step_and_goes_on() {
    let (folder, model, data) = (Folder::new(), digits_model(), data());
    let saved = [folder.text("whole.onnx"), folder.text("resumed.onnx")];
    let flags = ["--accumulate", "3", "--momentum", "0.9", "--validate", &data];
    let run =
        |steps, others: &[&str]| json(&train(&model, &data, &[&["--steps", steps], flags.as_slice(), others].concat()));
    let whole = run("4", &["--save", &saved[0]]);
    assert_eq!(whole["batch_size"], 150, "an epoch is one step");
    let checkpoint = folder.text("checkpoint");
    run("2", &["--checkpoint", &checkpoint]);
    let rest = run("4", &["--resume", &checkpoint, "--save", &saved[1], "--simulate-device", "60%", "--no-compare"]);
    assert_eq!(numbers(&whole, "loss")[2..], numbers(&rest, "loss"));
    assert_eq!(whole["validation"], rest["validation"]);
    assert!(std::fs::read(&saved[0]).unwrap() == std::fs::read(&saved[1]).unwrap());
    let error = failure(2, &train(&model, &data, &["--steps", "4", "--resume", &checkpoint]));
    assert_says(&error, &["--accumulate", "3"]);
}

#[test]
fn validation_on_the_way_stops_training_and_keeps_the_best() {
    let (folder, model, data) = (Folder::new(), digits_model(), data());
    let validation = format!("{}#150..200", digits_data());
    let (best, log) = (folder.text("best"), folder.text("log.csv"));
    // Such a large rate destroys what was learned.
    let rates = folder.write("rates.csv", b"1,0.05\n7,30\n");
    let flags = ["--rates", &rates, "--validate", &validation, "--patience", "2", "--epochs", "20", "--on-nan", "skip"];
    let records = ["--best-checkpoint", &best, "--log", &log];
    let report = json(&train(&model, &data, &[flags.as_slice(), &records].concat()));
    let validations: Vec<(u64, f64)> = report["validations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["step"].as_u64().unwrap(), row["loss"].as_f64().unwrap_or(f64::INFINITY)))
        .collect();
    let lowest = validations.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0;
    let last = validations.last().unwrap().0;
    assert_eq!(last, lowest + 6, "two epochs later: {validations:?}");
    assert_eq!(report["steps"].as_array().unwrap().len() as u64, last);
    assert_eq!(forebay::Checkpoint::read(&best).unwrap().step, lowest);
    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(text.lines().filter(|line| line.starts_with("step,")).count() as u64, last);
    assert_eq!(text.lines().filter(|line| line.starts_with("validation,")).count(), validations.len());
    // A run that continues from the best checkpoint appends its records after that step.
    success(&train(&model, &data, &["--steps", "8", "--resume", &best, "--log", &log, "--learning-rate", "0.01"]));
    let text = std::fs::read_to_string(&log).unwrap();
    let steps: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("step,")?.split(',').next()).collect();
    assert_eq!(steps, ["1", "2", "3", "4", "5", "6", "7", "8"], "{text}");
    let error = failure(2, &train(&model, &data, &["--patience", "2"]));
    assert_says(&error, &["--validate"]);
}

#[test]
fn the_last_validation_can_be_the_best() {
    let (folder, model, data) = (Folder::new(), digits_model(), data());
    let (best, checkpoint) = (folder.text("best"), folder.text("checkpoint"));
    // An epoch is three steps, so the only validation is the one at the end.
    let flags = ["--steps", "2", "--validate", &data, "--best-checkpoint", &best, "--checkpoint", &checkpoint];
    success(&train(&model, &data, &flags));
    assert_eq!(forebay::Checkpoint::read(&best).unwrap().step, 2);
    // A run that resumes knows the lowest loss.
    assert_eq!(forebay::Checkpoint::read(&checkpoint).unwrap().position["best"]["step"], 2);
}

#[test]
fn a_run_that_fails_keeps_what_it_has_learned() {
    let (folder, model, data) = (Folder::new(), digits_model(), data());
    let (checkpoint, saved) = (folder.text("checkpoint"), folder.text("saved.onnx"));
    let rates = folder.write("rates.csv", b"1,0.01\n3,1e30\n");
    let run_on = |data: &str, flags: &[&str]| {
        let arguments = train(&model, data, &[&["--steps", "9", "--rates", rates.as_str()], flags].concat());
        let output = common::forebay(&arguments).current_dir(folder.path("")).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        common::texts(&output).1
    };
    let run = |flags: &[&str]| run_on(&data, flags);
    let error = run(&["--checkpoint", &checkpoint]);
    assert_says(&error, &["the loss of step 4 is NaN", "the checkpoint of step 3 is in", &checkpoint, "--resume"]);
    assert_eq!(forebay::Checkpoint::read(&checkpoint).unwrap().step, 3);
    assert!(!run(&[]).contains("the checkpoint of step"), "no results were requested");
    assert!(!run(&["--save", &saved]).contains("the checkpoint of step"), "no folder was specified");
    // The values of step 3 may be the reason why the loss of step 4 is no number.
    let earlier = folder.text("earlier");
    run(&["--checkpoint", &earlier, "--checkpoint-every", "2"]);
    assert_eq!(forebay::Checkpoint::read(&earlier).unwrap().step, 2);
    // They are not the reason why a label is no class.
    let mut labels = [0; 150];
    labels[120] = 10;
    let arrays = [("x", &common::zeros(150)), ("y", &forebay::Tensor::from_i64(&[150], &labels))];
    let bad = folder.archive("bad.npz", &arrays);
    let (checkpoint, flags) = (folder.text("intact"), ["--checkpoint-every", "1", "--save", &saved]);
    let error = run_on(&bad, &[&["--checkpoint", &checkpoint], flags.as_slice()].concat());
    assert_says(&error, &["label 10", "the checkpoint of step 2 is in", &checkpoint]);
    for _ in 0..2 {
        assert_says(&run_on(&bad, &["--save", &saved]), &["the checkpoint of step 2 is in forebay-checkpoint"]);
    }
    assert_eq!(forebay::Checkpoint::read(folder.path("forebay-checkpoint")).unwrap().step, 2);
    let rescued = std::fs::read_dir(folder.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    let rescued = rescued.filter(|name| name.to_string_lossy().starts_with("forebay-checkpoint-"));
    assert_eq!(rescued.count(), 1, "the checkpoint of another run stays");
}

/// The factors in a checkpoint do not show the scale of the adapters.
#[test]
fn adapters_keep_their_scale() {
    let (folder, model, data) = (Folder::new(), digits_model(), data());
    let [checkpoint, saved, exported] = ["checkpoint", "saved.onnx", "exported.onnx"].map(|name| folder.text(name));
    let lora = ["--lora", "*", "--rank", "4"];
    let first = ["--alpha", "32", "--steps", "1", "--checkpoint", &checkpoint, "--save", &saved];
    success(&train(&model, &data, &[&lora[..], &first].concat()));
    let export = ["export", &checkpoint, "--model", &model, "--save", &exported];
    let export = [&export[..], &lora].concat();
    let resume = train(&model, &data, &[&lora[..], &["--steps", "2", "--resume", &checkpoint]].concat());
    for arguments in [&export, &resume] {
        assert_says(&failure(1, arguments), &["trained with alpha 32", "have alpha 4", "--alpha 32"]);
        success(&[arguments.as_slice(), &["--alpha", "32"]].concat());
    }
    assert!(std::fs::read(&saved).unwrap() == std::fs::read(&exported).unwrap());
}

#[test]
fn a_checkpoint_without_adapters_is_not_exported_with_them() {
    let (folder, model, data) = (Folder::new(), digits_model(), data());
    let [checkpoint, exported] = ["checkpoint", "exported.onnx"].map(|name| folder.text(name));
    success(&train(&model, &data, &["--steps", "1", "--checkpoint", &checkpoint]));
    let export = ["export", &checkpoint, "--model", &model, "--save", &exported];
    let error = failure(1, &[&export[..], &["--lora", "*"]].concat());
    assert_says(&error, &["the model has adapters of", "but the checkpoint does not"]);
    assert!(!std::path::Path::new(&exported).exists());
    success(&export);
}

#[test]
fn checkpoints_of_other_programs_resume_with_any_batches() {
    let (folder, model, data) = (Folder::new(), digits_model(), data());
    let checkpoint = folder.text("checkpoint");
    success(&train(&model, &data, &["--steps", "1", "--checkpoint", &checkpoint]));
    let mut written = forebay::Checkpoint::read(&checkpoint).unwrap();
    for position in [Value::Null, serde_json::json!({ "epoch": 0, "batch": 1 })] {
        written.position = position;
        written.write(&checkpoint).unwrap();
        let flags = ["--steps", "2", "--resume", &checkpoint, "--shuffle", "1", "--normalize", "0.5/0.5"];
        assert_eq!(json(&train(&model, &data, &flags))["steps"].as_array().unwrap().len(), 1);
    }
}

/// The first validation has the lowest loss, because the rate is so large.
#[test]
fn a_run_that_stopped_early_resumes_as_stopped() {
    let (folder, model, data) = (Folder::new(), digits_model(), data());
    let validation = format!("{}#150..200", digits_data());
    let checkpoint = folder.text("checkpoint");
    let rates = folder.write("rates.csv", b"1,0.001\n2,30\n");
    let common = ["--rates", &rates, "--validate", &validation, "--validate-every", "1", "--steps", "8"];
    let common = [common.as_slice(), &["--on-nan", "skip"]].concat();
    let run = |flags: &[&str]| {
        let arguments = train(&model, &data, &[&common, flags].concat());
        let output = common::forebay(&arguments).output().unwrap();
        let (text, notes) = common::texts(&output);
        assert!(output.status.success(), "{text}\n{notes}");
        (text, notes)
    };
    let saved = [folder.text("first.onnx"), folder.text("second.onnx")];
    run(&["--patience", "2", "--checkpoint", &checkpoint, "--save", &saved[0]]);
    assert_eq!(forebay::Checkpoint::read(&checkpoint).unwrap().step, 3);
    let (_, notes) = run(&["--patience", "2", "--resume", &checkpoint, "--save", &saved[1]]);
    assert!(notes.contains("stopped after step 3") && notes.contains("--patience above 2 continues"), "{notes}");
    assert!(std::fs::read(&saved[0]).unwrap() == std::fs::read(&saved[1]).unwrap());
    run(&["--patience", "3", "--resume", &checkpoint, "--checkpoint", &checkpoint]);
    assert_eq!(forebay::Checkpoint::read(&checkpoint).unwrap().step, 4);
}

#[test]
fn a_run_that_failed_in_a_validation_resumes_with_it() {
    let (folder, model, data) = (Folder::new(), digits_model(), data());
    let validation = |label: i64| {
        let mut labels = [0; 50];
        labels[7] = label;
        let labels = forebay::Tensor::from_i64(&[50], &labels);
        folder.archive("validation.npz", &[("x", &common::zeros(50)), ("y", &labels)])
    };
    let [log, checkpoint] = ["log.csv", "checkpoint"].map(|name| folder.text(name));
    // 10 is not a class.
    let held_out = validation(10);
    let flags =
        ["--steps", "5", "--validate", &held_out, "--validate-every", "2", "--log", &log, "--checkpoint", &checkpoint];
    let error = failure(1, &train(&model, &data, &flags));
    assert_says(&error, &["label 10", "the checkpoint of step 2 is in", &checkpoint]);
    validation(9);
    // The second time, there is nothing to train, and the validation at the end is in the record already.
    for _ in 0..2 {
        success(&train(&model, &data, &[&flags[..], &["--resume", &checkpoint]].concat()));
        let text = std::fs::read_to_string(&log).unwrap();
        let steps = text.lines().filter_map(|line| line.strip_prefix("validation,")?.split(',').next());
        assert_eq!(steps.collect::<Vec<_>>(), ["2", "4", "5"], "{text}");
    }
}
