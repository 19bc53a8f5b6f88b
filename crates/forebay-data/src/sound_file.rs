//! Sound files, WAV or FLAC, as a model's input.
//!
//! Samples are scaled to -1..1 (an integer of n bits is divided by 2^(n-1)). A model that takes one channel gets the mean of all channels.
//! Sounds that are longer than the input are cut off, and shorter ones are padded with zeros. Nothing is resampled: all sounds of a set
//! have the same rate.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use forebay_base::Tensor;

use crate::convert::convert;
use crate::dataset::{InputDescription, LabelKind, Requirements};
use crate::error::DataError;
use crate::names::has_extension;
use crate::wav::{self, Wav};

/// Returns whether a file is a sound, by its name.
pub(crate) fn is_sound(path: &Path) -> bool {
    has_extension(path, &["wav", "flac"])
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// The number of samples per second.
    pub(crate) rate: u32,
    /// The number of channels.
    pub(crate) channels: u32,
    /// The number of bits per sample.
    pub(crate) bits: u32,
    /// The number of samples per channel, if the file specifies it.
    pub(crate) length: Option<u64>,
}

/// A file that is being read.
enum Reader {
    Wav(Wav),
    Flac(claxon::FlacReader<BufReader<File>>),
}

impl Reader {
    fn open(path: &Path) -> Result<Reader, DataError> {
        let unreadable = |reason: String| {
            DataError::malformed(path.display().to_string(), format!("not a readable sound file: {reason}"))
        };
        let file = forebay_limits::open_regular(path).map_err(|error| DataError::io(path, error))?;
        match has_extension(path, &["flac"]) {
            true => claxon::FlacReader::new(BufReader::new(file))
                .map(Reader::Flac)
                .map_err(|error| unreadable(flac_reason(&error))),
            false => Wav::open(file).map(Reader::Wav).map_err(unreadable),
        }
    }

    fn format(&self) -> Format {
        match self {
            Reader::Wav(reader) => {
                let wav::Description { rate, channels, bits, .. } = reader.description;
                Format { rate, channels, bits, length: Some(reader.length) }
            }
            Reader::Flac(reader) => {
                let info = reader.streaminfo();
                let (rate, channels, bits) = (info.sample_rate, info.channels, info.bits_per_sample);
                Format { rate, channels, bits, length: info.samples }
            }
        }
    }

    /// Reads up to this many numbers, with the channels of each sample together. An error comes with how many numbers were read before it.
    fn numbers(&mut self, most: usize) -> Result<Vec<f32>, (usize, String)> {
        let scale = 0.5f32.powi(self.format().bits as i32 - 1);
        match self {
            Reader::Wav(reader) => reader.numbers(most),
            Reader::Flac(reader) => {
                let claxon::metadata::StreamInfo { channels, samples, .. } = reader.streaminfo();
                let mut found = Vec::new();
                for number in reader.samples().take(most) {
                    let count = found.len();
                    found.push(number.map_err(|error| (count, flac_reason(&error)))? as f32 * scale);
                }
                // The decoder takes the end of any frame for the end of the file.
                let length = samples.unwrap_or(0);
                match (found.len() as u64) < length.saturating_mul(channels.into()).min(most as u64) {
                    true => Err((found.len(), wav::breaks_off(length))),
                    false => Ok(found),
                }
            }
        }
    }
}

/// Returns what is wrong with a FLAC file.
fn flac_reason(error: &claxon::Error) -> String {
    match error {
        claxon::Error::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            "truncated: the file ends too early".to_owned()
        }
        _ => error.to_string(),
    }
}

/// The format of a file.
///
/// # Errors
/// [`DataError`] naming the file.
pub(crate) fn format(path: &Path) -> Result<Format, DataError> {
    Reader::open(path).map(|reader| reader.format())
}

/// The conversion of sounds to a model's input.
pub(crate) struct Sounds {
    /// The model's input.
    pub(crate) input: InputDescription,
    channels: usize,
    length: usize,
    input_scale: f64,
    /// The rate of all sounds.
    pub(crate) rate: u32,
}

impl Sounds {
    /// Returns the conversion of sounds of one rate for a model.
    ///
    /// # Errors
    /// A message that says why the model takes no sounds.
    pub(crate) fn of(requirements: &Requirements, rate: u32) -> Result<Sounds, String> {
        let [input] = requirements.inputs.as_slice() else {
            let count = requirements.inputs.len();
            return Err(format!(
                "a folder of sounds requires a model with one input, but this one has {count}; use an .npz archive"
            ));
        };
        let (channels, length) = match input.sample_shape[..] {
            [length] => (1, length),
            [channels, length] => (channels, length),
            _ => (0, 0),
        };
        if !input.data_type.is_float() || channels == 0 || length == 0 {
            return Err(format!(
                "sounds require a floating-point input [batch, length] or [batch, channels, length], but input {} is {}{:?} per sample",
                input.name, input.data_type, input.sample_shape
            ));
        }
        if requirements.labels != LabelKind::Classes || !requirements.label_shape.is_empty() {
            return Err(
                "a folder of sounds has one class per sound, but this model and loss require other labels".to_owned()
            );
        }
        let (channels, length, input_scale) = (channels as usize, length as usize, requirements.input_scale);
        Ok(Sounds { input: input.clone(), channels, length, input_scale, rate })
    }

    /// Reads as much of a file as the input takes.
    ///
    /// # Errors
    /// [`DataError`] naming the file and the sample if it is damaged or has another rate or number of channels.
    pub(crate) fn read(&self, path: &Path) -> Result<Tensor, DataError> {
        let origin = path.display().to_string();
        let mut reader = Reader::open(path)?;
        let Format { rate, channels, .. } = reader.format();
        if rate != self.rate {
            let reason = format!(
                "it has {rate} samples per second, but the first sound has {}; resample it with `sox IN OUT rate {}`",
                self.rate, self.rate
            );
            return Err(DataError::unsupported(origin, reason));
        }
        let found = channels as usize;
        if found != self.channels && self.channels != 1 {
            let expected = format!("{} channels, to match input {}", self.channels, self.input.name);
            return Err(DataError::Shape { origin, found: vec![u64::from(channels)], expected });
        }
        let numbers = reader.numbers(self.length.saturating_mul(found)).map_err(|(count, reason)| {
            DataError::malformed(&origin, format!("sample {}: {reason}", count / found.max(1)))
        })?;
        let mut planes = vec![0.0f32; self.channels * self.length];
        for (place, sample) in numbers.chunks_exact(found.max(1)).enumerate() {
            if self.channels == 1 {
                let sum: f64 = sample.iter().map(|&value| f64::from(value)).sum();
                planes[place] = (sum / found as f64) as f32;
            } else {
                sample.iter().enumerate().for_each(|(channel, &value)| planes[channel * self.length + place] = value);
            }
        }
        convert(Tensor::from_f32(&self.input.sample_shape, &planes), self.input.data_type, self.input_scale, &origin)
    }
}
