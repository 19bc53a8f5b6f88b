//! Turns: what a thread finds to do while it does something else, one after the other rather than one inside the other.
//!
//! Work that ends lets its stream go on, that fires an event, and the event lets another stream go on. All of that is the
//! business of the thread whose work ended; done inside one another it would need stack for each, and hold the locks of one
//! stream while it asks for those of the next.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::shim::thread_local;

/// Something to do that does not wait for anything.
pub(crate) type Continuation = Box<dyn FnOnce() + Send>;

thread_local! {
    /// Turns behind the one that the thread takes now; none while it takes none.
    static NEXT: RefCell<Option<VecDeque<Continuation>>> = RefCell::new(None);
}

/// Takes the turn, and those that come up in it; in a turn, as soon as that is over.
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

/// Ends a thread's turns, also where one of them panics.
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
        let panicked = std::panic::catch_unwind(|| take(Box::new(|| panic!("as told"))));
        assert!(panicked.is_err());
        let taken = Arc::new(Mutex::new(false));
        let inner = taken.clone();
        take(Box::new(move || *inner.lock().unwrap() = true));
        assert!(*taken.lock().unwrap());
    }
}
