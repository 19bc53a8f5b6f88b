//! For tests: all schedules with a bounded number of delays. The search ends, and a few delays are enough to find most mistakes.
//!
//! Without delays, a thread runs until it blocks, and then the next thread in a ring runs. A delay skips one thread at any point where
//! different threads could run next, so with enough delays every schedule is reached. (Emmi, Qadeer and Rakamaric, Delay-bounded
//! scheduling, 2011.)

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

/// A point where different threads could run next.
struct Choice {
    /// The threads that can run next, by the number of delays needed.
    candidates: Vec<TaskId>,
    /// The index of the thread that runs next in this schedule.
    delays: usize,
}

/// A depth-first search through all schedules with a bounded number of delays.
pub struct BoundedScheduler {
    delays_max: usize,
    choices: Vec<Choice>,
    /// The position of this schedule in `choices`.
    depth: usize,
    /// The delays of this schedule so far.
    delays: usize,
    begun: bool,
}

impl BoundedScheduler {
    /// With `usize::MAX`, the search covers all schedules.
    pub fn new(delays_max: usize) -> BoundedScheduler {
        BoundedScheduler { delays_max, choices: Vec::new(), depth: 0, delays: 0, begun: false }
    }

    /// The threads that can run next at a point that is reached for the first time.
    fn candidates(&self, runnable: &[&Task], current: Option<TaskId>, yields: bool) -> Vec<TaskId> {
        let mut ring: Vec<TaskId> = runnable.iter().map(|task| task.id()).collect();
        ring.sort_unstable();
        // A thread that polls comes last; any other continues.
        let is_before = |&id: &TaskId| current.is_some_and(|current| id < current || (yields && id == current));
        let place = ring.iter().take_while(|id| is_before(id)).count();
        ring.rotate_left(place);
        ring.truncate((self.delays_max - self.delays).saturating_add(1));
        ring
    }
}

impl Scheduler for BoundedScheduler {
    fn new_execution(&mut self) -> Option<Schedule> {
        (self.depth, self.delays) = (0, 0);
        if std::mem::replace(&mut self.begun, true) {
            while self.choices.last().is_some_and(|choice| choice.delays + 1 == choice.candidates.len()) {
                self.choices.pop();
            }
            self.choices.last_mut()?.delays += 1;
        }
        Some(Schedule::new(0))
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, yields: bool) -> Option<TaskId> {
        if self.depth == self.choices.len() {
            let candidates = self.candidates(runnable, current, yields);
            self.choices.push(Choice { candidates, delays: 0 });
        }
        let choice = &self.choices[self.depth];
        self.depth += 1;
        self.delays += choice.delays;
        Some(choice.candidates[choice.delays])
    }

    fn next_u64(&mut self) -> u64 {
        unreachable!("a search through schedules has no random numbers to give")
    }
}
