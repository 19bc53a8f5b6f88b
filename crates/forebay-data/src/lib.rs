//! Data sets: NumPy archives, NIfTI volumes and folders of images as batches of tensors.
//!
//! Everything here reads files that somebody else made, so sizes are checked before they are believed and every error
//! names the file. The crate knows nothing of models: a caller says which inputs it wants
//! ([`dataset::InputDescription`]) and gets [`Tensor`](forebay_base::Tensor)s.
//!
//! | module | holds |
//! |---|---|
//! | [`error`] | what can be wrong with data, and where |
//! | [`mod@convert`] | conversions between element types |
//! | [`npy`] | one NumPy array as a file |
//! | [`npz`] | several NumPy arrays in one file |
//! | [`nifti`] | medical volumes, NIfTI-1 |
//! | [`volume`] | cropping, padding and normalising volumes |
//! | [`pairing`] | which label file belongs to which image file |
//! | [`sampler`] | which samples make up which batch: a function of seed and step |
//! | [`digest`] | whether two data sets hold the same samples |
//! | [`dataset`] | samples of any kind as batches by input name |
//! | [`archive_set`] | a data set in an `.npz` archive |
//! | [`ragged_set`] | a data set of samples of different sizes |
//! | [`volume_set`] | a data set of NIfTI pairs |
//! | [`image_set`] | a data set of images, one folder per class |
//! | [`fn@open`] | which kind of data set a path names |

pub mod archive_set;
pub mod convert;
pub mod dataset;
pub mod digest;
pub mod error;
pub mod image_set;
pub mod nifti;
pub mod npy;
pub mod npz;
pub mod open;
pub mod pairing;
pub mod ragged_set;
pub mod sampler;
pub mod volume;
pub mod volume_set;

pub use dataset::{Batch, DataSet, Description, InputDescription, LabelKind, Requirements};
pub use digest::Digest;
pub use error::DataError;
pub use open::{open, open_free, sample_shapes};
pub use ragged_set::FreeSizes;
pub use sampler::Sampler;
