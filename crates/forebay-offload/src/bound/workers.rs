//! Workers: what launches, copies and recomputations together take of the machine's workers.

use super::CopyDirection;
use super::recomputation::Counted;
use super::windows::Step;

impl Step<'_> {
    /// How much longer a step that is cut open before a position takes because workers have to copy.
    pub(super) fn workers_ns(&self, cut: i64) -> f64 {
        let problem = self.problem;
        let Some(workers) = problem.workers else { return 0.0 };
        let (mut copies_ns, mut counted) = (0.0, Vec::new());
        for (direction, workers) in [(CopyDirection::Out, workers.out), (CopyDirection::Back, workers.back)] {
            let (way_ns, windows) = self.one_way(cut, direction);
            copies_ns += workers * way_ns;
            counted.extend(windows.into_iter().map(|window| self.counted(&problem.all, window, workers)));
        }
        let runs = self.runs(&counted.iter().collect::<Vec<&Counted>>());
        let spared_ns: f64 = runs.into_iter().map(|(spared_ns, again_ns)| (spared_ns - again_ns).max(0.0)).sum();
        copies_ns - spared_ns - self.idle_ns.iter().sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Workers, problem};
    use crate::workload::{Kernel, Machine, Tensor, Workload};

    /// A tensor of 100 bytes makes room for a kernel that needs all memory. Copies have the time of a kernel for each direction.
    fn workload() -> Workload {
        let kernel = |name: &str, reads: &[usize], writes: &[usize]| Kernel {
            name: name.into(),
            duration_ns: 1000,
            reads: reads.into(),
            writes: writes.into(),
            workspace_bytes: 0,
        };
        Workload {
            tensors: vec![Tensor { size_bytes: 100, persistent: false }; 2],
            kernels: vec![
                kernel("first", &[], &[0]),
                kernel("aside", &[], &[]),
                kernel("large", &[], &[1]),
                kernel("aside", &[], &[]),
                kernel("last", &[0], &[]),
            ],
            machine: Machine {
                device_memory_bytes: 100,
                host_memory_bytes: 1000,
                link_bytes_per_s: 1_000_000_000,
                ssd_read_bytes_per_s: 1,
                ssd_write_bytes_per_s: 1,
            },
        }
    }

    /// The bound for copies that take half of the workers outwards and a quarter back, minus the time of the kernels.
    fn beyond_ns(again_ns: Option<f64>, idle_ns: f64) -> i64 {
        let mut problem = problem(&workload());
        problem.workers = Some(Workers { out: 0.5, back: 0.25 });
        problem.again_ns = vec![again_ns; 5];
        problem.positions[0].idle_ns = idle_ns;
        problem.lower_bound_ns() as i64 - 5000
    }

    #[test]
    fn copies_and_what_runs_again_take_workers_that_nobody_else_has() {
        // The possible error of floating-point sums is subtracted.
        let is =
            |found: i64, expected: i64| assert!((expected - 2..=expected).contains(&found), "{found}, not {expected}");
        is(beyond_ns(None, 0.0), 50 + 25);
        is(beyond_ns(None, 30.0), 75 - 30);
        is(beyond_ns(Some(60.0), 0.0), 60);
        is(beyond_ns(Some(60.0), 30.0), 60 - 30);
        is(beyond_ns(Some(90.0), 0.0), 75);
    }
}
