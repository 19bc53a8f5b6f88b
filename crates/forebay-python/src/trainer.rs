//! Training a model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use forebay::{Checkpoint, CheckpointFolder, Error, JsonValue, StepReport, Tensor, TensorInfo, Windows, documents};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrays::{Given, Taken, array, arrays, tensor, tensors};
use crate::errors::exception;
use crate::long_work::{Pace, Shared, asking, locked, obeying_signals};
use crate::model::{Described, Model};
use crate::optimizers::{OptimizerGiven, optimizer};
use crate::options::{Engine, Sizes, Training, trainer_options};
use crate::plan::{Planned, planned};

/// The report of a step: number, loss, seconds, seconds without a kernel, late copies, the seconds that those cost, whether another plan
/// takes over, learning rate, gradient norm, and whether the update was skipped.
type Step = (u64, f32, f64, f64, usize, f64, bool, f32, Option<f32>, bool);

/// Windows as passed from Python: sizes, overlap, blend, the multiple to which own sizes are rounded up, and windows per batch.
type WindowsGiven = (Vec<u64>, f64, String, u64, Option<u64>);

fn windows_of(py: Python<'_>, (sizes, overlap, blend, multiple, batch_size): WindowsGiven) -> PyResult<Windows> {
    let mut windows = Windows::new(&sizes);
    let blend = blend.parse().map_err(|reason| exception(py, &Error::Option { reason }))?;
    (windows.overlap, windows.blend, windows.multiple, windows.batch_size) = (overlap, blend, multiple, batch_size);
    Ok(windows)
}

/// A trainer.
#[pyclass(module = "forebay._forebay", frozen)]
pub struct Trainer {
    trainer: Shared<forebay::Trainer>,
    steps: Mutex<Pace>,
    evaluations: Mutex<Pace>,
    /// The folders to which only this trainer writes checkpoints.
    folders: Arc<Mutex<Folders>>,
    /// Whether this process writes files, because it is the only one or the first of several.
    writes: bool,
}

fn numbers(report: &StepReport) -> Step {
    (
        report.step,
        report.loss,
        report.seconds,
        report.stall_seconds,
        report.late_copies,
        report.late_seconds,
        report.replan.is_some(),
        report.learning_rate,
        report.gradient_norm,
        report.skipped,
    )
}

fn described(info: &TensorInfo) -> Described {
    let sizes = info.shape.iter().map(|&size| (Some(size), String::new())).collect();
    (info.name.clone(), info.data_type.name(), sizes)
}

/// The most folders that a trainer holds, those used last: each takes an open file.
const FOLDERS_MAX: usize = 64;

/// Locked folders by their real paths, the one used last at the end.
type Folders = Vec<(PathBuf, CheckpointFolder)>;

/// Returns the lock of a folder, which stays locked for this trainer.
fn lock<'a>(held: &'a mut Folders, folder: &Path) -> Result<&'a CheckpointFolder, Error> {
    held.retain(|(_, locked)| locked.exists());
    // Only a folder that exists has a real path. The lock creates any other, and removes it in the end if nothing was written to it.
    let existing = folder.canonicalize().ok();
    let known = existing.as_ref().and_then(|real| held.iter().position(|(other, _)| other == real));
    let current = match known {
        Some(place) => held.remove(place),
        None => {
            let path = existing.map_or_else(|| std::path::absolute(folder), Ok).unwrap_or_else(|_| folder.to_owned());
            let locked = CheckpointFolder::lock(&path)?;
            (path.canonicalize().unwrap_or(path), locked)
        }
    };
    if held.len() >= FOLDERS_MAX {
        held.remove(0);
    }
    held.push(current);
    Ok(&held[held.len() - 1].1)
}

impl Trainer {
    /// Runs work on a batch, with the time that similar work took before.
    fn on_batch<T: Send + 'static>(
        &self,
        py: Python<'_>,
        pace: &Mutex<Pace>,
        batch: BTreeMap<String, Given<'_>>,
        labels: Given<'_>,
        work: impl FnOnce(&mut forebay::Trainer, BTreeMap<String, Tensor>, Tensor) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        let trainer = self.trainer.data(py)?.clone();
        let (batch, labels) = (tensors(batch)?, tensor(labels)?);
        let shapes: Vec<Vec<u64>> = batch.values().chain([&labels]).map(|tensor| tensor.shape().to_vec()).collect();
        let expected_seconds = match (pace.lock(), trainer.try_lock()) {
            (Ok(pace), Ok(_)) => pace.expected_seconds(&shapes),
            _ => f64::INFINITY,
        };
        let start = Instant::now();
        let result =
            obeying_signals(py, expected_seconds, move || locked(&trainer, |trainer| work(trainer, batch, labels)))?;
        if let Ok(mut pace) = pace.lock() {
            pace.note(shapes, start.elapsed().as_secs_f64());
        }
        Ok(result)
    }

    /// Runs work that can take long.
    fn long<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut forebay::Trainer) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        let trainer = self.trainer.data(py)?.clone();
        obeying_signals(py, f64::INFINITY, move || locked(&trainer, work))
    }

    /// Runs work on whole parameters and state. If several processes keep slices of them, all call this at once, and process 0 gets the
    /// whole.
    fn on_whole<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut forebay::Trainer) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        self.long(py, move |trainer| {
            trainer.collect_shards()?;
            work(trainer)
        })
    }

    /// Runs work that writes files, in the first of several processes.
    fn writing(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut forebay::Trainer) -> Result<(), Error> + Send + 'static,
    ) -> PyResult<()> {
        let writes = self.writes;
        self.on_whole(py, move |trainer| if writes { work(trainer) } else { Ok(()) })
    }
}

#[pymethods]
impl Trainer {
    #[new]
    fn new(py: Python<'_>, model: &Model, engine: Engine, sizes: Sizes, training: Training) -> PyResult<Trainer> {
        let options = trainer_options(py, &model.0, engine, sizes, training)?;
        let model = model.0.clone();
        let writes = options.engine.device.processes.as_ref().is_none_or(|group| group.rank() == 0);
        let trainer = obeying_signals(py, f64::INFINITY, move || forebay::Trainer::new(model, options))?;
        Ok(Trainer {
            trainer: Shared::new(trainer, "trainer"),
            steps: Mutex::default(),
            evaluations: Mutex::default(),
            folders: Arc::default(),
            writes,
        })
    }

    fn writes(&self) -> bool {
        self.writes
    }

    fn inputs(&self, py: Python<'_>) -> PyResult<Vec<Described>> {
        asking(py, &self.trainer, |trainer| Ok(trainer.inputs().iter().map(described).collect()))
    }

    fn labels(&self, py: Python<'_>) -> PyResult<Described> {
        asking(py, &self.trainer, |trainer| Ok(described(trainer.labels())))
    }

    fn class_axis(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        asking(py, &self.trainer, |trainer| Ok(trainer.class_axis()))
    }

    fn step_count(&self, py: Python<'_>) -> PyResult<u64> {
        asking(py, &self.trainer, |trainer| Ok(trainer.step_count()))
    }

    fn skipped_count(&self, py: Python<'_>) -> PyResult<u64> {
        asking(py, &self.trainer, |trainer| Ok(trainer.skipped_count()))
    }

    fn step(&self, py: Python<'_>, batch: BTreeMap<String, Given<'_>>, labels: Given<'_>) -> PyResult<Step> {
        self.on_batch(py, &self.steps, batch, labels, |trainer, batch, labels| {
            trainer.step(batch, labels).map(|report| numbers(&report))
        })
    }

    /// Trains on a batch and returns the gradients by parameter name as well.
    fn step_with_gradients<'py>(
        &self,
        py: Python<'py>,
        batch: BTreeMap<String, Given<'py>>,
        labels: Given<'py>,
    ) -> PyResult<(Step, Bound<'py, PyDict>)> {
        let step = |trainer: &mut forebay::Trainer, batch, labels| {
            let mut gradients = BTreeMap::new();
            let report = trainer.step_with_gradients(batch, labels, |name, gradient| {
                gradients.insert(name.to_owned(), gradient);
                Ok(())
            })?;
            Ok((numbers(&report), gradients))
        };
        let (numbers, gradients) = self.on_batch(py, &self.steps, batch, labels, step)?;
        Ok((numbers, arrays(py, gradients)?))
    }

    fn plan_gradients(&self, py: Python<'_>) -> PyResult<()> {
        self.long(py, |trainer| trainer.plan_gradients())
    }

    fn observe(&self, py: Python<'_>, loss: f32) -> PyResult<()> {
        self.long(py, move |trainer| {
            trainer.observe(loss);
            Ok(())
        })
    }

    fn save_average(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.writing(py, move |trainer| trainer.save_average(path))
    }

    fn save_adapters(&self, py: Python<'_>, folder: PathBuf) -> PyResult<()> {
        self.writing(py, move |trainer| trainer.save_adapters(folder))
    }

    fn evaluate<'py>(
        &self,
        py: Python<'py>,
        batch: BTreeMap<String, Given<'py>>,
        labels: Given<'py>,
    ) -> PyResult<(f32, Taken<'py>)> {
        let evaluate = |trainer: &mut forebay::Trainer, batch, labels| trainer.evaluate(batch, labels);
        let evaluation = self.on_batch(py, &self.evaluations, batch, labels, evaluate)?;
        Ok((evaluation.loss, array(py, evaluation.logits)))
    }

    /// Evaluates samples in windows: sizes, overlap, blend, the multiple to which own sizes are rounded up, and windows per batch.
    fn evaluate_windows<'py>(
        &self,
        py: Python<'py>,
        batch: BTreeMap<String, Given<'py>>,
        labels: Given<'py>,
        windows: WindowsGiven,
    ) -> PyResult<(f32, Taken<'py>)> {
        let windows = windows_of(py, windows)?;
        let evaluate =
            move |trainer: &mut forebay::Trainer, batch, labels| trainer.evaluate_windows(batch, labels, &windows);
        let evaluation = self.on_batch(py, &self.evaluations, batch, labels, evaluate)?;
        Ok((evaluation.loss, array(py, evaluation.logits)))
    }

    /// Makes the plans for evaluating samples of these sizes in windows.
    fn plan_windows(&self, py: Python<'_>, sample: Vec<u64>, windows: WindowsGiven) -> PyResult<()> {
        let windows = windows_of(py, windows)?;
        self.long(py, move |trainer| trainer.plan_windows(&sample, &windows))
    }

    fn parameters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        arrays(py, self.on_whole(py, |trainer| trainer.parameters())?)
    }

    fn parameter<'py>(&self, py: Python<'py>, name: String) -> PyResult<Option<Taken<'py>>> {
        Ok(self.on_whole(py, move |trainer| trainer.parameter(&name))?.map(|tensor| array(py, tensor)))
    }

    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        arrays(py, self.on_whole(py, |trainer| trainer.state())?)
    }

    /// Replaces parameters and state by name, and leaves all others unchanged.
    fn set_values(&self, py: Python<'_>, values: BTreeMap<String, Given<'_>>, step: Option<u64>) -> PyResult<()> {
        let values = tensors(values)?;
        self.long(py, move |trainer| trainer.set_values(values, step))
    }

    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.writing(py, move |trainer| trainer.save(path))
    }

    /// Locks a folder for the checkpoints of this trainer.
    fn lock_folder(&self, py: Python<'_>, folder: PathBuf) -> PyResult<()> {
        let (held, writes) = (self.folders.clone(), self.writes);
        self.long(py, move |_| match writes {
            true => locked(&held, |held| lock(held, &folder).map(drop)),
            false => Ok(()),
        })
    }

    /// Writes a checkpoint; the folder stays locked for this trainer.
    fn save_checkpoint(&self, py: Python<'_>, folder: PathBuf, position: String) -> PyResult<()> {
        // Python's JSON has more values, such as NaN. They are held as text: see `forebay/_trainer.py`.
        let position: JsonValue =
            serde_json::from_str(&position).unwrap_or_else(|_| serde_json::json!({ "json_text": position }));
        let held = self.folders.clone();
        self.writing(py, move |trainer| locked(&held, |held| trainer.write_checkpoint(lock(held, &folder)?, &position)))
    }

    /// Restores a checkpoint and returns its position in the data, as JSON.
    fn restore(&self, py: Python<'_>, folder: PathBuf) -> PyResult<String> {
        self.long(py, move |trainer| {
            let checkpoint = Checkpoint::read(folder)?;
            trainer.restore(&checkpoint)?;
            Ok(checkpoint.position.to_string())
        })
    }

    /// Sets other hyperparameters, for a parameter group or for all other parameters.
    fn set_optimizer(&self, py: Python<'_>, given: OptimizerGiven, group: Option<usize>) -> PyResult<()> {
        let optimizer = optimizer(py, &given)?;
        asking(py, &self.trainer, move |trainer| match group {
            Some(group) => trainer.set_group_optimizer(group, optimizer),
            None => trainer.set_optimizer(optimizer),
        })
    }

    fn set_device_memory(&self, py: Python<'_>, size: Option<String>) -> PyResult<()> {
        let size = size.map(|text| text.parse()).transpose();
        let size = size.map_err(|error: forebay::MemorySizeError| exception(py, &error.into()))?;
        self.long(py, move |trainer| trainer.set_device_memory(size))
    }

    fn plan(&self, py: Python<'_>, title: String) -> PyResult<Planned> {
        self.long(py, move |trainer| Ok(planned(trainer.plan(), &trainer.explain(), &title)))
    }

    fn predicted_seconds(&self, py: Python<'_>) -> PyResult<f64> {
        asking(py, &self.trainer, |trainer| Ok(trainer.predicted_seconds()))
    }

    fn save_costs(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.long(py, move |trainer| documents::write_costs(&path, &trainer.measured_costs()))
    }

    fn memory_limit(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        asking(py, &self.trainer, |trainer| Ok(trainer.memory_limit().map(|limit| limit.bytes)))
    }

    fn budget_excludes_process(&self, py: Python<'_>) -> PyResult<bool> {
        asking(py, &self.trainer, |trainer| Ok(trainer.budget_excludes_process()))
    }

    fn heap_peak_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        asking(py, &self.trainer, |trainer| Ok(trainer.usage().heap_peak_bytes))
    }

    fn trace(&self, py: Python<'_>) -> PyResult<String> {
        self.long(py, |trainer| Ok(trainer.trace().to_string()))
    }
}
