//! Batches of a training run, read ahead on a separate thread.
//!
//! The batch of a step depends only on the step's number, and not on whether or how far batches are read ahead.

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use forebay_base::Tensor;

use crate::dataset::{Batch, DataSet};
use crate::error::DataError;
use crate::sampler::Sampler;

/// A batch, and how long the caller waited for it.
///
/// ```
/// use forebay_base::DataType;
/// use forebay_data::{open, InputDescription, LabelKind, Loader, Requirements, Sampler};
///
/// # fn main() -> Result<(), forebay_data::DataError> {
/// let image = InputDescription { name: "x".to_string(), data_type: DataType::Float32, sample_shape: vec![1, 8, 8] };
/// let labels = LabelKind::Classes;
/// let requirements = Requirements { inputs: vec![image], input_scale: 1.0, labels, label_shape: Vec::new() };
/// let digits = open("../../examples/digits/digits.npz", &requirements)?;
/// let sampler = Sampler::new(digits.sample_count(), 50, Some(7));
/// let loaded = Loader::new(digits, sampler, 2).batch(0)?;
/// assert_eq!((loaded.samples.len(), loaded.batch.labels.shape()), (50, &[50][..]));
/// assert!(loaded.waited_seconds > 0.0, "nothing was read ahead of the first batch");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Loaded {
    /// The batch.
    pub batch: Batch,
    /// The samples of the batch.
    pub samples: Vec<u64>,
    /// The number of seconds that the caller waited for the batch.
    pub waited_seconds: f64,
}

/// Reads the batches of steps.
///
/// ```
/// use forebay_base::DataType;
/// use forebay_data::{open, InputDescription, LabelKind, Loader, Requirements, Sampler};
///
/// # fn main() -> Result<(), forebay_data::DataError> {
/// # let image = InputDescription { name: "x".to_string(), data_type: DataType::Float32, sample_shape: vec![1, 8, 8] };
/// # let labels = LabelKind::Classes;
/// # let requirements = Requirements { inputs: vec![image], input_scale: 1.0, labels, label_shape: Vec::new() };
/// let digits = open("../../examples/digits/digits.npz", &requirements)?;
/// let sampler = Sampler::new(digits.sample_count(), 50, Some(7));
/// let mut loader = Loader::new(digits, sampler, 2);
/// // Any step may be the next one; those that follow are read ahead.
/// let (fifth, sixth) = (loader.batch(5)?, loader.batch(6)?);
/// assert_eq!(loader.batch(5)?.batch, fifth.batch);
/// assert_ne!(fifth.samples, sixth.samples);
/// # Ok(())
/// # }
/// ```
pub struct Loader {
    data: Arc<Mutex<DataSet>>,
    sampler: Sampler,
    /// The most batches that are ready or being read.
    ahead: usize,
    /// One past the last step that will be requested.
    end: u64,
    own: Option<OwnShare>,
    reader: Option<Reader>,
}

/// The samples that this one of several processes reads of each batch.
#[derive(Clone)]
struct OwnShare {
    /// The size of batches that are read in part; others are read whole.
    batch_size: usize,
    /// The positions of the samples of such a batch that it reads.
    samples: Vec<usize>,
}

/// The thread that reads ahead.
struct Reader {
    /// The step of the next batch.
    step: u64,
    /// One past the last step that the thread reads.
    end: u64,
    batches: Receiver<Result<Batch, DataError>>,
    thread: JoinHandle<()>,
}

impl Loader {
    /// Creates a loader of a sampler's batches. Up to `ahead` batches are read before they are requested; with 0, each is read on demand.
    pub fn new(data: DataSet, sampler: Sampler, ahead: usize) -> Loader {
        Loader { data: Arc::new(Mutex::new(data)), sampler, ahead, end: u64::MAX, own: None, reader: None }
    }

    /// From now on, reads only the samples at some positions of each batch of this size: those that this one of several processes computes.
    /// Its batches have zeros in place of the others.
    ///
    /// # Panics
    /// If `samples` is empty or goes beyond the batch.
    pub fn read_share(&mut self, batch_size: usize, samples: Vec<usize>) {
        let is_of_batch = samples.iter().all(|&sample| sample < batch_size);
        assert!(!samples.is_empty() && is_of_batch, "{samples:?} of {batch_size}");
        self.own = Some(OwnShare { batch_size, samples });
    }

    /// Returns the data set.
    pub fn data(&self) -> MutexGuard<'_, DataSet> {
        self.data.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the sampler, which determines the samples of each batch.
    pub fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// Returns the samples of a step.
    pub fn samples(&mut self, step: u64) -> Vec<u64> {
        self.sampler.batch(step)
    }

    /// From this step on, reads nothing ahead.
    pub fn end_at(&mut self, step: u64) {
        self.end = step;
    }

    /// Returns the batch of a step, counted from 0 over all epochs.
    ///
    /// # Errors
    /// [`DataError`] naming the file.
    pub fn batch(&mut self, step: u64) -> Result<Loaded, DataError> {
        let started = Instant::now();
        let samples = self.sampler.batch(step);
        let kept = match self.reader.take() {
            Some(reader) if reader.step == step => Some(reader),
            other => {
                other.into_iter().for_each(Reader::stop);
                self.read_from(step)
            }
        };
        let Some(mut reader) = kept else {
            let batch = read(&mut self.data(), &samples, &self.sampler, step, self.own.as_ref())?;
            return Ok(Loaded { batch, samples, waited_seconds: started.elapsed().as_secs_f64() });
        };
        let Ok(batch) = reader.batches.recv() else {
            // A panic of the thread is passed on to the caller.
            match reader.thread.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => unreachable!("it ends behind the last step, or after an error"),
            }
        };
        // After an error, the thread has ended.
        let batch = batch?;
        reader.step += 1;
        self.reader = Some(reader).filter(|reader| reader.step < reader.end);
        Ok(Loaded { batch, samples, waited_seconds: started.elapsed().as_secs_f64() })
    }

    /// Starts a thread that reads ahead; returns `None` if nothing is to be read ahead, or the system refuses a thread.
    fn read_from(&self, step: u64) -> Option<Reader> {
        if self.ahead == 0 {
            return None;
        }
        // One more batch waits in the thread until the channel has room for it.
        let (give, batches) = sync_channel(self.ahead - 1);
        let (data, mut sampler, end) = (self.data.clone(), self.sampler.clone(), self.end.max(step + 1));
        let own = self.own.clone();
        let read_all = move || {
            for step in step..end {
                let samples = sampler.batch(step);
                let mut data = data.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                let batch = read(&mut data, &samples, &sampler, step, own.as_ref());
                drop(data);
                let is_last = batch.is_err();
                if give.send(batch).is_err() || is_last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("reader".to_owned()).spawn(read_all).ok()?;
        Some(Reader { step, end, batches, thread })
    }
}

/// Reads the batch of a step, or a share of it.
fn read(
    data: &mut DataSet,
    samples: &[u64],
    sampler: &Sampler,
    step: u64,
    own: Option<&OwnShare>,
) -> Result<Batch, DataError> {
    let Some(own) = own.filter(|own| own.batch_size == samples.len()) else {
        return data.batch_of_step(samples, sampler, step);
    };
    let own_samples: Vec<u64> = own.samples.iter().map(|&sample| samples[sample]).collect();
    let Batch { inputs, labels } = data.batch_of_step(&own_samples, sampler, step)?;
    let inputs = inputs.into_iter().map(|(name, tensor)| (name, among_zeros(&tensor, own)));
    Ok(Batch { inputs: inputs.collect(), labels: among_zeros(&labels, own) })
}

/// Returns a whole batch with these samples in their positions, and zeros elsewhere.
fn among_zeros(samples: &Tensor, own: &OwnShare) -> Tensor {
    let sample_bytes = samples.bytes().len() / own.samples.len();
    let mut bytes = vec![0; sample_bytes * own.batch_size];
    for (number, place) in own.samples.iter().enumerate() {
        let sample = &samples.bytes()[sample_bytes * number..][..sample_bytes];
        bytes[sample_bytes * place..][..sample_bytes].copy_from_slice(sample);
    }
    let mut shape = samples.shape().to_vec();
    shape[0] = own.batch_size as u64;
    Tensor::new(samples.data_type(), &shape, bytes).expect("as many bytes as its samples have")
}

impl Reader {
    fn stop(self) {
        drop(self.batches);
        // An error is ignored: the batch was not requested.
        let _ = self.thread.join();
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.reader.take().into_iter().for_each(Reader::stop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{InputDescription, LabelKind, Requirements};
    use crate::{Augmentation, FreeSizes, HeldBytes, npz, open_free};
    use forebay_base::DataType;

    /// Ten samples in a file, of which this many bytes can be in memory.
    fn data(folder: &std::path::Path, held: HeldBytes) -> DataSet {
        let path = folder.join("d.npz");
        let (x, y): (Vec<f32>, Vec<i64>) = ((0..160u8).map(f32::from).collect(), (0..10).collect());
        let (x, y) = (Tensor::from_f32(&[10, 1, 4, 4], &x), Tensor::from_i64(&[10], &y));
        npz::write(&path, &[("x", &x), ("y", &y)], false).unwrap();
        let input = InputDescription { name: "x".into(), data_type: DataType::Float32, sample_shape: vec![1, 4, 4] };
        let (labels, label_shape) = (LabelKind::Classes, Vec::new());
        let requirements = Requirements { inputs: vec![input], input_scale: 1.0, labels, label_shape };
        let mut data = open_free(path.to_str().unwrap(), &requirements, &FreeSizes::default(), held).unwrap();
        let transforms = ["hflip", "crop:1", "noise:0.5"].map(|word| word.parse().unwrap()).to_vec();
        data.augment(Augmentation { transforms, seed: 5 });
        data
    }

    fn batches(loader: &mut Loader, steps: std::ops::Range<u64>) -> Vec<Batch> {
        steps.map(|step| loader.batch(step).unwrap().batch).collect()
    }

    #[test]
    fn how_far_is_read_ahead_and_from_where_changes_no_batch() {
        let folder = tempfile::tempdir().unwrap();
        let loader = |held, ahead| Loader::new(data(folder.path(), held), Sampler::new(10, 3, Some(1)), ahead);
        let expected = batches(&mut loader(HeldBytes::Usual, 0), 0..9);
        for ahead in [0, 1, 2, 5] {
            let mut reading = loader(HeldBytes::AtMost(0), ahead);
            reading.end_at(9);
            assert_eq!(batches(&mut reading, 0..9), expected, "{ahead}");
            // A run that resumes in the middle of an epoch, and one that goes back.
            assert_eq!(batches(&mut loader(HeldBytes::AtMost(0), ahead), 5..9), expected[5..], "{ahead}");
            assert_eq!(batches(&mut reading, 2..4), expected[2..4], "{ahead}");
            assert_eq!(reading.data().description().unwrap().held_bytes, 0);
        }
        let mut seen: Vec<i64> = expected[..4].iter().flat_map(|batch| batch.labels.to_i64().unwrap()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..10).collect::<Vec<_>>(), "every sample once in an epoch");
    }

    #[test]
    fn shares_of_processes_make_up_the_batch() {
        let folder = tempfile::tempdir().unwrap();
        let loader = |ahead| Loader::new(data(folder.path(), HeldBytes::Usual), Sampler::new(10, 4, Some(1)), ahead);
        let expected = batches(&mut loader(0), 0..6);
        for (ahead, samples) in [(0, vec![0]), (2, vec![1, 2]), (0, vec![3]), (1, vec![0, 2])] {
            let mut reading = loader(ahead);
            reading.read_share(4, samples.clone());
            for (found, whole) in batches(&mut reading, 0..6).iter().zip(&expected) {
                let is_whole = whole.labels.shape()[0] != 4;
                for (found, whole) in
                    found.inputs.values().chain([&found.labels]).zip(whole.inputs.values().chain([&whole.labels]))
                {
                    assert_eq!(found.shape(), whole.shape());
                    for row in 0..whole.shape()[0] {
                        let (found, whole) = (found.rows(&[row]), whole.rows(&[row]));
                        match is_whole || samples.contains(&(row as usize)) {
                            true => assert_eq!(found, whole),
                            false => assert!(found.bytes().iter().all(|&byte| byte == 0)),
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn an_error_comes_at_its_step() {
        let folder = tempfile::tempdir().unwrap();
        let mut loader = Loader::new(data(folder.path(), HeldBytes::AtMost(0)), Sampler::new(10, 1, None), 2);
        loader.batch(0).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(folder.path().join("d.npz")).unwrap();
        file.set_len(300).unwrap();
        let error = (1..10).find_map(|step| loader.batch(step).err()).unwrap().to_string();
        assert!(
            error.contains("d.npz[") && error.contains("]: cannot read sample ") && error.contains("at byte"),
            "{error}"
        );
        assert!(loader.batch(9).is_err(), "the next one is tried");
    }
}
