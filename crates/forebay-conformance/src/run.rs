//! One case, from its bytes to its outcome.

use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use forebay::{Device, Model, Session, SessionOptions, Tensor};
use forebay_model::onnx::read_tensor;

use crate::comparison::difference;
use crate::suite::Case;

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All outputs are as expected.
    Passed,
    /// It did not run, or an output is wrong: why.
    Failed(String),
}

/// Runs a case on a device.
pub fn run(case: &Case, device: &Arc<dyn Device>, options: &SessionOptions) -> Outcome {
    let attempt = catch_unwind(AssertUnwindSafe(|| try_run(case, device, options)));
    match attempt {
        Ok(Ok(())) => Outcome::Passed,
        Ok(Err(reason)) => Outcome::Failed(reason),
        Err(_) => Outcome::Failed("panic".to_string()),
    }
}

fn try_run(case: &Case, device: &Arc<dyn Device>, options: &SessionOptions) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let model =
        Model::from_bytes(case.files.get("model.onnx").map_or(&[], Vec::as_slice)).map_err(|error| text(&error))?;
    let names: Vec<String> = model.inputs().into_iter().map(|input| input.name).collect();
    let mut inputs = BTreeMap::new();
    for (i, name) in names.into_iter().enumerate() {
        let Some(tensor) = tensor(case, &format!("input_{i}"))? else { continue };
        inputs.insert(name, tensor);
    }
    let mut session = Session::with_device(&model, options, device.clone()).map_err(|error| text(&error))?;
    let outputs = session.run(inputs).map_err(|error| text(&error))?;
    for (i, info) in model.outputs().into_iter().enumerate() {
        let Some(expected) = tensor(case, &format!("output_{i}"))? else { continue };
        let found = outputs.get(&info.name).ok_or_else(|| format!("there is no output '{}'", info.name))?;
        if let Some(difference) = difference(found, &expected) {
            return Err(format!("output '{}' {difference}", info.name));
        }
    }
    Ok(())
}

/// A tensor of the case's data; none where there is no such file.
fn tensor(case: &Case, name: &str) -> Result<Option<Tensor>, String> {
    let Some(bytes) = case.files.get(&format!("test_data_set_0/{name}.pb")) else { return Ok(None) };
    let (_, tensor) = read_tensor(bytes).map_err(|error| format!("{name} of the case: {error}"))?;
    Ok(Some(tensor))
}
