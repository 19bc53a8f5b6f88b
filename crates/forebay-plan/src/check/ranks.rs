//! Checks the plans of all processes of a run together: what one process sends another receives, and no process waits forever.
//!
//! Each plan is also judged separately ([`super::check`]): within a process, an exchange is a launch that reads what it sends and writes
//! what it receives, so barriers and waits order it like any other launch. Between processes, bytes are safe if exchanges pair up: in each
//! process, a message is read and written between the beginning and the end of an exchange. It remains to be judged that exchanges do pair
//! up, and that their order in the processes has no cycle. An exchange ends once all processes have begun it, and a command that proceeds
//! never keeps another from proceeding, so a single run of all plans against each other shows whether any of them can get stuck.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use forebay_base::kernel::Exchange;
use forebay_base::{ByteRange, Command, EventId, Kernel};

use crate::plan::Plan;

/// Judges the plans of processes 0, 1, 2 and so on.
pub(super) fn judge(plans: &[&Plan]) -> Result<(), String> {
    let exchanges = plans.iter().enumerate().map(|(rank, plan)| exchanges(plan, rank, plans.len()));
    let exchanges = exchanges.collect::<Result<Vec<_>, _>>()?;
    for (rank, own) in exchanges.iter().enumerate().skip(1) {
        let numbers = |of: &BTreeMap<u32, &Exchange>| of.keys().copied().collect::<BTreeSet<u32>>();
        if let Some(number) = numbers(&exchanges[0]).symmetric_difference(&numbers(own)).next() {
            return Err(format!("exchange {number} is in the plan of only one of processes 0 and {rank}"));
        }
        for (peer, theirs) in exchanges.iter().enumerate().take(rank) {
            for (number, exchange) in own {
                let other = theirs[number];
                pair(&exchange.sends[peer], &other.receives[rank], (rank, peer, *number))?;
                pair(&other.sends[rank], &exchange.receives[peer], (peer, rank, *number))?;
            }
        }
    }
    Together::new(plans).run()
}

/// Returns the exchanges of a plan, by number.
fn exchanges(plan: &Plan, rank: usize, size: usize) -> Result<BTreeMap<u32, &Exchange>, String> {
    let mut exchanges = BTreeMap::new();
    for exchange in plan.commands.iter().filter_map(of) {
        let number = exchange.number;
        if exchange.sends.len() != size || exchange.receives.len() != size {
            return Err(format!("exchange {number} of process {rank} is not between {size} processes"));
        }
        if exchanges.insert(number, exchange).is_some() {
            return Err(format!("process {rank} has exchange {number} twice in a step"));
        }
    }
    Ok(exchanges)
}

/// Returns the exchange that a command performs.
fn of(command: &Command) -> Option<&Exchange> {
    match command {
        Command::Launch { launch, .. } => match &launch.kernel {
            Kernel::Exchange(exchange) => Some(exchange),
            _ => None,
        },
        _ => None,
    }
}

/// Checks the messages from one process to another.
fn pair(sent: &[ByteRange], received: &[ByteRange], (from, to, number): (usize, usize, u32)) -> Result<(), String> {
    let bytes = |ranges: &[ByteRange]| ranges.iter().map(|range| range.len()).collect::<Vec<u64>>();
    let (sent, received) = (bytes(sent), bytes(received));
    if sent == received {
        return Ok(());
    }
    Err(format!(
        "in exchange {number}, process {from} sends messages of {sent:?} bytes to process {to}, which receives {received:?}"
    ))
}

/// What a stream of a process has issued, and what comes next.
#[derive(Default)]
struct Stream<'a> {
    next: VecDeque<&'a Command>,
    /// The numbers of exchanges that it has begun and that have not ended.
    open: Vec<u32>,
    /// Records that fire when the exchanges that were open before them have ended.
    records: Vec<(Vec<u32>, (EventId, u64))>,
}

/// A running process.
#[derive(Default)]
struct Process<'a> {
    streams: BTreeMap<u32, Stream<'a>>,
    fired: BTreeSet<(EventId, u64)>,
}

/// All running processes.
struct Together<'a> {
    processes: Vec<Process<'a>>,
    /// By exchange: the number of processes that have begun it.
    begun: BTreeMap<u32, usize>,
}

impl<'a> Together<'a> {
    fn new(plans: &[&'a Plan]) -> Together<'a> {
        let process = |plan: &&'a Plan| {
            let mut process = Process::default();
            for command in &plan.commands {
                let stream = command.stream().map_or(0, |stream| stream.0);
                process.streams.entry(stream).or_default().next.push_back(command);
            }
            process
        };
        Together { processes: plans.iter().map(process).collect(), begun: BTreeMap::new() }
    }

    /// Lets all processes proceed until none can.
    fn run(mut self) -> Result<(), String> {
        loop {
            let mut any = false;
            for process in &mut self.processes {
                while process.goes_on(&mut self.begun) {
                    any = true;
                }
            }
            let size = self.processes.len();
            let ended = |number: &u32| self.begun.get(number) == Some(&size);
            for process in &mut self.processes {
                any |= process.end(&ended);
            }
            if !any {
                break;
            }
        }
        let stopped = self.processes.iter().enumerate().flat_map(|(rank, process)| {
            process.streams.values().filter_map(move |stream| Some((rank, *stream.next.front()?)))
        });
        let stopped: Vec<String> =
            stopped.map(|(rank, command)| format!("process {rank} stops before {command}")).collect();
        match stopped.is_empty() {
            true => Ok(()),
            false => Err(format!("processes wait for each other: {}", stopped.join("; "))),
        }
    }
}

impl<'a> Process<'a> {
    /// Issues a command, if any stream can. Returns whether one could.
    fn goes_on(&mut self, begun: &mut BTreeMap<u32, usize>) -> bool {
        for stream in self.streams.values_mut() {
            let Some(&command) = stream.next.front() else { continue };
            match command {
                Command::Barrier { .. } if !stream.open.is_empty() => continue,
                Command::Wait { event, generation, .. } if !self.fired.contains(&(*event, *generation)) => continue,
                Command::Record { event, generation, .. } => {
                    let record = (*event, *generation);
                    match stream.open.is_empty() {
                        true => drop(self.fired.insert(record)),
                        false => stream.records.push((stream.open.clone(), record)),
                    }
                }
                _ => {
                    if let Some(exchange) = of(command) {
                        stream.open.push(exchange.number);
                        *begun.entry(exchange.number).or_default() += 1;
                    }
                }
            }
            stream.next.pop_front();
            return true;
        }
        false
    }

    /// Removes exchanges that have ended. Returns whether there was one.
    fn end(&mut self, ended: &impl Fn(&u32) -> bool) -> bool {
        let mut any = false;
        for stream in self.streams.values_mut() {
            let before = stream.open.len();
            stream.open.retain(|number| !ended(number));
            any |= stream.open.len() < before;
            for (open, record) in &mut stream.records {
                open.retain(|number| !ended(number));
                if open.is_empty() {
                    self.fired.insert(*record);
                }
            }
            stream.records.retain(|(open, _)| !open.is_empty());
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::{Launch, StreamId};

    /// Returns a plan with exchanges by number, barriers (`|`), records (`r`) and waits (`w`), and one stream for each text. Each process
    /// sends 8 bytes to each.
    fn plan(streams: &[&str], rank: usize) -> Plan {
        let commands = streams.iter().enumerate().flat_map(|(number, text)| {
            let stream = StreamId(number as u32);
            text.chars().map(move |letter| match letter {
                '|' => Command::Barrier { stream },
                'r' => Command::Record { stream, event: EventId(0), generation: 1 },
                'w' => Command::Wait { stream, event: EventId(0), generation: 1 },
                _ => {
                    let kernel = Kernel::Exchange(Exchange::gather(letter as u32 - '0' as u32, rank, &[8, 8]));
                    let launch = Launch { kernel, reads: Vec::new(), writes: Vec::new(), workspace: None, label: 0 };
                    Command::Launch { stream, launch: Box::new(launch) }
                }
            })
        });
        Plan { commands: commands.collect(), ..Plan::default() }
    }

    fn judged(first: &[&str], second: &[&str]) -> Result<(), String> {
        judge(&[&plan(first, 0), &plan(second, 1)])
    }

    #[test]
    fn exchanges_that_pair_up_end_in_any_order_that_nothing_forces() {
        assert_eq!(judged(&["1|2|3"], &["1|2|3"]), Ok(()));
        // Without a barrier between them, they may begin in either order.
        assert_eq!(judged(&["12|3"], &["21|3"]), Ok(()));
        assert_eq!(judged(&["1r2", "w3"], &["1|2", "3"]), Ok(()));
    }

    #[test]
    fn circles_are_found() {
        for (first, second) in [(&["1|2"][..], &["2|1"][..]), (&["1r", "w2"], &["2|1"]), (&["1r", "w2"], &["2r", "w1"])]
        {
            let error = judged(first, second).unwrap_err();
            assert!(error.contains("processes wait for each other: process 0 stops before"), "{error}");
            assert!(error.contains("process 1 stops before"), "{error}");
        }
    }

    #[test]
    fn what_does_not_pair_up_is_named() {
        let error = judged(&["12"], &["1"]).unwrap_err();
        assert!(error.contains("exchange 2 is in the plan of only one of processes 0 and 1"), "{error}");
        let error = judged(&["121"], &["12"]).unwrap_err();
        assert!(error.contains("process 0 has exchange 1 twice in a step"), "{error}");
        for (sizes, words) in [
            (&[8, 12][..], "process 1 sends messages of [12] bytes to process 0, which receives [8]"),
            (&[8, 8, 8], "exchange 1 of process 1 is not between 2 processes"),
        ] {
            let mut other = plan(&["1"], 1);
            if let Command::Launch { launch, .. } = &mut other.commands[0] {
                launch.kernel = Kernel::Exchange(Exchange::gather(1, 1, sizes));
            }
            let error = judge(&[&plan(&["1"], 0), &other]).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
