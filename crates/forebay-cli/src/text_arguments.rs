//! The flags for tokenizing text.

// Help texts are plain text.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]

use std::path::PathBuf;

use clap::Args;
use forebay::data::TextOptions;

/// How text is tokenized.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Text")]
pub struct TextArguments {
    /// Tokenize text (.txt, .jsonl, columns of Parquet and Arrow files) with this tokenizer, in the format of the Python package
    /// `tokenizers`. The model's input is [batch, length]; the labels are the next tokens
    #[arg(long, value_name = "TOKENIZER.json")]
    pub tokenizer: Option<PathBuf>,
    /// The token after each document (a text file or a line of JSON); '' for none [default: the first that the tokenizer has of
    /// <|endoftext|>, <|end_of_text|>, </s>, <eos> and [SEP]]
    #[arg(long, value_name = "TOKEN", requires = "tokenizer")]
    pub end_token: Option<String>,
    /// The key or column that holds the text in JSON lines or tables [default: text, or content]
    #[arg(long, value_name = "KEY", requires = "tokenizer")]
    pub text_key: Option<String>,
}

impl TextArguments {
    /// Converts the flags to the library's options.
    pub fn options(&self) -> TextOptions {
        let mut options = TextOptions::default();
        (options.tokenizer, options.end_token) = (self.tokenizer.clone(), self.end_token.clone());
        options.key = self.text_key.clone();
        options
    }
}
