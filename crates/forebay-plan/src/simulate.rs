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
//! Exchanges with other processes take no workers. An exchange makes progress once all processes have begun it; those in progress share the
//! network evenly, and each takes as long as the slowest process expects. A plan that is simulated alone stands for all processes: they
//! are assumed to have progressed as far as this one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use forebay_base::{Command, EventId, Kernel, Space};

use crate::cost::{Costs, workers_for_launches};
use crate::error::PlanError;
use crate::plan::Plan;
use crate::ways::Link;

/// Predicted times of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// The time at which the last command has ended and the host has joined, in nanoseconds.
    pub step_ns: u64,
    /// The time during which no launch runs because the first stream waits for others, in nanoseconds.
    pub stall_ns: u64,
    /// The time during which launches run, in nanoseconds.
    pub busy_ns: u64,
    /// The time during which no launch runs and exchanges are in progress, in nanoseconds.
    pub exchange_ns: u64,
    /// The time during which no launch runs and all exchanges that this process has begun wait for others to begin them, in nanoseconds.
    pub waiting_ns: u64,
    /// By command: start and end in nanoseconds.
    pub times: Vec<(u64, u64)>,
}

/// A process of a run.
#[derive(Clone, Copy, Debug)]
pub struct Process<'a> {
    /// Its plan.
    pub plan: &'a Plan,
    /// The costs of the plan's launches, by label.
    pub costs: &'a Costs,
    /// How many times as long as these costs its kernels take.
    pub slowness: f64,
}

/// Runs the plan's commands on a simulated clock.
pub fn simulate(plan: &Plan, costs: &Costs) -> Prediction {
    let mut simulators = [Simulator::new(Process { plan, costs, slowness: 1.0 })];
    run(&mut simulators);
    let [simulator] = simulators;
    simulator.prediction()
}

/// Runs the plans of processes 0, 1, 2 and so on, on one simulated clock. Processes whose plans take the same time command by command are
/// always equally far, so one of them can stand for all.
///
/// # Errors
/// Returns [`PlanError::Check`] if processes wait for each other forever: their plans are not those of one run.
pub fn simulate_together(processes: &[Process]) -> Result<Vec<Prediction>, PlanError> {
    let mut simulators: Vec<Simulator> = processes.iter().map(|&process| Simulator::new(process)).collect();
    run(&mut simulators);
    let stopped = simulators.iter().enumerate().find_map(|(number, simulator)| Some((number, simulator.stopped()?)));
    if let Some((number, place)) = stopped {
        return Err(PlanError::Check { reason: format!("process {number} waits forever {place}") });
    }
    Ok(simulators.into_iter().map(Simulator::prediction).collect())
}

/// Lets processes proceed until none can.
fn run(processes: &mut [Simulator]) {
    let mut network = Network::default();
    let mut begun = Vec::new();
    let mut now_ns = 0.0;
    loop {
        processes.iter_mut().filter(|process| process.has_news).for_each(|process| process.settle(&mut begun));
        let ready = network.count(&mut begun, processes.len());
        if !ready.is_empty() {
            processes.iter_mut().for_each(|process| process.advance(now_ns));
            network.advance(now_ns);
            network.moving.extend(ready);
            processes.iter_mut().for_each(|process| process.network_moves = true);
            continue;
        }
        let next_ns = processes.iter().map(Simulator::next_ns).fold(network.next_ns(), f64::min);
        if next_ns == f64::INFINITY {
            return;
        }
        now_ns = next_ns;
        let is_exchange = network.next_ns() <= now_ns;
        for process in processes.iter_mut().filter(|process| is_exchange || process.next_ns() <= now_ns) {
            process.advance(now_ns);
        }
        if is_exchange {
            let ended = network.advance(now_ns);
            for process in processes.iter_mut() {
                ended.iter().for_each(|&number| process.end_exchange(number));
                process.network_moves = !network.moving.is_empty();
            }
        }
    }
}

/// The exchanges of all processes.
#[derive(Default)]
struct Network {
    now_ns: f64,
    /// By number, exchanges that some processes have begun: how many have, and the longest duration that any of them expects.
    awaited: BTreeMap<u32, (usize, f64)>,
    /// The numbers of exchanges in progress, and the nanoseconds that each still needs with the network to itself.
    moving: Vec<(u32, f64)>,
}

impl Network {
    /// Counts exchanges that processes have begun. Returns those that all of them have begun.
    fn count(&mut self, begun: &mut Vec<(u32, f64)>, processes: usize) -> Vec<(u32, f64)> {
        let mut ready = Vec::new();
        for (number, duration_ns) in begun.drain(..) {
            let (count, longest_ns) = self.awaited.entry(number).or_default();
            (*count, *longest_ns) = (*count + 1, longest_ns.max(duration_ns));
            if *count == processes {
                ready.push((number, *longest_ns));
                self.awaited.remove(&number);
            }
        }
        ready
    }

    /// Returns the nanoseconds until the next exchange ends.
    fn until_ns(&self) -> f64 {
        let speed = 1.0 / self.moving.len() as f64;
        self.moving.iter().map(|(_, left_ns)| left_ns / speed).fold(f64::INFINITY, f64::min)
    }

    /// Returns when the next exchange ends.
    fn next_ns(&self) -> f64 {
        self.now_ns + self.until_ns()
    }

    /// Advances to this time, at most until the next exchange ends. Returns the numbers of exchanges that have ended.
    fn advance(&mut self, to_ns: f64) -> Vec<u32> {
        let elapsed_ns = elapsed_ns(self.now_ns, self.until_ns(), to_ns);
        self.now_ns = to_ns;
        let speed = 1.0 / self.moving.len() as f64;
        self.moving.iter_mut().for_each(|(_, left_ns)| *left_ns -= elapsed_ns * speed);
        self.moving.extract_if(.., |(_, left_ns)| is_over(*left_ns)).map(|(number, _)| number).collect()
    }
}

/// Returns the nanoseconds from now to `to_ns`. If something ends then, it is exactly the time that this still needs, because rounding the
/// time of day must not leave a rest.
fn elapsed_ns(now_ns: f64, until_ns: f64, to_ns: f64) -> f64 {
    if now_ns + until_ns <= to_ns { until_ns } else { to_ns - now_ns }
}

/// Returns whether work is done. Rounding leaves less than any command takes.
fn is_over(left_ns: f64) -> bool {
    left_ns < 1e-3
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

/// A process that runs on the simulated clock.
struct Simulator<'a> {
    plan: &'a Plan,
    costs: &'a Costs,
    slowness: f64,
    /// The time up to which it has run.
    now_ns: f64,
    /// The nanoseconds from then until the next end of a command other than an exchange; infinite if none runs.
    until_ns: f64,
    /// The fraction of its speed at which a copy runs on each link, until a command ends or begins.
    speeds: [f64; 4],
    /// The speeds of launches and of updates on the host, also until then.
    rates: [Vec<f64>; 2],
    /// Whether something has changed since commands were last issued.
    has_news: bool,
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
    /// Exchanges with other processes that it has begun and that have not ended, by number.
    exchanges: BTreeMap<u32, Running>,
    /// Whether an exchange is in progress. It is one that all processes have begun.
    network_moves: bool,
    stall_ns: f64,
    busy_ns: f64,
    exchange_ns: f64,
    waiting_ns: f64,
    times: Vec<(u64, u64)>,
}

impl<'a> Simulator<'a> {
    fn new(Process { plan, costs, slowness }: Process<'a>) -> Simulator<'a> {
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
            slowness,
            now_ns: 0.0,
            until_ns: f64::INFINITY,
            speeds: [1.0; 4],
            rates: Default::default(),
            has_news: true,
            streams,
            launches: VecDeque::new(),
            host_stream: plan.host_stream().map(|stream| stream.0 as usize),
            host_launches: VecDeque::new(),
            links: Default::default(),
            fired: BTreeSet::new(),
            exchanges: BTreeMap::new(),
            network_moves: false,
            stall_ns: 0.0,
            busy_ns: 0.0,
            exchange_ns: 0.0,
            waiting_ns: 0.0,
            times: vec![(0, 0); plan.commands.len()],
        }
    }

    /// Returns what happened.
    fn prediction(self) -> Prediction {
        Prediction {
            step_ns: self.costs.step_ns + self.times.iter().map(|&(_, end)| end).max().unwrap_or(0),
            stall_ns: self.stall_ns.round() as u64,
            busy_ns: self.busy_ns.round() as u64,
            exchange_ns: self.exchange_ns.round() as u64,
            waiting_ns: self.waiting_ns.round() as u64,
            times: self.times,
        }
    }

    /// Returns what it waits for or, if that is no exchange, where it waits.
    fn stopped(&self) -> Option<String> {
        let exchange = self.exchanges.keys().next().map(|number| format!("for exchange {number}"));
        let next = || self.streams.iter().find_map(|stream| self.plan.commands.get(*stream.next.front()?));
        exchange.or_else(|| Some(format!("before {}", next()?)))
    }

    /// Returns when the next command other than an exchange ends.
    fn next_ns(&self) -> f64 {
        self.now_ns + self.until_ns
    }

    /// Issues commands until no stream can, and finds out how fast those that run proceed from now on. Adds the numbers of exchanges that
    /// this begins, and how long they take.
    fn settle(&mut self, begun: &mut Vec<(u32, f64)>) {
        while self.hand_out(begun) {}
        self.has_news = false;
        self.speeds = self.speeds();
        self.rates = [self.rates(self.speeds), shares(&self.host_launches, self.costs.host_workers)];
        let [rates, host_rates] = &self.rates;
        let pairs = self.launches.iter().zip(rates).chain(self.host_launches.iter().zip(host_rates));
        let launches = pairs.map(|(launch, rate)| launch.left_ns / rate);
        let moving = self.links.iter().zip(self.speeds).filter_map(|(link, speed)| Some((link.front()?, speed)));
        let copies = moving.map(|(copy, speed)| copy.left_ns / speed);
        self.until_ns = launches.chain(copies).fold(f64::INFINITY, f64::min);
    }

    /// Lets every stream issue what it can. Returns whether any could.
    fn hand_out(&mut self, begun: &mut Vec<(u32, f64)>) -> bool {
        let mut any = false;
        for stream in 0..self.streams.len() {
            while let Some(&index) = self.streams[stream].next.front() {
                if !self.starts(stream, index, begun) {
                    break;
                }
                self.streams[stream].next.pop_front();
                any = true;
            }
        }
        any
    }

    /// Issues a command, unless it must wait.
    fn starts(&mut self, stream: usize, index: usize, begun: &mut Vec<(u32, f64)>) -> bool {
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
                let (duration_ns, workers) = (self.costs.launch_ns[label] as f64, self.costs.launch_workers[label]);
                let (place, left_ns) = (state.done.len(), duration_ns * self.slowness);
                let running = Running { command: index, stream, place, left_ns, workers };
                let is_update = Some(stream) == self.host_stream && self.costs.host_workers > 0.0;
                match &launch.kernel {
                    Kernel::Exchange(exchange) => {
                        begun.push((exchange.number, duration_ns));
                        self.exchanges.insert(exchange.number, running);
                    }
                    _ if is_update => self.host_launches.push_back(running),
                    _ => self.launches.push_back(running),
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

    /// Advances to this time, at most until the next command ends.
    fn advance(&mut self, to_ns: f64) {
        let elapsed_ns = elapsed_ns(self.now_ns, self.until_ns, to_ns);
        (self.now_ns, self.has_news) = (to_ns, true);
        if self.launches.is_empty() && self.exchanges.is_empty() {
            let next = self.streams.first().and_then(|stream| stream.next.front());
            let waits = next.map(|&index| &self.plan.commands[index]);
            self.stall_ns += if matches!(waits, Some(Command::Wait { .. })) { elapsed_ns } else { 0.0 };
        }
        if !self.launches.is_empty() || !self.host_launches.is_empty() {
            self.busy_ns += elapsed_ns;
        } else if self.network_moves {
            self.exchange_ns += elapsed_ns;
        } else if !self.exchanges.is_empty() {
            self.waiting_ns += elapsed_ns;
        }
        let mut ended = Vec::new();
        for (launches, rates) in [&mut self.launches, &mut self.host_launches].into_iter().zip(&self.rates) {
            launches.iter_mut().zip(rates).for_each(|(launch, rate)| launch.left_ns -= elapsed_ns * rate);
            for place in (0..rates.len()).rev().filter(|&place| rates[place] > 0.0) {
                if is_over(launches[place].left_ns) {
                    ended.extend(launches.remove(place));
                }
            }
        }
        for (link, speed) in self.links.iter_mut().zip(self.speeds) {
            if let Some(copy) = link.front_mut() {
                copy.left_ns -= elapsed_ns * speed;
                if is_over(copy.left_ns) {
                    ended.extend(link.pop_front());
                    if let Some(next) = link.front() {
                        self.times[next.command].0 = self.now_ns.round() as u64;
                    }
                }
            }
        }
        ended.into_iter().for_each(|running| self.end(&running));
    }

    /// Ends an exchange.
    fn end_exchange(&mut self, number: u32) {
        if let Some(running) = self.exchanges.remove(&number) {
            self.end(&running);
        }
    }

    /// Ends a command now.
    fn end(&mut self, &Running { command, stream, place, .. }: &Running) {
        self.times[command].1 = self.now_ns.round() as u64;
        self.streams[stream].done[place] = true;
        self.fire(stream);
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
mod tests;
