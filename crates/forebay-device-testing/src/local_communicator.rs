//! Communicators between threads of one process, for tests.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use forebay_device::communicator::{Communicator, Done, MessageBytes, Messages};

/// How long a thread waits for messages of others before it gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Sender, receiver and tag of messages.
type Channel = (usize, usize, u32);

/// Messages that have been sent and not received.
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
}

/// Communicators between `size` threads, one for each.
pub fn local_communicators(size: usize) -> Vec<Arc<dyn Communicator>> {
    let post = Arc::new(Post::default());
    let of_rank = |rank| Arc::new(LocalCommunicator { rank, size, post: post.clone() }) as Arc<dyn Communicator>;
    (0..size).map(of_rank).collect()
}

/// Where a message goes, for a thread that receives it.
struct Target(MessageBytes);

// SAFETY: an address; the bytes are the exchange's until it is done.
unsafe impl Send for Target {}

impl LocalCommunicator {
    fn receive(&self, tag: u32, target: &Target) -> Result<(), String> {
        let channel = (target.0.peer, self.rank, tag);
        let mut messages = self.post.messages.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(message) = messages.get_mut(&channel).and_then(VecDeque::pop_front) {
                if message.len() != target.0.size_bytes {
                    return Err(format!("{} bytes came where {} were due", message.len(), target.0.size_bytes));
                }
                // SAFETY: the caller of `start` keeps the bytes for this exchange.
                unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), target.0.address, message.len()) };
                return Ok(());
            }
            let (next, waited) =
                self.post.arrived.wait_timeout(messages, PATIENCE).unwrap_or_else(PoisonError::into_inner);
            if waited.timed_out() {
                return Err(format!("nothing came from process {}", target.0.peer));
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
        {
            let mut messages = self.post.messages.lock().unwrap_or_else(PoisonError::into_inner);
            for MessageBytes { peer, address, size_bytes } in sends {
                // SAFETY: the caller keeps the bytes for this exchange.
                let bytes = unsafe { std::slice::from_raw_parts(address, size_bytes) };
                messages.entry((self.rank, peer, tag)).or_default().push_back(bytes.to_vec());
            }
        }
        self.post.arrived.notify_all();
        let (this, targets) = (self.clone(), receives.into_iter().map(Target).collect::<Vec<_>>());
        std::thread::spawn(move || done(targets.iter().try_for_each(|target| this.receive(tag, target))));
    }

    fn finish(&self) {}

    fn abort(&self) {}
}
