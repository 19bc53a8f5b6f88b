//! The processes of a run, as options specify them.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_device::communicator::{Communicator, Done, Messages};
use forebay_plan::Plan;
use forebay_plan::check::check_ranks;

use crate::error::Error;

/// The processes that train or run one model together, as seen by one of them. Each computes its share of every batch, and all have the
/// same results, with the bits of a single process.
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
///     fn finish(&self) -> Result<(), String> {
///         Ok(())
///     }
///     fn abort(&self) {}
/// }
///
/// let group = ProcessGroup::new(std::sync::Arc::new(Alone));
/// assert_eq!((group.rank(), group.size()), (0, 1));
/// ```
#[derive(Clone)]
pub struct ProcessGroup {
    /// The communicator, which counts what is exchanged.
    communicator: Arc<dyn Communicator>,
    exchanged: Arc<Mutex<Counts>>,
    /// The number of processes on this machine, this one included.
    on_this_machine: usize,
}

/// What a process has exchanged with the others so far.
///
/// ```
/// let exchanged = forebay::Exchanged::default();
/// assert_eq!((exchanged.sent_bytes, exchanged.time.as_secs()), (0, 0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exchanged {
    /// The number of bytes sent to other processes.
    pub sent_bytes: u64,
    /// The number of bytes received from other processes.
    pub received_bytes: u64,
    /// The time during which at least one exchange was in progress.
    pub time: Duration,
}

/// One of several processes, the others of which do not exist.
#[derive(Debug)]
struct Absent {
    rank: usize,
    size: usize,
}

impl Communicator for Absent {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    unsafe fn start(&self, _: Messages, done: Done) {
        done(Err("the other processes exist only in the plan".to_string()));
    }

    fn finish(&self) -> Result<(), String> {
        Ok(())
    }

    fn abort(&self) {}
}

/// What has been exchanged, and what is in progress.
#[derive(Default)]
struct Counts {
    so_far: Exchanged,
    /// The number of exchanges in progress, and the time since which there has been at least one.
    open: u32,
    since: Option<Instant>,
}

/// A communicator that counts what is exchanged.
#[derive(Debug)]
struct Counted {
    inner: Arc<dyn Communicator>,
    exchanged: Arc<Mutex<Counts>>,
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.so_far.fmt(f)
    }
}

impl Communicator for Counted {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    unsafe fn start(&self, messages: Messages, done: Done) {
        let bytes = |messages: &[forebay_device::communicator::MessageBytes]| {
            messages.iter().map(|message| message.size_bytes as u64).sum::<u64>()
        };
        let exchanged = self.exchanged.clone();
        {
            let mut counts = exchanged.lock().unwrap_or_else(PoisonError::into_inner);
            counts.so_far.sent_bytes += bytes(&messages.sends);
            counts.so_far.received_bytes += bytes(&messages.receives);
            counts.open += 1;
            counts.since.get_or_insert_with(Instant::now);
        }
        let counted = move |outcome| {
            let mut counts = exchanged.lock().unwrap_or_else(PoisonError::into_inner);
            counts.open -= 1;
            if counts.open == 0 {
                let time = counts.since.take().map(|since| since.elapsed());
                counts.so_far.time += time.unwrap_or_default();
            }
            drop(counts);
            done(outcome);
        };
        // SAFETY: the caller's promises.
        unsafe { self.inner.start(messages, Box::new(counted)) };
    }

    fn finish(&self) -> Result<(), String> {
        self.inner.finish()
    }

    fn abort(&self) {
        self.inner.abort();
    }
}

impl ProcessGroup {
    /// Creates the group of processes that a communicator connects.
    pub fn new(communicator: Arc<dyn Communicator>) -> ProcessGroup {
        let exchanged = Arc::new(Mutex::new(Counts::default()));
        let communicator = Arc::new(Counted { inner: communicator, exchanged: exchanged.clone() });
        ProcessGroup { communicator, exchanged, on_this_machine: 1 }
    }

    /// Returns the same group with the number of processes on this machine, this one included. Each of them gets an equal share of the
    /// machine's free memory. By default, only this process is on the machine.
    ///
    /// ```
    /// use forebay::ProcessGroup;
    ///
    /// let group = ProcessGroup::for_plans(8);
    /// assert_eq!((group.on_this_machine(), group.with_on_this_machine(4).on_this_machine()), (1, 4));
    /// ```
    pub fn with_on_this_machine(self, processes: usize) -> ProcessGroup {
        ProcessGroup { on_this_machine: processes.max(1), ..self }
    }

    /// Creates the group of the first of `size` processes that do not exist. It is for planning, which exchanges nothing; a run fails at
    /// its first exchange.
    pub fn for_plans(size: usize) -> ProcessGroup {
        ProcessGroup::for_plan_of(0, size)
    }

    /// Like [`ProcessGroup::for_plans`], for process `rank`.
    pub fn for_plan_of(rank: usize, size: usize) -> ProcessGroup {
        ProcessGroup::new(Arc::new(Absent { rank, size }))
    }

    /// Returns the number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.communicator.rank()
    }

    /// Returns the number of processes.
    pub fn size(&self) -> usize {
        self.communicator.size()
    }

    /// Returns the number of processes on this machine, this one included; see [`ProcessGroup::with_on_this_machine`].
    pub fn on_this_machine(&self) -> usize {
        self.on_this_machine
    }

    /// Returns the communicator that connects the processes.
    pub fn communicator(&self) -> &Arc<dyn Communicator> {
        &self.communicator
    }

    /// Returns what this process has exchanged with the others so far.
    pub fn exchanged(&self) -> Exchanged {
        self.exchanged.lock().unwrap_or_else(PoisonError::into_inner).so_far
    }
}

/// Checks the plans of processes 0, 1, 2 and so on of a run against each other: what one process sends, another receives, and no order of
/// exchanges makes processes wait for each other.
///
/// ```
/// use forebay::{check_plans, Model, Plan, ProcessGroup, Trainer};
///
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let plan = |rank| {
///     let group = ProcessGroup::for_plan_of(rank, 2);
///     let engine = forebay::EngineOptions::default().processes(group);
///     Ok(Trainer::builder(&model).engine(engine).build()?.plan().clone())
/// };
/// let plans: Vec<Plan> = (0..2).map(plan).collect::<Result<_, forebay::Error>>()?;
/// check_plans(&plans.iter().collect::<Vec<_>>())?;
/// # Ok::<(), forebay::Error>(())
/// ```
///
/// # Errors
/// Returns [`Error::Plan`], which names the first exchange without a counterpart or the place where processes stop. Either is a defect.
pub fn check_plans(plans: &[&Plan]) -> Result<(), Error> {
    check_ranks(plans).map_err(Error::Plan)
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of {}", self.rank(), self.size())
    }
}

/// Two groups are equal if they are the same group.
impl PartialEq for ProcessGroup {
    fn eq(&self, other: &ProcessGroup) -> bool {
        Arc::ptr_eq(&self.exchanged, &other.exchanged)
    }
}
