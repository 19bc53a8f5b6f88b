//! `forebay run`: arrays in, arrays out.

use forebay::data::npy;
use forebay::{Model, Session, SessionOptions};

use crate::arguments::RunArguments;
use crate::failure::Failure;
use crate::feeding::{self, Tensors};
use crate::output;
use crate::report::{say_json, Report, StepNumbers};

/// Runs a model.
///
/// # Errors
/// Whatever keeps it from running, and outputs that cannot be written (found before anything runs).
pub fn run(arguments: &RunArguments) -> Result<(), Failure> {
    if let Some(folder) = &arguments.output_dir {
        output::check_folder(folder)?;
    }
    if let Some(trace) = &arguments.trace.trace {
        output::check_writable(trace)?;
    }
    let model = Model::from_file(&arguments.model)?;
    let inputs = feeding::read_inputs(arguments, &model)?;
    let batch_size = arguments.batch_size.or_else(|| feeding::batch_size_of(&model, &inputs));
    let device = arguments.device.options(arguments.trace.trace.is_some());
    let mut session = Session::new(&model, &SessionOptions { device, batch_size })?;
    let mut steps = Vec::new();
    let mut outputs = Tensors::new();
    for _ in 0..arguments.repeat {
        outputs = session.run(inputs.clone())?;
        steps.push(StepNumbers::new(None, session.last_run()));
    }
    let written = write_outputs(arguments, &outputs)?;
    if let Some(path) = &arguments.trace.trace {
        output::write(path, &session.trace().to_string())?;
    }
    let device_peak_bytes = session.usage().heap_peak_bytes;
    let report = Report { steps: &steps, statistics: session.statistics(), device_peak_bytes };
    if arguments.report.json {
        return say_json(report.json());
    }
    for (name, tensor) in &outputs {
        let file = written.get(name).map(|file| format!(" in {file}")).unwrap_or_default();
        output::say(&format!("{name}: {}{:?}{file}", tensor.data_type, tensor.shape));
    }
    report.lines().iter().for_each(|line| output::say(line));
    Ok(())
}

/// Writes each output to a file of its own; gives the files' names.
fn write_outputs(
    arguments: &RunArguments,
    outputs: &Tensors,
) -> Result<std::collections::BTreeMap<String, String>, Failure> {
    let mut written = std::collections::BTreeMap::new();
    let Some(folder) = &arguments.output_dir else {
        return Ok(written);
    };
    for (name, tensor) in outputs {
        let path = folder.join(format!("{}.npy", output::file_name(name)));
        let file = path.display().to_string();
        if let Some((other, _)) = written.iter().find(|(_, taken)| **taken == file) {
            return Err(Failure::Failed(format!("outputs {other} and {name} would both be written to {file}")));
        }
        npy::write(&path, &feeding::array(tensor)?)?;
        written.insert(name.clone(), file);
    }
    Ok(written)
}
