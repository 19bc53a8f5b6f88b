//! Dependences: which launches must come after which others, judging by what they read and write, and the chains that they form.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use forebay_model::program::Program;

use crate::liveness::{Access, Liveness, liveness};

/// Which launches must come before which others. Edges lead from lower to higher positions in the program's own order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependences {
    /// For each launch, the launches that it needs, in ascending order and without duplicates.
    pub predecessors: Vec<Vec<usize>>,
    /// For each launch, the launches that need it, in ascending order and without duplicates.
    pub successors: Vec<Vec<usize>>,
}

impl Dependences {
    /// Everything that an order must respect: a read stays after the write whose result it reads, and a write stays after the accesses to
    /// what it overwrites.
    pub fn all(live: &Liveness) -> Dependences {
        Dependences::of(live, true)
    }

    /// Only true dependences: a launch comes after those whose results it reads.
    pub fn of_reads(live: &Liveness) -> Dependences {
        Dependences::of(live, false)
    }

    fn of(live: &Liveness, with_overwrites: bool) -> Dependences {
        let mut predecessors: Vec<Vec<usize>> = vec![Vec::new(); live.launch_count];
        for chunk in &live.chunks {
            let (mut written, mut read_since) = (None, Vec::new());
            let merged: Vec<Access>;
            let accesses = if chunk.host_accesses.is_empty() {
                &chunk.accesses
            } else {
                merged = chunk.all_accesses().into_iter().map(|(access, _)| access).collect();
                &merged
            };
            for access in accesses {
                let needed = &mut predecessors[access.launch];
                if access.reads || (with_overwrites && access.writes) {
                    needed.extend(written);
                }
                if access.writes {
                    if with_overwrites {
                        needed.append(&mut read_since);
                    }
                    written = Some(access.launch);
                    read_since.clear();
                } else {
                    read_since.push(access.launch);
                }
            }
        }
        let mut successors = vec![Vec::new(); live.launch_count];
        for (launch, needed) in predecessors.iter_mut().enumerate() {
            needed.sort_unstable();
            needed.dedup();
            needed.iter().for_each(|&before| successors[before].push(launch));
        }
        Dependences { predecessors, successors }
    }

    /// For each launch, the number of launches in the longest chain that starts with it, including itself.
    pub fn chains(&self) -> Vec<usize> {
        let mut chains = vec![1; self.successors.len()];
        for launch in (0..chains.len()).rev() {
            let longest = self.successors[launch].iter().map(|&after| chains[after]).max();
            chains[launch] += longest.unwrap_or(0);
        }
        chains
    }
}

/// Returns an order of launches in which, of those that no longer wait for others, the one with the lowest key comes first. `before` holds
/// how many launches each launch waits for, and `after` the launches that wait for it.
pub(crate) fn ordered_by<K: Ord>(mut before: Vec<usize>, after: &[Vec<usize>], key: impl Fn(usize) -> K) -> Vec<usize> {
    let key = |launch: usize| Reverse((key(launch), launch));
    let mut ready: BinaryHeap<_> = (0..before.len()).filter(|&launch| before[launch] == 0).map(key).collect();
    let mut order = Vec::with_capacity(before.len());
    while let Some(Reverse((_, launch))) = ready.pop() {
        order.push(launch);
        for &next in &after[launch] {
            before[next] -= 1;
            if before[next] == 0 {
                ready.push(key(next));
            }
        }
    }
    order
}

/// Returns the fewest barriers that any order of a program's launches in one stream needs: one between each two consecutive launches of the
/// longest chain in which each reads what the one before it wrote.
pub fn fewest_barriers(program: &Program) -> usize {
    let chains = Dependences::of_reads(&liveness(program, false)).chains();
    chains.into_iter().max().unwrap_or(1) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ProgramBuilder;
    use forebay_base::Kernel;
    use forebay_base::kernel::UnaryOp;

    #[test]
    fn reads_and_overwrites_are_told_apart() {
        let mut build = ProgramBuilder::default();
        let (a, b, c) = (build.temporary("a", 64), build.temporary("b", 64), build.temporary("c", 64));
        build.launch(Kernel::Fill { value: 1.0 }, &[], &[a]);
        build.launch(Kernel::Unary(UnaryOp::Exp), &[a], &[b]);
        build.launch(Kernel::Unary(UnaryOp::Exp), &[a], &[c]);
        build.launch(Kernel::Fill { value: 2.0 }, &[], &[a]);
        let program = build.finish(&[a, b, c]);
        let live = liveness(&program, false);
        assert_eq!(Dependences::of_reads(&live).predecessors, [vec![], vec![0], vec![0], vec![]]);
        assert_eq!(Dependences::all(&live).predecessors, [vec![], vec![0], vec![0], vec![0, 1, 2]]);
        assert_eq!(Dependences::all(&live).chains(), [3, 2, 2, 1]);
        assert_eq!(fewest_barriers(&program), 1);
        assert_eq!(fewest_barriers(&Program::default()), 0);
    }
}
