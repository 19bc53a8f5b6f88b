//! Conversion of text to tokens, as a `tokenizer.json` specifies, by the crate `tokenizers`.

use std::path::{Path, PathBuf};

use tokenizers::Tokenizer;

use crate::error::DataError;

/// The largest description of a tokenizer.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// The tokens that usually end a document. If no token is given, the first of these that the tokenizer has is used.
const END_TOKENS: [&str; 5] = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]"];

/// A tokenizer, and the token that ends a document.
pub(crate) struct Tokens {
    path: PathBuf,
    tokenizer: Tokenizer,
    end: Option<(String, u32)>,
}

impl Tokens {
    /// Reads a `tokenizer.json`. `end` is the token that is appended to each document: `None` for the usual one, empty for no token.
    ///
    /// # Errors
    /// [`DataError`] naming the file if it is not a tokenizer, or does not have the token.
    pub(crate) fn open(path: &Path, end: Option<&str>) -> Result<Tokens, DataError> {
        let bytes = forebay_limits::read(path, FILE_BYTES_MAX, 4).map_err(|error| DataError::io(path, error))?;
        let origin = path.display().to_string();
        let mut tokenizer = Tokenizer::from_bytes(&bytes)
            .map_err(|error| DataError::malformed(&origin, format!("not a readable tokenizer: {error}")))?;
        // Truncation and padding are meant for single texts, not for packed ones.
        let no_truncation = tokenizer.with_truncation(None).map(|_| ());
        no_truncation.map_err(|error| DataError::malformed(&origin, error.to_string()))?;
        tokenizer.with_padding(None);
        let number = |token: &str| tokenizer.token_to_id(token).map(|number| (token.to_owned(), number));
        let end = match end {
            Some("") => None,
            None => END_TOKENS.iter().find_map(|token| number(token)),
            Some(token) => Some(number(token).ok_or_else(|| {
                let usual: Vec<&str> = END_TOKENS.into_iter().filter(|token| number(token).is_some()).collect();
                let known = if usual.is_empty() { "none of the usual ones".to_owned() } else { usual.join(", ") };
                DataError::malformed(&origin, format!("it has no token '{token}' to end documents; it has {known}"))
            })?),
        };
        Ok(Tokens { path: path.to_path_buf(), tokenizer, end })
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of tokens in the vocabulary.
    pub(crate) fn vocabulary(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// Returns the token that ends a document.
    pub(crate) fn end(&self) -> Option<&str> {
        self.end.as_ref().map(|(token, _)| token.as_str())
    }

    /// Appends the tokens of a text, followed by the end token if the text is the last of a document. An empty text has no tokens.
    ///
    /// # Errors
    /// [`DataError`] with the tokenizer's error.
    pub(crate) fn push(&self, text: &str, is_last: bool, tokens: &mut Vec<u32>) -> Result<(), DataError> {
        let failed = |error: tokenizers::Error| {
            DataError::malformed(self.path.display().to_string(), format!("cannot tokenize a text: {error}"))
        };
        if text.is_empty() {
            return Ok(());
        }
        tokens.extend_from_slice(self.tokenizer.encode_fast(text, false).map_err(failed)?.get_ids());
        tokens.extend(self.end.iter().filter(|_| is_last).map(|(_, number)| *number));
        Ok(())
    }
}
