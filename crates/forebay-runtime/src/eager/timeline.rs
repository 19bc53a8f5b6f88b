//! The happens-before relation between queues and the host, as established by commands: vector clocks. This module is pure.
//!
//! The work of a queue has positions, counted from 1. A clock gives, for each queue, the position up to which everything is complete. Each
//! queue has a clock for its next command, each mark (a record) has one for the moment when it fires, and the host has one for what it has
//! seen. Marks pass on everything that their queue had waited for, so a return through a third queue counts.

use std::collections::VecDeque;

/// A queue, by its place among a context's queues.
pub type QueueId = usize;

/// For each queue, the position up to which everything is complete.
type Clock = Vec<u64>;

/// A user of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Agent {
    /// The host itself: work on what it uses must be complete.
    Host,
    /// A queue: work on what it uses must be complete before its next command starts.
    Queue(QueueId),
}

/// A record of a queue.
#[derive(Clone, Debug)]
struct Mark {
    generation: u64,
    position: u64,
    clock: Clock,
}

/// The past of one queue, and what it knows.
#[derive(Clone, Debug, Default)]
struct Timeline {
    /// The position of the latest work.
    issued: u64,
    /// The generation of the latest record.
    recorded: u64,
    clock: Clock,
    /// Records, oldest first: those that the host has not seen fire, and the latest one.
    marks: VecDeque<Mark>,
}

/// The clocks of all queues and of the host.
#[derive(Clone, Debug, Default)]
pub struct Timelines {
    queues: Vec<Timeline>,
    host: Clock,
}

fn at(clock: &[u64], queue: QueueId) -> u64 {
    clock.get(queue).copied().unwrap_or(0)
}

fn raise(clock: &mut Clock, queue: QueueId, position: u64) {
    if clock.len() <= queue {
        clock.resize(queue + 1, 0);
    }
    clock[queue] = clock[queue].max(position);
}

fn join(clock: &mut Clock, other: &[u64]) {
    other.iter().enumerate().for_each(|(queue, &position)| raise(clock, queue, position));
}

fn covers(clock: &[u64], other: &[u64]) -> bool {
    other.iter().enumerate().all(|(queue, &position)| at(clock, queue) >= position)
}

impl Timelines {
    /// Adds a queue without work.
    pub fn add_queue(&mut self) -> QueueId {
        self.queues.push(Timeline::default());
        self.queues.len() - 1
    }

    /// Counts a command of the queue and returns its position.
    pub fn issue(&mut self, queue: QueueId) -> u64 {
        self.queues[queue].issued += 1;
        self.queues[queue].issued
    }

    /// The position of the queue's latest work; 0 before any.
    pub fn issued(&self, queue: QueueId) -> u64 {
        self.queues[queue].issued
    }

    /// Marks the queue's current position. Returns the generation to wait for, and whether it must be recorded now: an existing mark is
    /// reused if it already covers that position.
    pub fn record(&mut self, queue: QueueId) -> (u64, bool) {
        let timeline = &mut self.queues[queue];
        let mut clock = timeline.clock.clone();
        raise(&mut clock, queue, timeline.issued);
        if let Some(last) = timeline.marks.back().filter(|last| covers(&last.clock, &clock)) {
            return (last.generation, false);
        }
        timeline.recorded += 1;
        let (generation, position) = (timeline.recorded, timeline.issued);
        timeline.marks.push_back(Mark { generation, position, clock });
        (generation, true)
    }

    /// The earliest generation of the queue that was recorded at or after a position, if there is one.
    pub fn mark_behind(&self, queue: QueueId, position: u64) -> Option<u64> {
        let marks = &self.queues[queue].marks;
        marks.iter().find(|mark| mark.position >= position).map(|mark| mark.generation)
    }

    /// Makes a queue wait for a generation of another. Returns whether that changes anything: a wait for what is known to be complete by
    /// then need not be submitted.
    pub fn wait(&mut self, queue: QueueId, on: QueueId, generation: u64) -> bool {
        // A mark that has been removed was seen by the host. A queue keeps its own order without waits.
        let mark = self.queues[on].marks.iter().find(|mark| mark.generation == generation).filter(|_| queue != on);
        let Some(clock) = mark.map(|mark| mark.clock.clone()) else { return false };
        let known = |other| self.known(Agent::Queue(queue), other);
        let needed = clock.iter().enumerate().any(|(other, &position)| known(other) < position);
        join(&mut self.queues[queue].clock, &clock);
        needed
    }

    /// Notes that the host has seen a generation of the queue fire. Returns whether that is news.
    pub fn see(&mut self, queue: QueueId, generation: u64) -> bool {
        let seen = self.queues[queue].marks.iter().rfind(|mark| mark.generation <= generation);
        let Some(clock) = seen.map(|mark| mark.clock.clone()).filter(|clock| !covers(&self.host, clock)) else {
            return false;
        };
        join(&mut self.host, &clock);
        for timeline in &mut self.queues {
            while timeline.marks.len() > 1 && covers(&self.host, &timeline.marks[0].clock) {
                timeline.marks.pop_front();
            }
        }
        true
    }

    /// The position of a queue up to which everything is complete for an agent's next step. For a queue, all of its own work counts as
    /// complete, because it orders its own hazards.
    pub fn known(&self, agent: Agent, queue: QueueId) -> u64 {
        match agent {
            Agent::Host => at(&self.host, queue),
            Agent::Queue(own) if own == queue => u64::MAX,
            Agent::Queue(own) => at(&self.queues[own].clock, queue).max(at(&self.host, queue)),
        }
    }

    /// Whether the host has seen that everything of the queue is complete, including what the queue waited for.
    pub fn is_quiet(&self, queue: QueueId) -> bool {
        let timeline = &self.queues[queue];
        at(&self.host, queue) >= timeline.issued && covers(&self.host, &timeline.clock)
    }

    /// The number of records that are kept.
    pub fn mark_count(&self) -> usize {
        self.queues.iter().map(|timeline| timeline.marks.len()).sum()
    }

    /// Whether the queue has records that the host has not seen fire.
    pub fn has_unseen_marks(&self, queue: QueueId) -> bool {
        self.queues[queue].marks.back().is_some_and(|mark| !covers(&self.host, &mark.clock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Timelines {
        let mut timelines = Timelines::default();
        (0..3).for_each(|_| assert!(timelines.add_queue() < 3));
        timelines
    }

    #[test]
    fn a_wait_brings_what_the_other_queue_had_waited_for() {
        let mut timelines = three();
        let position = timelines.issue(1);
        let (first, new) = timelines.record(1);
        assert!(new && timelines.wait(2, 1, first));
        timelines.issue(2);
        let (second, _) = timelines.record(2);
        assert_eq!(timelines.known(Agent::Queue(0), 1), 0);
        assert!(timelines.wait(0, 2, second));
        assert_eq!(timelines.known(Agent::Queue(0), 1), position, "s1 to s2 to s0");
        assert!(!timelines.wait(0, 1, first), "nothing new");
    }

    #[test]
    fn a_mark_serves_until_there_is_something_new() {
        let mut timelines = three();
        timelines.issue(0);
        assert_eq!(timelines.record(0), (1, true));
        assert_eq!(timelines.record(0), (1, false));
        timelines.issue(0);
        assert_eq!(timelines.record(0), (2, true));
        timelines.issue(1);
        let (other, _) = timelines.record(1);
        timelines.wait(0, 1, other);
        assert_eq!(timelines.record(0), (3, true), "a wait is new, too");
        assert_eq!(timelines.mark_behind(0, 2), Some(2));
        assert_eq!(timelines.mark_behind(0, 3), None);
    }

    #[test]
    fn the_host_sees_transitively_and_queues_know_what_it_saw() {
        let mut timelines = three();
        timelines.issue(1);
        let (first, _) = timelines.record(1);
        timelines.wait(0, 1, first);
        assert!(!timelines.is_quiet(0), "it waits for work that nobody has seen complete");
        let (second, _) = timelines.record(0);
        assert!(timelines.see(0, second));
        assert!(timelines.is_quiet(0) && timelines.is_quiet(1));
        assert_eq!(timelines.known(Agent::Queue(2), 1), 1);
        assert!(!timelines.see(0, second), "no news");
        assert!(!timelines.has_unseen_marks(0) && !timelines.has_unseen_marks(1));
    }
}
