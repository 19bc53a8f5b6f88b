//! The flags of `run`.

use std::path::PathBuf;

use clap::Args;

use crate::device_arguments::{DeviceArguments, positive_count};
use crate::processes::ProcessArguments;
use crate::report_arguments::{ReportArguments, TraceArguments};

/// `forebay run`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  # Writes results/NAME.npy for each output.
  forebay run model.onnx --input x=x.npy --output-dir results
  # Measures ten runs.
  forebay run model.onnx --inputs inputs.npz --repeat 10
  # Reads folder/NAME.npy for each input.
  forebay run model.onnx --inputs folder/
  # Each of four processes computes a quarter of the batch.
  mpirun -n 4 forebay run model.onnx --inputs inputs.npz --output-dir results")]
pub struct RunArguments {
    /// The model
    #[arg(value_name = "MODEL.onnx")]
    pub model: PathBuf,
    /// The configuration of the run, as keys and values.
    #[arg(skip)]
    pub configuration: String,
    /// An input as a NumPy file; repeat for each input. Initializers that are also inputs keep their values unless they are given
    #[arg(long = "input", value_name = "NAME=FILE.npy", value_parser = named_file)]
    pub input: Vec<(String, PathBuf)>,
    /// All inputs: an .npz archive with arrays named after the inputs, or a folder of NAME.npy files
    #[arg(long, value_name = "DIR_OR_NPZ", conflicts_with = "input")]
    pub inputs: Option<PathBuf>,
    /// Write each output to NAME.npy in this folder; characters that file names cannot contain become _ (concurrent runs into the
    /// same folder each put all of their outputs there in turn, and those of the last one remain)
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Run this many times; the outputs are those of the last run
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive_count)]
    pub repeat: u64,
    /// The batch size, if the model leaves it open [default: that of the inputs]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub batch_size: Option<u64>,
    /// The machine.
    #[command(flatten)]
    pub device: DeviceArguments,
    /// The other processes.
    #[command(flatten)]
    pub processes: ProcessArguments,
    /// The report.
    #[command(flatten)]
    pub report: ReportArguments,
    /// The trace.
    #[command(flatten)]
    pub trace: TraceArguments,
}

/// Parses NAME=FILE.npy.
fn named_file(text: &str) -> Result<(String, PathBuf), String> {
    // A tensor's name can contain `=`; a file's name rarely does.
    match text.rsplit_once('=') {
        Some((name, file)) if !name.is_empty() && !file.is_empty() => Ok((name.to_owned(), file.into())),
        _ => Err("expected NAME=FILE.npy".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_split_at_the_last_equals_sign() {
        assert_eq!(named_file("a=b=c.npy").unwrap(), ("a=b".to_owned(), "c.npy".into()));
        assert!(named_file("x.npy").is_err() && named_file("=x.npy").is_err() && named_file("x=").is_err());
    }
}
