//! Arrow files and streams as pyarrow writes them (`testdata/data`).

use std::path::Path;

use forebay_base::{DataType, Tensor};
use forebay_data::convert::to_f64;
use forebay_data::{DataSet, HeldBytes, InputDescription, Reading, Requirements, guess, open, open_with};

#[cfg(feature = "text")]
use super::{all_text, tokens};
use super::{expected, input, requirements, testdata};

/// A data set of which these bytes may be in memory.
fn holding(path: &Path, inputs: Vec<InputDescription>, held: HeldBytes) -> DataSet {
    let mut reading = Reading::default();
    reading.held = held;
    open_with(path.to_str().unwrap(), &requirements(inputs), &reading).unwrap()
}

fn error(path: &Path, requirements: &Requirements) -> String {
    match open(path.to_str().unwrap(), requirements) {
        Err(error) => error.to_string(),
        Ok(mut set) => set.batch(&(0..set.sample_count()).collect::<Vec<_>>()).unwrap_err().to_string(),
    }
}

/// Rows in no order, some of them twice.
fn rows() -> Vec<u64> {
    (0..300).rev().step_by(7).chain([5, 5, 299, 0]).collect()
}

fn picked(key: &str, each: usize) -> Vec<f64> {
    let all = expected(key);
    rows().iter().flat_map(|&row| all[row as usize * each..][..each].to_vec()).collect()
}

#[test]
fn columns_of_numbers_are_those_of_the_reference_in_any_order() {
    let inputs = vec![
        input("x", DataType::Float32, &[2, 3]),
        input("small", DataType::Float32, &[]),
        input("wide", DataType::Int64, &[1]),
        input("flag", DataType::Float32, &[]),
    ];
    for name in ["numbers_file.arrow", "numbers_lz4.feather", "numbers_zstd.arrow"] {
        for held in [HeldBytes::Usual, HeldBytes::AtMost(2400), HeldBytes::AtMost(0)] {
            let mut set = holding(&testdata(name), inputs.clone(), held);
            let found = set.description().unwrap();
            assert_eq!(set.sample_count(), 300);
            assert_eq!(
                (found.kind.as_str(), found.tensors[0].as_str()),
                ("1 Arrow file of 3 record batches", "x: float32[2, 3]")
            );
            if let HeldBytes::AtMost(bytes) = held {
                assert!(found.held_bytes <= bytes, "{held:?}: {}", found.held_bytes);
            }
            let batch = set.batch(&rows()).unwrap();
            for (key, each) in [("x", 6), ("small", 1), ("wide", 1), ("flag", 1)] {
                assert_eq!(to_f64(&batch.inputs[key]), picked(key, each), "{name} {held:?} {key}");
            }
            assert_eq!(to_f64(&batch.labels), picked("label", 1), "{name}");
        }
    }
}

#[test]
fn lists_of_lists_structures_and_dictionaries_are_read() {
    let inputs = vec![
        input("nested", DataType::Float32, &[2, 3]),
        input("inside.half", DataType::Float32, &[]),
        input("index", DataType::Float32, &[]),
    ];
    let mut set = holding(&testdata("numbers_file.arrow"), inputs, HeldBytes::AtMost(0));
    let batch = set.batch(&rows()).unwrap();
    assert_eq!(to_f64(&batch.inputs["nested"]), picked("x", 6));
    assert_eq!(to_f64(&batch.inputs["inside.half"]), picked("half", 1));
    let halves: Vec<f64> = picked("label", 1).iter().map(|class| class + 0.5).collect();
    assert_eq!(to_f64(&batch.inputs["index"]), halves);
}

#[test]
fn words_are_classes_in_each_of_their_forms() {
    let word = |row: usize| ["cat", "dog", "eel"][expected("word")[row] as usize];
    let long =
        |row: usize| if row % 2 == 1 { format!("{}, which is number {row}", word(row)) } else { word(row).into() };
    let classes: std::collections::BTreeSet<String> = (0..300).map(long).collect();
    let class = |word: &String| classes.iter().position(|other| other == word).unwrap() as i64;
    for (name, wanted) in [
        ("words_large.arrow", [7, 2, 150].map(|row| expected("word")[row] as i64)),
        ("words_view.arrow", [7, 2, 150].map(|row| class(&long(row)))),
    ] {
        let mut set = holding(&testdata(name), vec![input("wide", DataType::Int64, &[])], HeldBytes::Usual);
        assert_eq!(set.batch(&[7, 2, 150]).unwrap().labels, Tensor::from_i64(&[3], &wanted), "{name}");
    }
}

#[test]
fn dictionaries_of_streams_grow_and_change() {
    let mut set = holding(&testdata("words.arrows"), vec![input("wide", DataType::Int64, &[])], HeldBytes::Usual);
    let found = set.description().unwrap();
    assert_eq!((found.kind.as_str(), set.sample_count()), ("1 Arrow file of 4 record batches", 8));
    let batch = set.batch(&[7, 6, 5, 4, 3, 2, 1, 0]).unwrap();
    assert_eq!(to_f64(&batch.inputs["wide"]), [7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]);
    // cat, dog, eel: as make.py picks them, from the last row to the first.
    assert_eq!(batch.labels, Tensor::from_i64(&[8], &[0, 1, 1, 0, 0, 2, 2, 2]));
}

#[test]
fn a_folder_of_files_is_one_set_and_missing_values_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"] {
        std::fs::copy(testdata("numbers_file.arrow"), folder.path().join(name)).unwrap();
    }
    // What `datasets` writes next to them.
    std::fs::write(folder.path().join("state.json"), "{}").unwrap();
    let mut set = holding(folder.path(), vec![input("wide", DataType::Int64, &[])], HeldBytes::AtMost(0));
    assert_eq!(set.sample_count(), 600);
    let wide = expected("wide");
    assert_eq!(to_f64(&set.batch(&[599, 3, 300]).unwrap().inputs["wide"]), [wide[299], wide[3], wide[0]]);
    let mut set = holding(folder.path(), vec![input("gaps", DataType::Int64, &[])], HeldBytes::AtMost(0));
    let found = set.batch(&[499, 500]).unwrap_err().to_string();
    assert!(
        found.contains("data-00001-of-00002.arrow[gaps], in rows 128..256 at byte")
            && found.contains(": row 200: it has no value"),
        "{found}"
    );
    set.skip_bad(1);
    assert_eq!(to_f64(&set.batch(&[499, 500]).unwrap().inputs["gaps"]), [199.0, 201.0]);
    std::fs::copy(testdata("words.arrows"), folder.path().join("z.arrows")).unwrap();
    let found = error(folder.path(), &requirements(vec![input("wide", DataType::Int64, &[])]));
    let parent = tempfile::tempdir().unwrap();
    std::fs::create_dir(parent.path().join("train")).unwrap();
    std::fs::copy(testdata("words.arrows"), parent.path().join("train/data-00000-of-00001.arrow")).unwrap();
    let above = error(parent.path(), &requirements(vec![input("wide", DataType::Float32, &[3, 8, 8])]));
    assert!(
        above.contains("tables in 1 of its subfolders; use one of them, such as") && above.contains("train"),
        "{above}"
    );
    assert!(found.contains("z.arrows: it has the columns wide (int64), label (bytes)"), "{found}");
}

#[test]
fn images_in_columns_are_decoded() {
    let path = testdata("images.arrow");
    let mut set = open(path.to_str().unwrap(), &requirements(vec![input("x", DataType::Float32, &[1, 1, 1])])).unwrap();
    let batch = set.batch(&[2, 0]).unwrap();
    assert_eq!(batch.inputs["x"], Tensor::from_f32(&[2, 1, 1, 1], &[0.8, 0.2]));
    assert_eq!(batch.labels, Tensor::from_i64(&[2], &[1, 2]));
    assert_eq!(guess(path.to_str().unwrap(), 8).unwrap().inputs[0].sample_shape, [3, 8, 8]);
}

#[cfg(feature = "text")]
#[test]
fn a_column_of_text_has_the_tokens_of_its_lines() {
    let (wanted, reading) = tokens();
    assert_eq!(all_text("text.arrow"), all_text("text.jsonl"));
    let set = open_with(testdata("text.arrow").to_str().unwrap(), &wanted, &reading).unwrap();
    assert!(set.description().unwrap().kind.contains("Arrow"), "{:?}", set.description());
}

#[test]
fn what_is_missing_is_named() {
    let one = |name: &str, shape: &[u64]| requirements(vec![input(name, DataType::Float32, shape)]);
    let file = testdata("numbers_file.arrow");
    let found = error(&file, &one("z", &[2]));
    assert!(found.contains("no column named z") && found.contains("nested (float32, a list)"), "{found}");
    assert!(found.contains("when (of an unsupported type)") && found.contains("view (bytes)"), "{found}");
    assert!(error(&file, &one("x", &[5])).contains("expected 5 numbers in each row"));
    assert!(error(&file, &one("ragged", &[2])).contains("expected 2 numbers in each row"));
    let found = error(&testdata("text.arrow"), &one("x", &[1]));
    assert!(
        found.contains("no column of labels (y, labels, label); a column of text alone requires a tokenizer"),
        "{found}"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.feather");
    for (bytes, wanted) in [
        (&b"FEA1 and more"[..], "Feather version 1"),
        (&b"PK\x03\x04 and more of it"[..], "not an Arrow file"),
        (&b"AR"[..], "it has 2 bytes"),
        (&b""[..], "it has 0 bytes"),
        (&b"ARROW1\0\0"[..], "truncated"),
        (&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0][..], "it ends where its schema should be"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let found = error(&path, &one("x", &[1]));
        assert!(found.contains(wanted) && found.contains("a.feather"), "{found}");
    }
}

#[test]
fn truncated_files_are_refused_with_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.arrow");
    let wanted = requirements(vec![input("wide", DataType::Int64, &[])]);
    for name in ["numbers_file.arrow", "numbers_lz4.feather", "numbers_zstd.arrow"] {
        let bytes = std::fs::read(testdata(name)).unwrap();
        let is_stream = !bytes.starts_with(b"ARROW1");
        for length in (1..bytes.len()).step_by(211).chain([bytes.len() - 1]) {
            std::fs::write(&path, &bytes[..length]).unwrap();
            match open(path.to_str().unwrap(), &wanted) {
                // A stream may end behind any of its batches.
                Ok(set) => assert!(is_stream && [128, 256, 300].contains(&set.sample_count()), "{name}: {length}"),
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.contains("cut.arrow, at byte ") || error.contains("it has no rows"), "{error}");
                }
            }
        }
    }
}

/// Whatever a byte becomes, what is read is numbers or an error that names the file: never a panic.
#[test]
fn damage_is_refused_or_read_as_other_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.arrow");
    let inputs = || vec![input("wide", DataType::Int64, &[]), input("x", DataType::Float32, &[6])];
    let reading = {
        let mut reading = Reading::default();
        reading.held = HeldBytes::AtMost(0);
        reading
    };
    let (mut refused, mut other) = (0, 0);
    for name in ["numbers_file.arrow", "numbers_lz4.feather", "numbers_zstd.arrow", "words.arrows"] {
        let whole = std::fs::read(testdata(name)).unwrap();
        let inputs = if name == "words.arrows" { inputs()[..1].to_vec() } else { inputs() };
        for at in (0..whole.len()).step_by(if name == "words.arrows" { 1 } else { 101 }) {
            for value in [0, 255, whole[at] ^ 16] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                std::fs::write(&path, &bytes).unwrap();
                let set = open_with(path.to_str().unwrap(), &requirements(inputs.clone()), &reading);
                let read = set.and_then(|mut set| set.batch(&(0..set.sample_count()).collect::<Vec<_>>()));
                match read {
                    Ok(_) => other += 1,
                    Err(error) => {
                        assert!(error.to_string().contains("bad.arrow"), "{error}");
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(refused > 500 && other > 100, "{refused} refused, {other} read");
}
