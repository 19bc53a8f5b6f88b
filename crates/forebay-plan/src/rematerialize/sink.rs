//! Sinking: moves launches that take more bytes than they free after others that do not need them.
//!
//! Recomputation comes right before the launch that needs it, so whatever else that launch reads is in memory all the while. For example,
//! the gradient that comes into a layer waits while a chain recomputes what the layer read. If the launch that computes the gradient runs
//! after the chain, only what that launch reads has to wait, which is often less.

use super::step::{Item, Lifetime, Step};

/// Moves launches of a sequence to later positions. From the end backwards, each launch that takes more bytes than it frees moves to right
/// before the first launch that has to come after it, along with those that have to follow it and free less than it takes, such as updates
/// of what it reads.
pub(super) fn sink(step: &Step, sequence: &mut [(usize, bool)]) {
    let count = step.contents.len();
    let mut moving = Moving { step, reads: vec![0; count], writes: vec![0; count], mark: 0 };
    // By content: whether it is read after the current position before it is written.
    let mut needed = vec![false; count];
    let first_update = sequence.iter().position(|&(launch, repeats)| !repeats && launch >= step.update_start);
    for place in (0..sequence.len()).rev() {
        let item = &step.items[sequence[place].0];
        let gives_output = item.writes.iter().any(|&content| step.contents[content].is_output);
        let taken_bytes = moving.born_bytes(item) - moving.live_bytes(&item.reads, |content| !needed[content]);
        if !gives_output && taken_bytes > 0 {
            // The first update stays the first update.
            let end = first_update.filter(|&update| place < update).unwrap_or(sequence.len());
            moving.move_behind(&mut sequence[place..end], taken_bytes);
        }
        item.writes.iter().for_each(|&content| needed[content] = false);
        item.reads.iter().for_each(|&content| needed[content] = true);
    }
}

/// The launches that move together.
struct Moving<'a> {
    step: &'a Step<'a>,
    /// By content: the number of the last move with a launch that reads it.
    reads: Vec<usize>,
    writes: Vec<usize>,
    mark: usize,
}

impl Moving<'_> {
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

    fn add(&mut self, item: &Item) {
        item.reads.iter().for_each(|&content| self.reads[content] = self.mark);
        item.writes.iter().for_each(|&content| self.writes[content] = self.mark);
    }

    /// Returns whether a launch has to stay after those that move.
    fn holds(&self, item: &Item) -> bool {
        let writes = |content: &usize| self.writes[*content] == self.mark;
        let reads = |content: &usize| self.reads[*content] == self.mark;
        item.reads.iter().any(writes) || item.writes.iter().any(|content| reads(content) || writes(content))
    }

    /// Moves the first launch as far back as possible.
    fn move_behind(&mut self, launches: &mut [(usize, bool)], mut taken_bytes: i64) {
        self.mark += 1;
        let step = self.step;
        self.add(&step.items[launches[0].0]);
        let (mut with, mut others) = (vec![launches[0]], Vec::new());
        for &launch in &launches[1..] {
            let item = &step.items[launch.0];
            if !self.holds(item) {
                others.push(launch);
                continue;
            }
            taken_bytes += self.born_bytes(item) - self.live_bytes(&item.reads, |_| true);
            if taken_bytes <= 0 {
                break;
            }
            self.add(item);
            with.push(launch);
        }
        if !others.is_empty() {
            let moved = others.len();
            launches[..moved].copy_from_slice(&others);
            launches[moved..moved + with.len()].copy_from_slice(&with);
        }
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
