//! One case, from its bytes to its outcome.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use forebay::{Device, Model, Session, SessionOptions, Value, ValueInfo};

use crate::comparison::difference;
use crate::suite::Case;
use crate::values;

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All outputs are as expected.
    Passed,
    /// It did not run, or an output is wrong, for this reason.
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
    let mut inputs = BTreeMap::new();
    for (i, info) in model.inputs().into_iter().enumerate() {
        let Some(value) = value(case, &format!("input_{i}"), &info)? else { continue };
        inputs.insert(info.name, value);
    }
    let mut session = Session::with_device(&model, options, device.clone()).map_err(|error| text(&error))?;
    let outputs = session.run_values(inputs).map_err(|error| text(&error))?;
    for (i, info) in model.outputs().into_iter().enumerate() {
        let Some(expected) = value(case, &format!("output_{i}"), &info)? else { continue };
        let found = outputs.get(&info.name).ok_or_else(|| format!("no output named '{}'", info.name))?;
        if let Some(difference) = difference(found, &expected) {
            return Err(format!("output '{}' {difference}", info.name));
        }
    }
    Ok(())
}

/// Returns a value from the case's data; `None` if there is no such file.
fn value(case: &Case, name: &str, info: &ValueInfo) -> Result<Option<Value>, String> {
    let Some(bytes) = case.files.get(&format!("test_data_set_0/{name}.pb")) else { return Ok(None) };
    values::read(bytes, info).map(Some).map_err(|error| format!("{name} of the case: {error}"))
}
