//! The processes of a run, as options name them.

use std::fmt;
use std::sync::Arc;

use forebay_device::Communicator;

/// The processes that train or run one model together, as one of them sees them: each computes its share of every batch, and all have
/// the same results, with the bits of a single process.
///
/// ```
/// use forebay::communicator::{Communicator, Done, Messages};
/// use forebay::ProcessGroup;
///
/// /// A process that is alone.
/// #[derive(Debug)]
/// struct Alone;
///
/// impl Communicator for Alone {
///     fn rank(&self) -> usize {
///         0
///     }
///     fn size(&self) -> usize {
///         1
///     }
///     unsafe fn start(&self, _: Messages, done: Done) {
///         done(Ok(()));
///     }
///     fn finish(&self) {}
///     fn abort(&self) {}
/// }
///
/// let group = ProcessGroup::new(std::sync::Arc::new(Alone));
/// assert_eq!((group.rank(), group.size()), (0, 1));
/// ```
#[derive(Clone)]
pub struct ProcessGroup(Arc<dyn Communicator>);

impl ProcessGroup {
    /// The processes that a communicator connects.
    pub fn new(communicator: Arc<dyn Communicator>) -> ProcessGroup {
        ProcessGroup(communicator)
    }

    /// The number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.0.rank()
    }

    /// How many processes there are.
    pub fn size(&self) -> usize {
        self.0.size()
    }

    /// What connects them.
    pub fn communicator(&self) -> &Arc<dyn Communicator> {
        &self.0
    }
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of {}", self.rank(), self.size())
    }
}

/// Groups are equal that are the same one.
impl PartialEq for ProcessGroup {
    fn eq(&self, other: &ProcessGroup) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
