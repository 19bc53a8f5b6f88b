//! The processes of a run, connected by MPI.

use std::time::Duration;

use forebay::{Error, ProcessGroup, communicator};
use forebay_mpi::Options;
use pyo3::prelude::*;

use crate::long_work::obeying_signals;

/// The processes of a run, from the perspective of this one.
#[pyclass(module = "forebay._forebay", frozen)]
pub struct Processes(pub ProcessGroup);

#[pymethods]
impl Processes {
    /// Connects the processes of an mpi4py communicator, given the address of its MPI handle, or else those that an MPI launcher started.
    #[new]
    fn new(
        py: Python<'_>,
        handle: Option<usize>,
        library: Option<String>,
        timeout: u64,
        end_timeout: Option<u64>,
    ) -> PyResult<Processes> {
        let timeout = Some(Duration::from_secs(timeout));
        // By default, a script may continue in one process after the others have ended, for as long as it likes.
        let end_timeout = end_timeout.map(Duration::from_secs);
        let options = Options { library, timeout, end_timeout, others_call: true };
        let communicator = obeying_signals(py, f64::INFINITY, move || {
            let connected = match handle {
                // SAFETY: Python's side asks mpi4py for the address, of a communicator that it keeps.
                Some(handle) => unsafe { forebay_mpi::connect_through(&options, handle) },
                None => forebay_mpi::connect(&options),
            };
            connected.map_err(|error| Error::Option { reason: error.to_string() })
        })?;
        let on_this_machine = forebay_mpi::started_by().and_then(|launched| launched.on_this_machine);
        Ok(Processes(ProcessGroup::new(communicator).with_on_this_machine(on_this_machine.unwrap_or(1))))
    }

    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    /// Returns the bytes sent, the bytes received, and the seconds in which an exchange was in progress.
    fn exchanged(&self) -> (u64, u64, f64) {
        let exchanged = self.0.exchanged();
        (exchanged.sent_bytes, exchanged.received_bytes, exchanged.time.as_secs_f64())
    }

    /// Waits until all processes have called it.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        let group = self.0.clone();
        obeying_signals(py, f64::INFINITY, move || {
            let all = communicator::gather_sized(&**group.communicator(), vec![0], |_| 1);
            all.map(drop).map_err(|reason| Error::Option { reason })
        })
    }

    /// Ends connections once all processes do. All at once, because another process can wait for the end of any of them. Returns why
    /// processes did not end in time.
    #[staticmethod]
    fn finish(py: Python<'_>, all: Vec<Py<Processes>>) -> Vec<String> {
        py.detach(|| {
            std::thread::scope(|scope| {
                let finish = |one: &'_ Py<Processes>| {
                    let group = one.get().0.clone();
                    scope.spawn(move || {
                        let ended = group.communicator().finish();
                        ended.err().map(|reason| format!("process {} of {}: {reason}", group.rank(), group.size()))
                    })
                };
                let threads: Vec<_> = all.iter().map(finish).collect();
                threads.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
            })
        })
    }

    /// Ends all processes.
    fn abort(&self, py: Python<'_>) {
        py.detach(|| self.0.communicator().abort());
    }
}
