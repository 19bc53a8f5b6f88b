//! Simulate: predicted times of a plan's commands.
//!
//! Streams hand out their commands in order, as devices do: a launch runs beside everything of its stream that no barrier
//! and no wait keeps it from, a barrier stops the stream until all that it handed out is done, a wait until the record has
//! fired. What runs at once shares the machine's lanes: each launch takes as many as it can use alone, those handed out
//! first before the others. So a launch that fills the machine gains nothing from company, and small ones do. Copies go one
//! after the other in each direction, at the link's speed; those from and to a disk beside those from and to the host.

use std::collections::{BTreeSet, VecDeque};

use forebay_base::{Command, EventId, Space};

use crate::cost::Costs;
use crate::plan::Plan;

/// Predicted times of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// When the last command ends, in nanoseconds.
    pub step_ns: u64,
    /// How long no launch runs because the first stream waits for others, in nanoseconds.
    pub stall_ns: u64,
    /// By command: start and end in nanoseconds.
    pub times: Vec<(u64, u64)>,
}

/// Runs the plan's commands against a clock.
pub fn simulate(plan: &Plan, costs: &Costs) -> Prediction {
    let mut machine = Machine::new(plan, costs);
    while machine.hand_out() || machine.advance() {}
    Prediction {
        step_ns: machine.times.iter().map(|&(_, end)| end).max().unwrap_or(0),
        stall_ns: machine.stall_ns.round() as u64,
        times: machine.times,
    }
}

/// What a stream has handed out, and what stands next.
#[derive(Default)]
struct Stream {
    /// Commands that are not handed out yet.
    next: VecDeque<usize>,
    /// By work handed out, in order: whether it is done.
    done: Vec<bool>,
    /// How much of it is done without a gap.
    passed: usize,
    /// Records handed out that have not fired: how much work must be done, and the event.
    records: VecDeque<(usize, (EventId, u64))>,
}

/// Work that was handed out and is not done.
struct Running {
    command: usize,
    stream: usize,
    /// Its place among the stream's work.
    place: usize,
    /// Nanoseconds that it still takes with all the lanes that it can use.
    left_ns: f64,
    /// Lanes that it can use.
    lanes: f64,
}

struct Machine<'a> {
    plan: &'a Plan,
    costs: &'a Costs,
    now_ns: f64,
    streams: Vec<Stream>,
    /// Launches, in the order in which they were handed out.
    launches: Vec<Running>,
    /// Copies to the device and from it; then the same for those from and to a disk.
    links: [VecDeque<Running>; 4],
    fired: BTreeSet<(EventId, u64)>,
    stall_ns: f64,
    times: Vec<(u64, u64)>,
}

impl<'a> Machine<'a> {
    fn new(plan: &'a Plan, costs: &'a Costs) -> Machine<'a> {
        let mut streams: Vec<Stream> = Vec::new();
        for (index, command) in plan.commands.iter().enumerate() {
            let stream = command.stream().map_or(0, |stream| stream.0 as usize);
            if streams.len() <= stream {
                streams.resize_with(stream + 1, Stream::default);
            }
            streams[stream].next.push_back(index);
        }
        Machine {
            plan,
            costs,
            now_ns: 0.0,
            streams,
            launches: Vec::new(),
            links: Default::default(),
            fired: BTreeSet::new(),
            stall_ns: 0.0,
            times: vec![(0, 0); plan.commands.len()],
        }
    }

    /// Lets every stream hand out what it can; says whether any could.
    fn hand_out(&mut self) -> bool {
        let mut any = false;
        for stream in 0..self.streams.len() {
            while let Some(&index) = self.streams[stream].next.front() {
                if !self.starts(stream, index) {
                    break;
                }
                self.streams[stream].next.pop_front();
                any = true;
            }
        }
        any
    }

    /// Hands a command out, unless it must wait.
    fn starts(&mut self, stream: usize, index: usize) -> bool {
        let state = &mut self.streams[stream];
        let now = self.now_ns.round() as u64;
        match &self.plan.commands[index] {
            Command::Barrier { .. } if state.passed < state.done.len() => return false,
            Command::Wait { event, generation, .. } if !self.fired.contains(&(*event, *generation)) => return false,
            Command::Record { event, generation, .. } => {
                state.records.push_back((state.done.len(), (*event, *generation)));
                self.fire(stream);
            }
            Command::Launch { launch, .. } => {
                let label = launch.label as usize;
                let (left_ns, lanes) = (self.costs.launch_ns[label] as f64, self.costs.launch_lanes[label]);
                self.launches.push(Running { command: index, stream, place: state.done.len(), left_ns, lanes });
                state.done.push(false);
            }
            Command::Copy { from, to, .. } => {
                let (source, target) = (self.plan.memory(from.memory).space, self.plan.memory(to.memory).space);
                let bytes = from.range.len();
                let (link, left_ns) = match (source, target) {
                    (Space::Disk, _) => (2, self.costs.disk_read_ns(bytes)),
                    (_, Space::Disk) => (3, self.costs.disk_write_ns(bytes)),
                    (_, Space::Device(_)) => (0, self.costs.copy_in_ns(bytes)),
                    (_, Space::Host) => (1, self.costs.copy_out_ns(bytes)),
                };
                let place = state.done.len();
                let copy = Running { command: index, stream, place, left_ns: left_ns as f64, lanes: 0.0 };
                self.links[link].push_back(copy);
                state.done.push(false);
            }
            _ => {}
        }
        self.times[index] = (now, now);
        true
    }

    /// Fires the records of a stream that everything before them allows.
    fn fire(&mut self, stream: usize) {
        let state = &mut self.streams[stream];
        while state.done.get(state.passed) == Some(&true) {
            state.passed += 1;
        }
        while let Some(&(needed, event)) = state.records.front() {
            if needed > state.passed {
                break;
            }
            state.records.pop_front();
            self.fired.insert(event);
        }
    }

    /// Goes on to the next end of a command; says whether anything was running.
    fn advance(&mut self) -> bool {
        let rates = self.rates();
        let launches = self.launches.iter().zip(&rates).map(|(launch, rate)| launch.left_ns / rate);
        let copies = self.links.iter().filter_map(|link| link.front()).map(|copy| copy.left_ns);
        let Some(step_ns) = launches.chain(copies).min_by(f64::total_cmp) else { return false };
        if self.launches.is_empty() {
            let waits = self.streams[0].next.front().map(|&index| &self.plan.commands[index]);
            self.stall_ns += if matches!(waits, Some(Command::Wait { .. })) { step_ns } else { 0.0 };
        }
        self.now_ns += step_ns;
        let mut ended = Vec::new();
        for (launch, rate) in self.launches.iter_mut().zip(&rates) {
            launch.left_ns -= step_ns * rate;
        }
        // What is left of rounding is less than any command takes.
        let ends = |running: &Running| running.left_ns < 1e-3;
        for place in (0..rates.len()).rev().filter(|&place| rates[place] > 0.0) {
            if ends(&self.launches[place]) {
                ended.push(self.launches.remove(place));
            }
        }
        for link in &mut self.links {
            if let Some(copy) = link.front_mut() {
                copy.left_ns -= step_ns;
                if ends(copy) {
                    ended.extend(link.pop_front());
                    if let Some(next) = link.front() {
                        self.times[next.command].0 = self.now_ns.round() as u64;
                    }
                }
            }
        }
        for Running { command, stream, place, .. } in ended {
            self.times[command].1 = self.now_ns.round() as u64;
            self.streams[stream].done[place] = true;
            self.fire(stream);
        }
        true
    }

    /// By launch from the first one on, its speed: 1 with all the lanes that it can use. Launches that get no lane are left
    /// out; they come last.
    fn rates(&self) -> Vec<f64> {
        let mut free = self.costs.lanes;
        let mut rates = Vec::new();
        for launch in &self.launches {
            if free <= 0.0 {
                break;
            }
            let given = launch.lanes.min(free);
            free -= given;
            rates.push(given / launch.lanes);
        }
        rates
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PlanStream;
    use forebay_base::{Kernel, Launch, StreamId};

    /// A plan of launches (their labels count up) and barriers, records and waits in one stream.
    fn plan(text: &str) -> Plan {
        let stream = StreamId(0);
        let mut label = 0;
        let commands = text
            .chars()
            .map(|letter| match letter {
                '|' => Command::Barrier { stream },
                'r' => Command::Record { stream, event: EventId(0), generation: 1 },
                'w' => Command::Wait { stream, event: EventId(0), generation: 1 },
                _ => {
                    label += 1;
                    let (reads, writes) = (Vec::new(), Vec::new());
                    let launch = Launch { kernel: Kernel::Copy, reads, writes, scratch: None, label: label - 1 };
                    Command::Launch { stream, launch: Box::new(launch) }
                }
            })
            .collect();
        Plan { commands, streams: vec![PlanStream { name: "compute".to_string() }], ..Plan::default() }
    }

    /// Launches that take so long alone and can use so many of 4 lanes.
    fn costs(launches: &[(u64, f64)]) -> Costs {
        Costs {
            launch_ns: launches.iter().map(|launch| launch.0).collect(),
            launch_lanes: launches.iter().map(|launch| launch.1).collect(),
            lanes: 4.0,
            copy_in_bytes_per_ns: 1.0,
            copy_out_bytes_per_ns: 1.0,
            copy_latency_ns: 0,
            disk_read_bytes_per_ns: 1.0,
            disk_write_bytes_per_ns: 1.0,
            disk_latency_ns: 0,
        }
    }

    fn step_ns(text: &str, launches: &[(u64, f64)]) -> u64 {
        simulate(&plan(text), &costs(launches)).step_ns
    }

    #[test]
    fn small_launches_run_beside_each_other_and_large_ones_share() {
        assert_eq!(step_ns("aa", &[(100, 1.0), (100, 1.0)]), 100);
        assert_eq!(step_ns("a|a", &[(100, 1.0), (100, 1.0)]), 200);
        assert_eq!(step_ns("aa", &[(100, 4.0), (100, 4.0)]), 200, "each fills the machine");
        assert_eq!(step_ns("aa", &[(100, 3.0), (100, 3.0)]), 167, "600 lanes' nanoseconds, 4 lanes; at last only 3");
        assert_eq!(step_ns("aaaaa", &[(100, 1.0); 5]), 200);
    }

    #[test]
    fn a_wait_lets_unrelated_work_go_on_where_a_barrier_stops_it() {
        let launches = [(10, 1.0), (200, 1.0), (100, 1.0)];
        assert_eq!(step_ns("ab|c", &launches), 300);
        assert_eq!(step_ns("arbwc", &launches), 200);
        assert_eq!(simulate(&plan("arbwc"), &costs(&launches)).times[4], (10, 110));
    }

    #[test]
    fn a_plan_that_waits_for_what_never_comes_still_ends() {
        assert_eq!(step_ns("awa", &[(100, 1.0), (100, 1.0)]), 100);
    }
}
