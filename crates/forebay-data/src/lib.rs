//! Data sets: NumPy arrays, NIfTI volumes, images, tar shards and text as batches of tensors.
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
//! | `nrrd`, `volume_file` | the same in NRRD files; both by their names |
//! | [`volume`] | cropping, padding and normalising volumes |
//! | [`pairing`] | which label file belongs to which image file |
//! | [`sampler`] | which samples make up which batch: a function of seed and step |
//! | [`digest`] | whether two data sets hold the same samples |
//! | [`batch`] | samples, put together for a step |
//! | `elastic` | smooth deformations |
//! | `plane`, [`augment`] | samples that are changed a little each time they are seen |
//! | `mixing` | samples that are mixed with others |
//! | [`normalization`] | means and deviations of channels |
//! | [`dataset`] | samples of any kind as batches by input name |
//! | `array_rows` | rows of an array, in memory or in a file |
//! | [`arrays`] | arrays by name, of an archive or a folder |
//! | [`archive_set`] | a data set in an `.npz` archive, or a folder of `.npy` files |
//! | [`ragged_set`] | a data set of samples of different sizes |
//! | [`volume_set`] | a data set of NIfTI pairs |
//! | `image_file` | one image |
//! | [`image_set`] | a data set of images, one folder per class |
//! | `sound_file`, `sound_set` | one sound; a data set of them, one folder per class |
//! | [`manifest`] | a table of images with their labels |
//! | [`tar_set`] | tar shards |
//! | `table_files` | which files are tables of columns |
//! | `table` | columns of files, rows in any order |
//! | `parquet_file` | columns of Parquet files |
//! | `arrow_layout`, `arrow_messages`, `arrow_values`, `arrow_file` | columns of Arrow files |
//! | `tables` | tables of any format |
//! | `table_set` | a data set in tables |
//! | `text_files` | which files hold text |
//! | `documents` | documents of text, piece by piece |
//! | `tokens` | text as tokens |
//! | [`reading`] | how samples are read, where there is a choice |
//! | `patch_set` | patches of volumes |
//! | `text_set` | a data set of text as sequences of tokens |
//! | [`fn@open`] | which kind of data set a path names |
//! | [`fn@guess`] | what a data set holds where no model says what it wants |
//! | [`sheet`] | samples as one picture |
//! | [`loader`] | batches that are read ahead |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod archive_set;
mod array_rows;
pub mod arrays;
#[cfg(feature = "arrow")]
mod arrow_file;
#[cfg(feature = "arrow")]
mod arrow_layout;
#[cfg(feature = "arrow")]
mod arrow_messages;
#[cfg(feature = "arrow")]
mod arrow_values;
pub mod augment;
pub mod batch;
mod boxes;
pub mod convert;
pub mod dataset;
pub mod digest;
#[cfg(feature = "text")]
mod documents;
mod elastic;
pub mod error;
mod guess;
mod image_file;
pub mod image_set;
pub mod loader;
pub mod manifest;
mod mixing;
pub mod nifti;
pub mod normalization;
pub mod npy;
pub mod npz;
mod nrrd;
pub mod open;
pub mod pairing;
#[cfg(feature = "parquet")]
mod parquet_file;
mod patch_set;
mod plane;
pub mod ragged_set;
pub mod reading;
pub mod sampler;
pub mod sheet;
mod sound_file;
mod sound_set;
#[cfg(feature = "tables")]
mod table;
mod table_files;
#[cfg(feature = "tables")]
mod table_set;
#[cfg(feature = "tables")]
mod tables;
pub mod tar_set;
mod text_files;
#[cfg(feature = "text")]
mod text_set;
#[cfg(feature = "text")]
mod tokens;
pub mod volume;
mod volume_file;
pub mod volume_set;

pub use arrays::HeldBytes;
pub use augment::{Augmentation, Transform};
pub use batch::Batch;
pub use boxes::cut_box;
pub use dataset::{DataSet, Description, InputDescription, LabelKind, Part, Requirements};
pub use digest::Digest;
pub use error::DataError;
pub use guess::{guess, guess_with};
pub use loader::{Loaded, Loader};
pub use normalization::Normalization;
pub use open::{open, open_free, open_with, sample_shapes};
pub use ragged_set::FreeSizes;
pub use reading::{Patches, Reading, TextOptions};
pub use sampler::Sampler;
