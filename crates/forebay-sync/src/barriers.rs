//! The inserter: adds the barriers, records and waits that the hazards of a list of work require, and no others.
//!
//! Commands are processed in list order. The [`History`] of the bytes that a command uses tells what the command must come after. A vector
//! clock tells what it does come after: for each stream, the position up to which everything is complete before the command starts.
//!
//! - *Across streams*, a wait is added if the clock of the command's stream does not reach the required position. The record is placed
//!   directly after the last command that is needed, so that nothing else is waited for; one record serves all waits for the same position.
//!   A record carries along everything that its stream had waited for, so an order that already follows from other waits costs nothing.
//! - *Within a stream*, a barrier is added directly before a command whose hazard is not otherwise ordered, either by an earlier barrier or
//!   by a wait for another stream that had itself waited for this one. A wait orders later commands after the event, not after earlier
//!   commands of the same stream.
//!
//! Given these waits, no smaller number of barriers is possible, because late greedy insertion meets disjoint hazards. No single barrier or
//! wait can be removed: each exists for a hazard of the following command that nothing else orders, and what is added later in the list
//! orders nothing earlier.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::{Command, EventId, StreamId};

use crate::error::SyncError;
use crate::history::{History, StreamPosition};
use crate::physical::{PhysicalBytes, TileMap};

/// How a step follows the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepBoundary {
    /// The host waits for every stream before it submits the next step: nothing is needed between steps.
    HostJoin,
    /// Streams continue into the next step. Hazards between the end of one step and the start of the next are ordered by waits and barriers
    /// at the end of the list, after all work of their stream.
    Streams,
}

/// A list of work with all the synchronization that its hazards require.
#[derive(Clone, Debug, PartialEq)]
pub struct Synchronized {
    /// The work in the given order, with barriers, records and waits in between.
    pub commands: Vec<Command>,
    /// The index in [`Synchronized::commands`] of each given command.
    pub work_indices: Vec<usize>,
    /// Number of events, one per stream that is waited for. Generations count from 1 in each step.
    pub event_count: u32,
    /// Number of barriers.
    pub barriers: usize,
    /// Number of waits.
    pub waits: usize,
}

impl Synchronized {
    /// Barriers and waits together.
    pub fn synchronizations(&self) -> usize {
        self.barriers + self.waits
    }
}

/// For each stream, the position up to which everything is complete.
type Clock = Vec<u32>;

/// The synchronization that is added before a command, or at the end of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Gate {
    /// The places to wait for.
    waits: Vec<StreamPosition>,
    /// Whether to wait for everything earlier in the same stream.
    barrier: bool,
}

/// A command of the list, ready for analysis.
struct Work {
    place: StreamPosition,
    reads: Vec<PhysicalBytes>,
    writes: Vec<PhysicalBytes>,
}

/// The clocks of all streams during a pass over the list.
struct Clocks {
    /// For each stream, what its next command starts after.
    now: Vec<Clock>,
    /// For each position of each stream, what it started after.
    past: Vec<Vec<Clock>>,
}

fn join(clock: &mut [u32], other: &[u32]) {
    clock.iter_mut().zip(other).for_each(|(mine, &theirs)| *mine = (*mine).max(theirs));
}

impl Clocks {
    fn new(streams: usize) -> Clocks {
        Clocks { now: vec![vec![0; streams]; streams], past: vec![Vec::new(); streams] }
    }

    /// The clock once everything up to a place is complete.
    fn after(&self, place: StreamPosition) -> Clock {
        let mut clock = self.past[place.stream][place.position as usize - 1].clone();
        clock[place.stream] = place.position;
        clock
    }

    /// Advances a stream past a gate. The places of the gate are `shift` positions per stream further on.
    fn pass(&mut self, stream: usize, gate: &Gate, shift: &[u32]) {
        for wait in &gate.waits {
            let place = StreamPosition { position: wait.position + shift[wait.stream], ..*wait };
            let after = self.after(place);
            join(&mut self.now[stream], &after);
        }
        if gate.barrier {
            self.now[stream][stream] = self.past[stream].len() as u32;
        }
    }

    /// Issues the next command of a stream.
    fn issue(&mut self, stream: usize) {
        let clock = self.now[stream].clone();
        self.past[stream].push(clock);
    }

    /// The smallest set of places to wait for so that a stream's next command comes after `needs`, not counting its own stream. Needs that
    /// another wait already covers are dropped.
    fn missing_waits(&self, stream: usize, needs: &[u32]) -> Vec<StreamPosition> {
        let missing = |clock: &[u32], other: usize| other != stream && needs[other] > clock[other];
        let now = &self.now[stream];
        let mut kept: Vec<(StreamPosition, Clock)> = (0..needs.len())
            .filter(|&other| missing(now, other))
            .map(|other| StreamPosition { stream: other, position: needs[other] })
            .map(|place| (place, self.after(place)))
            .collect();
        let mut candidate = 0;
        while candidate < kept.len() {
            let mut without = now.clone();
            let others = kept.iter().enumerate().filter(|(index, _)| *index != candidate);
            others.for_each(|(_, (_, clock))| join(&mut without, clock));
            if missing(&without, kept[candidate].0.stream) {
                candidate += 1;
            } else {
                kept.remove(candidate);
            }
        }
        kept.into_iter().map(|(place, _)| place).collect()
    }
}

/// Adds barriers, records and waits to a list of work (launches, copies, fills) that runs repeatedly.
///
/// The order of the work is kept, and with it the order of commands with hazards between them. `prologue` is the mapping under which the
/// list runs. The event of a stream is numbered by the stream's index among the streams that are waited for.
///
/// # Errors
/// If a command is not work, the prologue contains anything other than mapping, or a region is not mapped.
pub fn insert_barriers(
    prologue: &[Command],
    work: Vec<Command>,
    boundary: StepBoundary,
) -> Result<Synchronized, SyncError> {
    let tiles = TileMap::from_prologue(prologue)?;
    let (streams, analyzed) = analyze(&tiles, &work)?;
    let mut history = History::default();
    let mut clocks = Clocks::new(streams.len());
    let gates: Vec<Gate> = analyzed.iter().map(|command| gate_before(command, &mut history, &mut clocks)).collect();
    let closing = match boundary {
        StepBoundary::HostJoin => vec![Gate::default(); streams.len()],
        StepBoundary::Streams => closing_gates(&analyzed, &gates, &mut history, clocks),
    };
    Ok(assemble(work, &streams, &analyzed, &gates, &closing))
}

/// Determines streams, places and physical bytes.
fn analyze(tiles: &TileMap, work: &[Command]) -> Result<(Vec<StreamId>, Vec<Work>), SyncError> {
    let streams: BTreeSet<StreamId> = work.iter().filter_map(Command::stream).collect();
    let streams: Vec<StreamId> = streams.into_iter().collect();
    let mut issued = vec![0; streams.len()];
    let mut analyzed = Vec::with_capacity(work.len());
    for (index, command) in work.iter().enumerate() {
        let stream = command.stream().filter(|_| command.is_work()).and_then(|id| streams.binary_search(&id).ok());
        let Some(stream) = stream else {
            return Err(SyncError::NotWork { index, command: command.to_string() });
        };
        issued[stream] += 1;
        let mut work =
            Work { place: StreamPosition { stream, position: issued[stream] }, reads: Vec::new(), writes: Vec::new() };
        for region in command.reads() {
            work.reads.extend(tiles.physical(region)?);
        }
        for region in command.writes() {
            work.writes.extend(tiles.physical(region)?);
        }
        analyzed.push(work);
    }
    Ok((streams, analyzed))
}

/// The clock that a command must come after.
fn needs_of(command: &Work, history: &History, streams: usize) -> Clock {
    let mut needs = vec![0; streams];
    command.reads.iter().for_each(|&bytes| history.needs_of_read(bytes, &mut needs));
    command.writes.iter().for_each(|&bytes| history.needs_of_write(bytes, &mut needs));
    needs
}

/// Adds the accesses of a command, `shift` positions per stream further on.
fn remember(command: &Work, history: &mut History, shift: &[u32]) {
    let StreamPosition { stream, position } = command.place;
    let place = StreamPosition { stream, position: position + shift[stream] };
    command.reads.iter().for_each(|&bytes| history.read(bytes, place));
    command.writes.iter().for_each(|&bytes| history.write(bytes, place));
}

/// The gate that the next command of the list needs. Advances past the gate and issues the command.
fn gate_before(command: &Work, history: &mut History, clocks: &mut Clocks) -> Gate {
    let stream = command.place.stream;
    let streams = clocks.now.len();
    let needs = needs_of(command, history, streams);
    let unshifted = vec![0; streams];
    let mut gate = Gate { waits: clocks.missing_waits(stream, &needs), barrier: false };
    clocks.pass(stream, &gate, &unshifted);
    // Only now is it known what the waits cover: they may already order this stream after itself.
    if needs[stream] > clocks.now[stream][stream] {
        gate.barrier = true;
        clocks.now[stream][stream] = clocks.past[stream].len() as u32;
    }
    clocks.issue(stream);
    remember(command, history, &unshifted);
    gate
}

/// The gates at the end of each stream that order the next step after this one.
///
/// For every need of the next step that the step's own gates do not meet, a wait or barrier is added at the end of its stream. Then each of
/// these is removed if the others order all needs without it. Two steps are enough: whatever must be ordered across more steps is ordered
/// through accesses to the same bytes in the steps between.
fn closing_gates(analyzed: &[Work], gates: &[Gate], history: &mut History, end: Clocks) -> Vec<Gate> {
    let streams = end.now.len();
    let shift: Clock = end.past.iter().map(|past| past.len() as u32).collect();
    let needs: Vec<Clock> = analyzed
        .iter()
        .map(|command| {
            let mut needs = needs_of(command, history, streams);
            // Needs within the next step equal those within this step, and its gates meet them.
            needs.iter_mut().zip(&shift).for_each(|(need, &length)| *need = if *need > length { 0 } else { *need });
            remember(command, history, &shift);
            needs
        })
        .collect();
    let mut waits: BTreeMap<(usize, usize), u32> = BTreeMap::new();
    next_step(analyzed, gates, &end, &shift, &[], |command, clock| {
        for (stream, &need) in needs[command].iter().enumerate().filter(|&(stream, &need)| need > clock[stream]) {
            let position = waits.entry((analyzed[command].place.stream, stream)).or_default();
            *position = need.max(*position);
        }
    });
    let mut kept: Vec<(usize, StreamPosition)> =
        waits.into_iter().map(|((waiting, stream), position)| (waiting, StreamPosition { stream, position })).collect();
    let mut candidate = 0;
    while candidate < kept.len() {
        let removed = kept.remove(candidate);
        let mut ordered = true;
        next_step(analyzed, gates, &end, &shift, &kept, |command, clock| {
            ordered &= needs[command].iter().zip(clock).all(|(need, reached)| need <= reached);
        });
        if !ordered {
            kept.insert(candidate, removed);
            candidate += 1;
        }
    }
    closing_of(&kept, streams)
}

/// Makes gates from (waiting stream, place) pairs; a place in the waiting stream itself means a barrier.
fn closing_of(pairs: &[(usize, StreamPosition)], streams: usize) -> Vec<Gate> {
    let mut gates = vec![Gate::default(); streams];
    for &(waiting, place) in pairs {
        if waiting == place.stream {
            gates[waiting].barrier = true;
        } else {
            gates[waiting].waits.push(place);
        }
    }
    gates
}

/// Goes through the step that follows `end` and a closing, and calls `visit` with the clock of each command.
fn next_step(
    analyzed: &[Work],
    gates: &[Gate],
    end: &Clocks,
    shift: &[u32],
    closing: &[(usize, StreamPosition)],
    mut visit: impl FnMut(usize, &[u32]),
) {
    let streams = end.now.len();
    let mut clocks = Clocks { now: end.now.clone(), past: end.past.clone() };
    for (stream, gate) in closing_of(closing, streams).iter().enumerate() {
        clocks.pass(stream, gate, &vec![0; streams]);
    }
    for (index, (command, gate)) in analyzed.iter().zip(gates).enumerate() {
        let stream = command.place.stream;
        clocks.pass(stream, gate, shift);
        visit(index, &clocks.now[stream]);
        clocks.issue(stream);
    }
}

/// Assembles the final list.
fn assemble(
    work: Vec<Command>,
    streams: &[StreamId],
    analyzed: &[Work],
    gates: &[Gate],
    closing: &[Gate],
) -> Synchronized {
    let mut recorded: BTreeMap<usize, BTreeSet<u32>> = BTreeMap::new();
    for wait in gates.iter().chain(closing).flat_map(|gate| &gate.waits) {
        recorded.entry(wait.stream).or_default().insert(wait.position);
    }
    let mut events: BTreeMap<(usize, u32), (EventId, u64)> = BTreeMap::new();
    for (event, (&stream, positions)) in recorded.iter().enumerate() {
        for (&position, generation) in positions.iter().zip(1..) {
            events.insert((stream, position), (EventId(event as u32), generation));
        }
    }
    let mut commands = Vec::with_capacity(work.len() + events.len() + gates.len());
    let mut work_indices = Vec::with_capacity(work.len());
    let open = |commands: &mut Vec<Command>, stream: StreamId, gate: &Gate| {
        for wait in &gate.waits {
            let (event, generation) = events[&(wait.stream, wait.position)];
            commands.push(Command::Wait { stream, event, generation });
        }
        if gate.barrier {
            commands.push(Command::Barrier { stream });
        }
    };
    for ((command, analyzed), gate) in work.into_iter().zip(analyzed).zip(gates) {
        let StreamPosition { stream, position } = analyzed.place;
        open(&mut commands, streams[stream], gate);
        work_indices.push(commands.len());
        commands.push(command);
        if let Some(&(event, generation)) = events.get(&(stream, position)) {
            commands.push(Command::Record { stream: streams[stream], event, generation });
        }
    }
    closing.iter().zip(streams).for_each(|(gate, &stream)| open(&mut commands, stream, gate));
    let all = || gates.iter().chain(closing);
    let barriers = all().filter(|gate| gate.barrier).count();
    let waits = all().map(|gate| gate.waits.len()).sum();
    Synchronized { commands, work_indices, event_count: recorded.len() as u32, barriers, waits }
}
