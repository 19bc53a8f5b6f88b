//! Sounds as libsndfile writes and reads them (`testdata/data`).

use forebay_base::{DataType, Tensor};
use forebay_data::{InputDescription, LabelKind, Requirements, guess, open};
use serde_json::Value;

const FOLDER: &str = "../../testdata/data/sounds";
const NAMES: [&str; 6] = ["high/a.wav", "high/b.wav", "high/c.wav", "high/d.wav", "low/a.flac", "low/b.flac"];

fn requirements(sample_shape: &[u64]) -> Requirements {
    let input =
        InputDescription { name: "x".into(), data_type: DataType::Float32, sample_shape: sample_shape.to_vec() };
    Requirements { inputs: vec![input], input_scale: 1.0, labels: LabelKind::Classes, label_shape: vec![] }
}

/// The channels of each sound.
fn expected() -> Vec<Vec<Vec<f32>>> {
    let text = std::fs::read_to_string("../../testdata/data/expected.json").unwrap();
    let expected = serde_json::from_str::<Value>(&text).unwrap()["sounds"].clone();
    let numbers =
        |channel: &Value| channel.as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect();
    NAMES.iter().map(|name| expected[*name].as_array().unwrap().iter().map(numbers).collect()).collect()
}

#[test]
fn sounds_of_all_kinds_are_those_of_the_reference() {
    // Shorter and longer than the sounds.
    for length in [150usize, 230] {
        let mut set = open(FOLDER, &requirements(&[length as u64])).unwrap();
        let batch = set.batch(&[0, 1, 2, 3, 4, 5]).unwrap();
        for (row, channels) in (0..).zip(expected()) {
            let mean = |place: usize| {
                let sum: f64 = channels.iter().map(|channel| f64::from(*channel.get(place).unwrap_or(&0.0))).sum();
                (sum / channels.len() as f64) as f32
            };
            let wanted: Vec<f32> = (0..length).map(mean).collect();
            assert_eq!(batch.inputs["x"].rows(&[row]), Tensor::from_f32(&[1, length as u64], &wanted), "{row}");
        }
        assert_eq!(batch.labels, Tensor::from_i64(&[6], &[0, 0, 0, 0, 1, 1]));
    }
    let found = open(FOLDER, &requirements(&[1, 100])).unwrap().description().unwrap();
    assert_eq!(found.kind, "a folder of sounds in 2 classes");
    assert!(found.tensors[0].contains("1 channel of 200 samples, 16 bits, 8000 per second; cut or padded to [1, 100]"));
    assert_eq!(guess(FOLDER, 8).unwrap().inputs[0].sample_shape, [1, 200]);
    // Two channels for those that have two.
    let mut set = open(FOLDER, &requirements(&[2, 200])).unwrap();
    let both: Vec<f32> = [&expected()[4][0][..], &expected()[4][1]].concat();
    assert_eq!(set.batch(&[4]).unwrap().inputs["x"], Tensor::from_f32(&[1, 2, 200], &both));
    assert!(
        set.batch(&[0])
            .unwrap_err()
            .to_string()
            .contains("a.wav: the shape is [1], expected 2 channels, to match input x")
    );
}

#[test]
fn damage_other_rates_and_wrong_models_are_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("c")).unwrap();
    let copy = |from: &str, to: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = std::fs::read(format!("{FOLDER}/{from}")).unwrap();
        change(&mut bytes);
        std::fs::write(folder.path().join("c").join(to), bytes).unwrap();
    };
    copy("high/a.wav", "a.wav", &|_| {});
    copy("high/a.wav", "b.wav", &|bytes| bytes.truncate(200));
    copy("low/b.flac", "c.flac", &|bytes| {
        let at = bytes.len() - 100;
        bytes[at] ^= 255;
    });
    // The rate of a WAV file is at byte 24, that of bytes at byte 28.
    copy("high/a.wav", "d.wav", &|bytes| (bytes[24], bytes[28]) = (bytes[24] ^ 1, bytes[28] ^ 2));
    copy("high/a.wav", "e.wav", &|bytes| bytes[0] = 0);
    copy("low/b.flac", "f.flac", &|bytes| {
        // Only the blocks before the first frame are left.
        let mut end = 4;
        loop {
            let (head, size) = (bytes[end], u32::from_be_bytes([0, bytes[end + 1], bytes[end + 2], bytes[end + 3]]));
            end += 4 + size as usize;
            if head & 0x80 != 0 {
                break;
            }
        }
        bytes.truncate(end);
    });
    copy("low/b.flac", "g.flac", &|bytes| bytes.truncate(bytes.len() - 100));
    copy("low/b.flac", "h.flac", &|bytes| bytes.truncate(20));
    let mut set = open(folder.path().to_str().unwrap(), &requirements(&[200])).unwrap();
    set.batch(&[0]).unwrap();
    for (sample, words) in [
        (1, "b.wav: sample 78"),
        (2, "c.flac: sample 0"),
        (3, "d.wav: it has 8001 samples per second, but the first sound has 8000"),
        (4, "e.wav: not a readable sound file"),
        (5, "f.flac: sample 0: the file ends before the last of its "),
        (6, "g.flac: sample 0: truncated: the file ends too early"),
        (7, "h.flac: not a readable sound file: truncated: the file ends too early"),
    ] {
        let error = set.batch(&[sample]).unwrap_err().to_string();
        assert!(error.contains(words), "{sample}: {error}");
    }
    let error = open(FOLDER, &requirements(&[1, 8, 8])).err().unwrap().to_string();
    assert!(error.contains("[batch, length] or [batch, channels, length]"), "{error}");
}
