//! Metrics of a model on labelled data.

use std::sync::Mutex;

use forebay::Error;
use forebay::metrics::{Metric, Metrics as Measured};
use forebay::training::Loss;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrays::{Given, tensor};
use crate::errors::exception;
use crate::losses::{LossGiven, loss};

/// Metrics over any number of batches.
#[pyclass(module = "forebay._forebay", frozen)]
pub struct Metrics {
    loss: Loss,
    measured: Mutex<Measured>,
}

#[pymethods]
impl Metrics {
    #[new]
    fn new(py: Python<'_>, given: LossGiven, names: Vec<String>) -> PyResult<Metrics> {
        let loss = loss(py, given)?;
        let metrics = || -> Result<Measured, Error> {
            let chosen = names.iter().map(|name| name.parse()).collect::<Result<Vec<Metric>, Error>>()?;
            Measured::new(&loss, &chosen)
        };
        let measured = Mutex::new(metrics().map_err(|error| exception(py, &error))?);
        Ok(Metrics { loss, measured })
    }

    /// Returns the weight of a batch with these labels in the mean loss over several batches.
    fn weight(&self, labels: Given<'_>) -> PyResult<f64> {
        Ok(self.loss.batch_weight(&tensor(labels)?))
    }

    /// Adds a batch: the model's predictions and the labels.
    fn add(&self, predictions: Given<'_>, labels: Given<'_>) -> PyResult<()> {
        let (predictions, labels) = (tensor(predictions)?, tensor(labels)?);
        self.measured.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).add(&predictions, &labels);
        Ok(())
    }

    /// Returns all metrics by name: a number, or `None` if undefined; the confusion matrix by rows.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let metrics = self.measured.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let values = PyDict::new(py);
        for &metric in metrics.chosen() {
            match metric {
                Metric::Confusion => values.set_item(metric.to_string(), metrics.confusion().to_vec())?,
                _ => values.set_item(metric.to_string(), metrics.value(metric))?,
            }
        }
        Ok(values)
    }
}
