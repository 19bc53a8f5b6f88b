//! Models, and the list of devices.

use std::path::PathBuf;

use forebay::training::LoraOptions;
use forebay::{Dimension, ValueInfo};
use pyo3::prelude::*;

use crate::errors::exception;
use crate::long_work::obeying_signals;

/// An input or output: name, type, and sizes, each of them a number or the symbol of an open size.
pub type Described = (String, &'static str, Vec<(Option<u64>, String)>);

/// Describes inputs or outputs.
pub fn described(infos: &[ValueInfo]) -> Vec<Described> {
    let size = |dimension: &Dimension| match dimension {
        Dimension::Known(size) => (Some(*size), String::new()),
        Dimension::Symbol(symbol) => (None, symbol.clone()),
    };
    infos
        .iter()
        .map(|info| (info.name.clone(), info.data_type.name(), info.dimensions.iter().map(size).collect()))
        .collect()
}

/// A model, as read.
#[pyclass(module = "forebay._forebay", frozen)]
pub struct Model(pub forebay::Model);

#[pymethods]
impl Model {
    #[staticmethod]
    fn from_file(py: Python<'_>, path: PathBuf, external_data: Option<PathBuf>) -> PyResult<Model> {
        let read = move || match external_data {
            None => forebay::Model::from_file(path),
            Some(folder) => forebay::Model::builder().external_data(folder).read_file(path),
        };
        obeying_signals(py, f64::INFINITY, read).map(Model)
    }

    #[staticmethod]
    fn from_bytes(py: Python<'_>, bytes: Vec<u8>, external_data: Option<PathBuf>) -> PyResult<Model> {
        let read = move || match external_data {
            None => forebay::Model::from_bytes(&bytes),
            Some(folder) => forebay::Model::builder().external_data(folder).read_bytes(&bytes),
        };
        obeying_signals(py, f64::INFINITY, read).map(Model)
    }

    fn with_initializers_only(&self) -> Model {
        Model(self.0.with_initializers_only())
    }

    fn with_adapters(
        &self,
        py: Python<'_>,
        patterns: Vec<String>,
        rank: u64,
        alpha: f32,
        seed: u64,
        also: Vec<String>,
    ) -> PyResult<Model> {
        let mut options = LoraOptions::new("");
        (options.patterns, options.rank, options.alpha) = (patterns, rank, alpha);
        (options.seed, options.also) = (seed, also);
        let model = self.0.clone();
        obeying_signals(py, f64::INFINITY, move || model.with_adapters(&options)).map(Model)
    }

    fn with_head(&self, py: Python<'_>, layer: String, classes: u64, seed: u64) -> PyResult<Model> {
        let model = self.0.clone();
        obeying_signals(py, f64::INFINITY, move || model.with_head(&layer, classes, seed)).map(Model)
    }

    fn inputs(&self) -> Vec<Described> {
        described(&self.0.inputs())
    }

    fn outputs(&self) -> Vec<Described> {
        described(&self.0.outputs())
    }
}

/// Returns the devices of this machine: name, description, bytes of memory.
#[pyfunction]
pub fn devices(py: Python<'_>) -> PyResult<Vec<String>> {
    let listed = py.detach(forebay::devices).map_err(|error| exception(py, &error))?;
    Ok(listed.into_iter().map(|device| device.name).collect())
}
