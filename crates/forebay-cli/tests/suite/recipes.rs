//! Losses, optimizers and metrics from the command line.

use crate::common::{Folder, assert_says, digits_data, digits_model, failure, json, losses, success};
use forebay::Tensor;
use forebay::data::npz;
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder};
use serde_json::Value;

#[test]
fn a_loss_and_an_optimizer_with_numbers_train_and_are_measured() {
    let (model, data) = (digits_model(), digits_data());
    let (all, held_out) = (format!("{data}#0..1500"), format!("{data}#1500..1797"));
    let flags = ["train", &model, "--data", &all, "--batch-size", "50", "--input-scale", "0.0625", "--steps", "12"];
    let loss = ["--loss", "focal", "--focal-gamma", "1", "--class-weights", "1,1,1,1,1,2,2,2,2,2"];
    let optimizer = ["--optimizer", "lion", "--learning-rate", "0.001", "--weight-decay", "0.1"];
    let metrics = ["--validate", &held_out, "--metrics", "top3,f1,auc,perplexity,confusion"];
    let flags = [flags.as_slice(), &loss, &optimizer, &metrics].concat();
    let report = json(&flags);
    let losses = losses(&report);
    assert!(losses[11] < losses[0], "{losses:?}");
    let (validation, found) = (&report["validation"], &report["validation"]["metrics"]);
    let number = |name: &str| found[name].as_f64().unwrap();
    let accuracy = validation["accuracy"].as_f64().unwrap();
    assert!(number("top3") >= accuracy && number("auc") > 0.5 && number("f1") > 0.0, "{validation}");
    assert!(number("perplexity") > 1.0);
    let rows = found["confusion"].as_array().unwrap();
    let count: u64 = rows.iter().flat_map(|row| row.as_array().unwrap()).map(|count| count.as_u64().unwrap()).sum();
    assert_eq!((rows.len(), count), (10, 297));
    // The accuracy has a line already.
    let text = success(&[&flags[..flags.len() - 1], &["top3,accuracy,confusion"]].concat());
    assert_eq!(text.matches("accuracy ").count(), 1, "{text}");
    assert!(text.contains("top3 ") && text.contains("label 9 predicted as "), "{text}");
}

/// The flags with which optimizers take the steps of PyTorch's in testdata/training/optimizers.json.
#[test]
fn optimizers_take_the_steps_of_pytorch_and_resume() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/training/optimizers.json");
    let table: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let floats = |list: &Value| -> Vec<f32> {
        list.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
    };
    let graph = GraphBuilder::two_layers(|name| floats(&table["start"][name]));
    let folder = Folder::new();
    let model = folder.write("model.onnx", &graph.build());
    let rows = |name: &str| -> Vec<f32> {
        table["batches"].as_array().unwrap().iter().flat_map(|batch| floats(&batch[name])).collect()
    };
    let (x, y) = (Tensor::from_f32(&[15, 4], &rows("x")), Tensor::from_f32(&[15, 2], &rows("y")));
    let data = folder.archive("data.npz", &[("x", &x), ("labels", &y)]);
    let common = ["train", &model, "--data", &data, "--loss", "mse"];
    let sgd = "sgd --momentum 0.8 --dampening 0.4 --learning-rate 0.05 --weight-decay 0.1";
    let amsgrad = "--amsgrad --learning-rate 0.05 --beta1 0.8 --beta2 0.5 --epsilon 1e-3 --weight-decay 0.1";
    for (case, optimizer) in [
        ("damped_sgd", sgd),
        ("ams_grad", &format!("adam {amsgrad}")),
        ("ams_grad_w", &format!("adamw {amsgrad}")),
        ("ada_max", "adamax --learning-rate 0.05 --beta1 0.8 --beta2 0.5 --epsilon 1e-3 --weight-decay 0.1"),
        (
            "n_adam",
            "nadam --learning-rate 0.05 --beta1 0.8 --beta2 0.95 --epsilon 1e-3 --weight-decay 0.1 --momentum-decay 0.1",
        ),
        ("n_adam_w", "nadam --learning-rate 0.05 --weight-decay 0.1 --decoupled"),
        ("r_adam", "radam --learning-rate 0.05 --beta1 0.8 --beta2 0.9 --epsilon 1e-3 --weight-decay 0.1"),
        ("r_adam_w", "radam --learning-rate 0.01 --weight-decay 0.1 --decoupled"),
        ("adadelta", "adadelta --beta2 0.8 --epsilon 1e-3 --weight-decay 0.1"),
    ] {
        let run = folder.text(case);
        let flags: Vec<&str> = ["--optimizer"].into_iter().chain(optimizer.split(' ')).collect();
        let found = losses(&json(&[common.as_slice(), &flags, &["--steps", "5"]].concat()));
        let expected = table["cases"].as_array().unwrap().iter().find(|found| found["name"] == case).unwrap();
        let expected = floats(&expected["losses"]);
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            let difference = (found - f64::from(expected)).abs();
            assert!(difference <= 2e-5 * f64::from(expected).max(1.0), "{case}: {found}, not {expected}");
        }
        // The checkpoint's own file of flags continues it.
        success(&[common.as_slice(), &flags, &["--steps", "2", "--checkpoint", &run]].concat());
        let again = ["train", &format!("{run}/config.toml"), "--steps", "5", "--resume", &run];
        assert_eq!(losses(&json(&again)), found[2..], "{case}");
    }
}

/// The ten classes, each as ten numbers.
#[test]
fn targets_have_the_shape_of_the_output() {
    let folder = Folder::new();
    let mut archive = npz::Archive::open(digits_data().as_ref()).unwrap();
    let (x, y) = (archive.read("x").unwrap(), archive.read("y").unwrap().to_i64().unwrap());
    let hot: Vec<f32> =
        y.iter().flat_map(|&label| (0..10).map(move |class| f32::from(u8::from(class == label)))).collect();
    let targets = Tensor::from_f32(&[y.len() as u64, 10], &hot);
    let data = folder.archive("targets.npz", &[("x", &x), ("y", &targets)]);
    let model = digits_model();
    let flags = ["train", &model, "--data", &data, "--batch-size", "50", "--input-scale", "0.0625", "--steps", "8"];
    for (loss, metric, optimizer, rate) in [
        (&["--loss", "bce", "--pos-weight", "2"][..], "accuracy", "adafactor", "0.01"),
        (&["--loss", "binary-focal"], "auc", "rmsprop", "0.001"),
        (&["--loss", "huber", "--delta", "0.5"], "mae", "adagrad", "0.01"),
        (&["--loss", "dice", "--multi-label"], "f1", "lamb", "0.01"),
        (&["--loss", "bce"], "accuracy", "adam8bit", "0.01"),
        (&["--loss", "bce"], "accuracy", "adamw8bit", "0.01"),
    ] {
        let rest = ["--learning-rate", rate, "--optimizer", optimizer, "--validate", &data, "--metrics", metric];
        let report = json(&[&flags, loss, &rest].concat());
        let losses = losses(&report);
        assert!(losses[7] < losses[0], "{loss:?}: {losses:?}");
        assert!(report["validation"]["metrics"][metric].as_f64().is_some(), "{loss:?}: {}", report["validation"]);
    }
}

#[test]
fn flags_that_mean_nothing_are_refused() {
    let (model, data) = (digits_model(), digits_data());
    let refused = |flags: &[&str]| failure(2, &[&["train", &model, "--data", &data], flags].concat());
    for (flags, words) in [
        (&["--loss", "mse", "--delta", "2"][..], &["--delta cannot be used with --loss mse", "huber"][..]),
        (&["--loss", "l1", "--class-axis", "1"], &["--class-axis cannot be used with --loss l1"]),
        (&["--focal-gamma", "2"], &["--focal-gamma", "softmax-cross-entropy"]),
        (&["--loss", "cosine", "--margin", "0.5"], &["--margin", "--pair-output"]),
        (&["--loss", "dice-ce", "--parts", "1,2,3"], &["--parts requires two factors"]),
        (&["--optimizer", "lion", "--epsilon", "1"], &["--epsilon cannot be used with --optimizer lion"]),
        (&["--optimizer", "adamw8bit", "--centered"], &["--centered cannot be used with --optimizer adamw8bit"]),
        (&["--optimizer", "sgd", "--centered"], &["--centered cannot be used with --optimizer sgd"]),
        (&["--optimizer", "adafactor", "--update-threshold", "0.5"], &["--update-threshold at least 1"]),
        (&["--optimizer", "adam8bit", "--amsgrad"], &["--amsgrad cannot be used with --optimizer adam8bit"]),
        (
            &["--optimizer", "radam", "--momentum-decay", "1"],
            &["--momentum-decay cannot be used with --optimizer radam"],
        ),
        (&["--optimizer", "adadelta", "--beta1", "0.5"], &["--beta1 cannot be used with --optimizer adadelta"]),
        (&["--dampening", "0.5"], &["--momentum"]),
        (&["--momentum", "0.9", "--nesterov", "--dampening", "0.5"], &["--nesterov", "--dampening", "leave out one"]),
        (&["--validate", &data, "--metrics", "mae"], &["'mae' does not fit", "accuracy"]),
        (&["--validate", &data, "--metrics", "best"], &["unknown metric 'best'"]),
    ] {
        assert_says(&refused(flags), words);
    }
    let weights = failure(1, &["train", &model, "--data", &data, "--batch-size", "50", "--class-weights", "1,2"]);
    assert_says(&weights, &["2 weights were given for 10 classes", "--class-weights"]);
}

/// The digits network with three classes instead of ten, trained with decreasing rates and two losses on one output; the checkpoints of the
/// last two steps remain, with the models that they hold.
#[test]
fn a_new_head_trains_and_its_last_checkpoints_stay() {
    let folder = Folder::new();
    let mut archive = npz::Archive::open(digits_data().as_ref()).unwrap();
    let (x, y) = (archive.read("x").unwrap(), archive.read("y").unwrap().to_i64().unwrap());
    let thirds: Vec<i64> = y.iter().map(|label| label % 3).collect();
    let labels = Tensor::from_i64(&[y.len() as u64], &thirds);
    let scores: Vec<f32> =
        thirds.iter().flat_map(|&third| (0..3).map(move |i| f32::from(u8::from(i == third)))).collect();
    let scores = Tensor::from_f32(&[y.len() as u64, 3], &scores);
    let data = folder.archive("thirds.npz", &[("x", &x), ("y", &labels), ("scores", &scores)]);
    let (model, run, saved, exported) =
        (digits_model(), folder.text("run"), folder.text("saved.onnx"), folder.text("exported.onnx"));
    let head = ["--replace", "/fc/Gemm", "--classes", "3", "--replace-seed", "5"];
    let common = ["train", &model, "--data", &data, "--batch-size", "50", "--input-scale", "0.0625", "--threads", "1"];
    let more = ["--also-loss", "logits mse weight=0.5 labels=scores", "--loss-weight", "0.5", "--layer-decay", "0.8"];
    let groups = ["--group", "fc.*:lr=2,schedule=step,step-size=3,gamma=0.5", "--learning-rate", "0.05"];
    let kept =
        ["--steps", "6", "--checkpoint", &run, "--checkpoint-every", "2", "--keep-checkpoints", "2", "--save", &saved];
    let report = json(&[common.as_slice(), &head, &more, &groups, &kept].concat());
    let found = losses(&report);
    assert!(found[5] < found[0], "{found:?}");
    let last = format!("{run}/step-00000006");
    assert!(!std::path::Path::new(&format!("{run}/step-00000002")).exists());
    assert!(std::path::Path::new(&format!("{run}/step-00000004/config.toml")).exists());
    success(&[&["export", &last, "--model", &model, "--save", &exported][..], &head].concat());
    assert_eq!(std::fs::read(&saved).unwrap(), std::fs::read(&exported).unwrap());
    let error = failure(1, &["export", &last, "--model", &model, "--save", &exported]);
    assert_says(&error, &["does not match the checkpoint", "fc."]);
    // Continuing from the checkpoint before gives the same last step, bit for bit.
    let before = format!("{run}/step-00000004");
    let again = [common.as_slice(), &head, &more, &groups, &["--steps", "6", "--resume", &before]].concat();
    assert_eq!(losses(&json(&again)), found[4..]);

    let refused = |flags: &[&str]| failure(2, &[&["train", &model, "--data", &data], flags].concat());
    for (flags, words) in [
        (&["--replace", "head", "--classes", "3"][..], &["--replace", "no layer 'head'", "/fc/Gemm"][..]),
        (&["--replace", "/fc/Gemm"], &["--classes"]),
        (&["--also-loss", "logits mse delta=1"], &["--also-loss 'logits mse delta=1'", "--delta cannot be used with"]),
        (&["--layer-decay", "2"], &["--layer-decay", "at most 1"]),
        (&["--group", "fc.*:schedule=plateau"], &["not to a group"]),
        (&["--keep-checkpoints", "2"], &["--checkpoint"]),
    ] {
        assert_says(&refused(flags), words);
    }
}

/// Sequences of five places are mapped to up to two labels, with and without the number of places that count.
#[test]
fn sequences_of_labels_are_learned_in_16_bits() {
    let folder = Folder::new();
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["N", "5", "4"])
        .floats("w", &[4, 4], &[0.1, -0.2, 0.3, 0.0, 0.2, 0.1, -0.1, 0.3, 0.0, 0.2, 0.1, -0.3, 0.1, 0.0, 0.2, 0.1])
        .node("MatMul", &["x", "w"], &["logits"])
        .output("logits", FLOAT, &["N", "5", "4"]);
    let model = folder.text("sequences.onnx");
    std::fs::write(&model, graph.build()).unwrap();
    let x = Tensor::from_f32(&[8, 5, 4], &(0..160).map(|i| ((i * 7 % 11) as f32 - 5.0) / 5.0).collect::<Vec<_>>());
    let labels = Tensor::from_i64(
        &[8, 2],
        &(0..8).flat_map(|i| [1 + i % 3, if i % 2 == 0 { -1 } else { 2 }]).collect::<Vec<_>>(),
    );
    let lengths = Tensor::from_i64(&[8], &[5, 4, 5, 5, 3, 5, 4, 5]);
    let data = folder.archive("sequences.npz", &[("x", &x), ("y", &labels), ("lengths", &lengths)]);
    let common = ["train", &model, "--data", &data, "--batch-size", "4", "--steps", "12", "--loss", "ctc"];
    let flags = ["--learning-rate", "0.5", "--label-length", "2", "--zero-infinity"];
    for more in
        [&["--precision", "bf16"][..], &["--precision", "f16", "--float32", "w"], &["--input-lengths", "lengths"]]
    {
        let found = losses(&json(&[common.as_slice(), &flags, more].concat()));
        assert!(found[10] < 0.9 * found[0] && found.iter().all(|loss| loss.is_finite()), "{more:?}: {found:?}");
    }
    assert_says(&failure(2, &common), &["--label-length"]);
    let wrong = [common.as_slice(), &["--label-length", "2", "--blank", "7"]].concat();
    assert_says(&failure(1, &wrong), &["with blank 7, label length 2", "the blank must be one of 4 classes"]);
}

#[test]
fn the_validation_loss_does_not_depend_on_the_batch_size() {
    let folder = Folder::new();
    let logits = Tensor::from_f32(&[4, 2], &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0, 0.0]);
    let labels = Tensor::from_i64(&[4], &[0, 0, 0, 1]);
    let data = folder.archive("data.npz", &[("x", &logits), ("y", &labels)]);
    let graph = GraphBuilder::new().input("x", FLOAT, &["n", "2"]).floats("w", &[2, 2], &[1.0, 0.0, 0.0, 1.0]);
    let graph = graph.node("MatMul", &["x", "w"], &["out"]).output("out", FLOAT, &["n", "2"]);
    let model = folder.write("model.onnx", &graph.build());
    // (3 ln 2 + 9 ln(1 + e^3)) / 12, and the same with each logarithm times the square of how improbable the label is.
    let (half, wrong) = (2f64.ln(), 3f64.exp().ln_1p());
    let improbable = 1.0 - (-wrong).exp();
    let expected =
        [(3.0 * half + 9.0 * wrong) / 12.0, (3.0 * half * 0.25 + 9.0 * wrong * improbable * improbable) / 12.0];
    for (loss, expected) in ["softmax-cross-entropy", "focal"].into_iter().zip(expected) {
        for batch_size in ["1", "3", "4"] {
            let flags =
                ["train", &model, "--data", &data, "--validate", &data, "--loss", loss, "--class-weights", "1,9"];
            let rest = ["--batch-size", batch_size, "--steps", "1", "--learning-rate", "0"];
            let report = json(&[flags.as_slice(), &rest].concat());
            let found = report["validation"]["loss"].as_f64().unwrap();
            assert!((found - expected).abs() < 1e-5, "{loss}, batches of {batch_size}: {found}, {expected}");
        }
    }
}
