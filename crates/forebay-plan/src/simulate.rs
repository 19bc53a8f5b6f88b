//! Simulate: predicts the times of a plan's commands.
//!
//! Streams issue their commands in order, as devices do: a launch runs alongside everything in its stream unless a barrier or a wait keeps
//! it from doing so, a barrier stops the stream until everything that it issued is done, and a wait until the record has fired. Concurrent
//! launches share the machine's workers: each takes as many as it can use alone, in the order in which they were issued. So a launch that
//! fills the machine gains nothing from running next to others, but small launches do.
//!
//! Copies run one after the other in each direction, at the speed of the link; copies from and to a disk run alongside copies from and to
//! the host. If both directions share the link, each runs at half of its speed while the other is busy, because buses alternate every few
//! hundred bytes, not after a whole copy. If the link also carries copies from and to the disk, these take what they can use of the link,
//! but at most half of it while copies from and to the host want it too. If workers copy, launches have fewer workers meanwhile, and copies
//! in both directions share the workers if there are not enough of them.
//!
//! Updates on the host share the workers of its processor in the same way, if these are not the device's.
//!
//! Exchanges with other processes take no workers. They share the network evenly, and the other processes are assumed to have progressed as
//! far as this one.

use std::collections::{BTreeSet, VecDeque};

use forebay_base::{Command, EventId, Space};

use crate::cost::{Costs, workers_for_launches};
use crate::plan::Plan;
use crate::ways::Link;

/// Predicted times of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// The time at which the last command has ended and the host has joined, in nanoseconds.
    pub step_ns: u64,
    /// The time during which no launch runs because the first stream waits for others, in nanoseconds.
    pub stall_ns: u64,
    /// By command: start and end in nanoseconds.
    pub times: Vec<(u64, u64)>,
}

/// Runs the plan's commands on a simulated clock.
pub fn simulate(plan: &Plan, costs: &Costs) -> Prediction {
    let mut machine = Simulator::new(plan, costs);
    while machine.hand_out() || machine.advance() {}
    Prediction {
        step_ns: costs.step_ns + machine.times.iter().map(|&(_, end)| end).max().unwrap_or(0),
        stall_ns: machine.stall_ns.round() as u64,
        times: machine.times,
    }
}

/// What a stream has issued, and what comes next.
#[derive(Default)]
struct Stream {
    /// Commands that have not been issued yet.
    next: VecDeque<usize>,
    /// For each issued piece of work, in order: whether it is done.
    done: Vec<bool>,
    /// How many of them are done without a gap.
    passed: usize,
    /// Issued records that have not fired: how much work must be done, and the event.
    records: VecDeque<(usize, (EventId, u64))>,
}

/// Work that was issued and is not done.
struct Running {
    command: usize,
    stream: usize,
    /// Its index in the stream's work.
    place: usize,
    /// Nanoseconds that it still needs with all the workers that it can use.
    left_ns: f64,
    /// Workers that it can use.
    workers: f64,
}

struct Simulator<'a> {
    plan: &'a Plan,
    costs: &'a Costs,
    now_ns: f64,
    streams: Vec<Stream>,
    /// The stream of updates on the host.
    host_stream: Option<usize>,
    /// Launches, in the order in which they were issued.
    launches: VecDeque<Running>,
    /// Updates on the host, if the host has separate workers.
    host_launches: VecDeque<Running>,
    /// Copies to the device and from the device; then copies from a disk and to a disk.
    links: [VecDeque<Running>; 4],
    /// By link: workers that a copy takes while it runs.
    copy_workers: [f64; 4],
    fired: BTreeSet<(EventId, u64)>,
    /// Exchanges with other processes that are in progress.
    exchanges: Vec<Running>,
    stall_ns: f64,
    times: Vec<(u64, u64)>,
}

impl<'a> Simulator<'a> {
    fn new(plan: &'a Plan, costs: &'a Costs) -> Simulator<'a> {
        let mut streams: Vec<Stream> = Vec::new();
        for (index, command) in plan.commands.iter().enumerate() {
            let stream = command.stream().map_or(0, |stream| stream.0 as usize);
            if streams.len() <= stream {
                streams.resize_with(stream + 1, Stream::default);
            }
            streams[stream].next.push_back(index);
        }
        let Link { to_device, from_device, .. } = costs.link;
        Simulator {
            plan,
            costs,
            copy_workers: [costs.copy_workers(to_device), costs.copy_workers(from_device), 0.0, 0.0],
            now_ns: 0.0,
            streams,
            launches: VecDeque::new(),
            host_stream: plan.host_stream().map(|stream| stream.0 as usize),
            host_launches: VecDeque::new(),
            links: Default::default(),
            fired: BTreeSet::new(),
            exchanges: Vec::new(),
            stall_ns: 0.0,
            times: vec![(0, 0); plan.commands.len()],
        }
    }

    /// Lets every stream issue what it can. Returns whether any could.
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

    /// Issues a command, unless it must wait.
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
                let (left_ns, workers) = (self.costs.launch_ns[label] as f64, self.costs.launch_workers[label]);
                let running = Running { command: index, stream, place: state.done.len(), left_ns, workers };
                let is_update = Some(stream) == self.host_stream && self.costs.host_workers > 0.0;
                match (launch.kernel.is_collective(), is_update) {
                    (true, _) => self.exchanges.push(running),
                    (false, true) => self.host_launches.push_back(running),
                    (false, false) => self.launches.push_back(running),
                }
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
                let copy = Running { command: index, stream, place, left_ns: left_ns as f64, workers: 0.0 };
                self.links[link].push_back(copy);
                state.done.push(false);
            }
            _ => {}
        }
        self.times[index] = (now, now);
        true
    }

    /// Fires the records of a stream whose preceding work is done.
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

    /// Advances to the next end of a command. Returns whether anything was running.
    fn advance(&mut self) -> bool {
        let speeds = self.speeds();
        let rates = self.rates(speeds);
        let host_rates = shares(&self.host_launches, self.costs.host_workers);
        let pairs = || self.launches.iter().zip(&rates).chain(self.host_launches.iter().zip(&host_rates));
        let launches = pairs().map(|(launch, rate)| launch.left_ns / rate);
        let moving = self.links.iter().zip(speeds).filter_map(|(link, speed)| Some((link.front()?, speed)));
        let copies = moving.map(|(copy, speed)| copy.left_ns / speed);
        let network_speed = 1.0 / self.exchanges.len() as f64;
        let exchanges = self.exchanges.iter().map(|exchange| exchange.left_ns / network_speed);
        let Some(step_ns) = launches.chain(copies).chain(exchanges).min_by(f64::total_cmp) else { return false };
        if self.launches.is_empty() && self.exchanges.is_empty() {
            let waits = self.streams[0].next.front().map(|&index| &self.plan.commands[index]);
            self.stall_ns += if matches!(waits, Some(Command::Wait { .. })) { step_ns } else { 0.0 };
        }
        self.now_ns += step_ns;
        let mut ended = Vec::new();
        // Rounding leaves less than any command takes.
        let ends = |running: &Running| running.left_ns < 1e-3;
        for (launches, rates) in [(&mut self.launches, &rates), (&mut self.host_launches, &host_rates)] {
            launches.iter_mut().zip(rates).for_each(|(launch, rate)| launch.left_ns -= step_ns * rate);
            for place in (0..rates.len()).rev().filter(|&place| rates[place] > 0.0) {
                if ends(&launches[place]) {
                    ended.extend(launches.remove(place));
                }
            }
        }
        for (link, speed) in self.links.iter_mut().zip(speeds) {
            if let Some(copy) = link.front_mut() {
                copy.left_ns -= step_ns * speed;
                if ends(copy) {
                    ended.extend(link.pop_front());
                    if let Some(next) = link.front() {
                        self.times[next.command].0 = self.now_ns.round() as u64;
                    }
                }
            }
        }
        self.exchanges.iter_mut().for_each(|exchange| exchange.left_ns -= step_ns * network_speed);
        ended.extend(self.exchanges.extract_if(.., |exchange| ends(exchange)));
        for Running { command, stream, place, .. } in ended {
            self.times[command].1 = self.now_ns.round() as u64;
            self.streams[stream].done[place] = true;
            self.fire(stream);
        }
        true
    }

    /// Returns the fraction of its speed at which a copy runs on each link.
    fn speeds(&self) -> [f64; 4] {
        let Link { to_device, from_device, duplex, carries_disk } = self.costs.link;
        let busy = |link: usize| !self.links[link].is_empty();
        let carried = |direction: usize| carries_disk && self.passes_link(direction + 2);
        let crossed = |direction: usize| busy(direction) || carried(direction);
        let turn = if !duplex && crossed(0) && crossed(1) { 0.5 } else { 1.0 };
        let mut speeds = [turn, turn, 1.0, 1.0];
        let pairs = [(to_device, self.costs.disk.read), (from_device, self.costs.disk.write)];
        for (direction, (way, disk)) in pairs.into_iter().enumerate() {
            if carried(direction) {
                let most = if busy(direction) { 0.5 } else { 1.0 };
                let part = (disk.bytes_per_second / way.bytes_per_second).min(most);
                speeds[direction] = turn * (1.0 - part);
                speeds[direction + 2] = turn * part * way.bytes_per_second / disk.bytes_per_second;
            }
        }
        let speed = self.costs.copy_speed(self.copying(speeds));
        speeds[..2].iter_mut().for_each(|way| *way *= speed);
        speeds
    }

    /// Returns whether the running copy from or to a disk has its other end on the device.
    fn passes_link(&self, link: usize) -> bool {
        let ends = self.links[link].front().map(|copy| &self.plan.commands[copy.command]);
        matches!(ends, Some(Command::Copy { from, to, .. }) if [from, to].iter().any(|end| {
            matches!(self.plan.memory(end.memory).space, Space::Device(_))
        }))
    }

    /// Returns the number of workers that copies need at these speeds.
    fn copying(&self, speeds: [f64; 4]) -> f64 {
        let moving = self.links.iter().zip(self.copy_workers.iter().zip(speeds)).filter(|(link, _)| !link.is_empty());
        moving.map(|(_, (workers, speed))| workers * speed).sum()
    }

    /// Returns the speed of each launch: 1 with all the workers that it can use. Launches that get no worker come last and are left out.
    fn rates(&self, speeds: [f64; 4]) -> Vec<f64> {
        shares(&self.launches, workers_for_launches(self.costs.workers, self.copying(speeds)))
    }
}

/// Returns the speeds of launches that share this many workers, in the order in which they were issued.
fn shares(launches: &VecDeque<Running>, mut free: f64) -> Vec<f64> {
    let mut rates = Vec::new();
    for launch in launches {
        if free <= 0.0 {
            break;
        }
        let given = launch.workers.min(free);
        free -= given;
        rates.push(given / launch.workers);
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{MemoryKind, PlanMemory, PlanStream};
    use crate::ways::{Disk, LinkDirection};
    use forebay_base::kernel::Exchange;
    use forebay_base::{Kernel, Launch, MemoryId, Region, StreamId};

    /// One byte per nanosecond.
    const WAY: LinkDirection = LinkDirection { bytes_per_second: 1e9, latency_ns: 0 };

    /// Returns a plan with launches (their labels count up; `x` is an exchange), barriers, records and waits in one stream, and copies of
    /// 100 bytes to the device (`i`), from the device (`o`) and from a disk (`d`) in three other streams.
    fn plan(text: &str) -> Plan {
        let stream = StreamId(0);
        let part = |memory| Region::new(MemoryId(memory), 0, 100);
        let mut label = 0;
        let commands = text
            .chars()
            .map(|letter| match letter {
                '|' => Command::Barrier { stream },
                'r' => Command::Record { stream, event: EventId(0), generation: 1 },
                'w' => Command::Wait { stream, event: EventId(0), generation: 1 },
                'i' => Command::Copy { stream: StreamId(1), from: part(0), to: part(1) },
                'd' => Command::Copy { stream: StreamId(3), from: part(2), to: part(1) },
                'o' => Command::Copy { stream: StreamId(2), from: part(1), to: part(0) },
                _ => {
                    label += 1;
                    let (reads, writes) = (Vec::new(), Vec::new());
                    let kernel = match letter {
                        'x' => Kernel::Exchange(Exchange::gather(label, 0, &[8, 8])),
                        _ => Kernel::Copy,
                    };
                    let launch = Launch { kernel, reads, writes, workspace: None, label: label - 1 };
                    Command::Launch { stream, launch: Box::new(launch) }
                }
            })
            .collect();
        let memory = |kind, space| PlanMemory { kind, space, size_bytes: 100 };
        Plan {
            commands,
            streams: ["compute", "copy in", "copy out", "disk in"]
                .map(|name| PlanStream { name: name.to_string() })
                .into(),
            memories: vec![
                memory(MemoryKind::HostBlock, Space::Host),
                memory(MemoryKind::Placed, Space::Device(0)),
                memory(MemoryKind::SpillFile, Space::Disk),
            ],
            ..Plan::default()
        }
    }

    /// Returns the costs of launches, given how long each takes alone and how many of 4 workers it can use.
    fn costs(launches: &[(u64, f64)]) -> Costs {
        Costs {
            launch_ns: launches.iter().map(|launch| launch.0).collect(),
            launch_workers: launches.iter().map(|launch| launch.1).collect(),
            workers: 4.0,
            host_workers: 0.0,
            copy_worker_ns_per_byte: 0.0,
            step_ns: 0,
            link: Link { to_device: WAY, from_device: WAY, duplex: true, carries_disk: false },
            disk: Disk { read: WAY, write: WAY },
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
        assert_eq!(
            step_ns("aa", &[(100, 3.0), (100, 3.0)]),
            167,
            "600 workers' nanoseconds, 4 workers; at last only 3"
        );
        assert_eq!(step_ns("aaaaa", &[(100, 1.0); 5]), 200);
    }

    #[test]
    fn exchanges_share_the_network_and_leave_the_workers_to_kernels() {
        assert_eq!(step_ns("xa", &[(100, 4.0), (100, 4.0)]), 100);
        assert_eq!(step_ns("ax", &[(100, 4.0), (100, 4.0)]), 100, "also behind a kernel that has all workers");
        assert_eq!(step_ns("xx", &[(100, 4.0), (100, 4.0)]), 200);
        assert_eq!(step_ns("xaa", &[(100, 4.0), (100, 4.0), (100, 4.0)]), 200, "the second kernel waits for workers");
        assert_eq!(step_ns("x|a", &[(100, 4.0), (100, 4.0)]), 200);
    }

    #[test]
    fn a_wait_lets_unrelated_work_go_on_where_a_barrier_stops_it() {
        let launches = [(10, 1.0), (200, 1.0), (100, 1.0)];
        assert_eq!(step_ns("ab|c", &launches), 300);
        assert_eq!(step_ns("arbwc", &launches), 200);
        assert_eq!(simulate(&plan("arbwc"), &costs(&launches)).times[4], (10, 110));
    }

    #[test]
    fn directions_of_a_link_work_at_once_or_share_it() {
        let step = |text: &str, link: Link| simulate(&plan(text), &Costs { link, ..costs(&[]) }).step_ns;
        let duplex = costs(&[]).link;
        let shared = Link { duplex: false, ..duplex };
        assert_eq!((step("io", duplex), step("io", shared)), (100, 200));
        assert_eq!((step("ii", duplex), step("ii", shared)), (200, 200));
        assert_eq!(
            (step("iio", duplex), step("iio", shared)),
            (200, 300),
            "the second copy to the device is alone again"
        );
        let slow = LinkDirection { bytes_per_second: 0.5e9, latency_ns: 10 };
        assert_eq!(step("io", Link { from_device: slow, ..duplex }), 210);
        assert_eq!(step("io", Link { from_device: slow, ..shared }), 310, "either takes its own time on the link");
    }

    #[test]
    fn a_link_that_carries_the_disk_is_shared_with_it() {
        let step = |text: &str, carries_disk, rate: f64| {
            let usual = costs(&[]);
            let read = LinkDirection { bytes_per_second: rate * 1e9, latency_ns: 0 };
            let (link, disk) = (Link { carries_disk, ..usual.link }, Disk { read, ..usual.disk });
            simulate(&plan(text), &Costs { link, disk, ..usual }).step_ns
        };
        assert_eq!((step("id", false, 1.0), step("id", true, 1.0)), (100, 200));
        assert_eq!((step("id", false, 0.25), step("id", true, 0.25)), (400, 400), "a slow disk loses nothing");
        assert_eq!((step("iid", false, 0.5), step("iid", true, 0.5)), (200, 300));
        assert_eq!((step("d", false, 4.0), step("d", true, 4.0)), (25, 100), "a fast disk is as fast as the link");
        assert_eq!((step("od", false, 1.0), step("od", true, 1.0)), (100, 100), "the other way is free");
    }

    #[test]
    fn a_copy_keeps_workers_from_launches() {
        let step = |copy_worker_ns_per_byte, workers| {
            let launches = [(100, workers)];
            simulate(&plan("ai"), &Costs { copy_worker_ns_per_byte, ..costs(&launches) }).step_ns
        };
        assert_eq!((step(0.0, 4.0), step(1.0, 3.0)), (100, 100), "a worker is left for the copy, or it needs none");
        assert_eq!(step(1.0, 4.0), 125, "three workers of four for the first 100 ns");
        assert_eq!(step(0.5, 4.0), 113, "half a worker: the link is slower than a worker copies");
        assert_eq!(step(9.0, 4.0), 200, "copies go first, and there are four workers");
    }

    #[test]
    fn copies_both_ways_share_the_workers() {
        let step = |text, worker_ns| {
            simulate(&plan(text), &Costs { copy_worker_ns_per_byte: worker_ns, ..costs(&[(100, 4.0)]) }).step_ns
        };
        assert_eq!((step("io", 2.0), step("io", 3.0)), (100, 150), "four workers, and six");
        assert_eq!((step("i", 3.0), step("iio", 3.0)), (100, 250));
        assert_eq!(step("aio", 3.0), 250, "600 worker-nanoseconds for copies, 400 for the launch");
    }

    #[test]
    fn a_step_takes_time_beside_its_commands() {
        assert_eq!(simulate(&plan("a"), &Costs { step_ns: 7, ..costs(&[(100, 1.0)]) }).step_ns, 107);
    }

    #[test]
    fn a_plan_that_waits_for_what_never_comes_still_ends() {
        assert_eq!(step_ns("awa", &[(100, 1.0), (100, 1.0)]), 100);
    }
}
