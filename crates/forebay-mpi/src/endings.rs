//! The last message between any two processes: each tells the others that its connection ends, so that none waits for it in vain.

use std::time::{Duration, Instant};

use forebay_device::communicator::END_TAG;

use crate::calls::Calls;
use crate::exchanges::list;

/// The ends of connections, as this process knows them.
pub(crate) struct Endings<Request> {
    /// For each process, its message while it has not arrived.
    open: Vec<Option<Request>>,
    /// When each process's message arrived.
    at: Vec<Option<Instant>>,
    /// The byte that is sent, which means nothing.
    own: *const u8,
}

impl<Request> Endings<Request> {
    /// Begins to receive the other processes' messages.
    pub fn begin(mpi: &impl Calls<Request = Request>, rank: usize, size: usize) -> Endings<Request> {
        // One byte from each process, and the one that is sent. They are never freed, because messages can arrive even after a failure.
        let bytes = Box::leak(vec![0; size + 1].into_boxed_slice()).as_mut_ptr();
        let open = (0..size).map(|peer| {
            // SAFETY: the byte is never freed, and nothing else accesses it.
            // If MPI refuses to receive the message, this process never learns that the other one ended.
            (peer != rank).then(|| unsafe { mpi.receive(bytes.wrapping_add(peer), 1, peer, END_TAG) }.ok()).flatten()
        });
        Endings { open: open.collect(), at: vec![None; size], own: bytes.wrapping_add(size) }
    }

    /// Checks which messages have arrived, and returns when each process's did.
    pub fn check(&mut self, mpi: &impl Calls<Request = Request>) -> &[Option<Instant>] {
        for (request, at) in self.open.iter_mut().zip(&mut self.at) {
            // An error means that there is no connection to the process any more, so it counts as ended.
            if request.as_mut().is_some_and(|request| mpi.is_done(request).unwrap_or(true)) {
                (*request, *at) = (None, Some(Instant::now()));
            }
        }
        &self.at
    }

    /// Tells the other processes that this one ends, and calls `pause` again and again until all of them have told the same.
    ///
    /// # Errors
    /// Names the processes that have not done so within `timeout`.
    pub fn finish(
        mut self,
        mpi: &impl Calls<Request = Request>,
        rank: usize,
        timeout: Option<Duration>,
        pause: impl Fn(),
    ) -> Result<(), String> {
        let (since, others) = (Instant::now(), (0..self.at.len()).filter(|&peer| peer != rank));
        // If MPI refuses a message, it ends the run, unless the program has chosen another error handler (mpi4py does). A process that
        // cannot be told then waits until the run is ended from outside; this one does not wait for the message.
        // SAFETY: the byte is never freed, and nothing writes to it.
        let send = |peer| Some((peer, unsafe { mpi.send(self.own, 1, peer, END_TAG) }.ok()?));
        let mut sent: Vec<(usize, Request)> = others.filter_map(send).collect();
        loop {
            self.check(mpi);
            sent.retain_mut(|(_, request)| mpi.is_done(request).is_ok_and(|is_done| !is_done));
            let silent = self.open.iter().enumerate().filter_map(|(peer, request)| request.as_ref().map(|_| peer));
            let late: Vec<usize> = silent.chain(sent.iter().map(|(peer, _)| *peer)).collect();
            if late.is_empty() {
                return Ok(());
            }
            if timeout.is_some_and(|timeout| since.elapsed() > timeout) {
                return Err(format!(
                    "this process has ended, but process {} has not after {} s more (--network-timeout sets how long to wait)",
                    list(late),
                    since.elapsed().as_secs()
                ));
            }
            pause();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MpiError;

    /// MPI with four processes, one of which never sends anything, and another never receives anything.
    struct Partly;

    /// The other process, and whether a message from it is awaited.
    type Message = (usize, bool);

    impl Calls for Partly {
        type Request = Message;

        fn rank(&self) -> Result<usize, MpiError> {
            Ok(1)
        }

        fn size(&self) -> Result<usize, MpiError> {
            Ok(4)
        }

        unsafe fn send(&self, _: *const u8, _: i32, peer: usize, _: u32) -> Result<Message, MpiError> {
            Ok((peer, false))
        }

        unsafe fn receive(&self, _: *mut u8, _: i32, peer: usize, _: u32) -> Result<Message, MpiError> {
            Ok((peer, true))
        }

        fn is_done(&self, request: &mut Message) -> Result<bool, MpiError> {
            Ok(![(2, true), (3, false)].contains(request))
        }

        fn abort(&self) {}

        fn end(&mut self) {}
    }

    #[test]
    fn an_end_without_answers_is_given_up_and_names_who_is_silent() {
        let (timeout, endings) = (Duration::from_millis(20), Endings::begin(&Partly, 1, 4));
        let ended = endings.finish(&Partly, 1, Some(timeout), || std::thread::sleep(timeout / 4));
        let error = ended.unwrap_err();
        assert!(error.contains("process 2, 3 has not after 0 s more (--network-timeout"), "{error}");
    }
}
