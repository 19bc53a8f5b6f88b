//! The independent checker: finds every hazard in a list of commands that is not ordered.
//!
//! It checks lists that run repeatedly ([`check_races`]) and traces of eager work ([`check_trace`]), by the same rules and with the same
//! code. It is written so that it cannot repeat the inserter's mistakes: it records accesses in cells of bytes that it cuts itself, and
//! derives happens-before directly from the commands. Only [`crate::physical`] is shared.
//!
//! Each stream has a clock that holds, for each stream, the index before which everything is complete when the stream's next command
//! starts. A barrier raises the stream's own entry to the present. A record stores the clock, with its own entry at the present, and a wait
//! joins the clock of its record. Command `a` happens before `b` if the clock of `b` has passed `a`. The host is another timeline: each of
//! its actions is complete before its next one, and every command joins what the host knew to be complete when it submitted the command.
//!
//! Each access is compared with the last write of each of its bytes and, if it is a write, with the last read since then of every timeline.
//! A race with an older access is hidden behind one of these: if all of them are ordered, so is everything older.

use forebay_base::Command;

use crate::StepBoundary;
use crate::physical::TileMap;

mod cells;
mod order;
mod shape;
mod trace;
mod uses;
mod violation;

pub use trace::{HostAction, TraceEntry, check_trace};
pub use violation::{Actor, Hazard, Race, RaceReport, Violation};

use cells::{Cells, Met};
use order::{Moment, Order};
use uses::Uses;

/// Checks a list that runs `steps` times in a row under the mapping of `prologue`.
///
/// Two steps are enough to check any number, because all steps are alike.
///
/// # Errors
/// All violations found; races are in the order of their second command.
pub fn check_races(
    prologue: &[Command],
    commands: &[Command],
    steps: usize,
    boundary: StepBoundary,
) -> Result<RaceReport, Vec<Violation>> {
    let tiles = TileMap::from_prologue(prologue).map_err(|error| vec![Violation::Mapping(error)])?;
    let mut violations = Vec::new();
    let mut uses = Vec::with_capacity(commands.len());
    for (index, command) in commands.iter().enumerate() {
        if command.stream().is_none() {
            violations.push(Violation::MappingInStep { command: index });
        }
        uses.push(Uses::of_command(index, command, &tiles, &mut violations));
        shape::check(index, command, &tiles, &mut violations);
    }
    let mut order = Order::new(commands.iter(), true);
    let mut cells = Cells::default();
    let mut hazards = 0;
    for step in 0..steps {
        for (index, command) in commands.iter().enumerate() {
            order.advance(index);
            // An order that is wrong in one step is wrong in every step, so one report is enough.
            let found = order.submit(index, command);
            violations.extend(found.filter(|_| step == 0));
            if let Some(stream) = command.stream().filter(|_| command.is_work()) {
                let now = order.moment(index, Some(stream));
                let met = cells.access(now, &uses[index], &order);
                hazards += met.hazards;
                report(met, now, Actor::Stream(stream), commands.len(), &order, &mut violations);
            }
        }
        order.end_step(commands.len());
        if boundary == StepBoundary::HostJoin {
            order.join_all();
        }
    }
    match violations.is_empty() {
        true => Ok(RaceReport::of(commands.iter(), hazards)),
        false => Err(violations),
    }
}

/// Adds the races of an access, in a list of `length` entries.
fn report(met: Met, now: Moment, actor: Actor, length: usize, order: &Order, violations: &mut Vec<Violation>) {
    for (past, hazard, bytes) in met.unordered {
        // The host's actions are complete before everything later, so the earlier access always belongs to a stream.
        let Some(first_stream) = order.stream(past) else { continue };
        violations.push(Violation::Race(Race {
            first: past.time % length,
            first_step: past.time / length,
            first_stream,
            second: now.time % length,
            second_step: now.time / length,
            second_actor: actor,
            hazard,
            bytes,
        }));
    }
}
