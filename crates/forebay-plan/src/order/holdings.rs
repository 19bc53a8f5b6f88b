//! Holdings: the launches that have yet to touch each chunk, and the bytes that each launch would take and free, while launches are put
//! into groups.

use forebay_model::program::{Program, Role};

use crate::liveness::{Chunk, Liveness, Owner};

/// No access.
const NONE: u32 = u32::MAX;

/// A chunk's bytes.
#[derive(Clone, Debug)]
struct Holding {
    /// The bytes that are taken by its first launch or freed after its last one.
    bytes: i64,
    /// Whether they are taken at the moment.
    taken: bool,
    /// The number of launches that touch it and have not run.
    waiting: u32,
    /// The access by the last of these.
    last: u32,
}

/// A launch that touches a chunk, among others of the same chunk that have not run, in file order.
#[derive(Clone, Debug)]
struct Link {
    launch: u32,
    before: u32,
    after: u32,
}

/// What is taken, and the launches that have yet to touch it.
#[derive(Clone, Debug)]
pub(super) struct Holdings {
    /// By chunk.
    chunks: Vec<Holding>,
    /// By access; the accesses of one chunk are adjacent.
    links: Vec<Link>,
    /// By launch: the chunks that it touches, each with the index of the access.
    touched: Vec<Vec<(u32, u32)>>,
    /// By launch that has not run: bytes that it would take, and bytes that are no longer needed once it has run.
    balances: Vec<(i64, i64)>,
    /// Bytes taken at the moment.
    pub taken_bytes: i64,
}

impl Holdings {
    /// Creates the state before the first launch. Also returns, by launch, the bytes that are taken while it runs in file order.
    pub fn new(program: &Program, live: &Liveness) -> (Holdings, Vec<i64>) {
        let count = live.launch_count;
        let mut holdings = Holdings {
            chunks: Vec::with_capacity(live.chunks.len()),
            links: Vec::with_capacity(live.chunks.iter().map(|chunk| chunk.accesses.len()).sum()),
            touched: vec![Vec::new(); count],
            balances: vec![(0, 0); count],
            taken_bytes: 0,
        };
        let mut usage = vec![0i64; count + 1];
        for chunk in &live.chunks {
            let kind = kind(program, chunk);
            if let (Some(first), Some(last)) = (chunk.accesses.first(), chunk.accesses.last()) {
                let span = match kind {
                    Kind::Lasting => 0..count,
                    Kind::Given => 0..last.launch + 1,
                    Kind::Made => first.launch..last.launch + 1,
                };
                usage[span.start] += chunk.device_bytes() as i64;
                usage[span.end] -= chunk.device_bytes() as i64;
            }
            holdings.add(chunk, kind);
        }
        let mut sum = 0;
        let running = |change: &i64| {
            sum += change;
            sum
        };
        (holdings, usage[..count].iter().map(running).collect())
    }

    fn add(&mut self, chunk: &Chunk, kind: Kind) {
        let (index, first) = (self.chunks.len() as u32, self.links.len() as u32);
        let waiting = chunk.accesses.len() as u32;
        let taken = kind != Kind::Made && waiting > 0;
        self.taken_bytes += if taken { chunk.device_bytes() as i64 } else { 0 };
        // Persistent chunks are always taken: touching them takes no bytes and frees none.
        let bytes = if kind == Kind::Lasting { 0 } else { chunk.device_bytes() as i64 };
        for (access, number) in chunk.accesses.iter().zip(first..) {
            self.touched[access.launch].push((index, number));
            let before = if number == first { NONE } else { number - 1 };
            let after = if number + 1 == first + waiting { NONE } else { number + 1 };
            self.links.push(Link { launch: access.launch as u32, before, after });
            let (takes, frees) = &mut self.balances[access.launch];
            *takes += if taken { 0 } else { bytes };
            *frees += if waiting == 1 { bytes } else { 0 };
        }
        let last = if waiting == 0 { NONE } else { first + waiting - 1 };
        self.chunks.push(Holding { bytes, taken, waiting, last });
    }

    /// Returns the bytes that a launch takes, and the bytes that are no longer needed once it has run.
    pub fn balance(&self, launch: usize) -> (i64, i64) {
        self.balances[launch]
    }

    /// Determines what changes in file order if a launch runs now: calls `change` with ranges of launches and the additional bytes that are
    /// taken during them.
    pub fn shift(&self, launch: usize, mut change: impl FnMut(usize, usize, i64)) {
        let mut open = (0, 0, 0);
        for &(chunk, access) in &self.touched[launch] {
            let Holding { bytes, taken, waiting, last } = self.chunks[chunk as usize];
            let (start, end, more) = if !taken {
                // Bytes that only this launch touches are freed with its group.
                (0, launch, if waiting > 1 { bytes } else { 0 })
            } else if last == access {
                let before = self.links[access as usize].before;
                let start = if before == NONE { 0 } else { self.links[before as usize].launch as usize + 1 };
                (start, launch + 1, -bytes)
            } else {
                continue;
            };
            if (open.0, open.1) == (start, end) {
                open.2 += more;
            } else {
                if open.2 != 0 {
                    change(open.0, open.1, open.2);
                }
                open = (start, end, more);
            }
        }
        if open.2 != 0 {
            change(open.0, open.1, open.2);
        }
    }

    /// Takes what a launch touches, and marks it as run.
    pub fn run(&mut self, launch: usize) {
        for &(chunk, access) in &self.touched[launch] {
            let holding = &mut self.chunks[chunk as usize];
            let Link { before, after, .. } = self.links[access as usize];
            if !holding.taken {
                holding.taken = true;
                self.taken_bytes += holding.bytes;
                let mut waiting = holding.last;
                while let Some(link) = self.links.get(waiting as usize) {
                    self.balances[link.launch as usize].0 -= holding.bytes;
                    waiting = link.before;
                }
            }
            if let Some(link) = self.links.get_mut(before as usize) {
                link.after = after;
            }
            match self.links.get_mut(after as usize) {
                Some(link) => link.before = before,
                None => holding.last = before,
            }
            holding.waiting -= 1;
            if holding.waiting == 1 {
                let last = self.links[holding.last as usize].launch;
                self.balances[last as usize].1 += holding.bytes;
            }
        }
    }

    /// Frees chunks that a group was the last to touch.
    pub fn free(&mut self, group: &[usize]) {
        for &(chunk, _) in group.iter().flat_map(|&launch| &self.touched[launch]) {
            let holding = &mut self.chunks[chunk as usize];
            if holding.waiting == 0 && holding.taken {
                holding.taken = false;
                self.taken_bytes -= holding.bytes;
            }
        }
    }
}

/// The time for which a chunk's bytes are taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// From step to step.
    Lasting,
    /// From the start of the step to the last launch that touches it.
    Given,
    /// From the first launch that touches it to the last.
    Made,
}

pub(super) fn kind(program: &Program, chunk: &Chunk) -> Kind {
    match chunk.owner {
        Owner::Buffer(buffer) if program.buffer(buffer).role.is_persistent() => Kind::Lasting,
        Owner::Buffer(buffer) if program.buffer(buffer).role == Role::Input => Kind::Given,
        _ => Kind::Made,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::liveness::liveness;
    use crate::testing::{Random, random_training_program};

    /// A chunk's bytes, determined by looking at all waiting launches.
    struct Plain {
        bytes: i64,
        waiting: BTreeSet<usize>,
        taken: bool,
    }

    fn plain(program: &Program, live: &Liveness) -> Vec<Plain> {
        let plain = |chunk: &Chunk| {
            let waiting: BTreeSet<usize> = chunk.accesses.iter().map(|access| access.launch).collect();
            let kind = kind(program, chunk);
            let bytes = if kind == Kind::Lasting { 0 } else { chunk.device_bytes() as i64 };
            Plain { bytes, taken: kind != Kind::Made && !waiting.is_empty(), waiting }
        };
        live.chunks.iter().map(plain).collect()
    }

    #[test]
    fn balances_and_shifts_are_those_of_plain_sets() {
        for seed in 1..40 {
            let mut random = Random::new(seed);
            let program = random_training_program(&mut random, 5);
            let live = liveness(&program, random.below(2) == 0);
            let (mut holdings, _) = Holdings::new(&program, &live);
            let mut chunks = plain(&program, &live);
            let mut left: Vec<usize> = (0..live.launch_count).collect();
            while !left.is_empty() {
                for &launch in &left {
                    let touched = || chunks.iter().filter(|chunk| chunk.waiting.contains(&launch));
                    let takes: i64 = touched().filter(|chunk| !chunk.taken).map(|chunk| chunk.bytes).sum();
                    let frees: i64 = touched().filter(|chunk| chunk.waiting.len() == 1).map(|chunk| chunk.bytes).sum();
                    assert_eq!(holdings.balance(launch), (takes, frees), "seed {seed}, launch {launch}");
                    let mut expected = vec![0; live.launch_count];
                    for Plain { bytes, waiting, taken } in touched() {
                        if !taken && waiting.len() > 1 {
                            expected[..launch].iter_mut().for_each(|sum| *sum += bytes);
                        } else if *taken && waiting.last() == Some(&launch) {
                            let before = waiting.range(..launch).next_back().map_or(0, |&last| last + 1);
                            expected[before..=launch].iter_mut().for_each(|sum| *sum -= bytes);
                        }
                    }
                    let mut found = vec![0; live.launch_count];
                    holdings.shift(launch, |start, end, bytes| {
                        found[start..end].iter_mut().for_each(|sum| *sum += bytes);
                    });
                    assert_eq!(found, expected, "seed {seed}, launch {launch}");
                }
                let launch = left.remove(random.below(left.len() as u64) as usize);
                holdings.run(launch);
                holdings.free(&[launch]);
                for chunk in chunks.iter_mut().filter(|chunk| chunk.waiting.contains(&launch)) {
                    chunk.taken = chunk.waiting.len() > 1;
                    chunk.waiting.remove(&launch);
                }
            }
        }
    }
}
