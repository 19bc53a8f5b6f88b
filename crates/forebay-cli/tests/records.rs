//! What a run leaves: lines with every metric, events for TensorBoard, a page; and what a data set looks like.

mod common;

use common::{assert_says, digits_data, digits_model, failure, json, success, Folder};
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
fn a_data_set_is_described_and_drawn_without_a_model() {
    let (folder, data) = (Folder::new(), digits_data());
    let sheet = folder.text("sheet.png");
    let text =
        success(&["data", &data, "--show", "16", "--out", &sheet, "--augment", "crop:1", "--normalize", "measured"]);
    assert_says(
        &text,
        &["1797", "x: uint8[1, 8, 8]", "y: int64[]", "16 samples", "labels           0 1 2 3 4 5 6 7 8 9 0 1"],
    );
    assert_eq!(image::image_dimensions(&sheet).unwrap(), (8 * 132 + 4, 2 * 132 + 4));
    let report = json(&["data", &common::example("brain"), "--show", "1", "--out", &sheet]);
    assert_eq!((report["samples"].as_u64(), &report["kind"]), (Some(1), &"a folder of NIfTI volumes".into()));
    assert_eq!(image::image_dimensions(&sheet).unwrap(), (2 * 132 + 4, 132 + 4), "a sample and its labels");
    assert_says(&failure(1, &["data", "none.npz"]), &["none.npz"]);
    assert_says(&failure(1, &["data", &data, "--show", "1", "--out", &folder.text("none/sheet.png")]), &["none"]);
}
