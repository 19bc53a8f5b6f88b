//! Continuations: work that comes up while a thread is running, done one after another instead of nested.
//!
//! When work ends, its stream continues, which fires an event, which lets another stream continue. All of this falls to the thread whose
//! work ended. If it were nested, every level would need stack, and the locks of one stream would be held while those of the next are
//! taken.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::shim::thread_local;

/// Something to do that never waits.
pub(crate) type Continuation = Box<dyn FnOnce() + Send>;

thread_local! {
    /// The continuations after the one that the thread is running; `None` while it runs none.
    static NEXT: RefCell<Option<VecDeque<Continuation>>> = RefCell::new(None);
}

/// Runs the continuation, and those that come up while it runs. Within a continuation, runs it as soon as the current one is done.
pub(crate) fn take(continuation: Continuation) {
    let first = NEXT.with(|next| match &mut *next.borrow_mut() {
        Some(next) => {
            next.push_back(continuation);
            None
        }
        none => {
            *none = Some(VecDeque::new());
            Some(continuation)
        }
    });
    let Some(first) = first else { return };
    let _over = Over;
    first();
    while let Some(continuation) = NEXT.with(|next| next.borrow_mut().as_mut().and_then(VecDeque::pop_front)) {
        continuation();
    }
}

/// Ends a thread's run of continuations, even if one of them panics.
struct Over;

impl Drop for Over {
    fn drop(&mut self) {
        NEXT.with(|next| next.borrow_mut().take());
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn continuations_follow_each_other_and_none_is_inside_another() {
        fn go_down(depth: usize, order: &Arc<Mutex<Vec<usize>>>) {
            let inner = order.clone();
            take(Box::new(move || {
                if depth < 100_000 {
                    go_down(depth + 1, &inner);
                }
                inner.lock().unwrap().push(depth);
            }));
        }
        let order = Arc::default();
        go_down(0, &order);
        assert!(order.lock().unwrap().iter().copied().eq(0..=100_000));
    }

    #[test]
    fn a_continuation_that_panics_takes_no_others_with_it() {
        let panicked = std::panic::catch_unwind(|| take(Box::new(|| panic!("on purpose"))));
        assert!(panicked.is_err());
        let taken = Arc::new(Mutex::new(false));
        let inner = taken.clone();
        take(Box::new(move || *inner.lock().unwrap() = true));
        assert!(*taken.lock().unwrap());
    }
}
