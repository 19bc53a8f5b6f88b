//! Requests to stop planning.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A request to stop planning, which another thread can make. Clones are the same request. Two requests are equal if both were made, or
/// neither.
///
/// ```
/// use forebay_plan::StopRequest;
///
/// let request = StopRequest::default();
/// let other = request.clone();
/// assert!(!other.is_made());
/// request.make();
/// assert!(other.is_made() && other != StopRequest::default());
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopRequest(Arc<AtomicBool>);

impl StopRequest {
    /// Makes the request: planning that knows it ends soon, with [`PlanError::Stopped`].
    ///
    /// [`PlanError::Stopped`]: crate::PlanError::Stopped
    pub fn make(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether the request was made.
    pub fn is_made(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl PartialEq for StopRequest {
    fn eq(&self, other: &StopRequest) -> bool {
        self.is_made() == other.is_made()
    }
}

impl Eq for StopRequest {}
