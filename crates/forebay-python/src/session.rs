//! Running a model.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrays::{Given, arrays, tensors, tensors_in_place};
use crate::errors::choice;
use crate::long_work::{Pace, Shared, asking, is_short, locked, obeying_signals};
use crate::model::{Described, Model, described};
use crate::options::{Engine, Sizes, session_options};

/// Seconds, seconds without a kernel, late copies, and the seconds that those cost.
type Times = (f64, f64, usize, f64);

/// A session.
#[pyclass(module = "forebay._forebay", frozen)]
pub struct Session {
    session: Shared<forebay::Session>,
    pace: Mutex<Pace>,
    inputs: Vec<Described>,
    outputs: Vec<Described>,
}

#[pymethods]
impl Session {
    /// Opens the model itself or, depending on `part`, its `forwards` or `backwards` pass with its weights as inputs.
    #[new]
    fn new(
        py: Python<'_>,
        model: &Model,
        engine: Engine,
        sizes: Sizes,
        part: Option<&str>,
        training: bool,
    ) -> PyResult<Session> {
        let options = session_options(py, engine, sizes)?;
        let model = model.0.clone();
        let parts = [("forwards", true), ("backwards", false)];
        let forwards = part.map(|part| choice(py, "part of a model", part, &parts)).transpose()?;
        let session = obeying_signals(py, f64::INFINITY, move || match forwards {
            None => forebay::Session::new(&model, &options),
            Some(true) => forebay::Session::of_open_model(&model, &options, training),
            Some(false) => forebay::Session::of_gradients(&model, &options, training),
        })?;
        let (inputs, outputs) = (described(session.inputs()), described(session.outputs()));
        Ok(Session { session: Shared::new(session, "session"), pace: Mutex::default(), inputs, outputs })
    }

    fn inputs(&self) -> Vec<Described> {
        self.inputs.clone()
    }

    fn outputs(&self) -> Vec<Described> {
        self.outputs.clone()
    }

    fn run<'py>(&self, py: Python<'py>, inputs: BTreeMap<String, Given<'py>>) -> PyResult<Bound<'py, PyDict>> {
        let session = self.session.data(py)?.clone();
        let shapes: Vec<Vec<u64>> = inputs.values().map(|(_, shape, _)| shape.clone()).collect();
        let expected_seconds = match (self.pace.lock(), session.try_lock()) {
            (Ok(pace), Ok(_)) => pace.expected_seconds(&shapes),
            _ => f64::INFINITY,
        };
        // Long work can continue after a signal has ended the call, so it uses copies.
        let inputs = if is_short(expected_seconds) { tensors_in_place(inputs)? } else { tensors(inputs)? };
        let start = Instant::now();
        let outputs = obeying_signals(py, expected_seconds, move || locked(&session, |session| session.run(inputs)))?;
        if let Ok(mut pace) = self.pace.lock() {
            pace.note(shapes, start.elapsed().as_secs_f64());
        }
        arrays(py, outputs)
    }

    fn last_run(&self, py: Python<'_>) -> PyResult<Times> {
        asking(py, &self.session, |session| {
            let times = session.last_run();
            Ok((times.seconds, times.stall_seconds, times.late_copies, times.late_seconds))
        })
    }

    fn heap_peak_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        asking(py, &self.session, |session| Ok(session.usage().heap_peak_bytes))
    }

    fn budget_excludes_process(&self, py: Python<'_>) -> PyResult<bool> {
        asking(py, &self.session, |session| Ok(session.budget_excludes_process()))
    }
}
