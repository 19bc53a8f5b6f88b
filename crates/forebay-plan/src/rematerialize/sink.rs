//! Sinking: moves launches that take more bytes than they free after others that do not need them.
//!
//! Recomputation comes right before the launch that needs it, so whatever else that launch reads is in memory all the while. For example,
//! the gradient that comes into a layer waits while a chain recomputes what the layer read. If the launch that computes the gradient runs
//! after the chain, only what that launch reads has to wait, which is often less.

use super::step::Step;

/// Stands for no launch.
const NONE: usize = usize::MAX;

/// Moves launches of sequences to later positions. The memory that this takes is kept from one sequence to the next.
#[derive(Default)]
pub(super) struct Sinking {
    followers: Followers,
    /// By position: the number of the launch that is there now.
    order: Vec<usize>,
    /// By number: where the launch is now.
    positions: Vec<usize>,
    /// By position, a bit each: whether the launch there has to follow those that move; all zero between moves.
    following: Vec<u64>,
    /// By content: whether it is read after the current position before it is written.
    needed: Vec<bool>,
    /// The positions and the numbers of the launches that move.
    moving: (Vec<usize>, Vec<usize>),
    before: Vec<(usize, bool)>,
}

impl Sinking {
    /// Moves launches of a sequence to later positions. From the end backwards, each launch that takes more bytes than it frees moves to
    /// right before the first launch that has to come after it, along with those that have to follow it and free less than it takes, such
    /// as updates of what it reads.
    pub(super) fn sink(&mut self, step: &Step, sequence: &mut [(usize, bool)]) {
        let count = sequence.len();
        self.followers.find(step, sequence);
        for numbers in [&mut self.order, &mut self.positions] {
            numbers.clear();
            numbers.extend(0..count);
        }
        self.needed.clear();
        self.following.clear();
        self.needed.resize(step.contents.len(), false);
        self.following.resize(count.div_ceil(64), 0);
        let first_update = sequence.iter().position(|&(launch, repeats)| !repeats && launch >= step.update_start);
        for place in (0..count).rev() {
            let item = &step.items[sequence[place].0];
            if !item.gives_output {
                let needed = &self.needed;
                let taken_bytes = item.born_bytes(step) - step.live_bytes(&item.reads, |content| !needed[content]);
                if taken_bytes > 0 {
                    // The first update stays the first update.
                    let end = first_update.filter(|&update| place < update).unwrap_or(count);
                    self.move_behind((step, sequence), place, end, taken_bytes);
                }
            }
            item.writes.iter().for_each(|&content| self.needed[content] = false);
            item.reads.iter().for_each(|&content| self.needed[content] = true);
        }
        self.before.clear();
        self.before.extend_from_slice(sequence);
        for (place, &number) in sequence.iter_mut().zip(&self.order) {
            *place = self.before[number];
        }
    }

    /// Notes where the followers of a launch are. Returns the last position that was noted, or `last` if that is later.
    fn note_followers(&mut self, number: usize, last: usize) -> usize {
        let Sinking { followers, positions, following, .. } = self;
        followers.of(number).iter().fold(last, |last, &follower| {
            let position = positions[follower];
            following[position / 64] |= 1 << (position % 64);
            last.max(position)
        })
    }

    /// Returns the first position from `from` on that was noted.
    fn next_following(&self, from: usize) -> Option<usize> {
        let (first, skipped) = (from / 64, from % 64);
        let words = self.following.get(first..)?;
        let word = |(index, &word): (usize, &u64)| {
            let word = if index == 0 { word >> skipped << skipped } else { word };
            (word != 0).then(|| (first + index) * 64 + word.trailing_zeros() as usize)
        };
        words.iter().enumerate().find_map(word)
    }

    /// Moves the launch at a position as far back as possible, but not to `end` or beyond. `sequence` is as it was before all moves.
    fn move_behind(
        &mut self,
        (step, sequence): (&Step, &[(usize, bool)]),
        place: usize,
        end: usize,
        mut taken_bytes: i64,
    ) {
        let (mut with, mut numbers) = std::mem::take(&mut self.moving);
        let mut target = end;
        with.push(place);
        let mut last = self.note_followers(self.order[place], place);
        let mut from = place + 1;
        while let Some(position) = self.next_following(from).filter(|&position| position < end) {
            let number = self.order[position];
            let item = &step.items[sequence[number].0];
            taken_bytes += item.born_bytes(step) - item.read_bytes(step);
            if taken_bytes <= 0 {
                target = position;
                break;
            }
            with.push(position);
            last = self.note_followers(number, last);
            from = position + 1;
        }
        self.following[place / 64..=last / 64].fill(0);
        if with.len() < target - place {
            numbers.extend(with.iter().map(|&position| self.order[position]));
            let mut free = place;
            for (index, &position) in with.iter().enumerate() {
                let others = position + 1..with.get(index + 1).copied().unwrap_or(target);
                free += others.len();
                self.order.copy_within(others.clone(), free - others.len());
            }
            self.order[free..target].copy_from_slice(&numbers);
            (place..target).for_each(|position| self.positions[self.order[position]] = position);
        }
        with.clear();
        numbers.clear();
        self.moving = (with, numbers);
    }
}

/// The launches that have to follow each launch of a sequence, in any order that keeps dependences: those that read what it writes, and the
/// next one that writes what it touches. Launches that have to follow these are left out. A launch's number is its position in the sequence.
#[derive(Default)]
struct Followers {
    /// The followers of all launches, the last launch's first.
    numbers: Vec<usize>,
    /// By launch, the last one first: the end of its followers.
    ends: Vec<usize>,
    /// By content: the next launch that writes it, and the last of a list of those that read it before that.
    next: Vec<(usize, usize)>,
    /// Launches that read a content, each with the index of another one in its list.
    reads: Vec<(usize, usize)>,
}

impl Followers {
    /// Finds the followers of the launches of a sequence.
    fn find(&mut self, step: &Step, sequence: &[(usize, bool)]) {
        let Followers { numbers, ends, next, reads } = self;
        numbers.clear();
        ends.clear();
        next.clear();
        reads.clear();
        next.resize(step.contents.len(), (NONE, NONE));
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
    }

    fn of(&self, number: usize) -> &[usize] {
        let index = self.ends.len() - 1 - number;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.numbers[start..self.ends[index]]
    }
}

#[cfg(test)]
mod tests {
    use super::super::step::Lifetime;
    use super::*;
    use crate::cost::estimate;
    use crate::liveness::liveness;
    use crate::testing::{ProgramBuilder, Random, limits, random_training_program};
    use forebay_base::Kernel;
    use forebay_base::kernel::UnaryOp;

    fn sink(step: &Step, sequence: &mut [(usize, bool)]) {
        Sinking::default().sink(step, sequence);
    }

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

    /// The same as [`Sinking::sink`], but looks at every launch in between.
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
