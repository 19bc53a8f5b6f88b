//! Bound: a time that no other residency of a plan's launches can beat with the same barriers and budget.
//!
//! Launches between two barriers can run in any order, so they form one position of the proof in [`forebay_offload::bound`], or several if
//! launches need the results of others: a launch that needs everything before it begins a position, as it would after a barrier. A position
//! takes at least as long as the longest chain of its launches that need each other, and at least as long as its launches keep all of the
//! machine's workers busy. While the largest launch runs, everything that is idle during the whole position and does not fit next to it
//! must be elsewhere. If a wait replaces a barrier, launches after it can start before others end, so only barriers are lines between
//! positions. The bound of a plan of parts is that of its parts: they are the launches that run, and their order is the one that is kept.
//!
//! *Workers.* The simulator gives launches the workers that copies leave ([`workers_for_launches`]). A launch that can use `l` of `n`
//! workers runs at `f / l` of its speed while copies leave it `f < l`, so it loses `r = 1 - f / l`, and more if other launches run next to
//! it. A position that keeps all workers busy has `l = n`; one that takes as long as a chain has the `l` of each launch of the chain in
//! turn.
//!
//! *Both directions.* For the proof's sum over both directions ([`Problem::both`]), the time that a copy takes alone is multiplied by a
//! share, such that the sum is the least time for which the copies move; [`Prices::both`] is the price of a nanosecond of that sum. On a
//! duplex link, copies in both directions can move at once, each at a fraction `s` of its speed, which is less than 1 if together they want
//! more workers than there are. In each nanosecond, they then do what takes `2 * s` nanoseconds alone, so the share is `1 / (2 * s)`. A
//! nanosecond of the sum is thus either a nanosecond of both at once, or `2 * s` nanoseconds of one direction alone. Its price is the lower
//! of what launches lose in these two cases; in the second, that is what they lose to the cheaper direction. On a shared link, a copy
//! counts in full. There, copies in both directions at once move at half their speed and take half their workers, so launches lose no less
//! to them than to the cheaper direction alone, and the price is that of the cheaper direction.
//!
//! *Copies without a price.* Copies during which no launch runs cost the time that they take, as any wait does. Copies to and from a disk
//! take no workers, so if there is a disk, copies have no price.
//!
//! *Rounding.* The simulator gives copies whole nanoseconds, so each can be one nanosecond faster than its bytes allow; if a direction has
//! no latency that makes up for it, a nanosecond is subtracted for each copy of the plan.
//!
//! Everything else is assumed to be favorable: steps follow each other without a join, copies can continue from one step into the next,
//! and launches can run again next to others wherever workers are free. Only launches that change what lasts from step to step run once,
//! because to run again they would need what they have changed.

use std::collections::BTreeMap;

use forebay_base::{ByteRange, Command};

use crate::backing_stores::HOST;
use crate::cost::{Costs, workers_for_launches};
use crate::emit::COMPUTE;
use crate::liveness::{Chunk, Liveness, Owner};
use crate::order::Ordered;
use crate::plan::{BackingLocation, Plan};
use crate::residency::{Kind, kinds};
use crate::ways::LinkDirection;
use forebay_offload::bound::{Block, Origin, Passage, Passages, Position, Prices, Problem, Touch, Workers, Written};

/// How much too early a command can end in the simulator, in nanoseconds.
const EARLY_NS: f64 = 1e-3;

/// Returns a step time, in nanoseconds, that no execution of the launches of `plan` can beat in the plan's order, with its barriers, within
/// `capacity_bytes` of the device and within the host budget. `ordered` is what the plan runs, in that order and without what it runs
/// again, `live` is its liveness with buffers in one piece, and `costs` its costs.
pub fn lower_bound_ns(plan: &Plan, ordered: &Ordered, live: &Liveness, costs: &Costs, capacity_bytes: u64) -> u64 {
    bound_of(plan, problem(plan, ordered, live, costs, capacity_bytes), costs)
}

/// The bound of a plan's step, computed from the bound of the problem that the proof sees.
fn bound_of(plan: &Plan, problem: Problem, costs: &Costs) -> u64 {
    let early_ns = (plan.commands.len() as f64 * EARLY_NS).ceil() as u64;
    problem.lower_bound_ns().saturating_sub(early_ns) + costs.step_ns
}

/// A plan's launches as the proof sees them.
fn problem(plan: &Plan, ordered: &Ordered, live: &Liveness, costs: &Costs, capacity_bytes: u64) -> Problem {
    let by_label = positions(plan);
    let between_barriers: Vec<usize> = ordered.sources.iter().map(|source| by_label[&(*source as u32)]).collect();
    let needs = needs(live);
    let places = divided(&between_barriers, &needs);
    let spills = plan.statistics.spill_bytes + plan.statistics.model_files_bytes > 0;
    let machine = CopyPrices::new(costs, spills);
    let spans = spans(&needs, &places, costs);
    let program = &ordered.program;
    let workers_ns =
        costs.launch_ns.iter().zip(&costs.launch_workers).map(|(&ns, workers)| ns as f64 * workers / costs.workers);
    let kinds = kinds(program, live);
    let mut updates = vec![false; live.launch_count];
    for (chunk, _) in live.chunks.iter().zip(&kinds).filter(|(_, kind)| kind.persistent) {
        chunk.accesses.iter().for_each(|access| updates[access.launch] |= access.reads && access.writes);
    }
    let mut outputs: BTreeMap<Owner, Vec<ByteRange>> = BTreeMap::new();
    for operand in program.outputs.iter().map(|named| &named.operand) {
        outputs.entry(Owner::Buffer(operand.buffer)).or_default().push(operand.range());
    }
    let sum = |is_counted: &dyn Fn(&Chunk, Kind) -> bool| -> u64 {
        let counted = live.chunks.iter().zip(&kinds).filter(|(chunk, kind)| is_counted(chunk, **kind));
        counted.map(|(chunk, _)| chunk.range.len()).sum()
    };
    // What the caller lends, or writes and reads in place on the device, crosses no link.
    let on_host = |found: &[BackingLocation]| -> u64 {
        let regions = found.iter().flat_map(|backing| &backing.pieces).map(|(_, region)| region);
        regions.filter(|region| region.memory == HOST).map(|region| region.range.len()).sum()
    };
    Problem {
        blocks: live.chunks.iter().zip(&kinds).map(|(chunk, &kind)| block(kind, chunk, &places, &spans)).collect(),
        positions: machine.positions(live, &needs, &places, &spans),
        again_ns: workers_ns.zip(&updates).map(|(ns, is_update)| (!is_update).then_some(ns)).collect(),
        device_memory_bytes: capacity_bytes,
        host_memory_bytes: plan.statistics.host_budget_bytes.filter(|_| spills).unwrap_or(u64::MAX),
        all: machine.all,
        disk: machine.disk,
        both: machine.both,
        shares: machine.shares,
        given_bytes: sum(&is_given).min(on_host(&plan.inputs)),
        taken_bytes: sum(&|chunk, kind| is_taken(&outputs, chunk, kind)).min(on_host(&plan.outputs)),
        workers: machine.workers(),
        rounding_ns: machine.rounding_ns(plan),
    }
}

/// For each label, the number of barriers before its first launch; those between the same two launches count once.
fn positions(plan: &Plan) -> BTreeMap<u32, usize> {
    let (mut positions, mut position, mut barrier) = (BTreeMap::new(), 0, false);
    for command in &plan.commands {
        match command {
            Command::Barrier { stream } if *stream == COMPUTE => barrier = true,
            Command::Launch { launch, .. } => {
                position += usize::from(barrier && !positions.is_empty());
                barrier = false;
                positions.entry(launch.label).or_insert(position);
            }
            _ => {}
        }
    }
    positions
}

/// When a launch runs in its position, in which launches run side by side unless they need each other's results.
#[derive(Clone, Copy, Debug)]
struct Span {
    /// The least time from the position's start to the launch's end.
    done_ns: f64,
    /// The least time from the launch's start to the position's end, if the position ends as early as it can.
    due_ns: f64,
}

/// For each launch, the launches whose results it needs, in ascending order: the last ones to write what it reads.
fn needs(live: &Liveness) -> Vec<Vec<usize>> {
    let mut needs: Vec<Vec<usize>> = vec![Vec::new(); live.launch_count];
    for chunk in &live.chunks {
        let mut writer: Option<usize> = None;
        for access in &chunk.accesses {
            needs[access.launch].extend(writer.filter(|_| access.reads));
            writer = if access.writes { Some(access.launch) } else { writer };
        }
    }
    for needs in &mut needs {
        needs.sort_unstable();
        needs.dedup();
    }
    needs
}

/// Divides positions where dependences alone draw a line: where everything after it needs, directly or through other launches, everything
/// before it.
fn divided(places: &[usize], needs: &[Vec<usize>]) -> Vec<usize> {
    let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    places.iter().enumerate().for_each(|(launch, &place)| members.entry(place).or_default().push(launch));
    let mut divided = vec![0; places.len()];
    let mut position = 0;
    for launches in members.values() {
        // The launches that none before the line needs; `is_first` tells which need none after it.
        let mut last: Vec<usize> = Vec::new();
        for (index, &launch) in launches.iter().enumerate() {
            let needs_all = |launch: usize| last.iter().all(|before| needs[launch].binary_search(before).is_ok());
            let behind = &launches[index..];
            let is_first = |launch: usize| needs[launch].iter().all(|before| behind.binary_search(before).is_err());
            if needs_all(launch) && behind.iter().all(|&launch| !is_first(launch) || needs_all(launch)) {
                position += usize::from(launch != launches[0]);
            }
            divided[launch] = position;
            last.retain(|before| needs[launch].binary_search(before).is_err());
            last.push(launch);
        }
        position += 1;
    }
    divided
}

/// For each launch, its span in its position.
fn spans(needs: &[Vec<usize>], places: &[usize], costs: &Costs) -> Vec<Span> {
    let mut spans: Vec<Span> =
        costs.launch_ns.iter().map(|&ns| Span { done_ns: ns as f64, due_ns: ns as f64 }).collect();
    let together = |a: usize, b: usize| places[a] == places[b];
    for launch in 0..places.len() {
        let before = needs[launch].iter().filter(|&&before| together(before, launch));
        let before_ns = before.map(|&before| spans[before].done_ns).fold(0.0, f64::max);
        spans[launch].done_ns += before_ns;
    }
    for launch in (0..places.len()).rev() {
        for &before in needs[launch].iter().filter(|&&before| together(before, launch)) {
            let own_ns = costs.launch_ns[before] as f64;
            spans[before].due_ns = spans[before].due_ns.max(own_ns + spans[launch].due_ns);
        }
    }
    spans
}

/// The longest chain of launches in a position, in time, in which each launch needs the one before it. The last launch comes first.
fn chain(launches: &[usize], needs: &[Vec<usize>], spans: &[Span]) -> Vec<usize> {
    let latest = |launches: &mut dyn Iterator<Item = usize>| {
        launches.reduce(|a, b| if spans[b].done_ns > spans[a].done_ns { b } else { a })
    };
    let mut next = latest(&mut launches.iter().copied());
    let mut chain = Vec::new();
    while let Some(launch) = next {
        chain.push(launch);
        next = latest(&mut needs[launch].iter().copied().filter(|before| launches.binary_search(before).is_ok()));
    }
    chain
}

/// A chunk as the proof sees it. All accesses by launches of one position count as one touch.
fn block(kind: Kind, chunk: &Chunk, places: &[usize], spans: &[Span]) -> Block {
    let mut touches: Vec<Touch> = Vec::new();
    for access in &chunk.accesses {
        let (position, Span { done_ns, due_ns }) = (places[access.launch], spans[access.launch]);
        let written = access.writes.then_some(Written { kernel: access.launch, done_ns });
        match touches.last_mut() {
            Some(last) if last.position == position => last.written = written.or(last.written),
            _ => touches.push(Touch { position, reads: access.reads, written, due_ns }),
        }
    }
    let origin = match (kind.persistent, kind.input) {
        (true, _) => Origin::Lasting,
        (_, true) => Origin::Given,
        _ => Origin::Made,
    };
    Block { size_bytes: chunk.range.len(), origin, touches }
}

/// Whether a chunk comes from the host in every step, because the host writes it before each step and a launch needs it.
fn is_given(chunk: &Chunk, kind: Kind) -> bool {
    kind.input && !kind.persistent && chunk.accesses.first().is_some_and(|access| access.reads)
}

/// Whether a chunk goes to the host in every step, because the host reads it after each step, and did not have to leave the device earlier.
fn is_taken(outputs: &BTreeMap<Owner, Vec<ByteRange>>, chunk: &Chunk, kind: Kind) -> bool {
    let is_read = |range: &ByteRange| range.intersection(chunk.range) == Some(chunk.range);
    let is_output = outputs.get(&chunk.owner).is_some_and(|ranges| ranges.iter().any(is_read));
    is_output && !kind.persistent && chunk.accesses.last().is_some_and(|access| access.writes)
}

/// The costs of copies as the proof sees them.
struct CopyPrices<'a> {
    costs: &'a Costs,
    all: Passages,
    disk: Passages,
    both: Passages,
    shares: bool,
    /// Whether workers may have to do all copies.
    by_workers: bool,
}

impl CopyPrices<'_> {
    fn new(costs: &Costs, spills: bool) -> CopyPrices<'_> {
        let (link, disk) = (&costs.link, &costs.disk);
        // Rounding can take a nanosecond off each copy; of a window's copies, the first pays for itself.
        let passage = |rate: f64, latency_ns: u64| Passage {
            ns_per_byte: 1.0 / rate,
            latency_ns: latency_ns.saturating_sub(1) as f64,
        };
        let to_disk = |way: LinkDirection| passage(way.bytes_per_ns(), way.latency_ns);
        let beside = |way: LinkDirection, disk: LinkDirection| match (spills, link.carries_disk) {
            (false, _) => passage(way.bytes_per_ns(), way.latency_ns),
            (true, true) => passage(way.bytes_per_ns(), way.latency_ns.min(disk.latency_ns)),
            (true, false) => passage(way.bytes_per_ns() + disk.bytes_per_ns(), way.latency_ns.min(disk.latency_ns)),
        };
        // On a link that both directions share, the times of all bytes add up, except for those that the disk takes meanwhile.
        let aside = |way: LinkDirection, disk: LinkDirection| match spills && !link.carries_disk {
            true => disk.bytes_per_ns() / way.bytes_per_ns(),
            false => 0.0,
        };
        let elsewhere = aside(link.from_device, disk.write) + aside(link.to_device, disk.read);
        let by_workers = costs.copy_worker_ns_per_byte > 0.0 && !spills;
        // The share of a copy's time in the sum over both directions; see the module's documentation.
        let share = match link.duplex {
            true if by_workers => 0.5 / speed_of_both(costs),
            true => 0.5,
            false => 1.0 / (1.0 + elsewhere),
        };
        let shared = |way: LinkDirection, disk: LinkDirection| {
            let latency_ns = if spills { way.latency_ns.min(disk.latency_ns) } else { way.latency_ns };
            let Passage { ns_per_byte, latency_ns } = passage(way.bytes_per_ns(), latency_ns);
            Passage { ns_per_byte: ns_per_byte * share, latency_ns: latency_ns * share }
        };
        CopyPrices {
            costs,
            all: Passages { out: beside(link.from_device, disk.write), back: beside(link.to_device, disk.read) },
            disk: match spills {
                true => Passages { out: to_disk(disk.write), back: to_disk(disk.read) },
                false => Passages { out: to_disk(link.from_device), back: to_disk(link.to_device) },
            },
            both: Passages { out: shared(link.from_device, disk.write), back: shared(link.to_device, disk.read) },
            shares: by_workers || !link.duplex,
            by_workers,
        }
    }

    /// Returns the positions, each with the launches between two lines.
    fn positions(&self, live: &Liveness, needs: &[Vec<usize>], places: &[usize], spans: &[Span]) -> Vec<Position> {
        let mut sets_bytes = vec![0; live.launch_count];
        for chunk in &live.chunks {
            chunk.accesses.iter().for_each(|access| sets_bytes[access.launch] += chunk.range.len());
        }
        let count = places.iter().max().map_or(0, |last| last + 1);
        let mut members = vec![Vec::new(); count];
        places.iter().enumerate().for_each(|(launch, &position)| members[position].push(launch));
        members.iter().map(|launches| self.position(launches, &sets_bytes, needs, spans)).collect()
    }

    fn position(&self, launches: &[usize], sets_bytes: &[u64], needs: &[Vec<usize>], spans: &[Span]) -> Position {
        let Costs { launch_ns, launch_workers, workers, .. } = self.costs;
        let workers_ns = |&launch: &usize| launch_ns[launch] as f64 * launch_workers[launch];
        let busy_ns = launches.iter().map(workers_ns).sum::<f64>() / workers;
        let chain = chain(launches, needs, spans);
        let chain_ns: f64 = chain.iter().map(|&launch| launch_ns[launch] as f64).sum();
        let cover = |&launch: &usize| (launch_ns[launch] as f64, self.prices(launch_workers[launch]));
        let covers =
            if busy_ns < chain_ns { chain.iter().map(cover).collect() } else { vec![(busy_ns, self.prices(*workers))] };
        let peak = launches.iter().copied().max_by_key(|&launch| (sets_bytes[launch], std::cmp::Reverse(launch)));
        let duration_ns = chain_ns.max(busy_ns);
        Position {
            duration_ns,
            covers,
            several: launches.len() > 1,
            set_bytes: peak.map_or(0, |launch| sets_bytes[launch]),
            done_ns: peak.map_or(0.0, |launch| spans[launch].done_ns),
            due_ns: peak.map_or(0.0, |launch| spans[launch].due_ns),
            idle_ns: duration_ns - busy_ns,
        }
    }

    /// How much longer launches that can use this many workers take while copies run.
    fn prices(&self, used: f64) -> Prices {
        if !self.by_workers {
            return Prices::default();
        }
        let Costs { workers, link, .. } = self.costs;
        let price = |copying: f64| (1.0 - workers_for_launches(*workers, copying) / used).max(0.0);
        let (out, back) = (self.costs.copy_workers(link.from_device), self.costs.copy_workers(link.to_device));
        let both = if link.duplex {
            // A nanosecond of the sum over both directions is one of both at once, or `2 * s` nanoseconds of one direction alone.
            let alone = 2.0 * speed_of_both(self.costs) * price(out).min(price(back));
            price(out + back).min(alone)
        } else {
            price(out.min(back))
        };
        Prices { out: price(out), back: price(back), both }
    }

    /// The fraction of all workers that copies take, if workers do the copying.
    fn workers(&self) -> Option<Workers> {
        let part = |way: LinkDirection| self.costs.copy_workers(way) / self.costs.workers;
        let link = &self.costs.link;
        self.by_workers.then(|| Workers { out: part(link.from_device), back: part(link.to_device) })
    }

    /// How much rounding to whole nanoseconds can take off the copies of a plan. If a copy has a latency, that makes up for it.
    fn rounding_ns(&self, plan: &Plan) -> f64 {
        let Costs { link, disk, .. } = self.costs;
        let ways = [link.to_device, link.from_device, disk.read, disk.write];
        let is_copy = |command: &&Command| matches!(command, Command::Copy { .. });
        match ways.iter().any(|way| way.latency_ns == 0) {
            true => plan.commands.iter().filter(is_copy).count() as f64,
            false => 0.0,
        }
    }
}

/// The fraction of their speed at which copies in both directions at once move over a duplex link.
fn speed_of_both(costs: &Costs) -> f64 {
    costs.copy_speed(costs.copy_workers(costs.link.from_device) + costs.copy_workers(costs.link.to_device))
}

#[cfg(test)]
mod tests;
