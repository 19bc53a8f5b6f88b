//! What reading takes. Alone in its process, whose highest memory use it measures.

use std::io::Write;

use forebay_base::DataType;
use forebay_data::{InputDescription, LabelKind, Requirements};

/// The most bytes that this process ever had in memory.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("the system counts");
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// A NIfTI file of that many bytes along each axis, all zero, and packed.
fn write_volume(path: &std::path::Path, size: i16) {
    let mut header = vec![0u8; 352];
    header[..4].copy_from_slice(&348i32.to_le_bytes());
    for (at, value) in [(40, 3), (42, size), (44, size), (46, size), (70, 2)] {
        header[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    header[108..112].copy_from_slice(&352f32.to_le_bytes());
    header[344..348].copy_from_slice(b"n+1\0");
    let file = std::fs::File::create(path).unwrap();
    let mut encoder = flate2::write::GzEncoder::new(file, flate2::Compression::best());
    encoder.write_all(&header).unwrap();
    let plane = vec![0; (size as usize).pow(2)];
    (0..size).for_each(|_| encoder.write_all(&plane).unwrap());
    encoder.finish().unwrap();
}

#[test]
fn a_volume_takes_no_more_than_the_models_box() {
    const SIZE: u64 = 400;
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.nii.gz", "a_seg.nii.gz"] {
        write_volume(&folder.path().join(name), SIZE as i16);
        let packed = std::fs::metadata(folder.path().join(name)).unwrap().len();
        assert!(packed < 100_000, "{packed} bytes hold {} of voxels", SIZE.pow(3));
    }
    let open = |size: u64| {
        let sample_shape = vec![1, size, size, size];
        let input = InputDescription { name: "x".into(), data_type: DataType::Float32, sample_shape };
        let requirements = Requirements {
            inputs: vec![input],
            input_scale: 1.0,
            labels: LabelKind::Classes,
            label_shape: vec![size; 3],
        };
        forebay_data::open(folder.path().to_str().unwrap(), &requirements).unwrap()
    };
    let before = peak_bytes();
    let batch = open(48).batch(&[0]).unwrap();
    assert_eq!(batch.inputs["x"].shape(), [1, 1, 48, 48, 48]);
    let taken = peak_bytes() - before;
    assert!(taken < SIZE.pow(3) / 2, "{taken} bytes for a box of {} in a volume of {}", 48u64.pow(3), SIZE.pow(3));
}
