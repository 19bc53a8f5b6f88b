//! Parquet files as pyarrow writes them (`testdata/data`).

use forebay_base::{DataType, Tensor};
use forebay_data::convert::to_f64;
use forebay_data::{HeldBytes, LabelKind, Reading, Requirements, guess, open, open_with};

#[cfg(feature = "text")]
use super::{all_text, tokens};
use super::{expected, input, requirements, testdata};

fn error(name: &str, requirements: &Requirements) -> String {
    open(testdata(name).to_str().unwrap(), requirements).err().unwrap().to_string()
}

#[test]
fn columns_of_numbers_are_those_of_the_reference_in_any_order() {
    let inputs = vec![
        input("x", DataType::Float32, &[2, 3]),
        input("small", DataType::Float32, &[]),
        input("half", DataType::Float32, &[]),
        input("wide", DataType::Int64, &[1]),
        input("flag", DataType::Float32, &[]),
    ];
    let rows: Vec<u64> = (0..300).rev().step_by(7).chain([5, 5, 299, 0]).collect();
    let picked = |key: &str, each: usize| -> Vec<f64> {
        let all = expected(key);
        rows.iter().flat_map(|&row| all[row as usize * each..][..each].to_vec()).collect()
    };
    for name in ["snappy", "zstd", "gzip", "plain"] {
        let path = testdata(&format!("numbers_{name}.parquet"));
        for held in [HeldBytes::Usual, HeldBytes::AtMost(2400), HeldBytes::AtMost(0)] {
            let mut reading = Reading::default();
            reading.held = held;
            let mut set = open_with(path.to_str().unwrap(), &requirements(inputs.clone()), &reading).unwrap();
            let found = set.description().unwrap();
            assert_eq!(set.sample_count(), 300);
            assert!(
                found.kind == "1 Parquet file of 3 row groups" && found.tensors[0] == "x.list.element: float32[2, 3]",
                "{found:?}"
            );
            if let HeldBytes::AtMost(bytes) = held {
                assert!(found.held_bytes <= bytes, "{held:?}: {}", found.held_bytes);
            }
            let batch = set.batch(&rows).unwrap();
            for (key, each) in [("x", 6), ("small", 1), ("half", 1), ("wide", 1), ("flag", 1)] {
                assert_eq!(to_f64(&batch.inputs[key]), picked(key, each), "{name} {held:?} {key}");
            }
            assert_eq!(batch.inputs["x"].shape(), [rows.len() as u64, 2, 3]);
            assert_eq!(to_f64(&batch.labels), picked("label", 1), "{name}");
        }
    }
}

#[test]
fn a_table_of_numbers_is_one_input_and_words_are_classes() {
    let set = requirements(vec![input("features", DataType::Float32, &[3])]);
    let mut set = open(testdata("table.parquet").to_str().unwrap(), &set).unwrap();
    let batch = set.batch(&[7, 2]).unwrap();
    let features: Vec<f32> =
        [7, 2].iter().flat_map(|&row| ["small", "half", "wide"].map(|key| expected(key)[row] as f32)).collect();
    assert_eq!(batch.inputs["features"], Tensor::from_f32(&[2, 3], &features));
    assert_eq!(batch.labels, Tensor::from_i64(&[2], &[7, 2].map(|row| expected("word")[row] as i64)));
    let found = set.description().unwrap().tensors;
    assert_eq!(found, ["a, b, c: int8[]", "label: 3 named classes (cat, dog, eel)"]);
}

#[test]
fn a_folder_of_files_is_one_set_and_damage_is_named_in_its_file() {
    let folder = tempfile::tempdir().unwrap();
    for (to, from) in [("0.parquet", "snappy"), ("1.parquet", "plain")] {
        std::fs::copy(testdata(&format!("numbers_{from}.parquet")), folder.path().join(to)).unwrap();
    }
    let path = folder.path().to_str().unwrap();
    let mut set = open(path, &requirements(vec![input("wide", DataType::Int64, &[])])).unwrap();
    assert_eq!(set.sample_count(), 600);
    let wide = expected("wide");
    assert_eq!(to_f64(&set.batch(&[599, 3, 300]).unwrap().inputs["wide"]), [wide[299], wide[3], wide[0]]);
    let mut reading = Reading::default();
    reading.held = HeldBytes::AtMost(0);
    let gaps = requirements(vec![input("gaps", DataType::Int64, &[])]);
    let mut set = open_with(path, &gaps, &reading).unwrap();
    let error = set.batch(&[499, 500]).unwrap_err().to_string();
    assert!(
        error.contains("1.parquet[gaps], in rows 128..256 at byte") && error.contains(": row 200: it has no value"),
        "{error}"
    );
    set.skip_bad(1);
    assert_eq!(to_f64(&set.batch(&[499, 500]).unwrap().inputs["gaps"]), [199.0, 201.0]);
    // The same with all numbers in memory, as far as they can be read.
    reading.held = HeldBytes::Usual;
    assert!(open_with(path, &gaps, &reading).err().unwrap().to_string().contains("row 200: it has no value"));
    reading.skips_bad = true;
    let mut set = open_with(path, &gaps, &reading).unwrap();
    assert!(set.batch(&[499, 500]).unwrap_err().to_string().contains("row 200: it has no value"));
    set.skip_bad(1);
    assert_eq!(to_f64(&set.batch(&[499, 500]).unwrap().inputs["gaps"]), [199.0, 201.0]);
    let wrong = requirements(vec![input("gaps", DataType::Int64, &[2])]);
    assert!(open_with(path, &wrong, &reading).err().unwrap().to_string().contains("expected 2 numbers in each row"));
    std::fs::copy(testdata("table.parquet"), folder.path().join("2.parquet")).unwrap();
    let error = open(path, &gaps).err().unwrap().to_string();
    assert!(error.contains("2.parquet: it has the columns a (int8)"), "{error}");
}

#[test]
fn images_in_columns_are_decoded() {
    let path = testdata("images.parquet");
    let mut set = open(path.to_str().unwrap(), &requirements(vec![input("x", DataType::Float32, &[1, 1, 1])])).unwrap();
    let batch = set.batch(&[2, 0]).unwrap();
    assert_eq!(batch.inputs["x"], Tensor::from_f32(&[2, 1, 1, 1], &[0.8, 0.2]));
    assert_eq!(batch.labels, Tensor::from_i64(&[2], &[1, 2]));
    assert_eq!(guess(path.to_str().unwrap(), 8).unwrap().inputs[0].sample_shape, [3, 8, 8]);
    let guessed = guess(testdata("table.parquet").to_str().unwrap(), 8).unwrap();
    assert_eq!(guessed.inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
}

#[test]
fn what_is_missing_or_damaged_is_named() {
    let one = |name: &str, shape: &[u64]| requirements(vec![input(name, DataType::Float32, shape)]);
    let found = error("numbers_plain.parquet", &one("z", &[2]));
    assert!(found.contains("no column named z") && found.contains("x.list.element (float32, a list)"), "{found}");
    assert!(error("numbers_plain.parquet", &one("x", &[5])).contains("expected 5 numbers in each row"));
    assert!(error("numbers_plain.parquet", &one("ragged", &[2])).contains("row 0: it has no value"));
    let found = error("numbers_plain.parquet", &one("gaps", &[]));
    assert!(
        found.contains("[gaps], in rows 128..256 at byte ") && found.contains("row 200: it has no value"),
        "{found}"
    );
    assert!(error("text.parquet", &one("x", &[1])).contains("no column of labels (y, labels, label)"));
    let of_values = Requirements { labels: LabelKind::Values(DataType::Float32), ..one("features", &[3]) };
    assert!(
        error("table.parquet", &of_values).contains("[label]: the labels are words, which are classes, but this loss")
    );
    let of_pairs = Requirements { label_shape: vec![2], ..one("features", &[3]) };
    assert!(error("table.parquet", &of_pairs).contains("one class per row, but the model expects [2] per sample"));
    // A byte of the values of x in the second row group: the checksum of its page says it.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.parquet");
    let mut bytes = std::fs::read(testdata("numbers_zstd.parquet")).unwrap();
    let place =
        |error: &str| error.split("at byte ").nth(1).and_then(|rest| rest.split(':').next()).unwrap().parse::<usize>();
    let start = place(&error("numbers_zstd.parquet", &one("gaps", &[]))).unwrap();
    bytes[start + 60] ^= 255;
    std::fs::write(&path, &bytes).unwrap();
    let found = open(path.to_str().unwrap(), &one("gaps", &[])).err().unwrap().to_string();
    assert!(found.contains("bad.parquet[gaps], in rows 128..256 at byte") && found.contains("damaged"), "{found}");
    // Its end, with the number of bytes of its metadata.
    let end = bytes.len() - 8;
    for (bytes, reason) in [
        (&bytes[..1000], "truncated, or another format: PAR1 is missing at its end, at byte 996".to_owned()),
        (&bytes[..11], "it has only 11 bytes".to_owned()),
        (&[&bytes[..end], b"\xff\xff\0\x7fPAR1"].concat(), format!("as it says at byte {end}, do not fit before")),
        (&[&bytes[..end], b"\x08\0\0\0PAR1"].concat(), format!("damaged: its metadata in bytes {}..{end}: ", end - 8)),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let found = open(path.to_str().unwrap(), &one("x", &[6])).err().unwrap().to_string();
        assert!(found.contains("bad.parquet: not a readable Parquet file: ") && found.contains(&reason), "{found}");
    }
}

/// Whatever a byte becomes, what is read is numbers or an error that names the file: never a panic.
#[test]
fn damage_is_refused_or_read_as_other_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.parquet");
    let wanted = requirements(vec![input("wide", DataType::Int64, &[]), input("x", DataType::Float32, &[6])]);
    let mut reading = Reading::default();
    reading.held = HeldBytes::AtMost(0);
    let whole = std::fs::read(testdata("numbers_plain.parquet")).unwrap();
    let read = |at: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[at] = value;
        std::fs::write(&path, bytes).unwrap();
        let set = open_with(path.to_str().unwrap(), &wanted, &reading);
        set.and_then(|mut set| set.batch(&(0..set.sample_count()).collect::<Vec<_>>()))
            .map_err(|error| error.to_string())
    };
    // The second byte is the type of the first page, a dictionary; without it, the values that follow mean nothing.
    let error = read(5, 2).unwrap_err();
    let said = "bad.parquet[x.list.element], in rows 0..128 at byte 4: damaged: its pages contradict each other (";
    assert!(error.contains(said) && !error.contains("(no reason given)"), "{error}");
    let (mut refused, mut other, mut negative) = (0, 0, 0);
    // Most of what matters is in the metadata at the end, whose size is in front of the last word.
    let metadata_bytes = u32::from_le_bytes(whole[whole.len() - 8..][..4].try_into().unwrap()) as usize;
    let metadata = whole.len() - 8 - metadata_bytes;
    for at in (0..metadata).step_by(421).chain((metadata..whole.len()).step_by(23)) {
        for value in [255, whole[at] ^ 1] {
            match read(at, value) {
                Ok(_) => other += 1,
                Err(error) => {
                    assert!(error.contains("bad.parquet"), "{error}");
                    let is_negative =
                        error.contains("damaged: column ") && error.contains("has a negative offset or size");
                    negative += u32::from(is_negative);
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 80 && other > 80 && negative > 0, "{refused} refused, {other} read, {negative} negative");
}

#[cfg(feature = "text")]
#[test]
fn a_column_of_text_has_the_tokens_of_its_lines() {
    let (wanted, reading) = tokens();
    assert_eq!(all_text("text.parquet"), all_text("text.jsonl"));
    let mut other = reading.clone();
    other.text.key = Some("body".to_string());
    let error = open_with(testdata("text.parquet").to_str().unwrap(), &wanted, &other).err().unwrap().to_string();
    assert!(error.contains("no text column named body") && error.contains("text (bytes)"), "{error}");
}
