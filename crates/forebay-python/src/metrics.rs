//! Metrics of a model on labeled data.

use std::sync::{Arc, Mutex};

use forebay::Error;
use forebay::metrics::{Metric, Metrics as Measured};
use forebay::training::Loss;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrays::{Given, tensor, tensor_in_place};
use crate::errors::exception;
use crate::long_work::{locked, obeying_signals};
use crate::losses::{LossGiven, loss};

/// Metrics over any number of batches.
#[pyclass(module = "forebay._forebay", frozen)]
pub struct Metrics {
    loss: Loss,
    measured: Arc<Mutex<Measured>>,
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
        let measured = metrics().map_err(|error| exception(py, &error))?;
        Ok(Metrics { loss, measured: Arc::new(Mutex::new(measured)) })
    }

    /// Returns the weight of a batch with these labels in the mean loss over several batches.
    fn weight(&self, py: Python<'_>, labels: Given<'_>) -> PyResult<f64> {
        let labels = tensor(labels)?;
        Ok(py.detach(|| self.loss.batch_weight(&labels)))
    }

    /// Adds a batch: the model's predictions, as an evaluation returned them, and the labels.
    fn add(&self, py: Python<'_>, predictions: Given<'_>, labels: Given<'_>) -> PyResult<()> {
        // Predictions can take up much memory, so they are read in place. The caller never writes to them, even if a signal ends the call
        // before the work.
        let (predictions, labels) = (tensor_in_place(predictions)?, tensor(labels)?);
        let measured = self.measured.clone();
        obeying_signals(py, f64::INFINITY, move || {
            locked(&measured, |measured| {
                measured.add(&predictions, &labels);
                Ok(())
            })
        })
    }

    /// Returns all metrics by name: a number, or `None` if undefined; the confusion matrix by rows.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let metrics = self.measured.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let values = PyDict::new(py);
        for &metric in metrics.chosen() {
            match metric {
                // There are no rows if nothing was counted, or if there are too many classes.
                Metric::Confusion => {
                    let rows = metrics.confusion();
                    values.set_item(metric.to_string(), (!rows.is_empty()).then(|| rows.to_vec()))?
                }
                _ => values.set_item(metric.to_string(), metrics.value(metric))?,
            }
        }
        Ok(values)
    }
}
