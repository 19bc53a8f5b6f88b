//! Exchanges in progress.

use std::time::{Duration, Instant};

use forebay_device::communicator::{Done, MessageBytes, Messages};

use crate::MpiError;
use crate::calls::Calls;

/// MPI counts the bytes of a message in 32 bits.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// How long messages of a process that has ended its connection can still be under way.
const LATE_MAX: Duration = Duration::from_secs(5);

/// An exchange in progress.
pub(crate) struct Exchange<Request> {
    /// Requests that are not done, each with the other process.
    open: Vec<(usize, Request)>,
    done: Option<Done>,
    since: Instant,
    tag: u32,
    has_failed: bool,
}

impl<Request> Exchange<Request> {
    /// Begins to send and receive.
    ///
    /// # Safety
    /// The same as for [`forebay_device::Communicator::start`].
    pub unsafe fn begin(
        mpi: &impl Calls<Request = Request>,
        Messages { tag, sends, receives }: Messages,
        done: Done,
    ) -> Exchange<Request> {
        let mut exchange = Exchange { open: Vec::new(), done: None, since: Instant::now(), tag, has_failed: false };
        // Receives are posted before the messages arrive.
        let received = receives.iter().flat_map(pieces).try_for_each(|(peer, address, bytes)| {
            // SAFETY: the caller's promise.
            exchange.open.push((peer, unsafe { mpi.receive(address, bytes, peer, tag) }?));
            Ok::<(), MpiError>(())
        });
        let sent = received.and_then(|()| {
            sends.iter().flat_map(pieces).try_for_each(|(peer, address, bytes)| {
                // SAFETY: the caller's promise.
                exchange.open.push((peer, unsafe { mpi.send(address, bytes, peer, tag) }?));
                Ok(())
            })
        });
        match sent {
            Ok(()) => exchange.done = Some(done),
            Err(error) => {
                exchange.has_failed = true;
                done(Err(error.to_string()));
            }
        }
        exchange
    }

    /// Checks which messages have been received and sent, and returns whether the exchange is over. If it takes too long, or waits for a
    /// process that has ended its connection, it is given up. `ended` holds the time at which each process did so, if that is known.
    pub fn go_on(
        &mut self,
        mpi: &impl Calls<Request = Request>,
        timeout: Option<Duration>,
        ended: &[Option<Instant>],
    ) -> bool {
        let mut failed = None;
        self.open.retain_mut(|(_, request)| match mpi.is_done(request) {
            Ok(is_done) => !is_done,
            Err(error) => {
                failed.get_or_insert(error);
                true
            }
        });
        let is_late = || timeout.is_some_and(|timeout| self.since.elapsed() > timeout);
        let outcome = match (failed, self.ended_peer(ended)) {
            (Some(error), _) => Err(error.to_string()),
            (None, _) if self.open.is_empty() => Ok(()),
            (None, Some(peer)) => Err(format!(
                "process {peer} has ended, but this process still waits for message {} to or from it; all processes must make the \
                 same calls until they end",
                self.tag
            )),
            (None, None) if is_late() => Err(self.complaint()),
            (None, None) => return self.done.is_none(),
        };
        self.has_failed |= outcome.is_err();
        if let Some(done) = self.done.take() {
            done(outcome);
        }
        true
    }

    /// Returns whether the exchange has failed. Other processes may still send messages of it.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Returns a process that this exchange waits for although it ended long ago.
    fn ended_peer(&self, ended: &[Option<Instant>]) -> Option<usize> {
        let ended_long_ago = |peer: usize| {
            let at = ended.get(peer).copied().flatten();
            at.is_some_and(|at| at.max(self.since).elapsed() > LATE_MAX)
        };
        self.open.iter().map(|(peer, _)| *peer).find(|&peer| ended_long_ago(peer))
    }

    /// Returns a message that says which processes are missing.
    fn complaint(&self) -> String {
        let peers = list(self.open.iter().map(|(peer, _)| *peer).collect());
        let (seconds, tag) = (self.since.elapsed().as_secs(), self.tag);
        format!(
            "message {tag} to or from process {peers} is not complete after {seconds} s (--network-timeout sets how long to wait)"
        )
    }
}

/// Returns the numbers of processes as text, each once.
pub(crate) fn list(mut peers: Vec<usize>) -> String {
    peers.sort_unstable();
    peers.dedup();
    peers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// Splits a message into pieces that MPI can count.
fn pieces(message: &MessageBytes) -> impl Iterator<Item = (usize, *mut u8, i32)> {
    let MessageBytes { peer, address, size_bytes } = *message;
    (0..size_bytes).step_by(MESSAGE_BYTES_MAX).map(move |start| {
        let bytes = MESSAGE_BYTES_MAX.min(size_bytes - start);
        (peer, address.wrapping_add(start), bytes as i32)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// MPI that never completes a message.
    struct Silent;

    impl Calls for Silent {
        type Request = ();

        fn rank(&self) -> Result<usize, MpiError> {
            Ok(0)
        }

        fn size(&self) -> Result<usize, MpiError> {
            Ok(3)
        }

        unsafe fn send(&self, _: *const u8, _: i32, _: usize, _: u32) -> Result<(), MpiError> {
            Ok(())
        }

        unsafe fn receive(&self, _: *mut u8, _: i32, _: usize, _: u32) -> Result<(), MpiError> {
            Ok(())
        }

        fn is_done(&self, (): &mut ()) -> Result<bool, MpiError> {
            Ok(false)
        }

        fn abort(&self) {}

        fn end(&mut self) {}
    }

    #[test]
    fn an_exchange_with_a_process_that_ended_long_ago_fails() {
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).expect("the clock began earlier");
        // An exchange with these processes that began 6 s ago: its outcome if it ends when process 1 ended at this time.
        let outcome = |peers: &[usize], ended: Instant| {
            let (tell, told) = channel();
            let done: Done = Box::new(move |result| tell.send(result).expect("the test waits"));
            let mut exchange: Exchange<()> = Exchange {
                open: peers.iter().map(|&peer| (peer, ())).collect(),
                done: Some(done),
                since: ago(6),
                tag: 7,
                has_failed: false,
            };
            let is_over = exchange.go_on(&Silent, None, &[None, Some(ended), None]);
            let outcome = told.try_recv().ok();
            assert_eq!((is_over, exchange.has_failed()), (outcome.is_some(), outcome.is_some()));
            outcome
        };
        for ended in [ago(6), ago(100)] {
            let error = outcome(&[2, 1], ended).expect("it is over").unwrap_err();
            assert!(error.contains("process 1 has ended") && error.contains("waits for message 7"), "{error}");
            assert_eq!(outcome(&[2], ended), None, "process 2 has not ended");
        }
        assert_eq!(outcome(&[2, 1], ago(1)), None, "its messages can still be under way");
    }
}
