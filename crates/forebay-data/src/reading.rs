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
