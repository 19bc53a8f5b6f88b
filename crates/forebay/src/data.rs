//! Data sets as batches of tensors: NumPy arrays, NIfTI volumes, images, tar shards, text. See the crate `forebay-data` for more.
//!
//! ```
//! use forebay::data::{open, LabelKind, Requirements, Sampler};
//! use forebay::{Model, Trainer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::from_file("../../examples/digits/model.onnx")?;
//! let mut trainer = Trainer::builder(&model).batch_size(50).build()?;
//! let mut digits = open("../../examples/digits/digits.npz#0..1500", &trainer.data_requirements(0.0625)?)?;
//! let mut sampler = Sampler::new(digits.sample_count(), 50, None);
//! let batch = digits.batch(&sampler.batch(0))?;
//! let report = trainer.step(batch.inputs, batch.labels)?;
//! assert!(report.loss.is_finite());
//! # Ok(())
//! # }
//! ```

pub use forebay_data::{
    Augmentation, Batch, DataError, DataSet, Description, Digest, FreeSizes, HeldBytes, InputArray, InputDescription,
    LabelKind, Loaded, Loader, Normalization, Part, Patches, Reading, Requirements, Sampler, TextOptions, Transform,
    convert, cut_box, guess, guess_with, npy, npz, open, open_free, open_with, sample_shapes, sheet,
};
