//! Flags for reading and transforming samples.

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use forebay::data::{Normalization, Transform};
use forebay::{Blend, Windows};

use crate::device_arguments::positive_count;
use crate::heap_arguments::byte_count;
use crate::text_arguments::TextArguments;

/// How samples are read and transformed.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Data")]
pub struct DataArguments {
    /// Never hold more than this much of the samples in memory, read ahead or cached; arrays in .npy files and in uncompressed .npz
    /// archives are then read sample by sample [default: what a limit leaves; otherwise 1 GiB of volumes, 64 MiB of other data, and all of
    /// compressed archives]
    #[arg(long, value_name = "SIZE", value_parser = byte_count)]
    pub data_memory: Option<u64>,
    /// Train on the first of these shares of the samples, drawn with --split-seed, and validate on the rest, as in 90/10
    #[arg(long, value_name = "PERCENT/PERCENT", value_parser = split, group = "validation", conflicts_with = "validate")]
    pub split: Option<f64>,
    /// The seed that determines which samples --split selects
    #[arg(long, value_name = "SEED", default_value_t = 0, requires = "split")]
    pub split_seed: u64,
    /// Skip up to N samples that cannot be read, and report them; each is replaced by the next readable sample. Rows of a table without a
    /// value and missing files of an image table are such samples
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub skip_bad: Option<u64>,
    /// Train on random patches of volumes with these sizes, such as 64x64x64. Validation uses whole volumes (--validate-by). DATA#0..8 then
    /// selects volumes
    #[arg(long, value_name = "SIZES", value_parser = sizes, conflicts_with = "split")]
    pub patch: Option<Sizes>,
    /// Patches per volume and epoch [default: 1]
    #[arg(long, value_name = "N", requires = "patch", value_parser = positive_count)]
    pub patches: Option<u64>,
    /// How volumes are validated: in overlapping `windows` of the patch sizes, whose predictions are merged; `whole`, if the model leaves
    /// its sizes open; or as separate `tiles` [default: windows]
    #[arg(long, value_enum, value_name = "HOW", requires_all = ["patch", "validation"])]
    pub validate_by: Option<ValidateBy>,
    /// The minimum overlap of windows, as a share of their sizes [default: 0.25]
    #[arg(long, value_name = "SHARE", requires_all = ["patch", "validation"], value_parser = overlap)]
    pub window_overlap: Option<f64>,
    /// How positions are weighted where windows overlap: equally (`constant`), or more towards the middle of a window (`gaussian`)
    /// [default: constant]
    #[arg(long, value_name = "HOW", requires_all = ["patch", "validation"])]
    pub window_blend: Option<Blend>,
    /// Draw samples at random instead of using each once per epoch: with `classes`, every class equally often; with `weights`, in
    /// proportion to the column `weight` of a table. --shuffle is the seed
    #[arg(long, value_enum, value_name = "BY", conflicts_with = "bucket_by")]
    pub balance: Option<Balance>,
    /// Augment samples at random each time they are trained on: hflip, vflip, dflip (mirrored half of the time), crop:PLACES (shifted by up
    /// to this many positions and filled with 0), rotate:DEGREES, scale:X, elastic:PLACES (deformed), brightness:X, contrast:X,
    /// noise:DEVIATION, cutout:SHARE, mixup:ALPHA, cutmix:ALPHA (combined with another sample, and the labels likewise: they are numbers,
    /// or maps for cutmix), applied in order. Labels with the same sizes are moved along. --shuffle is also the seed of this
    #[arg(long, value_name = "CHANGE,..", value_delimiter = ',', value_parser = transform)]
    pub augment: Vec<Transform>,
    /// Normalize inputs, after --augment: (value - mean) / deviation, with one pair for all channels or one for each, or with the values
    /// measured on all samples before training
    #[arg(long, value_name = "MEAN/DEVIATION,..|measured", value_parser = normalize)]
    pub normalize: Option<Normalize>,
    /// How text is tokenized.
    #[command(flatten)]
    pub text: TextArguments,
}

/// Returns the parser of `DATA`, which is a path and possibly a selection of rows, as text.
pub fn data_set() -> impl TypedValueParser<Value = String> {
    let reason = "the path is not UTF-8; rename it, or pass a symbolic link to it";
    OsStringValueParser::new().try_map(move |data| data.into_string().map_err(|_| reason))
}

/// `forebay data`.
#[derive(Args, Debug)]
#[command(
    after_help = "DATA is the same as for `forebay train --data`; no model is needed. A sheet shows 8 pictures per row, each \
scaled from its smallest value (black) to its largest; a label map of the same sizes appears next to its sample, and a class below \
it, or the shares of several if samples are mixed. For volumes, the middle of the first axis is shown.

Examples:
  forebay data photos/ --show 16 --out sheet.png
  forebay data digits.npz#0..1500 --show 32 --out sheet.png --shuffle 1 \\
      --augment crop:1,rotate:10
  # Sequences of 128 tokens.
  forebay data articles.jsonl --tokenizer tokenizer.json
  forebay data digits.npz --json"
)]
pub struct LookArguments {
    /// The data set
    #[arg(value_name = "DATA", value_parser = data_set())]
    pub data: String,
    /// Draw this many samples
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024), requires = "out")]
    pub show: Option<u64>,
    /// The file to draw to
    #[arg(long, value_name = "FILE.png", requires = "show")]
    pub out: Option<PathBuf>,
    /// Draw samples in the training order of the first epoch with this seed
    #[arg(long, value_name = "SEED", requires = "show")]
    pub shuffle: Option<u64>,
    /// The number of pixels along each side of an image
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub image_size: u64,
    /// Augment samples as `forebay train --augment` does
    #[arg(long, value_name = "CHANGE,..", value_delimiter = ',', value_parser = transform, requires = "show")]
    pub augment: Vec<Transform>,
    /// Normalize samples as `forebay train --normalize` does; `measured` also reports the measured values
    #[arg(long, value_name = "MEAN/DEVIATION,..|measured", value_parser = normalize, requires = "show")]
    pub normalize: Option<Normalize>,
    /// How text is tokenized.
    #[command(flatten)]
    pub text: TextArguments,
    /// Print a single JSON object to standard output, and nothing else
    ///
    /// Keys: kind, samples, tensors, size_bytes, shown (null, or samples, labels where each has one, classes with the share of each in
    /// its sample, and path).
    #[arg(long)]
    pub json: bool,
}

/// How whole volumes are validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ValidateBy {
    /// In overlapping windows
    Windows,
    /// As one sample
    Whole,
    /// As separate tiles
    Tiles,
}

impl DataArguments {
    /// Returns the windows for validating whole volumes, whose sizes are rounded up to a multiple; `None` if samples fit the model as is.
    pub fn windows(&self, multiple: Option<u64>) -> Option<Windows> {
        let Sizes(sizes) = self.patch.as_ref()?;
        let mut windows = match self.validate_by.unwrap_or(ValidateBy::Windows) {
            ValidateBy::Windows => Windows::new(sizes),
            ValidateBy::Whole => Windows::whole(sizes.len()),
            ValidateBy::Tiles => return None,
        };
        windows.overlap = self.window_overlap.unwrap_or(windows.overlap);
        windows.blend = self.window_blend.unwrap_or_default();
        windows.multiple = multiple.unwrap_or(1);
        Some(windows)
    }
}

/// How often samples are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Balance {
    /// Every class equally often
    Classes,
    /// As often as the data set specifies
    Weights,
}

/// The source of the values of a normalization.
#[derive(Clone, Debug, PartialEq)]
pub enum Normalize {
    /// From the samples.
    Measured,
    /// From the command line.
    Given(Normalization),
}

fn overlap(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..1.0).contains(share));
    share.ok_or_else(|| {
        format!("'{text}' is not a share of a window; expected a number of at least 0 and below 1, such as 0.25")
    })
}

fn split(text: &str) -> Result<f64, String> {
    let wrong = || "expected two shares that add up to 100, such as 90/10".to_owned();
    let (first, rest) = text.split_once('/').ok_or_else(wrong)?;
    let (first, rest): (f64, f64) = (first.parse().map_err(|_| wrong())?, rest.parse().map_err(|_| wrong())?);
    if first > 0.0 && rest > 0.0 && (first + rest - 100.0).abs() < 1e-9 { Ok(first) } else { Err(wrong()) }
}

/// Sizes of axes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(pub Vec<u64>);

fn sizes(text: &str) -> Result<Sizes, String> {
    let sizes: Option<Vec<u64>> = text.split('x').map(|size| size.parse().ok().filter(|&size| size > 0)).collect();
    let wrong = || "expected one to three sizes, such as 64x64x64".to_owned();
    sizes.filter(|sizes| sizes.len() <= 3).map(Sizes).ok_or_else(wrong)
}

fn transform(text: &str) -> Result<Transform, String> {
    text.parse()
}

fn normalize(text: &str) -> Result<Normalize, String> {
    match text {
        "measured" => Ok(Normalize::Measured),
        _ => text.parse().map(Normalize::Given),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_one_to_three() {
        assert_eq!((sizes("64x32x8"), sizes("5")), (Ok(Sizes(vec![64, 32, 8])), Ok(Sizes(vec![5]))));
        for wrong in ["", "0x1", "1x2x3x4", "axb", "1x"] {
            assert!(sizes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shares_are_a_hundred_together() {
        assert_eq!((split("90/10"), split("66.5/33.5")), (Ok(90.0), Ok(66.5)));
        for wrong in ["90", "90/20", "100/0", "a/b", "110/-10"] {
            assert!(split(wrong).is_err(), "{wrong}");
        }
    }
}
