//! How samples are read while the digits network trains: from files, ahead of time, augmented, in parts, and despite damage.

use crate::common::{Folder, assert_says, digits_data, digits_model, example, failure, json, success};
use forebay::data::{npy, npz};
use forebay_testing::onnx;
use forebay_testing::onnx::builder::GraphBuilder;
use serde_json::Value;

/// Digits as `.npy` files in a folder and as an uncompressed archive.
fn copies(folder: &Folder, count: u64) -> [String; 2] {
    let mut archive = npz::Archive::open(digits_data().as_ref()).unwrap();
    let rows: Vec<u64> = (0..count).collect();
    let (x, y) = (archive.read("x").unwrap().rows(&rows), archive.read("y").unwrap().rows(&rows));
    std::fs::create_dir(folder.path("arrays")).unwrap();
    npy::write(&folder.path("arrays/x.npy"), &x).unwrap();
    npy::write(&folder.path("arrays/y.npy"), &y).unwrap();
    [folder.text("arrays"), folder.archive("plain.npz", &[("x", &x), ("y", &y)])]
}

fn train<'a>(model: &'a str, data: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    let common = ["--batch-size", "50", "--threads", "1", "--learning-rate", "0.01", "--momentum", "0.9"];
    [&["train", model, "--data", data], common.as_slice(), flags].concat()
}

#[test]
fn a_run_that_goes_on_in_an_epoch_sees_the_very_next_sample_however_it_reads() {
    let (folder, model) = (Folder::new(), digits_model());
    let [arrays, plain] = copies(&folder, 150);
    // 120 samples: three steps, the last of which is smaller.
    let flags = ["--shuffle", "3", "--augment", "crop:1,rotate:10,noise:0.1,cutout:0.2", "--normalize", "measured"];
    let flags = [flags.as_slice(), &["--split", "80/20"]].concat();
    let run = |data: &str, more: &[&str]| json(&train(&model, data, &[flags.as_slice(), more].concat()));
    let saved = ["whole", "streamed", "resumed"].map(|name| folder.text(&format!("{name}.onnx")));
    let whole = run(&plain, &["--steps", "8", "--save", &saved[0]]);
    assert_eq!(whole["validation"]["count"], 30);
    let streamed = run(&arrays, &["--steps", "8", "--save", &saved[1], "--data-memory", "60KiB"]);
    assert_eq!(whole["validation"], streamed["validation"]);
    assert!(streamed["data_seconds"].as_f64().unwrap() > 0.0);
    let checkpoint = folder.text("checkpoint");
    run(&arrays, &["--steps", "4", "--checkpoint", &checkpoint, "--data-memory", "60KiB"]);
    run(&arrays, &["--steps", "8", "--resume", &checkpoint, "--save", &saved[2]]);
    let bytes = saved.map(|path| std::fs::read(path).unwrap());
    assert!(bytes[0] == bytes[1], "streamed");
    assert!(bytes[0] == bytes[2], "resumed");
    // The flags that determine batches must stay the same.
    let other = train(&model, &arrays, &["--steps", "8", "--resume", &checkpoint, "--split", "80/20"]);
    assert_says(&failure(2, &other), &["--augment", "the checkpoint was made with"]);
}

#[test]
fn a_bound_that_is_too_small_and_packed_arrays_are_refused() {
    let (folder, model) = (Folder::new(), digits_model());
    let [arrays, _] = copies(&folder, 100);
    let error = failure(2, &train(&model, &arrays, &["--steps", "1", "--data-memory", "1KiB"]));
    assert_says(&error, &["--data-memory 1 KiB is too small", "12.89 KiB"]);
    let (packed, x) = (folder.path("packed.npz"), npy::read(&folder.path("arrays/x.npy")).unwrap());
    npz::write(&packed, &[("x", &x), ("y", &npy::read(&folder.path("arrays/y.npy")).unwrap())], true).unwrap();
    let error = failure(1, &train(&model, packed.to_str().unwrap(), &["--steps", "1", "--data-memory", "40KiB"]));
    assert_says(&error, &["packed.npz[x]", "numpy.savez", "6400 bytes"]);
    assert_says(&failure(2, &train(&model, &arrays, &["--split", "90/20"])), &["90/10"]);
}

#[test]
fn damaged_images_are_named_or_left_out_and_counted() {
    let (folder, model) = (Folder::new(), digits_model());
    for class in 0..2 {
        std::fs::create_dir(folder.path(&format!("class{class}"))).unwrap();
        for number in 0..6 {
            let picture = image::GrayImage::from_pixel(8, 8, image::Luma([40 * class + number]));
            picture.save(folder.path(&format!("class{class}/{number}.png"))).unwrap();
        }
    }
    folder.write("class1/3.png", b"\x89PNG\r\n\x1a\nand nothing more");
    let data = folder.text("");
    let flags = ["--batch-size", "4", "--epochs", "2", "--threads", "1"];
    let command = [&["train", &model, "--data", &data], flags.as_slice()].concat();
    assert_says(&failure(1, &command), &["class1/3.png", "not a readable image"]);
    let report = json(&[command.as_slice(), &["--skip-bad", "1"]].concat());
    assert_eq!(report["steps"].as_array().unwrap().len(), 6);
    assert!(report["bad_samples"][0].as_str().unwrap().contains("class1/3.png"), "{report}");
    let text = success(&[command.as_slice(), &["--skip-bad", "1"]].concat());
    assert_says(&text, &["1 samples that cannot be read", "class1/3.png", "waited for data"]);
    folder.write("class0/0.png", b"nor this");
    assert_says(&failure(1, &[command.as_slice(), &["--skip-bad", "1"]].concat()), &["2 samples", "allows at most 1"]);
}

#[cfg(feature = "parquet")]
#[test]
fn damaged_parquet_files_are_named_without_the_message_of_a_panic() {
    let folder = Folder::new();
    let mut bytes = std::fs::read(example("../testdata/data/numbers_plain.parquet")).unwrap();
    // The type of the first page, a dictionary, on which the crate that reads the file panics.
    bytes[5] = 2;
    let data = folder.write("bad.parquet", &bytes);
    let error = failure(1, &["data", &data]);
    assert_says(&error, &["bad.parquet[x.list.element]", "damaged: its pages contradict each other ("]);
}

#[test]
fn classes_of_validation_have_the_numbers_of_training() {
    let (folder, model) = (Folder::new(), digits_model());
    let images = |set: &str, class: &str, numbers: std::ops::Range<u8>| {
        std::fs::create_dir_all(folder.path(&format!("{set}/{class}"))).unwrap();
        for number in numbers {
            let shade = if class == "a" { 10 } else { 200 };
            let picture = image::GrayImage::from_pixel(8, 8, image::Luma([shade + number]));
            picture.save(folder.path(&format!("{set}/{class}/{number}.png"))).unwrap();
        }
    };
    for (set, class, numbers) in [
        ("training", "a", 0..4),
        ("training", "b", 0..4),
        ("empty", "a", 0..0),
        ("empty", "b", 0..3),
        ("missing", "b", 0..3),
        ("unknown", "c", 0..1),
    ] {
        images(set, class, numbers);
    }
    let [training, empty, missing, unknown] = ["training", "empty", "missing", "unknown"].map(|set| folder.text(set));
    let flags = ["--batch-size", "4", "--steps", "2", "--input-scale", "0.01"];
    let command = |set| [&["train", &model, "--data", &training], flags.as_slice(), &["--validate", set]].concat();
    let [empty, missing] = [&empty, &missing].map(|set| json(&command(set))["validation"].clone());
    assert!(missing["loss"].is_number(), "{missing}");
    assert_eq!((&empty["loss"], &empty["accuracy"]), (&missing["loss"], &missing["accuracy"]));
    assert_says(&failure(1, &command(&unknown)), &["there is no class 'c'"]);
}

#[test]
fn classes_are_drawn_alike_and_a_run_that_goes_on_draws_the_same() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let data = format!("{data}#0..120");
    let flags = ["--balance", "classes", "--shuffle", "2", "--augment", "elastic:1", "--input-scale", "0.0625"];
    let run = |more: &[&str]| json(&train(&model, &data, &[flags.as_slice(), more].concat()));
    let saved = ["whole", "resumed"].map(|name| folder.text(&format!("{name}.onnx")));
    run(&["--steps", "5", "--save", &saved[0]]);
    let checkpoint = folder.text("checkpoint");
    run(&["--steps", "2", "--checkpoint", &checkpoint]);
    run(&["--steps", "5", "--resume", &checkpoint, "--save", &saved[1]]);
    let [whole, resumed] = saved.map(|path| std::fs::read(path).unwrap());
    assert!(whole == resumed);
    let error = failure(2, &train(&model, &data, &["--steps", "5", "--resume", &checkpoint]));
    assert_says(&error, &["--balance", "the checkpoint was made with"]);
    let error = failure(1, &train(&model, &data, &["--steps", "1", "--balance", "weights"]));
    assert_says(&error, &["it has no sample weights", "column `weight`"]);
}

#[test]
fn patches_of_volumes_train_and_labels_that_cannot_be_mixed_are_refused() {
    let folder = Folder::new();
    let weights = [0.5, -0.5, 0.25, 1.0];
    let node = onnx::node("Conv", &["x", "w"], "y", &[("kernel_shape", &[1, 1, 1], true)]);
    let initializer = onnx::floats("w", &[4, 1, 1, 1, 1], &weights);
    let model = onnx::model(&[node], &[initializer], ("x", &[2, 1, 8, 8, 8]), ("y", &[2, 4, 8, 8, 8]));
    std::fs::write(folder.path("m.onnx"), model).unwrap();
    let (model, data) = (folder.text("m.onnx"), example("brain"));
    let flags = ["train", &model, "--data", &data, "--patch", "8x8x8", "--shuffle", "3", "--learning-rate", "0.01"];
    let run = |more: &[&str]| json(&[flags.as_slice(), more].concat());
    let saved = ["whole", "resumed"].map(|name| folder.text(&format!("{name}.onnx")));
    let whole = run(&["--patches", "6", "--epochs", "2", "--augment", "elastic:1,cutmix:1", "--save", &saved[0]]);
    assert_eq!(whole["steps"].as_array().unwrap().len(), 6);
    let checkpoint = folder.text("checkpoint");
    let flags = ["--patches", "6", "--augment", "elastic:1,cutmix:1"];
    run(&[flags.as_slice(), &["--steps", "4", "--checkpoint", &checkpoint]].concat());
    run(&[flags.as_slice(), &["--steps", "6", "--resume", &checkpoint, "--save", &saved[1]]].concat());
    let [whole, resumed] = saved.map(|path| std::fs::read(path).unwrap());
    assert!(whole == resumed);
    assert_says(&failure(2, &["train", &model, "--data", &data, "--patch", "8x8x8", "--split", "50/50"]), &["--split"]);
    let error = failure(1, &["train", &model, "--data", &data, "--patch", "8x8x4", "--steps", "1"]);
    assert_says(&error, &["patches of [8, 8, 4] were requested, but the model requires [8, 8, 8]"]);
    let digits = digits_data();
    let digits = ["train", &digits_model(), "--data", &digits, "--batch-size", "9", "--steps", "1"];
    let error = failure(2, &[&digits[..], &["--augment", "mixup:0.2", "--ignore-index", "3"]].concat());
    assert_says(&error, &["turns classes into probabilities", "--ignore-index"]);
    assert_says(&failure(2, &[&digits[..], &["--augment", "cutmix:1", "--loss", "focal"]].concat()), &["--augment"]);
}

/// The classes of mixed samples become probabilities; validation uses the classes as they are.
#[test]
fn samples_with_classes_are_mixed() {
    let (folder, digits) = (Folder::new(), digits_data());
    let [train, validate] = ["#0..1500", "#1500..1797"].map(|rows| format!("{digits}{rows}"));
    let flags = ["train", &digits_model(), "--data", &train, "--validate", &validate, "--batch-size", "50"];
    let flags = [&flags[..], &["--input-scale", "0.0625", "--shuffle", "1", "--learning-rate", "0.1"]].concat();
    for (number, augment) in ["mixup:0.4", "cutmix:1", "crop:1,mixup:0.4,cutmix:0.5"].into_iter().enumerate() {
        let saved = ["whole", "resumed"].map(|name| folder.text(&format!("{name}{number}.onnx")));
        let run =
            |more: &[&str]| json(&[&flags[..], &["--augment", augment, "--label-smoothing", "0.05"], more].concat());
        let whole = run(&["--steps", "60", "--save", &saved[0]]);
        let accuracy = whole["validation"]["accuracy"].as_f64().unwrap();
        assert!(accuracy > 0.4, "{augment}: {accuracy}");
        let checkpoint = folder.text(&format!("checkpoint{number}"));
        run(&["--steps", "20", "--checkpoint", &checkpoint]);
        run(&["--steps", "60", "--resume", &checkpoint, "--simulate-device", "60%", "--save", &saved[1]]);
        let [whole, resumed] = saved.map(|path| std::fs::read(path).unwrap());
        assert!(whole == resumed, "{augment}");
    }
}

#[test]
fn whole_volumes_are_validated_in_windows_or_at_once() {
    let (folder, data) = (Folder::new(), example("brain"));
    let graph = GraphBuilder::new()
        .input("x", onnx::FLOAT, &["n", "1", "d", "h", "w"])
        .output("y", onnx::FLOAT, &["n", "3", "d", "h", "w"])
        .floats("kernel", &[3, 1, 1, 1, 1], &[0.5, -0.5, 0.25])
        .node("Conv", &["x", "kernel"], &["y"]);
    let model = folder.write("m.onnx", &graph.build());
    let flags = ["train", &model, "--data", &data, "--patch", "32x32x32", "--shuffle", "3", "--steps", "2"];
    let flags = [flags.as_slice(), &["--validate", &data, "--no-compare", "--batch-size", "2"]].concat();
    let validation = |more: &[&str]| json(&[flags.as_slice(), more].concat())["validation"].clone();
    let windows = validation(&[]);
    let whole = validation(&["--validate-by", "whole"]);
    let voxels = 1_068_592;
    assert_eq!((&windows["count"], &whole["count"]), (&voxels.into(), &voxels.into()));
    // The model looks at single voxels, so it predicts the same however the volume is cut.
    let near = |one: &Value, other: &Value| {
        let [one, other] = [one, other].map(|value| value.as_f64().unwrap());
        assert!((one - other).abs() < 1e-5 * one.abs(), "{one} and {other}");
    };
    near(&windows["loss"], &whole["loss"]);
    near(&windows["dice_mean"], &whole["dice_mean"]);
    let blended = ["--window-overlap", "0.5", "--window-blend", "gaussian"];
    near(&validation(&blended)["loss"], &whole["loss"]);
    assert_eq!(validation(&["--simulate-device", "70%"]), windows, "other bits within a budget");
    // Places in overlapping tiles count more than once.
    assert_eq!(validation(&["--validate-by", "tiles"])["count"], 48 * 32 * 32 * 32);
    let padded = validation(&["--validate-by", "whole", "--pad-to", "64"]);
    assert_eq!((&padded["count"], &padded["loss"]), (&whole["count"], &whole["loss"]));
    assert_says(&failure(2, &[flags.as_slice(), &["--window-overlap", "1"]].concat()), &["0.25"]);
    assert_says(&failure(2, &["train", &model, "--data", &data, "--validate-by", "whole"]), &["--patch"]);
}
