//! Text as tokens, next to what the Python package `tokenizers` makes of it (`testdata/data`).

#![cfg(feature = "text")]

use std::path::{Path, PathBuf};

use forebay_base::{DataType, Tensor};
use forebay_data::{
    DataSet, HeldBytes, InputDescription, LabelKind, Loader, Reading, Requirements, Sampler, open_with,
};
use serde_json::Value;

fn testdata(name: &str) -> PathBuf {
    Path::new("../../testdata/data").join(name)
}

fn expected(tokenizer: &str, key: &str) -> Value {
    let text = std::fs::read_to_string(testdata("expected.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()[tokenizer][key].clone()
}

fn numbers(value: &Value) -> Vec<i64> {
    value.as_array().unwrap().iter().map(|number| number.as_i64().unwrap()).collect()
}

fn requirements(names: &[&str], length: u64) -> Requirements {
    let input = |name: &&str| InputDescription {
        name: name.to_string(),
        data_type: DataType::Int64,
        sample_shape: vec![length],
    };
    let (labels, label_shape) = (LabelKind::Classes, vec![length]);
    Requirements { inputs: names.iter().map(input).collect(), input_scale: 1.0, labels, label_shape }
}

fn reading(tokenizer: &str, end_token: Option<&str>) -> Reading {
    let mut reading = Reading::default();
    reading.text.tokenizer = Some(testdata(tokenizer));
    reading.text.end_token = end_token.map(str::to_owned);
    reading
}

/// All tokens of a set in order, the last label included.
fn all_tokens(set: &mut DataSet) -> Vec<i64> {
    let samples: Vec<u64> = (0..set.sample_count()).collect();
    let batch = set.batch(&samples).unwrap();
    let (inputs, labels) = (batch.inputs["tokens"].to_i64().unwrap(), batch.labels.to_i64().unwrap());
    assert_eq!(inputs[1..], labels[..labels.len() - 1], "labels are the next tokens");
    inputs.into_iter().chain(labels.last().copied()).collect()
}

#[test]
fn texts_and_lines_have_the_tokens_of_the_reference() {
    for (name, file, end) in [("bpe", "bpe.json", "<|endoftext|>"), ("wordpiece", "wordpiece.json", "[SEP]")] {
        let opened = |data: &str, end: Option<&str>| {
            let data = testdata(data);
            open_with(data.to_str().unwrap(), &requirements(&["tokens"], 1), &reading(file, end)).unwrap()
        };
        assert_eq!(all_tokens(&mut opened("text.txt", Some(""))), numbers(&expected(name, "text")), "{name}");
        let id = if name == "bpe" { 0 } else { 1 };
        let lines = expected(name, "lines");
        let with_ends: Vec<i64> =
            lines.as_array().unwrap().iter().flat_map(|line| [numbers(line), vec![id]].concat()).collect();
        let mut set = opened("text.jsonl", None);
        assert_eq!(all_tokens(&mut set), with_ends, "{name}");
        let found = set.description().unwrap();
        let words = [
            format!("{} tokens from a vocabulary of {}", with_ends.len(), expected(name, "vocabulary")),
            format!("end with {end}"),
        ];
        assert!(words.iter().all(|words| found.kind.contains(words)), "{}", found.kind);
    }
}

/// The text many times over: longer than a piece, and than what is kept where only little may be.
fn long_text(folder: &Path) -> (String, Vec<i64>) {
    let path = folder.join("long.txt");
    std::fs::write(&path, std::fs::read_to_string(testdata("text.txt")).unwrap().repeat(150)).unwrap();
    (path.to_str().unwrap().to_owned(), numbers(&expected("bpe", "text")).repeat(150))
}

#[test]
fn any_sequence_can_be_read_in_any_order_whatever_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (path, tokens) = long_text(folder.path());
    let length = 50;
    for held in [HeldBytes::Usual, HeldBytes::AtMost(20_000), HeldBytes::AtMost(0)] {
        let mut reading = reading("bpe.json", Some(""));
        reading.held = held;
        let names = ["tokens", "attention_mask", "position_ids", "token_type_ids"];
        let mut set = open_with(&path, &requirements(&names, length), &reading).unwrap();
        assert_eq!(set.sample_count(), (tokens.len() as u64 - 1) / length);
        let most = match held {
            HeldBytes::AtMost(bytes) => bytes.max(4096),
            _ => 4 * tokens.len() as u64 + 8192,
        };
        assert!(set.description().unwrap().held_bytes <= most, "{held:?}");
        let samples: Vec<u64> = (0..set.sample_count()).rev().step_by(37).collect();
        let batch = set.batch(&samples).unwrap();
        for (row, &sample) in (0..).zip(&samples) {
            let at = (sample * length) as usize;
            let input = batch.inputs["tokens"].rows(&[row]).to_i64().unwrap();
            assert_eq!(input, tokens[at..at + length as usize], "{held:?} {sample}");
            assert_eq!(batch.labels.rows(&[row]).to_i64().unwrap(), tokens[at + 1..at + 1 + length as usize]);
        }
        let rows = |values: Vec<i64>| Tensor::from_i64(&[1, length], &values);
        assert_eq!(batch.inputs["attention_mask"].rows(&[1]), rows(vec![1; length as usize]));
        assert_eq!(batch.inputs["position_ids"].rows(&[1]), rows((0..length as i64).collect()));
        assert_eq!(batch.inputs["token_type_ids"].rows(&[1]), rows(vec![0; length as usize]));
        set.keep_at_most(8192);
        assert_eq!(set.batch(&samples).unwrap(), batch);
        assert!(set.description().unwrap().held_bytes <= 8192 + 4096);
    }
}

#[test]
fn a_shuffled_epoch_goes_on_in_its_middle() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = long_text(folder.path());
    let loader = |ahead| {
        let set = open_with(&path, &requirements(&["tokens"], 64), &reading("bpe.json", None)).unwrap();
        let sampler = Sampler::new(set.sample_count(), 8, Some(3));
        Loader::new(set, sampler, ahead)
    };
    let (mut first, mut second) = (loader(0), loader(2));
    let batches: Vec<_> = (0..30).map(|step| first.batch(step).unwrap().batch).collect();
    for step in 17..30 {
        assert_eq!(second.batch(step).unwrap().batch, batches[step as usize]);
    }
}

#[test]
fn what_cannot_be_read_as_tokens_is_refused_with_a_way_out() {
    let text = testdata("text.txt");
    let text = text.to_str().unwrap();
    let error = |requirements: &Requirements, reading: &Reading| {
        open_with(text, requirements, reading).err().unwrap().to_string()
    };
    let fits = requirements(&["tokens"], 8);
    assert!(error(&fits, &Reading::default()).contains("pass a tokenizer.json with --tokenizer"));
    assert!(error(&fits, &reading("text.txt", None)).contains("text.txt: not a readable tokenizer"));
    assert!(
        error(&fits, &reading("bpe.json", Some("</s>")))
            .contains("no token '</s>' to end documents; it has <|endoftext|>")
    );
    assert!(
        error(&requirements(&["a", "b"], 8), &reading("bpe.json", None))
            .contains("this model's inputs are a: int64[8], b: int64[8]")
    );
    let float = Requirements { labels: LabelKind::Values(DataType::Float32), ..fits.clone() };
    assert!(error(&float, &reading("bpe.json", None)).contains("the next tokens, 8 for each sequence"));
    assert!(
        error(&Requirements { label_shape: vec![], ..fits }, &reading("bpe.json", None)).contains("--class-axis -1")
    );
    assert!(
        error(&requirements(&["tokens"], 100_000), &reading("bpe.json", None))
            .contains("fewer than one sequence of 100000")
    );
}
