//! `forebay export`: the model in a checkpoint.

use forebay::{Checkpoint, Error, Model};

use crate::export_arguments::ExportArguments;
use crate::failure::Failure;
use crate::output;

/// Writes the trained model.
///
/// # Errors
/// Fails if the checkpoint or the model cannot be read, if they do not belong together, or if the file cannot be written.
pub fn export(arguments: &ExportArguments) -> Result<(), Failure> {
    output::check_writable(&arguments.save)?;
    let checkpoint = Checkpoint::read(&arguments.checkpoint)?;
    let model = arguments.adapters.adapt(arguments.head.replace(Model::from_file(&arguments.model)?)?)?;
    checkpoint.export(&model, &arguments.save).map_err(|error| match error {
        Error::Checkpoint { .. } => {
            Failure::from(error).at(&format!("{} does not match the checkpoint", arguments.model.display()))
        }
        _ => error.into(),
    })?;
    output::say(&format!("step {} saved in {}", checkpoint.step, arguments.save.display()));
    Ok(())
}
