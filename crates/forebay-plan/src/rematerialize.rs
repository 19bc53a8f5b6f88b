//! Rematerialization: the same step in less memory, where bytes that leave the device have nowhere else to go.
//!
//! Contents that lie idle between two launches are dropped, and their launch runs once more before the second of the two. What that
//! launch reads is there anyway, is recomputed as well, or is kept for longer. What is recomputed for a use of its own stays until its
//! last use. What is recomputed only for others is dropped at once and recomputed again for its own use, unless it is *held*: where
//! all of a chain is held, it is recomputed as one segment (as in Chen and others, "Training Deep Nets with Sublinear Memory Cost",
//! 2016, where segments are given; here they follow from what is worth its time).
//!
//! The search is greedy, as XLA's rematerialization is: of all contents that may be dropped, the one that takes most excess bytes
//! away for the time that it costs, until nothing exceeds the limit. At the end, what turned out to be needless is taken back.

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap};

use forebay_model::program::{Program, Role};

use crate::cost::Costs;
use crate::liveness::{Chunk, Liveness, Owner};
use crate::tuning::{RECOMPUTED_BUFFERS_MAX, RECOMPUTED_CHAIN_MAX, RECOMPUTED_GAIN_PARTS, RECOMPUTED_LOOKS_MAX};

/// A step in which some launches run more than once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rematerialized {
    /// The launches in order, each with whether it runs once more.
    pub launches: Vec<(usize, bool)>,
    /// The most bytes that are live at once; more than the limit where no step with less was found.
    pub peak_bytes: u64,
    /// How long the launches that run once more take.
    pub recomputed_ns: u64,
}

/// Looks for a step whose live bytes stay within a limit; the one that exceeds it least where none was found. `costs` are those of the
/// program's launches in their order.
pub fn rematerialize(program: &Program, live: &Liveness, costs: &Costs, limit_bytes: u64) -> Rematerialized {
    let step = Step::new(program, live, costs);
    let limit_bytes = i64::try_from(limit_bytes).unwrap_or(i64::MAX);
    let mut search = Search { limit_bytes, choice: Choice::nothing(&step), step: &step, looks: Cell::new(0) };
    search.drop_until_it_fits();
    search.take_back();
    let sequence = step.sequence(&search.choice).unwrap_or_else(|| step.plain());
    let profile = step.profile(&sequence);
    Rematerialized {
        peak_bytes: profile.iter().copied().max().unwrap_or(0).max(0) as u64,
        recomputed_ns: step.recomputed_ns(&sequence),
        launches: sequence,
    }
}

/// How long contents last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lifetime {
    /// From step to step.
    Lasting,
    /// Written by the caller before the step.
    Fed,
    /// From a launch to a later one of the same step.
    Temporary,
}

/// Bytes that launches touch as a whole.
struct Content<'a> {
    bytes: i64,
    lifetime: Lifetime,
    /// The launch that computes all of it; none where several write it.
    maker: Option<usize>,
    /// The launch after which it may be dropped, to be recomputed before its next use, and how many launches lie between.
    drop: Option<(usize, usize)>,
    chunk: &'a Chunk,
}

impl Content<'_> {
    /// Whether a launch after `from` and before `to` writes it.
    fn changes_between(&self, from: usize, to: usize) -> bool {
        self.chunk.accesses.iter().any(|access| access.writes && from < access.launch && access.launch < to)
    }

    fn last_launch(&self) -> usize {
        self.chunk.accesses.last().map_or(0, |access| access.launch)
    }
}

/// A launch, and the contents that it touches.
#[derive(Default)]
struct Item {
    reads: Vec<usize>,
    writes: Vec<usize>,
    duration_ns: u64,
    workspace_bytes: i64,
    /// Whether it may run twice: it changes nothing that it reads, and nothing that others write.
    repeats: bool,
}

/// A step, prepared for the search.
struct Step<'a> {
    contents: Vec<Content<'a>>,
    items: Vec<Item>,
}

/// What is dropped, and what is kept longer than its own uses need.
#[derive(Clone)]
struct Choice {
    /// By content: the launch after which it is dropped.
    dropped_after: Vec<Option<usize>>,
    /// Contents that are kept for launches that run once more.
    kept: BTreeSet<usize>,
    /// Contents that stay where they were recomputed for others, until their own uses.
    held: BTreeSet<usize>,
}

impl Choice {
    fn nothing(step: &Step) -> Choice {
        Choice { dropped_after: vec![None; step.contents.len()], kept: BTreeSet::new(), held: BTreeSet::new() }
    }
}

impl<'a> Step<'a> {
    fn new(program: &Program, live: &'a Liveness, costs: &Costs) -> Step<'a> {
        let mut items: Vec<Item> = (0..live.launch_count).map(|_| Item::default()).collect();
        let mut contents = Vec::new();
        for chunk in &live.chunks {
            let Owner::Buffer(buffer) = chunk.owner else {
                if let Owner::Workspace(launch) = chunk.owner {
                    items[launch].workspace_bytes += chunk.device_bytes() as i64;
                }
                continue;
            };
            let number = contents.len();
            for access in &chunk.accesses {
                let item = &mut items[access.launch];
                if access.reads {
                    item.reads.push(number);
                }
                if access.writes {
                    item.writes.push(number);
                }
            }
            let role = program.buffer(buffer).role;
            let lifetime = match role {
                Role::Input => Lifetime::Fed,
                Role::Constant | Role::Parameter | Role::State => Lifetime::Lasting,
                Role::Temporary | Role::Gradient => Lifetime::Temporary,
            };
            // Outputs leave the device after they were computed, once.
            let is_output = program.outputs.iter().any(|named| named.operand.buffer == buffer);
            let mut writers = chunk.accesses.iter().filter(|access| access.writes);
            let maker = match (lifetime, writers.next(), writers.next()) {
                (Lifetime::Temporary, Some(only), None) if !only.reads && !is_output => Some(only.launch),
                _ => None,
            };
            contents.push(Content { bytes: chunk.device_bytes() as i64, lifetime, maker, drop: None, chunk });
        }
        for (launch, item) in items.iter_mut().enumerate() {
            item.duration_ns = costs.launch_ns[launch];
            item.repeats = item.writes.iter().all(|&content| contents[content].maker == Some(launch));
        }
        let mut step = Step { contents, items };
        for content in 0..step.contents.len() {
            step.contents[content].drop = step.longest_gap(content);
        }
        step
    }

    /// The launch before the longest gap that ends with a use before which a content may be recomputed, and the gap's length.
    fn longest_gap(&self, content: usize) -> Option<(usize, usize)> {
        let Content { maker, chunk, .. } = &self.contents[content];
        let gaps = chunk.accesses.windows(2).filter(|pair| pair[1].reads);
        let lengths = gaps.map(|pair| (pair[1].launch - pair[0].launch - 1, pair[0].launch, pair[1].launch));
        let (length, after, next) = lengths.max()?;
        (length > 0 && self.may_repeat((*maker)?, next)).then_some((after, length))
    }

    /// Every launch once.
    fn plain(&self) -> Vec<(usize, bool)> {
        (0..self.items.len()).map(|launch| (launch, false)).collect()
    }

    /// Whether a launch may run once more before another one: what it reads has not changed since.
    fn may_repeat(&self, launch: usize, at: usize) -> bool {
        let item = &self.items[launch];
        item.repeats && item.reads.iter().all(|&read| !self.contents[read].changes_between(launch, at))
    }

    /// The launches of a choice; none where something is dropped that cannot be recomputed.
    fn sequence(&self, choice: &Choice) -> Option<Vec<(usize, bool)>> {
        let mut building =
            Building { step: self, choice, remade: vec![None; self.contents.len()], launches: Vec::new() };
        for (launch, item) in self.items.iter().enumerate() {
            for &read in &item.reads {
                if !building.ensure(read, launch, RECOMPUTED_CHAIN_MAX) {
                    return None;
                }
            }
            building.launches.push((launch, false));
        }
        Some(building.launches)
    }

    /// Live bytes during each launch of a sequence.
    fn profile(&self, sequence: &[(usize, bool)]) -> Vec<i64> {
        let mut changes = vec![0i64; sequence.len() + 1];
        // By content: since when it is live, and its last touch so far.
        let mut spans: Vec<Option<(usize, usize)>> = vec![None; self.contents.len()];
        let mut hold = |(start, end): (usize, usize), bytes: i64| {
            changes[start] += bytes;
            changes[end + 1] -= bytes;
        };
        for (place, &(launch, _)) in sequence.iter().enumerate() {
            let item = &self.items[launch];
            hold((place, place), item.workspace_bytes);
            for &read in &item.reads {
                let span = spans[read].get_or_insert((place, place));
                span.1 = place;
            }
            for &write in &item.writes {
                // What is written without being read begins a life of its own.
                match &mut spans[write] {
                    Some(span) if span.1 == place => {}
                    span => {
                        if let Some(before) = span.replace((place, place)) {
                            hold(before, self.contents[write].bytes);
                        }
                    }
                }
            }
        }
        for (content, span) in self.contents.iter().zip(spans) {
            match (content.lifetime, span) {
                (Lifetime::Lasting, Some(_)) if !sequence.is_empty() => hold((0, sequence.len() - 1), content.bytes),
                (_, Some(span)) => hold(span, content.bytes),
                (_, None) => {}
            }
        }
        changes.pop();
        let mut live = 0;
        for change in &mut changes {
            live += *change;
            *change = live;
        }
        changes
    }

    fn recomputed_ns(&self, sequence: &[(usize, bool)]) -> u64 {
        let repeats = sequence.iter().filter(|(_, repeats)| *repeats);
        repeats.map(|&(launch, _)| self.items[launch].duration_ns).sum()
    }
}

/// A sequence while it is put together.
struct Building<'a> {
    step: &'a Step<'a>,
    choice: &'a Choice,
    /// By content: the launch for which it was last recomputed.
    remade: Vec<Option<usize>>,
    launches: Vec<(usize, bool)>,
}

impl Building<'_> {
    /// Whether contents are there when a launch starts.
    fn is_present(&self, content: usize, at: usize) -> bool {
        let Content { lifetime, maker, .. } = &self.step.contents[content];
        if *lifetime != Lifetime::Temporary {
            return true;
        }
        if let Some(remade) = self.remade[content] {
            let own = || self.step.items[remade].reads.contains(&content);
            return remade == at || self.choice.held.contains(&content) || own();
        }
        match self.choice.dropped_after[content] {
            Some(last) => at <= last,
            // What nothing needs any more is recomputed where that is possible, and else kept until then.
            None => {
                self.step.contents[content].last_launch() >= at
                    || self.choice.kept.contains(&content)
                    || !maker.is_some_and(|maker| self.step.may_repeat(maker, at))
            }
        }
    }

    /// Has contents recomputed before a launch where they are not there. Says whether they are there then.
    fn ensure(&mut self, content: usize, at: usize, chain: usize) -> bool {
        if self.is_present(content, at) {
            return true;
        }
        let maker = self.step.contents[content].maker.filter(|&maker| self.step.may_repeat(maker, at));
        let (Some(maker), true) = (maker, chain > 0) else { return false };
        let item = &self.step.items[maker];
        if !item.reads.iter().all(|&read| self.ensure(read, at, chain - 1)) {
            return false;
        }
        for &write in &item.writes {
            self.remade[write] = Some(at);
        }
        self.launches.push((maker, true));
        true
    }
}

/// A change of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Move {
    /// Drops contents: those of a buffer.
    Drop { first: usize, end: usize },
    /// Keeps a content that would be recomputed for others.
    Keep { content: usize },
}

/// A move, and how many excess bytes it takes away for each nanosecond that it costs, when that was last found out.
struct Rated {
    rate: f64,
    candidate: Move,
    round: usize,
}

impl PartialEq for Rated {
    fn eq(&self, other: &Rated) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Rated {}

impl PartialOrd for Rated {
    fn partial_cmp(&self, other: &Rated) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rated {
    fn cmp(&self, other: &Rated) -> Ordering {
        self.rate.total_cmp(&other.rate).then(other.candidate.cmp(&self.candidate))
    }
}

/// What a choice comes to.
struct Outcome {
    /// Bytes above the limit, summed over launches.
    excess: i64,
    recomputed_ns: u64,
    sequence: Vec<(usize, bool)>,
}

struct Search<'a> {
    step: &'a Step<'a>,
    limit_bytes: i64,
    choice: Choice,
    /// Launches of steps that were tried.
    looks: Cell<usize>,
}

impl Search<'_> {
    fn is_exhausted(&self) -> bool {
        self.looks.get() > RECOMPUTED_LOOKS_MAX
    }

    fn outcome(&self, choice: &Choice) -> Option<Outcome> {
        let sequence = self.step.sequence(choice);
        self.looks.set(self.looks.get() + sequence.as_ref().map_or(self.step.items.len(), Vec::len));
        let sequence = sequence?;
        let profile = self.step.profile(&sequence);
        let excess = profile.iter().map(|bytes| bytes.saturating_sub(self.limit_bytes).max(0)).sum();
        Some(Outcome { excess, recomputed_ns: self.step.recomputed_ns(&sequence), sequence })
    }

    fn with(&self, candidate: Move) -> Choice {
        let mut choice = self.choice.clone();
        match candidate {
            Move::Drop { first, end } => {
                for content in first..end {
                    choice.dropped_after[content] = self.step.contents[content].drop.map(|(after, _)| after);
                }
            }
            Move::Keep { content } => {
                choice.kept.insert(content);
            }
        }
        choice
    }

    /// Everything that may be dropped: buffers as a whole, each part of one in its longest gap before a use. What was computed in parts is
    /// recomputed in parts, each before the launch that needs it.
    fn drops(&self) -> Vec<Move> {
        let contents = &self.step.contents;
        let mut drops: Vec<(i64, Move)> = Vec::new();
        let mut first = 0;
        while first < contents.len() {
            let of_buffer =
                contents[first..].iter().take_while(|content| content.chunk.owner == contents[first].chunk.owner);
            let end = first + of_buffer.count();
            let weight = |content: &Content| content.drop.map_or(0, |(_, length)| content.bytes * length as i64);
            let all: i64 = contents[first..end].iter().map(weight).sum();
            if all > 0 {
                drops.push((all, Move::Drop { first, end }));
            }
            first = end;
        }
        drops.sort_unstable_by(|a, b| b.cmp(a));
        drops.truncate(RECOMPUTED_BUFFERS_MAX);
        drops.into_iter().map(|(_, candidate)| candidate).collect()
    }

    /// How many excess bytes a move takes away for each nanosecond; none where it takes none away.
    fn rate(&self, candidate: Move, now: &Outcome) -> Option<(f64, Choice, Outcome)> {
        let choice = self.with(candidate);
        let outcome = self.outcome(&choice).filter(|outcome| outcome.excess < now.excess)?;
        let spent_ns = outcome.recomputed_ns as f64 - now.recomputed_ns as f64;
        let saved = (now.excess - outcome.excess) as f64;
        // What costs nothing comes before all that costs something.
        let rate = if spent_ns > 0.0 { saved / spent_ns } else { f64::MAX / 2.0 };
        Some((rate, choice, outcome))
    }

    /// Drops what takes most excess away for its time, until nothing exceeds the limit or nothing helps.
    ///
    /// What a move is worth changes with every other move, most of the time to the worse. So the best one by what was last found out
    /// is looked at again, and taken where it stays the best; where no move is left, all are looked at again.
    fn drop_until_it_fits(&mut self) {
        let Some(mut now) = self.outcome(&self.choice) else { return };
        let drops = self.drops();
        // Bytes above the limit when all moves were last looked at.
        let (mut round, mut excess) = (0, i64::MAX);
        let mut heap: BinaryHeap<Rated> = BinaryHeap::new();
        while now.excess > 0 && !self.is_exhausted() {
            if heap.is_empty() {
                if now.excess > excess - excess / RECOMPUTED_GAIN_PARTS {
                    return;
                }
                (excess, round) = (now.excess, round + 1);
                for candidate in drops.iter().copied().chain(self.keeps(&now)) {
                    if let Some((rate, ..)) = self.rate(candidate, &now) {
                        heap.push(Rated { rate, candidate, round });
                    }
                }
                continue;
            }
            let Some(best) = heap.pop() else { continue };
            let Some((rate, choice, outcome)) = self.rate(best.candidate, &now) else { continue };
            let is_best = best.round == round || heap.peek().is_none_or(|next| rate >= next.rate);
            if !is_best {
                heap.push(Rated { rate, round, ..best });
                continue;
            }
            (self.choice, now) = (choice, outcome);
            round += 1;
        }
    }

    /// Contents that are recomputed for others alone, and could be kept instead.
    fn keeps(&self, now: &Outcome) -> Vec<Move> {
        let remade = now
            .sequence
            .iter()
            .filter(|(_, repeats)| *repeats)
            .flat_map(|&(launch, _)| &self.step.items[launch].writes);
        let mut contents: Vec<usize> = remade.copied().collect();
        contents.sort_unstable();
        contents.dedup();
        contents.retain(|&content| self.choice.dropped_after[content].is_none());
        contents.into_iter().map(|content| Move::Keep { content }).collect()
    }

    /// Takes back what is not needed, and holds what would be recomputed again, as far as both fit.
    fn take_back(&mut self) {
        let Some(mut now) = self.outcome(&self.choice) else { return };
        for holds in [true, false] {
            // Those of the fewest bytes for the fewest launches first.
            for candidate in self.drops().into_iter().rev() {
                let Move::Drop { first, end } = candidate else { continue };
                if self.looks.get() > 2 * RECOMPUTED_LOOKS_MAX {
                    return;
                }
                let mut choice = self.choice.clone();
                if holds {
                    choice.held.extend(first..end);
                } else if choice.dropped_after[first..end].iter().any(Option::is_some) {
                    choice.dropped_after[first..end].fill(None);
                } else {
                    continue;
                }
                let is_better =
                    |found: &Outcome| found.excess <= now.excess && found.recomputed_ns <= now.recomputed_ns;
                if let Some(outcome) = self.outcome(&choice).filter(is_better) {
                    (self.choice, now) = (choice, outcome);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::estimate;
    use crate::liveness::liveness;
    use crate::order::Ordered;
    use crate::testing::{limits, random_training_program, training_program, Random};

    /// Live bytes of a program's launches, counted chunk by chunk and launch by launch.
    fn naive_peak_bytes(program: &Program) -> u64 {
        let live = liveness(program, false);
        let mut taken = vec![0; live.launch_count];
        for chunk in &live.chunks {
            let lasts = matches!(chunk.owner, Owner::Buffer(buffer) if program.buffer(buffer).role.is_persistent());
            for (launch, taken) in taken.iter_mut().enumerate() {
                let before = chunk.accesses.iter().any(|access| access.launch <= launch);
                let next = chunk.accesses.iter().find(|access| access.launch >= launch);
                let is_live = lasts || before && next.is_some_and(|next| next.launch == launch || next.reads);
                *taken += if is_live { chunk.device_bytes() } else { 0 };
            }
        }
        taken.into_iter().max().unwrap_or(0)
    }

    #[test]
    fn what_fits_has_the_peak_that_it_says_and_runs_every_launch_once_in_order() {
        let mut fewer = 0;
        for seed in 1..40 {
            let mut random = Random::new(seed);
            let program = random_training_program(&mut random, 2 + seed as usize % 9);
            let (live, costs) = (liveness(&program, false), estimate(&program, &limits()));
            let plain = rematerialize(&program, &live, &costs, u64::MAX);
            assert_eq!((plain.peak_bytes, plain.recomputed_ns), (naive_peak_bytes(&program), 0), "seed {seed}");
            let least = rematerialize(&program, &live, &costs, 0);
            assert!(least.peak_bytes <= plain.peak_bytes);
            for percent in [0, 30, 60, 90] {
                let limit_bytes = least.peak_bytes + (plain.peak_bytes - least.peak_bytes) * percent / 100;
                let found = rematerialize(&program, &live, &costs, limit_bytes);
                let first: Vec<usize> =
                    found.launches.iter().filter(|launch| !launch.1).map(|launch| launch.0).collect();
                assert!(first.iter().copied().eq(0..program.launches.len()), "seed {seed}");
                let again = Ordered::as_it_comes(program.clone()).with_launches(&found.launches);
                assert_eq!(found.peak_bytes, naive_peak_bytes(&again.program), "seed {seed}, {percent} %");
                fewer += u64::from(found.peak_bytes < plain.peak_bytes);
            }
        }
        assert!(fewer > 100, "{fewer} steps took less memory");
    }

    #[test]
    fn a_deep_chain_takes_half_the_memory_for_few_launches() {
        let layers: Vec<(Role, usize)> = (0..64).map(|layer| (Role::Constant, layer)).collect();
        let program = training_program(1 << 20, &layers);
        let (live, costs) = (liveness(&program, false), estimate(&program, &limits()));
        let plain = rematerialize(&program, &live, &costs, u64::MAX);
        // Constants take half of what is live.
        let constant_bytes = 64 << 20;
        let limit_bytes = constant_bytes + (plain.peak_bytes - constant_bytes) / 2;
        let found = rematerialize(&program, &live, &costs, limit_bytes);
        assert!(found.peak_bytes <= limit_bytes, "{} of {}", found.peak_bytes, plain.peak_bytes);
        let again = found.launches.iter().filter(|launch| launch.1).count();
        assert!(again <= 80, "{again} launches of {} run again", program.launches.len());
    }
}
