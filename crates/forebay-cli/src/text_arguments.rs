//! The flags of text: how it becomes tokens.

use std::path::PathBuf;

use clap::Args;
use forebay::data::TextOptions;

/// How text becomes tokens.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Text")]
pub struct TextArguments {
    /// Turn text (.txt, .jsonl, columns of Parquet and Arrow files) into tokens with this tokenizer, as the Python package `tokenizers` saves it. The
    /// model's input is [batch, length]; the labels are the next tokens
    #[arg(long, value_name = "TOKENIZER.json")]
    pub tokenizer: Option<PathBuf>,
    /// The token behind each document: a text file, or a line of JSON; '' for none [default: <|endoftext|>, <|end_of_text|>, </s>, <eos> or
    /// [SEP], the first that the tokenizer has]
    #[arg(long, value_name = "TOKEN", requires = "tokenizer")]
    pub end_token: Option<String>,
    /// What holds the text: a key of JSON lines, a column [default: text, or content]
    #[arg(long, value_name = "KEY", requires = "tokenizer")]
    pub text_key: Option<String>,
}

impl TextArguments {
    /// As the library takes it.
    pub fn options(&self) -> TextOptions {
        let mut options = TextOptions::default();
        (options.tokenizer, options.end_token) = (self.tokenizer.clone(), self.end_token.clone());
        options.key = self.text_key.clone();
        options
    }
}
