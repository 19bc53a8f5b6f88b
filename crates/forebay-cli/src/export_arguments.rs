//! Flags of `forebay export`.

use std::path::PathBuf;

use clap::Args;

use crate::head_arguments::HeadArguments;
use crate::lora_arguments::LoraArguments;

/// `forebay export`.
#[derive(Args, Debug)]
#[command(
    after_help = "The model is the one that was trained: parameters and running statistics come from the checkpoint; everything \
else, such as frozen parameters, comes from the model. The file is the one that `train --save` would have written.

Examples:
  forebay export run1 --model gpt.onnx --save trained.onnx
  # After Ctrl-C.
  forebay export forebay-checkpoint --model unet3d.onnx --save trained.onnx"
)]
pub struct ExportArguments {
    /// The checkpoint folder
    #[arg(value_name = "CHECKPOINT")]
    pub checkpoint: PathBuf,
    /// The model that was trained
    #[arg(long, value_name = "MODEL.onnx")]
    pub model: PathBuf,
    /// Write the trained model
    #[arg(long, value_name = "FILE.onnx")]
    pub save: PathBuf,
    /// The trained head: the flags of `train`.
    #[command(flatten)]
    pub head: HeadArguments,
    /// The trained adapters: the flags of `train`.
    #[command(flatten)]
    pub adapters: LoraArguments,
}
