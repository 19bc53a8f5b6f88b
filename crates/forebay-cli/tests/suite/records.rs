//! The records of a run: lines with every metric, events for TensorBoard, a page; and the description of a data set.

use crate::common::{self, Folder, assert_says, digits_data, digits_model, failure, json, success, zeros};
use forebay::Tensor;
use serde_json::Value;

#[test]
fn a_run_leaves_lines_events_and_a_page() {
    let folder = Folder::new();
    let (model, data, validation) =
        (digits_model(), format!("{}#0..150", digits_data()), format!("{}#150..200", digits_data()));
    let files = ["log.jsonl", "events", "report.html", "log.csv"].map(|name| folder.text(name));
    let run = |log: &str| {
        let common =
            ["train", &model, "--data", &data, "--batch-size", "50", "--input-scale", "0.0625", "--threads", "1"];
        let validation = ["--validate", &validation, "--validate-every", "2", "--metrics", "f1,top5,confusion"];
        let records = ["--epochs", "2", "--log", log, "--tensorboard", &files[1], "--report", &files[2]];
        let drawn = ["--histograms-every", "3", "--show-predictions", "4"];
        json(&[common.as_slice(), &validation, &records, &drawn].concat())
    };
    let report = run(&files[0]);
    let text = std::fs::read_to_string(&files[0]).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let validations: Vec<&Value> = lines.iter().filter(|line| line["kind"] == "validation").collect();
    assert_eq!((lines.len(), validations.len()), (9, 3));
    for key in ["f1", "top5", "confusion"] {
        assert_eq!(validations[2][key], report["validation"]["metrics"][key], "{key}");
        assert!(!validations[2][key].is_null(), "{key}");
    }
    let events: Vec<_> = std::fs::read_dir(&files[1]).unwrap().map(|entry| entry.unwrap().path()).collect();
    let bytes = std::fs::read(&events[0]).unwrap();
    for tag in ["training/loss", "training/learning_rate", "validation/f1", "parameters/", "validation/labels"] {
        assert!(bytes.windows(tag.len()).any(|window| window == tag.as_bytes()), "{tag}");
    }
    let page = std::fs::read_to_string(&files[2]).unwrap();
    assert_says(
        &page,
        &["<svg", "Learning rate", "device memory over a step", "batch-size = 50", "150 samples", "top5"],
    );
    run(&files[3]);
    let table = std::fs::read_to_string(&files[3]).unwrap();
    assert!(table.lines().next().unwrap().ends_with(",accuracy,dice_mean,f1,top5"), "{table}");
    let last = table.lines().last().unwrap();
    assert!(last.starts_with("validation,6,2,") && last.ends_with(&format!(",{}", validations[2]["top5"])), "{last}");
}

#[test]
fn a_run_that_is_refused_leaves_the_records_of_earlier_ones() {
    let folder = Folder::new();
    let (model, data) = (digits_model(), format!("{}#0..150", digits_data()));
    let [checkpoint, log, other] = ["checkpoint", "log.jsonl", "best"].map(|name| folder.text(name));
    let flags = |more: &[&str]| -> Vec<String> {
        let common = ["train", &model, "--data", &data, "--batch-size", "50", "--log", &log];
        [common.as_slice(), more].concat().into_iter().map(str::to_owned).collect()
    };
    let words = |flags: &[String]| flags.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    let refused = |code: i32, more: &[&str]| {
        let flags = flags(more);
        let error = failure(code, &flags.iter().map(String::as_str).collect::<Vec<_>>());
        let lines = std::fs::read_to_string(&log).unwrap().lines().count();
        assert_eq!(lines, 4, "{}: {error}", words(&flags));
        error
    };
    let kept = ["--steps", "4", "--checkpoint", &checkpoint, "--checkpoint-every", "2", "--keep-checkpoints", "3"];
    success(&flags(&kept).iter().map(String::as_str).collect::<Vec<_>>());
    let middle = format!("{checkpoint}/step-00000002");
    let nothing = ["--steps", "2", "--resume", &middle];
    assert_says(&refused(2, &nothing), &["nothing left to do"]);
    assert_says(&refused(2, &[nothing.as_slice(), &["--dry-run"]].concat()), &["nothing left to do"]);
    let twice = ["--steps", "2", "--validate", &data, "--best-checkpoint", &other, "--checkpoint", &other];
    assert_says(&refused(1, &twice), &["already writing"]);
    let table = folder.write("log.csv", b"a,b\n1,2\n");
    let resume = ["train", &model, "--data", &data, "--batch-size", "50", "--steps", "6", "--resume", &middle];
    let error = failure(1, &[resume.as_slice(), &["--log", &table, "--dry-run"]].concat());
    assert_says(&error, &["log.csv", "its columns differ"]);
}

#[test]
fn gradients_are_shown_without_changing_a_step() {
    let folder = Folder::new();
    let (model, data) = (digits_model(), format!("{}#0..200", digits_data()));
    let run = |more: &[&str], trained: &str| {
        let saved = folder.text(trained);
        let common =
            ["train", &model, "--data", &data, "--batch-size", "50", "--input-scale", "0.0625", "--threads", "1"];
        let report = json(&[common.as_slice(), &["--steps", "4", "--save", &saved, "--no-compare"], more].concat());
        let losses: Vec<Value> = report["steps"].as_array().unwrap().iter().map(|step| step["loss"].clone()).collect();
        (losses, std::fs::read(saved).unwrap())
    };
    let events = |name: &str| {
        let files: Vec<_> = std::fs::read_dir(folder.text(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
        let bytes = std::fs::read(&files[0]).unwrap();
        let count = |tag: &str| bytes.windows(tag.len()).filter(|window| *window == tag.as_bytes()).count();
        (count("parameters/"), count("gradients/"))
    };
    let expected = run(&[], "plain.onnx");
    let [both, alone] = ["both", "alone"].map(|name| folder.text(name));
    let shown = ["--tensorboard", &both, "--histograms-every", "2", "--histograms", "parameters,gradients"];
    assert!(run(&[shown.as_slice(), &["--simulate-device", "70%"]].concat(), "both.onnx") == expected, "other steps");
    let (parameters, gradients) = events("both");
    assert!(parameters == gradients && gradients > 2 && gradients.is_multiple_of(2), "{parameters}, {gradients}");
    let shown = ["--tensorboard", &alone, "--histograms-every", "2", "--histograms", "gradients"];
    assert!(run(&shown, "alone.onnx") == expected, "other steps");
    assert_eq!(events("alone"), (0, gradients));
    let common = ["train", &model, "--data", &data, "--tensorboard", &both, "--histograms"];
    assert_says(&failure(2, &[common.as_slice(), &["gradients"]].concat()), &["--histograms-every"]);
    let wrong = [common.as_slice(), &["weights", "--histograms-every", "1"]].concat();
    assert_says(&failure(2, &wrong), &["weights", "parameters, gradients"]);
}

/// Writes four images of each class into a folder, and returns its path.
fn pictures(folder: &Folder, data: &str, classes: [&str; 2]) -> String {
    for (class, gray) in classes.into_iter().zip([60u8, 200]) {
        std::fs::create_dir_all(folder.path(&format!("{data}/{class}"))).unwrap();
        for number in 0..4 {
            let picture = image::GrayImage::from_pixel(16, 16, image::Luma([gray]));
            picture.save(folder.path(&format!("{data}/{class}/{number}.png"))).unwrap();
        }
    }
    folder.text(data)
}

#[test]
fn pictures_of_validation_name_the_classes() {
    let (folder, model) = (Folder::new(), digits_model());
    let drawn = |name: &str, classes: [&str; 2]| {
        let (data, events) = (pictures(&folder, name, classes), folder.text(&format!("{name}-events")));
        let train = ["train", &model, "--data", &data, "--validate", &data, "--batch-size", "8", "--steps", "1"];
        let shown = ["--tensorboard", &events, "--validate-every", "1", "--show-predictions", "8"];
        success(&[train.as_slice(), &shown].concat());
        let file = std::fs::read_dir(&events).unwrap().next().unwrap().unwrap().path();
        let bytes = std::fs::read(file).unwrap();
        let at = |mark: &[u8]| bytes.windows(mark.len()).position(|window| window == mark).expect("a PNG file");
        bytes[at(b"\x89PNG")..at(b"IEND")].to_vec()
    };
    let first = drawn("first", ["cat", "dog"]);
    assert!(first == drawn("same", ["cat", "dog"]), "the same images have the same picture");
    assert!(first != drawn("other", ["cow", "owl"]), "only names differ");
}

#[test]
fn sheets_of_mixed_samples_of_very_many_classes_are_refused() {
    let folder = Folder::new();
    let labels = Tensor::from_i64(&[2], &[0, 40_000]);
    let (data, sheet) = (folder.archive("many.npz", &[("x", &zeros(2)), ("y", &labels)]), folder.text("sheet.png"));
    let shown = ["data", &data, "--show", "2", "--out", &sheet];
    success(&shown);
    let error = failure(2, &[shown.as_slice(), &["--augment", "mixup:1"]].concat());
    assert_says(&error, &["up to 32768 classes", "many.npz has 40001", "leave mixup and cutmix out of --augment"]);
}

#[test]
fn sheets_of_mixed_samples_say_which_classes_are_mixed() {
    let folder = Folder::new();
    let (data, sheet) = (pictures(&folder, "classes", ["cat", "dog"]), folder.text("sheet.png"));
    let shares = |change: &str| -> Vec<[f64; 2]> {
        let shown = ["data", &data, "--image-size", "16", "--show", "8", "--out", &sheet, "--augment", change];
        let report = json(&shown);
        assert!(report["shown"]["labels"].is_null(), "{report}");
        let share = |sample: &Value, class: &str| {
            let found = sample.as_array().unwrap().iter().find(|found| found["class"] == class);
            found.map_or(0.0, |found| found["share"].as_f64().unwrap())
        };
        let samples = report["shown"]["classes"].as_array().unwrap().iter();
        let shares: Vec<[f64; 2]> = samples.map(|sample| ["cat", "dog"].map(|class| share(sample, class))).collect();
        assert!(shares.len() == 8 && shares.iter().all(|[cat, dog]| (cat + dog - 1.0).abs() < 1e-6), "{shares:?}");
        let mixed = shares.iter().find(|[cat, _]| *cat > 0.01 && *cat < 0.99).expect("a mixed sample");
        let mut parts = ["cat", "dog"].iter().zip(mixed).map(|(name, share)| (share, name)).collect::<Vec<_>>();
        parts.sort_by(|one, other| other.0.total_cmp(one.0));
        let parts = parts.iter().map(|(share, name)| format!("{name} {}", (*share * 100.0).round() / 100.0));
        assert_says(&success(&shown), &[&parts.collect::<Vec<_>>().join(" + ")]);
        shares
    };
    assert_ne!(shares("mixup:1"), shares("cutmix:1"));
}

#[test]
fn a_data_set_is_described_and_drawn_without_a_model() {
    let (folder, data) = (Folder::new(), digits_data());
    let sheet = folder.text("sheet.png");
    let text =
        success(&["data", &data, "--show", "16", "--out", &sheet, "--augment", "crop:1", "--normalize", "measured"]);
    assert_says(
        &text,
        &["1797", "x: uint8[1, 8, 8]", "y: int64[]", "16 samples", "labels           0 1 2 3 4 5 6 7 8 9 0 1"],
    );
    assert_eq!(image::image_dimensions(&sheet).unwrap(), (8 * 132 + 4, 2 * 142 + 4), "with a line below each sample");
    let report = json(&["data", &common::example("brain"), "--show", "1", "--out", &sheet]);
    assert_eq!((report["samples"].as_u64(), &report["kind"]), (Some(1), &"a folder of NIfTI volumes".into()));
    assert_eq!(image::image_dimensions(&sheet).unwrap(), (2 * 132 + 4, 132 + 4), "a sample and its labels");
    assert_eq!(report["shown"]["classes"], serde_json::json!([]), "labels are maps");
    assert_says(&failure(1, &["data", "none.npz"]), &["none.npz"]);
    assert_says(&failure(1, &["data", &data, "--show", "1", "--out", &folder.text("none/sheet.png")]), &["none"]);
}
