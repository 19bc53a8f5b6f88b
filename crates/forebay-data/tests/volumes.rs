//! Volumes in NRRD files as pynrrd writes them (`testdata/data`).

use forebay_base::{DataType, Tensor};
use forebay_data::{InputDescription, LabelKind, Requirements, guess, open};
use serde_json::Value;

const FOLDER: &str = "../../testdata/data/volumes";

#[test]
fn packed_raw_and_detached_volumes_are_those_of_the_reference() {
    let text = std::fs::read_to_string("../../testdata/data/expected.json").unwrap();
    let expected = &serde_json::from_str::<Value>(&text).unwrap()["volumes"];
    let numbers = |key: &str| -> Vec<i64> {
        expected[key].as_array().unwrap().iter().map(|number| number.as_i64().unwrap()).collect()
    };
    let (image, labels) = (numbers("image"), numbers("labels"));
    let sample_shape = vec![1, 3, 4, 5];
    let input = InputDescription { name: "x".into(), data_type: DataType::Float32, sample_shape };
    let requirements =
        Requirements { inputs: vec![input], input_scale: 1.0, labels: LabelKind::Classes, label_shape: vec![3, 4, 5] };
    let mut set = open(FOLDER, &requirements).unwrap();
    let found = set.description().unwrap();
    assert_eq!((found.samples, found.kind.as_str()), (2, "a folder of NRRD volumes"));
    assert_eq!(found.tensors, ["image: int16[3, 4, 5], the first one", "labels: uint8[3, 4, 5], the first one"]);
    let batch = set.batch(&[0, 1]).unwrap();
    let mean = image.iter().map(|&value| value as f64).sum::<f64>() / 60.0;
    let deviation = (image.iter().map(|&value| (value as f64 - mean).powi(2)).sum::<f64>() / 60.0).sqrt();
    let normalized: Vec<f32> = image.iter().map(|&value| ((value as f64 - mean) / deviation) as f32).collect();
    assert_eq!(batch.inputs["x"], Tensor::from_f32(&[2, 1, 3, 4, 5], &normalized.repeat(2)));
    assert_eq!(batch.labels, Tensor::from_i64(&[2, 3, 4, 5], &labels.repeat(2)));
    // Voxels in files of their own count.
    let folder = tempfile::tempdir().unwrap();
    let (mut size_bytes, mut detached) = (0, None);
    for entry in std::fs::read_dir(FOLDER).unwrap() {
        let path = entry.unwrap().path();
        let copy = folder.path().join(path.file_name().unwrap());
        size_bytes += std::fs::copy(&path, &copy).unwrap();
        let is_header = |name: &std::ffi::OsStr| name == "nrrd" || name == "nhdr";
        detached = detached.or(Some(copy).filter(|copy| !copy.extension().is_some_and(is_header)));
    }
    assert_eq!(found.size_bytes, size_bytes);
    let (opened, detached) = (|| open(folder.path().to_str().unwrap(), &requirements).unwrap(), detached.unwrap());
    let (before, mut voxels) = (opened().digest().unwrap(), std::fs::read(&detached).unwrap());
    *voxels.last_mut().unwrap() ^= 1;
    std::fs::write(&detached, voxels).unwrap();
    assert_ne!(opened().digest().unwrap(), before);
    assert_eq!(guess(FOLDER, 8).unwrap().inputs[0].sample_shape, [1, 3, 4, 5]);
}
