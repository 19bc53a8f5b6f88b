//! Records that fire when the last work before them ends, without a thread that waits for it.

use forebay_base::EventId;

use crate::progress::Progress;
use crate::shim::lock;
use crate::shim::sync::{Arc, Mutex, PoisonError};

/// A stream that has work in the pool.
pub(crate) trait Busy: Send + Sync {
    /// Tells the stream that a piece of its work has left the pool.
    fn done(self: Arc<Self>);
}

/// The place of the next record in a stream. The work before it holds a reference to it, and so does the previous milestone; whichever lets
/// go last fires the event. So events fire when everything before them is done, and nothing waits for that.
pub(crate) struct Milestone<Failure> {
    progress: Arc<Progress<Failure>>,
    record: Mutex<Option<Record<Failure>>>,
}

struct Record<Failure> {
    event: EventId,
    generation: u64,
    next: Arc<Milestone<Failure>>,
}

impl<Failure> Milestone<Failure> {
    pub fn new(progress: &Arc<Progress<Failure>>) -> Arc<Milestone<Failure>> {
        Arc::new(Milestone { progress: progress.clone(), record: Mutex::new(None) })
    }

    /// Places a record here, and returns the place of the next one.
    pub fn record(&self, event: EventId, generation: u64) -> Arc<Milestone<Failure>> {
        let next = Milestone::new(&self.progress);
        *lock(&self.record) = Some(Record { event, generation, next: next.clone() });
        next
    }

    /// Fires the event, if there is one, and returns the next milestone.
    fn pass(&mut self) -> Option<Arc<Milestone<Failure>>> {
        let record = self.record.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Record { event, generation, next } = record.take()?;
        self.progress.fire(event, generation);
        Some(next)
    }
}

impl<Failure> Drop for Milestone<Failure> {
    fn drop(&mut self) {
        // A loop, because nested drops would need stack for every record that fires at once.
        let mut next = self.pass();
        while let Some(mut milestone) = next.and_then(Arc::into_inner) {
            next = milestone.pass();
        }
    }
}

/// A guard that work holds until it is done. The thread that drops it continues the streams that waited for the work.
pub struct Finish<Failure> {
    milestone: Option<Arc<Milestone<Failure>>>,
    stream: Option<Arc<dyn Busy>>,
}

impl<Failure> Finish<Failure> {
    pub(crate) fn new(milestone: &Arc<Milestone<Failure>>, stream: Arc<dyn Busy>) -> Finish<Failure> {
        Finish { milestone: Some(milestone.clone()), stream: Some(stream) }
    }

    /// Reports that the work failed, and with it the device.
    pub fn fail(&self, failure: Failure) {
        if let Some(milestone) = &self.milestone {
            milestone.progress.fail(failure);
        }
    }
}

impl<Failure> Drop for Finish<Failure> {
    fn drop(&mut self) {
        // The milestone comes first, so that a thread that finds nothing outstanding finds events fired.
        self.milestone = None;
        if let Some(stream) = self.stream.take() {
            stream.done();
        }
    }
}
