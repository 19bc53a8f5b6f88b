//! Tables as pyarrow writes them (`testdata/data`): columns of numbers, lists and images.

#![cfg(feature = "tables")]

#[cfg(feature = "arrow")]
mod arrow;
#[cfg(feature = "parquet")]
mod parquet;

use std::path::{Path, PathBuf};

use forebay_base::DataType;
#[cfg(feature = "text")]
use forebay_data::{Batch, Reading, open_with};
use forebay_data::{InputDescription, LabelKind, Requirements};
use serde_json::Value;

fn testdata(name: &str) -> PathBuf {
    Path::new("../../testdata/data").join(name)
}

fn expected(key: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(testdata("expected.json")).unwrap();
    let value = &serde_json::from_str::<Value>(&text).unwrap()["parquet"][key];
    // Decimal numbers are parsed to the nearest of 64 bits, or next to it; those of 32 bits are then exact.
    let number = |value: &Value| {
        value
            .as_i64()
            .map(|number| number as f64)
            .or(value.as_f64().map(|number| f64::from(number as f32)))
            .or(value.as_bool().map(|flag| f64::from(u8::from(flag))))
            .unwrap()
    };
    value.as_array().unwrap().iter().map(number).collect()
}

fn input(name: &str, data_type: DataType, sample_shape: &[u64]) -> InputDescription {
    InputDescription { name: name.into(), data_type, sample_shape: sample_shape.to_vec() }
}

fn requirements(inputs: Vec<InputDescription>) -> Requirements {
    Requirements { inputs, input_scale: 1.0, labels: LabelKind::Classes, label_shape: vec![] }
}

/// Sequences of four tokens, and how text is read as them.
#[cfg(feature = "text")]
fn tokens() -> (Requirements, Reading) {
    let wanted = Requirements { label_shape: vec![4], ..requirements(vec![input("ids", DataType::Int64, &[4])]) };
    let mut reading = Reading::default();
    reading.text.tokenizer = Some(testdata("bpe.json"));
    (wanted, reading)
}

/// All samples of a file of text.
#[cfg(feature = "text")]
fn all_text(name: &str) -> Batch {
    let (wanted, reading) = tokens();
    let mut set = open_with(testdata(name).to_str().unwrap(), &wanted, &reading).unwrap();
    let samples: Vec<u64> = (0..set.sample_count()).collect();
    set.batch(&samples).unwrap()
}
