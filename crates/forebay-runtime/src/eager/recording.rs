//! What a context submitted and waited for, recorded for the race checker.

use std::fmt;
use std::sync::Arc;

use forebay_sync::race::{HostAction, RaceReport, TraceEntry, Violation, check_trace};

use super::batch::Batch;

/// Everything that was submitted to the device, and everything that the host did, in the host's order.
///
/// ```
/// # use std::sync::Arc;
/// # use forebay_device::host::{HostDevice, HostOptions};
/// use forebay_base::DataType;
/// use forebay_runtime::eager::{Context, ContextOptions, DeviceTensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Arc::new(HostDevice::new(&HostOptions::default())?);
/// let context = Context::new(device, &ContextOptions::default().record(true))?;
/// let a = DeviceTensor::zeros(&context, DataType::Float32, &[4])?;
/// a.add(&a)?;
/// context.synchronize()?;
/// assert!(!context.recording().entries().is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Recording {
    entries: Vec<TraceEntry>,
    names: Vec<Option<Arc<str>>>,
}

/// The findings of the race checker, in sentences that name operations.
///
/// ```
/// use forebay_runtime::eager::Races;
///
/// let races = Races { violations: Vec::new(), sentences: vec!["'add' reads what 'fill' writes".to_string()] };
/// assert_eq!(races.to_string(), "'add' reads what 'fill' writes");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Races {
    /// The violations as the checker reports them.
    pub violations: Vec<Violation>,
    /// One sentence for each violation.
    pub sentences: Vec<String>,
}

impl fmt::Display for Races {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentences.join("\n"))
    }
}

impl std::error::Error for Races {}

impl Recording {
    /// Adds commands that were submitted.
    pub(super) fn submitted(&mut self, batch: &Batch) {
        self.entries.extend(batch.commands().iter().cloned().map(TraceEntry::Command));
        self.names.extend_from_slice(batch.names());
    }

    /// Adds what the host did.
    pub(super) fn host(&mut self, action: HostAction) {
        self.entries.push(TraceEntry::Host(action));
        self.names.push(None);
    }

    /// Returns everything that was recorded.
    pub fn entries(&self) -> &[TraceEntry] {
        &self.entries
    }

    /// Returns the name of an entry: that of its operation, if it has one.
    pub fn name(&self, entry: usize) -> Option<&str> {
        self.names.get(entry).and_then(|name| name.as_deref())
    }

    /// Looks for hazards between unordered operations.
    ///
    /// # Errors
    /// Returns all hazards that were found.
    pub fn check(&self) -> Result<RaceReport, Races> {
        check_trace(&self.entries).map_err(|violations| {
            let name = |entry: usize| self.name(entry).map(str::to_string);
            let sentences = violations.iter().map(|violation| violation.describe(&name)).collect();
            Races { violations, sentences }
        })
    }
}
