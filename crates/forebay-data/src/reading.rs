//! Options for reading the samples of a data set.

use std::path::PathBuf;

use crate::arrays::HeldBytes;
use crate::ragged_set::FreeSizes;

/// The options for reading samples.
///
/// ```
/// use forebay_data::{HeldBytes, Reading};
///
/// let mut reading = Reading::default();
/// reading.held = HeldBytes::AtMost(200 << 20);
/// reading.text.tokenizer = Some("tokenizer.json".into());
/// assert_eq!(reading.text.end_token, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Reading {
    /// Sizes that can differ from sample to sample.
    pub free: FreeSizes,
    /// How much of the samples can be in memory.
    pub held: HeldBytes,
    /// Options for converting text to tokens.
    pub text: TextOptions,
    /// Patches instead of whole volumes.
    pub patches: Option<Patches>,
    /// Whether samples that cannot be read will be left out ([`crate::DataSet::skip_bad`]), so that opening and describing the data set,
    /// and its digest, do not fail because of them.
    pub skips_bad: bool,
}

/// Patches of volumes.
///
/// ```
/// use forebay_data::Patches;
///
/// let mut patches = Patches::new(&[64, 64, 64]);
/// assert_eq!(patches.per_volume, None, "tiles that cover each volume");
/// patches.per_volume = Some(4);
/// patches.seed = 7;
/// assert!(Patches::volumes(&[64, 64, 64]).whole);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Patches {
    /// The sizes of a patch, which are the sizes of the model's input.
    pub sizes: Vec<u64>,
    /// The number of random patches per volume and epoch; `None` for tiles that cover each volume.
    pub per_volume: Option<u64>,
    /// The seed of random patches.
    pub seed: u64,
    /// Whether samples are whole volumes instead, each with its own sizes, read and normalized like patches, as sliding-window inference
    /// needs them. All volumes of a batch have the same sizes.
    pub whole: bool,
}

impl Patches {
    /// Creates tiles of these sizes.
    pub fn new(sizes: &[u64]) -> Patches {
        Patches { sizes: sizes.to_vec(), per_volume: None, seed: 0, whole: false }
    }

    /// Creates whole volumes, for a model that takes patches of these sizes.
    pub fn volumes(sizes: &[u64]) -> Patches {
        Patches { whole: true, ..Patches::new(sizes) }
    }
}

/// Options for converting text to tokens.
///
/// ```
/// use forebay_data::TextOptions;
///
/// let mut text = TextOptions::default();
/// text.tokenizer = Some("tokenizer.json".into());
/// text.end_token = Some("<|endoftext|>".to_string());
/// text.key = Some("body".to_string());
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TextOptions {
    /// A `tokenizer.json`, as the Python package `tokenizers` saves it.
    pub tokenizer: Option<PathBuf>,
    /// The token that is appended to each document: `None` for the first of the usual ones that the tokenizer has, empty for no token.
    pub end_token: Option<String>,
    /// The key in a JSON line, or the column, that holds the text; `None` for `text` or `content`.
    pub key: Option<String>,
}
