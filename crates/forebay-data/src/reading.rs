//! How the samples of a data set are read, where there is a choice.

use std::path::PathBuf;

use crate::arrays::HeldBytes;
use crate::ragged_set::FreeSizes;

/// How samples are read.
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
    /// Sizes that may differ from sample to sample.
    pub free: FreeSizes,
    /// How much of the samples may be in memory.
    pub held: HeldBytes,
    /// How text becomes tokens.
    pub text: TextOptions,
    /// Patches instead of whole volumes.
    pub patches: Option<Patches>,
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
    /// Sizes of a patch, which are those of the model's input.
    pub sizes: Vec<u64>,
    /// Random patches of each volume in an epoch; none for tiles that cover it.
    pub per_volume: Option<u64>,
    /// The seed of random patches.
    pub seed: u64,
    /// Whole volumes instead, each of its own sizes, read and normalised as for patches: what goes over them in windows takes these. A batch
    /// has volumes of one size.
    pub whole: bool,
}

impl Patches {
    /// Tiles of these sizes.
    pub fn new(sizes: &[u64]) -> Patches {
        Patches { sizes: sizes.to_vec(), per_volume: None, seed: 0, whole: false }
    }

    /// Whole volumes, for a model that takes patches of these sizes.
    pub fn volumes(sizes: &[u64]) -> Patches {
        Patches { whole: true, ..Patches::new(sizes) }
    }
}

/// How text becomes tokens.
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
    /// The token that comes behind each document; none for the first of the usual ones that the tokenizer has, empty for no token.
    pub end_token: Option<String>,
    /// What holds the text: the key of a JSON line, or the name of a column. None for `text` or `content`.
    pub key: Option<String>,
}
