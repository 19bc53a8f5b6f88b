//! What reading a large array takes. Alone in its process, whose highest memory use it measures.

use std::io::Write;

use forebay_base::{DataType, Tensor};
use forebay_data::{FreeSizes, HeldBytes, InputDescription, LabelKind, Loader, Requirements, Sampler, open_free};

/// The most bytes that this process ever had in memory.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("the system counts");
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn an_array_takes_no_more_than_its_batches() {
    const SAMPLES: u64 = 1024;
    const VALUES: u64 = 32 << 10;
    let folder = tempfile::tempdir().unwrap();
    let mut file = std::io::BufWriter::new(std::fs::File::create(folder.path().join("x.npy")).unwrap());
    let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({SAMPLES}, 1, 128, 256), }}\n");
    file.write_all(b"\x93NUMPY\x01\x00").unwrap();
    file.write_all(&(header.len() as u16).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    for sample in 0..SAMPLES {
        file.write_all(&vec![(sample % 251) as u8; VALUES as usize]).unwrap();
    }
    file.into_inner().unwrap();
    let labels: Vec<i64> = (0..SAMPLES as i64).collect();
    forebay_data::npy::write(&folder.path().join("y.npy"), &Tensor::from_i64(&[SAMPLES], &labels)).unwrap();
    let input = InputDescription { name: "x".into(), data_type: DataType::UInt8, sample_shape: vec![1, 128, 256] };
    let (labels, label_shape) = (LabelKind::Classes, Vec::new());
    let requirements = Requirements { inputs: vec![input], input_scale: 1.0, labels, label_shape };
    let before = peak_bytes();
    let path = folder.path().to_str().unwrap();
    let set = open_free(path, &requirements, &FreeSizes::default(), HeldBytes::AtMost(1 << 20)).unwrap();
    let found = set.description().unwrap();
    assert_eq!((found.samples, found.held_bytes), (SAMPLES, 8 * SAMPLES), "labels are small");
    let sampler = Sampler::new(SAMPLES, 16, Some(1));
    let steps = sampler.steps_per_epoch();
    let mut loader = Loader::new(set, sampler, 2);
    loader.end_at(steps);
    for step in 0..steps {
        let loaded = loader.batch(step).unwrap();
        let labels = loaded.batch.labels.to_i64().unwrap();
        let first: Vec<i64> =
            loaded.batch.inputs["x"].bytes().chunks(VALUES as usize).map(|row| row[0].into()).collect();
        assert_eq!(first, labels.iter().map(|label| label % 251).collect::<Vec<_>>());
    }
    let taken = peak_bytes() - before;
    assert!(taken < SAMPLES * VALUES / 4, "{taken} bytes for batches of 16 of {SAMPLES} samples of {VALUES} bytes");
}
