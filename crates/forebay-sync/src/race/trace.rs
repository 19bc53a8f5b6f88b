//! Traces: what a host submitted and what it did itself, in order.

use forebay_base::{Command, EventId, Region, StreamId};

use super::cells::Cells;
use super::order::Order;
use super::uses::Uses;
use super::violation::{Actor, RaceReport, Violation};
use super::{report, shape};
use crate::physical::TileMap;

/// One entry of a trace of eager work.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceEntry {
    /// The host submitted a command, or changed the mapping.
    Command(Command),
    /// The host did something itself.
    Host(HostAction),
}

/// An action of the host itself between commands. Each action is complete before the host continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostAction {
    /// The host read the bytes.
    Read(Region),
    /// The host wrote the bytes.
    Write(Region),
    /// The host waited until this generation had fired, or asked and found that it had.
    WaitEvent {
        /// The event.
        event: EventId,
        /// The generation of the record.
        generation: u64,
    },
    /// The host waited for everything submitted to the stream so far, or asked and found it complete.
    Synchronize(StreamId),
}

/// Checks a trace, eager or planned, from its beginning to its end.
///
/// - Every command comes after everything that the host knew to be complete when it submitted the command.
/// - `Map` and `Unmap` may appear anywhere, and a command uses the bytes that are mapped when it is submitted. A memory that the trace maps
///   is a reservation from the beginning. An `Unmap` counts as a write by the host to the bytes that it unmaps: a command that is still
///   using them races with it.
/// - The generations of an event grow over the whole trace and may start anywhere.
///
/// ```
/// use forebay_base::{Command, EventId, MemoryId, Region, StreamId};
/// use forebay_sync::race::{check_trace, HostAction, TraceEntry};
///
/// let (stream, event, bytes) = (StreamId(1), EventId(1), Region::new(MemoryId(1), 0, 64));
/// let mut trace = vec![
///     TraceEntry::Command(Command::Fill { stream, region: bytes, pattern: [0; 4] }),
///     TraceEntry::Command(Command::Record { stream, event, generation: 1 }),
///     TraceEntry::Host(HostAction::Read(bytes)),
/// ];
/// let found = check_trace(&trace).unwrap_err();
/// let names = |index: usize| (index == 0).then(|| "zeros".to_string());
/// assert_eq!(
///     found[0].describe(&names),
///     "race, read after write: 'zeros' (command 0 of s1) and the host's read (entry 2) share m1[0..64]; missing: the \
///      host's wait for s1, or for a record in it after 'zeros', before the host's read"
/// );
/// trace.insert(2, TraceEntry::Host(HostAction::WaitEvent { event, generation: 1 }));
/// assert!(check_trace(&trace).is_ok());
/// ```
///
/// # Errors
/// All violations found, in the order of the trace.
pub fn check_trace(entries: &[TraceEntry]) -> Result<RaceReport, Vec<Violation>> {
    let commands = || {
        entries.iter().filter_map(|entry| match entry {
            TraceEntry::Command(command) => Some(command),
            TraceEntry::Host(_) => None,
        })
    };
    let mut tiles = TileMap::default();
    for command in commands() {
        if let Command::Map { region, .. } = command {
            tiles.reserve(region.memory);
        }
    }
    let mut order = Order::new(commands(), false);
    let mut cells = Cells::default();
    let mut violations = Vec::new();
    let mut hazards = 0;
    for (index, entry) in entries.iter().enumerate() {
        order.advance(index);
        let (actor, uses) = match entry {
            TraceEntry::Command(command) => submit(index, command, &mut tiles, &mut order, &mut violations),
            TraceEntry::Host(action) => act(index, action, &tiles, &mut order, &mut violations),
        };
        let stream = match actor {
            Actor::Stream(stream) => Some(stream),
            Actor::Host | Actor::Unmap => None,
        };
        let now = order.moment(index, stream);
        let met = cells.access(now, &uses, &order);
        hazards += met.hazards;
        report(met, now, actor, entries.len(), &order, &mut violations);
    }
    match violations.is_empty() {
        true => Ok(RaceReport::of(commands(), hazards)),
        false => Err(violations),
    }
}

/// Processes a command: its order, its mapping and the bytes that it uses.
fn submit(
    index: usize,
    command: &Command,
    tiles: &mut TileMap,
    order: &mut Order,
    violations: &mut Vec<Violation>,
) -> (Actor, Uses) {
    match command {
        Command::Map { region, heap, heap_offset_bytes } => {
            let mapped = tiles.map(*region, *heap, *heap_offset_bytes);
            violations.extend(mapped.err().map(|error| Violation::CannotMap { command: index, error }));
        }
        Command::Unmap { region } => {
            let writes = tiles.mapped(*region);
            tiles.unmap(*region);
            return (Actor::Unmap, Uses { reads: Vec::new(), writes });
        }
        _ => {}
    }
    violations.extend(order.submit(index, command));
    shape::check(index, command, tiles, violations);
    (command.stream().map_or(Actor::Host, Actor::Stream), Uses::of_command(index, command, tiles, violations))
}

/// Processes an action of the host: what the host knows afterwards, and the bytes that it used.
fn act(
    index: usize,
    action: &HostAction,
    tiles: &TileMap,
    order: &mut Order,
    violations: &mut Vec<Violation>,
) -> (Actor, Uses) {
    let uses = match *action {
        HostAction::Read(region) => Uses::find(index, Actor::Host, (&[region], &[]), tiles, violations),
        HostAction::Write(region) => Uses::find(index, Actor::Host, (&[], &[region]), tiles, violations),
        HostAction::WaitEvent { event, generation } => {
            violations.extend(order.host_waits(index, event, generation));
            Uses::default()
        }
        HostAction::Synchronize(stream) => {
            order.host_synchronizes(index, stream);
            Uses::default()
        }
    };
    (Actor::Host, uses)
}
