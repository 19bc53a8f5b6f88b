//! Forebay's own step, run repeatedly.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forebay::Trainer;
use forebay_base::{Command, EventId, StreamId};
use forebay_device::{Device, DeviceError};

use crate::recorder::{Recorder, Step};

/// A recorded step on the device that ran it.
pub struct Again {
    recorder: Arc<Recorder>,
    lists: Vec<Vec<Command>>,
    streams: BTreeSet<StreamId>,
    /// The number of times that a step records each event.
    records: BTreeMap<EventId, u64>,
    /// The trainer, which owns the step's memories.
    _trainer: Trainer,
}

impl Again {
    /// Creates the step from a recorded one, to be continued from here.
    pub fn new(recorder: Arc<Recorder>, step: &Step, trainer: Trainer) -> Again {
        let commands = || step.lists.iter().flatten();
        let mut records = BTreeMap::new();
        for command in commands() {
            if let Command::Record { event, .. } = command {
                *records.entry(*event).or_insert(0) += 1;
            }
        }
        let streams = commands().filter_map(Command::stream).collect();
        Again { recorder, lists: step.lists.clone(), streams, records, _trainer: trainer }
    }

    /// Runs the step and waits for it, with time stamps around each command, as in every step of a trainer.
    ///
    /// # Errors
    /// If the device reports an error.
    pub fn step(&mut self) -> Result<(), DeviceError> {
        for command in self.lists.iter_mut().flatten() {
            // The generations of events continue from step to step.
            if let Command::Record { event, generation, .. } | Command::Wait { event, generation, .. } = command {
                *generation += self.records.get(event).copied().unwrap_or(0);
            }
        }
        for list in &self.lists {
            self.recorder.submit(list)?;
        }
        self.streams.iter().try_for_each(|&stream| self.recorder.synchronize(stream))?;
        drop(self.recorder.take_trace());
        Ok(())
    }
}
