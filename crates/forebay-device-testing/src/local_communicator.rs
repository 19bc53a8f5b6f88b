//! Communicators between threads of one process, for tests.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use forebay_device::communicator::{Communicator, Done, MessageBytes, Messages};
use forebay_testing::Random;

/// How long a thread waits for messages from others before it gives up.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The longest pause before messages are sent, before they are received, and before an exchange ends, if messages are slow.
const PAUSE_MAX_MICROSECONDS: u64 = 3000;

/// The sender, receiver and tag of messages.
type Channel = (usize, usize, u32);

/// Messages that have been sent and not yet received.
#[derive(Debug, Default)]
struct Post {
    messages: Mutex<HashMap<Channel, VecDeque<Vec<u8>>>>,
    arrived: Condvar,
}

/// One of several processes that are threads.
#[derive(Clone, Debug)]
pub struct LocalCommunicator {
    rank: usize,
    size: usize,
    post: Arc<Post>,
    /// Random pauses; `None` if messages are not slow.
    delays: Option<Arc<Mutex<Random>>>,
}

/// Returns communicators between `size` threads, one for each.
pub fn local_communicators(size: usize) -> Vec<Arc<dyn Communicator>> {
    connected(size, |_| None)
}

/// Returns the same communicators with random pauses: messages are read late and arrive late, and exchanges overtake each other.
pub fn slow_communicators(size: usize, seed: u64) -> Vec<Arc<dyn Communicator>> {
    connected(size, |rank| Some(Arc::new(Mutex::new(Random::new(seed + rank as u64)))))
}

fn connected(size: usize, delays: impl Fn(usize) -> Option<Arc<Mutex<Random>>>) -> Vec<Arc<dyn Communicator>> {
    let post = Arc::new(Post::default());
    let of_rank = |rank| {
        let communicator = LocalCommunicator { rank, size, post: post.clone(), delays: delays(rank) };
        Arc::new(communicator) as Arc<dyn Communicator>
    };
    (0..size).map(of_rank).collect()
}

/// The bytes of a message, for a thread that sends or receives it.
struct Target(MessageBytes);

// SAFETY: an address; the bytes are the exchange's until it is done.
unsafe impl Send for Target {}

impl LocalCommunicator {
    /// Waits for a random time if messages are slow.
    fn pause(&self) {
        if let Some(delays) = &self.delays {
            let microseconds = delays.lock().unwrap_or_else(PoisonError::into_inner).below(PAUSE_MAX_MICROSECONDS);
            std::thread::sleep(Duration::from_micros(microseconds));
        }
    }

    fn send(&self, tag: u32, sends: &[Target]) {
        {
            let mut messages = self.post.messages.lock().unwrap_or_else(PoisonError::into_inner);
            for Target(MessageBytes { peer, address, size_bytes }) in sends {
                // SAFETY: the caller of `start` keeps the bytes for this exchange.
                let bytes = unsafe { std::slice::from_raw_parts(*address, *size_bytes) };
                messages.entry((self.rank, *peer, tag)).or_default().push_back(bytes.to_vec());
            }
        }
        self.post.arrived.notify_all();
    }

    fn receive(&self, tag: u32, target: &Target) -> Result<(), String> {
        let channel = (target.0.peer, self.rank, tag);
        let mut messages = self.post.messages.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(message) = messages.get_mut(&channel).and_then(VecDeque::pop_front) {
                if message.len() != target.0.size_bytes {
                    return Err(format!("received {} bytes, expected {}", message.len(), target.0.size_bytes));
                }
                // SAFETY: the caller of `start` keeps the bytes for this exchange.
                unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), target.0.address, message.len()) };
                return Ok(());
            }
            let (next, waited) =
                self.post.arrived.wait_timeout(messages, TIMEOUT).unwrap_or_else(PoisonError::into_inner);
            if waited.timed_out() {
                return Err(format!("received nothing from process {}", target.0.peer));
            }
            messages = next;
        }
    }
}

impl Communicator for LocalCommunicator {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    unsafe fn start(&self, Messages { tag, sends, receives }: Messages, done: Done) {
        let [sends, receives] = [sends, receives].map(|all| all.into_iter().map(Target).collect::<Vec<_>>());
        let this = self.clone();
        if self.delays.is_none() {
            this.send(tag, &sends);
            std::thread::spawn(move || done(receives.iter().try_for_each(|target| this.receive(tag, target))));
            return;
        }
        std::thread::spawn(move || {
            this.pause();
            this.send(tag, &sends);
            this.pause();
            let outcome = receives.iter().try_for_each(|target| this.receive(tag, target));
            this.pause();
            done(outcome);
        });
    }

    fn finish(&self) -> Result<(), String> {
        Ok(())
    }

    fn abort(&self) {}
}
