//! A file that holds the device budget. Changing the file changes the budget of the running training.

use std::path::PathBuf;

use forebay::format_bytes;
use forebay::{MemorySize, Trainer};
use forebay_limits::{open_regular, read_text};

use crate::failure::Failure;
use crate::progress::Progress;

/// The maximum file length in bytes; the file holds a single size.
const BUDGET_BYTES_MAX: u64 = 4096;

/// The file and the budget last read from it.
pub struct BudgetFile {
    path: PathBuf,
    text: String,
}

impl BudgetFile {
    /// Reads the first budget.
    ///
    /// # Errors
    /// Fails if the file cannot be read or does not hold a size.
    pub fn open(path: PathBuf) -> Result<(BudgetFile, MemorySize), Failure> {
        let mut file = BudgetFile { path, text: String::new() };
        file.text = file.read().map_err(Failure::Failed)?;
        let size = file.parse().map_err(Failure::Failed)?;
        Ok((file, size))
    }

    /// Changes the trainer's budget between two steps if the file has changed. A file that cannot be used leaves the budget
    /// unchanged; both cases are reported.
    ///
    /// # Errors
    /// Fails if the device fails.
    pub fn apply(&mut self, trainer: &mut Trainer, progress: &Progress) -> Result<(), Failure> {
        let read = self.read().map(|text| std::mem::replace(&mut self.text, text) != self.text);
        let changed = match read {
            Ok(true) => self.parse(),
            Ok(false) => return Ok(()),
            // The file may be in the middle of being replaced; the next step checks again.
            Err(_) => return Ok(()),
        };
        let refused = |why: String| progress.line(&format!("note: the budget is unchanged ({why})"));
        match changed {
            Ok(size) => match trainer.set_device_memory(Some(size)) {
                Ok(()) => {
                    let limit = trainer.memory_limit().map(|limit| ("memory limit", limit.bytes));
                    let budget = || Some(("device budget", trainer.plan_as_made().statistics.device_budget_bytes?));
                    let (next, seconds) = (trainer.step_count() + 1, trainer.predicted_seconds());
                    let (name, bytes) = limit.or_else(budget).unwrap_or(("device budget", 0));
                    let size = format_bytes(bytes);
                    progress.line(&format!("the {name} is {size} from step {next} on ({seconds:.3} s/step predicted)"));
                }
                Err(
                    error @ (forebay::Error::Plan(_)
                    | forebay::Error::MemoryLimit { .. }
                    | forebay::Error::FreeMemory { .. }),
                ) => refused(error.to_string()),
                Err(error) => return Err(error.into()),
            },
            Err(why) => refused(why),
        }
        Ok(())
    }

    fn read(&self) -> Result<String, String> {
        let failed = |error| format!("cannot read the budget file {}: {error}", self.path.display());
        // The file is read before every step, so anything that has to be waited for would delay the training.
        open_regular(&self.path).map_err(failed)?;
        let text = read_text(&self.path, BUDGET_BYTES_MAX).map_err(failed)?;
        Ok(text.trim().to_owned())
    }

    fn parse(&self) -> Result<MemorySize, String> {
        self.text.parse().map_err(|error| format!("invalid budget file {}: {error}", self.path.display()))
    }
}
