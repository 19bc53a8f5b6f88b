//! Sinking: moves launches that take more bytes than they free after others that do not need them.
//!
//! Recomputation comes right before the launch that needs it, so whatever else that launch reads is in memory all the while. For example,
//! the gradient that comes into a layer waits while a chain recomputes what the layer read. If the launch that computes the gradient runs
//! after the chain, only what that launch reads has to wait, which is often less.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::step::{Item, Lifetime, Step};

/// Moves launches of a sequence to later positions. From the end backwards, each launch that takes more bytes than it frees moves to right
/// before the first launch that has to come after it, along with those that have to follow it and free less than it takes, such as updates
/// of what it reads.
pub(super) fn sink(step: &Step, sequence: &mut [(usize, bool)]) {
    let mut moving = Moving {
        step,
        sequence,
        followers: Followers::new(step, sequence),
        order: (0..sequence.len()).collect(),
        positions: (0..sequence.len()).collect(),
        following: BinaryHeap::new(),
    };
    // By content: whether it is read after the current position before it is written.
    let mut needed = vec![false; step.contents.len()];
    let first_update = sequence.iter().position(|&(launch, repeats)| !repeats && launch >= step.update_start);
    for place in (0..sequence.len()).rev() {
        let item = moving.item(place);
        let gives_output = item.writes.iter().any(|&content| step.contents[content].is_output);
        let taken_bytes = moving.born_bytes(item) - moving.live_bytes(&item.reads, |content| !needed[content]);
        if !gives_output && taken_bytes > 0 {
            // The first update stays the first update.
            let end = first_update.filter(|&update| place < update).unwrap_or(sequence.len());
            moving.move_behind(place, end, taken_bytes);
        }
        item.writes.iter().for_each(|&content| needed[content] = false);
        item.reads.iter().for_each(|&content| needed[content] = true);
    }
    let moved: Vec<(usize, bool)> = moving.order.iter().map(|&number| sequence[number]).collect();
    sequence.copy_from_slice(&moved);
}

/// The launches that have to follow each launch of a sequence, in any order that keeps dependences: those that read what it writes, and the
/// next one that writes what it touches. Launches that have to follow these are left out. A launch's number is its position in the sequence.
struct Followers {
    /// The followers of all launches, the last launch's first.
    numbers: Vec<usize>,
    /// By launch, the last one first: the end of its followers.
    ends: Vec<usize>,
}

impl Followers {
    fn new(step: &Step, sequence: &[(usize, bool)]) -> Followers {
        const NONE: usize = usize::MAX;
        // By content: the next launch that writes it, and the last of a list of those that read it before that.
        let mut next = vec![(NONE, NONE); step.contents.len()];
        // Launches that read a content, each with the index of another one in its list.
        let mut reads: Vec<(usize, usize)> = Vec::new();
        let (mut numbers, mut ends) = (Vec::new(), Vec::with_capacity(sequence.len()));
        for (number, &(launch, _)) in sequence.iter().enumerate().rev() {
            let item = &step.items[launch];
            numbers.extend(item.touched.iter().map(|&content| next[content].0).filter(|&writer| writer != NONE));
            for &content in &item.writes {
                let mut read = std::mem::replace(&mut next[content], (number, NONE)).1;
                while read != NONE {
                    numbers.push(reads[read].0);
                    read = reads[read].1;
                }
            }
            for &content in &item.reads {
                reads.push((number, next[content].1));
                next[content].1 = reads.len() - 1;
            }
            ends.push(numbers.len());
        }
        Followers { numbers, ends }
    }

    fn of(&self, number: usize) -> &[usize] {
        let index = self.ends.len() - 1 - number;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.numbers[start..self.ends[index]]
    }
}

/// A sequence while its launches move.
struct Moving<'a> {
    step: &'a Step<'a>,
    sequence: &'a [(usize, bool)],
    followers: Followers,
    /// By position: the number of the launch that is there now.
    order: Vec<usize>,
    /// By number: where the launch is now.
    positions: Vec<usize>,
    /// The positions of launches that have to follow those that move, some of them twice; empty between moves.
    following: BinaryHeap<Reverse<usize>>,
}

impl<'a> Moving<'a> {
    fn item(&self, number: usize) -> &'a Item {
        &self.step.items[self.sequence[number].0]
    }

    /// Returns the bytes of those contents that do not last.
    fn live_bytes(&self, contents: &[usize], counts: impl Fn(usize) -> bool) -> i64 {
        let lives = |content: &&usize| match self.step.contents[**content].lifetime {
            Lifetime::Temporary => true,
            Lifetime::Fed => self.step.one_pool,
            Lifetime::Lasting | Lifetime::InFile => false,
        };
        let counted = contents.iter().filter(|&&content| counts(content)).filter(lives);
        counted.map(|&content| self.step.contents[content].bytes).sum()
    }

    /// Returns the bytes that a launch takes.
    fn born_bytes(&self, item: &Item) -> i64 {
        self.live_bytes(item.only_written(), |_| true)
    }

    fn add_followers(&mut self, number: usize) {
        let Moving { followers, positions, following, .. } = self;
        following.extend(followers.of(number).iter().map(|&follower| Reverse(positions[follower])));
    }

    /// Moves the launch at a position as far back as possible, but not to `end` or beyond.
    fn move_behind(&mut self, place: usize, end: usize, mut taken_bytes: i64) {
        let (mut with, mut target) = (vec![place], end);
        self.add_followers(self.order[place]);
        while let Some(Reverse(position)) = self.following.pop().filter(|Reverse(position)| *position < end) {
            if with.last() == Some(&position) {
                continue;
            }
            let number = self.order[position];
            let item = self.item(number);
            taken_bytes += self.born_bytes(item) - self.live_bytes(&item.reads, |_| true);
            if taken_bytes <= 0 {
                target = position;
                break;
            }
            with.push(position);
            self.add_followers(number);
        }
        self.following.clear();
        if with.len() == target - place {
            return;
        }
        let numbers: Vec<usize> = with.iter().map(|&position| self.order[position]).collect();
        let mut free = place;
        for (index, &position) in with.iter().enumerate() {
            let others = position + 1..with.get(index + 1).copied().unwrap_or(target);
            free += others.len();
            self.order.copy_within(others.clone(), free - others.len());
        }
        self.order[free..target].copy_from_slice(&numbers);
        (place..target).for_each(|position| self.positions[self.order[position]] = position);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::estimate;
    use crate::liveness::liveness;
    use crate::testing::{ProgramBuilder, Random, limits, random_training_program};
    use forebay_base::Kernel;
    use forebay_base::kernel::UnaryOp;

    #[test]
    fn what_takes_bytes_runs_later_and_what_it_reads_may_change_only_afterwards() {
        let mut build = ProgramBuilder::default();
        let x = build.input("x", 64);
        let [small, other] = ["small", "other"].map(|name| build.temporary(name, 64));
        let [large, chain, end] = ["large", "chain", "end"].map(|name| build.temporary(name, 1 << 20));
        build.launch(Kernel::Unary(UnaryOp::Exp), &[x], &[small]);
        build.launch(Kernel::Unary(UnaryOp::Exp), &[small], &[large]);
        // Has to follow, because it changes what the previous launch reads.
        build.launch(Kernel::Unary(UnaryOp::Exp), &[x], &[small]);
        build.launch(Kernel::Unary(UnaryOp::Exp), &[x], &[chain]);
        build.launch(Kernel::Unary(UnaryOp::Exp), &[chain], &[other]);
        build.launch(Kernel::UnaryGradient(UnaryOp::Exp), &[large, large], &[end]);
        let program = build.finish(&[end, small]);
        let (live, costs) = (liveness(&program, false), estimate(&program, &limits()));
        let step = Step { one_pool: true, ..Step::new(&program, &live, &costs, false) };
        let mut sequence = step.plain();
        sink(&step, &mut sequence);
        let order: Vec<usize> = sequence.iter().map(|launch| launch.0).collect();
        assert_eq!(order, [0, 3, 4, 1, 2, 5]);
        let peak = |sequence: &[(usize, bool)]| step.profile(sequence).into_iter().max();
        assert!(peak(&sequence) < peak(&step.plain()));
    }

    /// The same as [`sink`], but looks at every launch in between.
    fn naive_sink(step: &Step, sequence: &mut [(usize, bool)]) {
        let count = step.contents.len();
        let lives = |content: usize| match step.contents[content].lifetime {
            Lifetime::Temporary => true,
            Lifetime::Fed => step.one_pool,
            Lifetime::Lasting | Lifetime::InFile => false,
        };
        let sum = |contents: &[usize], needed: &[bool]| -> i64 {
            let counted = contents.iter().filter(|&&content| lives(content) && !needed[content]);
            counted.map(|&content| step.contents[content].bytes).sum()
        };
        let (mut needed, nothing) = (vec![false; count], vec![false; count]);
        let first_update = sequence.iter().position(|&(launch, repeats)| !repeats && launch >= step.update_start);
        for place in (0..sequence.len()).rev() {
            let item = &step.items[sequence[place].0];
            let gives_output = item.writes.iter().any(|&content| step.contents[content].is_output);
            let mut taken = sum(item.only_written(), &nothing) - sum(&item.reads, &needed);
            if !gives_output && taken > 0 {
                let end = first_update.filter(|&update| place < update).unwrap_or(sequence.len());
                let (mut with, mut others) = (vec![sequence[place]], Vec::new());
                for &next in &sequence[place + 1..end] {
                    let next_item = &step.items[next.0];
                    let conflicts = with.iter().any(|&(moved, _)| {
                        let moved = &step.items[moved];
                        next_item.touched.iter().any(|content| moved.writes.contains(content))
                            || next_item.writes.iter().any(|content| moved.reads.contains(content))
                    });
                    if !conflicts {
                        others.push(next);
                        continue;
                    }
                    taken += sum(next_item.only_written(), &nothing) - sum(&next_item.reads, &nothing);
                    if taken <= 0 {
                        break;
                    }
                    with.push(next);
                }
                let moved = [others, with].concat();
                sequence[place..place + moved.len()].copy_from_slice(&moved);
            }
            item.writes.iter().for_each(|&content| needed[content] = false);
            item.reads.iter().for_each(|&content| needed[content] = true);
        }
    }

    #[test]
    fn every_launch_moves_to_before_the_first_one_that_has_to_come_after_it() {
        let mut moved = 0;
        for seed in 1..80 {
            let mut random = Random::new(seed);
            let program = random_training_program(&mut random, 2 + seed as usize % 9);
            let (live, costs) = (liveness(&program, false), estimate(&program, &limits()));
            let step = Step { one_pool: seed % 3 > 0, ..Step::new(&program, &live, &costs, false) };
            // Some launches run again before a later one.
            let mut sequence = step.plain();
            for _ in 0..random.below(6) {
                let place = random.below(sequence.len() as u64) as usize;
                let at = sequence[place].0;
                let again = (0..at).filter(|&launch| step.may_repeat(launch, at)).nth(random.below(4) as usize);
                sequence.splice(place..place, again.map(|launch| (launch, true)));
            }
            let (before, mut expected) = (sequence.clone(), sequence.clone());
            naive_sink(&step, &mut expected);
            sink(&step, &mut sequence);
            assert_eq!(sequence, expected, "seed {seed}");
            moved += usize::from(sequence != before);
        }
        assert!(moved > 20, "{moved} sequences changed");
    }

    #[test]
    fn launches_that_need_each_other_keep_their_order() {
        let mut moved = 0;
        for seed in 1..40 {
            let program = random_training_program(&mut Random::new(seed), 2 + seed as usize % 9);
            let (live, costs) = (liveness(&program, false), estimate(&program, &limits()));
            let step = Step { one_pool: true, ..Step::new(&program, &live, &costs, false) };
            let mut sequence = step.plain();
            sink(&step, &mut sequence);
            moved += usize::from(sequence != step.plain());
            let place = |launch: usize| sequence.iter().position(|&(other, _)| other == launch).unwrap();
            for chunk in &live.chunks {
                for (number, later) in chunk.accesses.iter().enumerate() {
                    let earlier = &chunk.accesses[..number];
                    let ordered = |other: &&crate::liveness::Access| other.writes || later.writes;
                    let mut needed = earlier.iter().filter(ordered);
                    assert!(needed.all(|other| place(other.launch) < place(later.launch)), "seed {seed}");
                }
            }
            let update = sequence.iter().position(|&(launch, _)| launch >= program.update_start);
            assert_eq!(update, Some(program.update_start), "seed {seed}");
        }
        assert!(moved > 0);
    }
}
