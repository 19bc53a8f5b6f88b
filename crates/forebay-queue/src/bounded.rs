//! For tests, every schedule with a bounded number of delays: a search that ends, and finds most mistakes with few of them.
//!
//! Left alone, a thread runs until it blocks, and then the next one in a ring does. A delay passes one thread over, at any
//! place where threads could follow each other differently; so with enough of them every schedule is reached. (Emmi, Qadeer
//! and Rakamaric, Delay-bounded scheduling, 2011.)

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

/// One place where threads could follow each other differently.
struct Choice {
    /// Who may go on, by how many delays that takes.
    candidates: Vec<TaskId>,
    /// Which of them does, in this schedule.
    delays: usize,
}

/// A depth-first search through all schedules with a bounded number of delays.
pub struct BoundedScheduler {
    delays_max: usize,
    choices: Vec<Choice>,
    /// How far this schedule has come in `choices`.
    depth: usize,
    /// Delays of this schedule up to there.
    delays: usize,
    begun: bool,
}

impl BoundedScheduler {
    /// With `usize::MAX` the search goes through all schedules there are.
    pub fn new(delays_max: usize) -> BoundedScheduler {
        BoundedScheduler { delays_max, choices: Vec::new(), depth: 0, delays: 0, begun: false }
    }

    /// Who may go on at a place that is reached for the first time.
    fn candidates(&self, runnable: &[&Task], current: Option<TaskId>, yields: bool) -> Vec<TaskId> {
        let mut ring: Vec<TaskId> = runnable.iter().map(|task| task.id()).collect();
        ring.sort_unstable();
        // One that polls comes last; any other goes on.
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
