//! The state that all handles of a managed memory share: its core, and the thread that carries out prefetches.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_memory::eviction::Policy;
use forebay_queue::shim::lock;
use forebay_queue::shim::sync::{Mutex, PoisonError};
use forebay_queue::shim::thread::{Builder, JoinHandle};

use super::core::Core;
use crate::error::RuntimeError;

/// The number of prefetch copies that are under way at once; others wait and can be canceled.
const PREFETCHES_UNDER_WAY: usize = 2;

/// Ends the thread when no handle is left.
pub struct Handle {
    /// The core, which the thread also has.
    pub core: Arc<Core>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.lock().closing = true;
        self.core.changed.notify_all();
        if let Some(thread) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // The thread has no result.
            let _ = thread.join();
        }
    }
}

impl Handle {
    /// Creates a handle whose thread is not started yet.
    pub fn new(core: Arc<Core>) -> Handle {
        Handle { core, thread: Mutex::default() }
    }

    /// Ensures that prefetches are carried out, if the caller does not do so itself.
    ///
    /// # Errors
    /// Fails if the system refuses a thread.
    pub fn start_thread(&self) -> Result<(), RuntimeError> {
        let mut thread = lock(&self.thread);
        if thread.is_some() || self.core.lock().queue.policy() == Policy::Driver {
            return Ok(());
        }
        let core = self.core.clone();
        let started = Builder::new().name("forebay prefetch".to_string()).spawn(move || carry_out(&core));
        let refused =
            |error| RuntimeError::Tensor { reason: format!("the system refused to create a thread: {error}") };
        *thread = Some(started.map_err(refused)?);
        Ok(())
    }
}

/// Carries out prefetches, a few at a time, until the end.
fn carry_out(core: &Core) {
    let mut under_way = VecDeque::new();
    loop {
        let mut state = core.lock();
        while !state.closing && state.queue.prefetches().next().is_none() {
            state = core.wait_for_change(state);
        }
        if state.closing {
            return;
        }
        state.prefetching = true;
        drop(state);
        // A prefetch that fails has no effect; the next use of the unit finds out why.
        let prefetched = core.run(|state| core.prefetch(state));
        if prefetched.is_err() && core.check().is_err() {
            // A device that has failed brings nothing any more.
            core.lock().queue.cancel_prefetches();
        }
        under_way.extend(prefetched.ok().flatten());
        if under_way.len() >= PREFETCHES_UNDER_WAY
            && let Some(position) = under_way.pop_front()
        {
            let _ = core.wait_for(core.copies.queue(), position);
        }
        core.lock().prefetching = false;
        core.changed.notify_all();
    }
}
