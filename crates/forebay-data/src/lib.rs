//! Data sets: NumPy arrays, NIfTI volumes, images, tar shards and text as batches of tensors.
//!
//! The files may come from anywhere, so sizes are checked before they are trusted, and every error names the file. The crate knows nothing
//! about models: a caller describes the inputs that it wants ([`dataset::InputDescription`]) and gets [`Tensor`](forebay_base::Tensor)s.
//!
//! | module | contents |
//! |---|---|
//! | [`error`] | errors, which name the file and the place in it |
//! | `names` | files by their names |
//! | [`mod@convert`] | conversions between element types |
//! | [`npy`] | files of one NumPy array |
//! | [`npz`] | files of several NumPy arrays |
//! | [`safetensors_file`] | which tensors a safetensors file holds |
//! | `gzip` | gzip files, with their checksums |
//! | [`nifti`] | medical volumes in NIfTI-1 files |
//! | `nrrd`, `volume_file` | volumes in NRRD files; volumes in either format, chosen by the file's name |
//! | [`volume`] | cropping, padding and normalizing volumes |
//! | [`pairing`] | which label file belongs to which image file |
//! | [`sampler`] | which samples make up which batch, as a function of seed and step |
//! | [`digest`] | digests, which tell whether two data sets hold the same samples |
//! | [`batch`] | the samples of a step |
//! | `elastic` | smooth deformations |
//! | `plane`, [`augment`] | random changes to samples |
//! | `mixing` | mixing samples with others |
//! | [`normalization`] | normalization by the mean and deviation of each channel |
//! | `requirements` | what a caller requires of a data set |
//! | [`dataset`] | data sets of any kind as batches, by input name |
//! | `array_rows` | rows of an array, in memory or in a file |
//! | [`arrays`] | arrays by name, from a file or a folder |
//! | `input_array` | an input of a run, of which a process reads its share |
//! | [`archive_set`] | data sets in an `.npz` archive, a `.safetensors` file or a folder of `.npy` files |
//! | [`ragged_set`] | data sets of samples of different sizes |
//! | [`volume_set`] | data sets of pairs of volumes |
//! | `kept` | samples that stay in memory |
//! | `class_folders` | folders with one subfolder for each class |
//! | `image_file` | image files |
//! | [`image_set`] | data sets of images, one folder per class |
//! | `wav`, `sound_file`, `sound_set` | WAV files; one sound; data sets of sounds, one folder per class |
//! | [`manifest`] | tables of images with their labels |
//! | [`tar_set`] | data sets in tar shards |
//! | `table_files` | which files are tables of columns |
//! | `table` | columns of tables, with rows in any order |
//! | `parquet_file` | columns of Parquet files |
//! | `arrow_layout`, `arrow_messages`, `arrow_values`, `arrow_file` | columns of Arrow files |
//! | `tables` | tables of any format |
//! | `table_set` | data sets in tables |
//! | `text_files` | which files hold text |
//! | `documents` | text documents, piece by piece |
//! | `tokens` | conversion of text to tokens |
//! | [`reading`] | options for reading samples |
//! | `patch_set` | data sets of patches of volumes |
//! | `text_set` | data sets of text as sequences of tokens |
//! | [`fn@open`] | which kind of data set a path names |
//! | [`fn@guess`] | what a data set holds if no model says what it expects |
//! | [`sheet`] | the samples of a batch as one image |
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
mod class_folders;
pub mod convert;
pub mod dataset;
pub mod digest;
#[cfg(feature = "text")]
mod documents;
mod elastic;
pub mod error;
mod guess;
mod gzip;
mod image_file;
pub mod image_set;
mod input_array;
mod kept;
mod lettering;
pub mod loader;
pub mod manifest;
mod mixing;
mod names;
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
mod requirements;
pub mod safetensors_file;
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
mod wav;

pub use arrays::HeldBytes;
pub use augment::{Augmentation, Transform};
pub use batch::Batch;
pub use boxes::cut_box;
pub use dataset::{DataSet, Description, InputDescription, LabelKind, Part, Requirements};
pub use digest::Digest;
pub use error::DataError;
pub use guess::{guess, guess_with};
pub use input_array::InputArray;
pub use loader::{Loaded, Loader};
pub use normalization::Normalization;
pub use open::{open, open_free, open_with, sample_shapes};
pub use ragged_set::FreeSizes;
pub use reading::{Patches, Reading, TextOptions};
pub use sampler::Sampler;
