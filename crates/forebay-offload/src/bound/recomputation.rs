//! Recomputation: how much of what certainly crosses can be recomputed instead.

use super::windows::{Step, Window};

/// The quantiles of the idle times of positions that are tried as the threshold, in percent.
const IDLE_PERCENT: [usize; 5] = [0, 50, 75, 90, 100];

/// A window whose stall is part of a sum.
pub(super) struct Counted {
    pub window: Window,
    /// The most nanoseconds of the sum that a byte less in the window would spare.
    pub ns_per_byte: f64,
    /// The most nanoseconds of the sum that a nanosecond less of copies would spare.
    pub per_ns: f64,
}

impl Step<'_> {
    /// What is left of a sum of stalls if recomputation spares as much of them as it can.
    pub(super) fn with_recomputation(&self, stall_ns: f64, counted: &[&Counted]) -> f64 {
        let runs = self.runs(counted);
        // At least this fraction of the time of recomputations is not offset by copies that hide behind them.
        let unhidden = 1.0 - counted.iter().map(|counted| counted.per_ns).fold(0.0, f64::max);
        let idle_ns = &self.idle_ns;
        let mut thresholds_ns = IDLE_PERCENT.map(|percent| idle_ns[(idle_ns.len() - 1) * percent / 100]).to_vec();
        thresholds_ns.dedup();
        let left = |&threshold_ns: &f64| {
            let free_ns = idle_ns.iter().map(|idle_ns| (idle_ns - threshold_ns).max(0.0)).sum();
            let runs: Vec<(f64, f64)> =
                runs.iter().map(|(spared_ns, ns)| (*spared_ns, (ns - threshold_ns).max(0.0))).collect();
            let beside = least_of(stall_ns, runs.clone(), free_ns);
            let paid = runs.into_iter().map(|(spared_ns, ns)| (spared_ns - unhidden * ns, ns));
            beside.max(least_of(stall_ns - unhidden * free_ns, paid.collect(), free_ns))
        };
        thresholds_ns.iter().map(left).fold(0.0, f64::max)
    }

    /// What may run again: the most that it spares of the sum, and for how long it keeps all workers busy.
    pub(super) fn runs(&self, counted: &[&Counted]) -> Vec<(f64, f64)> {
        let mut spared_ns = vec![0.0; self.problem.again_ns.len()];
        for Counted { window, ns_per_byte, .. } in counted {
            for gap in self.around(window.peak) {
                let (Some(written), Some(writer)) = (gap.written, gap.writer) else { continue };
                let crosses = if window.other < window.peak { written >= window.other } else { gap.to <= window.other };
                if crosses {
                    spared_ns[writer.kernel] += gap.bytes * ns_per_byte;
                }
            }
        }
        let again = spared_ns.into_iter().zip(&self.problem.again_ns);
        again
            .filter_map(|(spared_ns, again_ns)| again_ns.filter(|_| spared_ns > 0.0).map(|ns| (spared_ns, ns)))
            .collect()
    }
}

/// The least value to which runs can bring the larger of two numbers: what is left of `stall_ns`, and the sum of the durations of the runs
/// minus `free_ns`. Each run takes something off the first and adds its duration to the second.
fn least_of(stall_ns: f64, mut runs: Vec<(f64, f64)>, free_ns: f64) -> f64 {
    runs.retain(|(spared_ns, _)| *spared_ns > 0.0);
    // Runs that spare the most per nanosecond come first; those that take no time come before all others.
    runs.sort_by(|left, right| (right.0 / right.1).total_cmp(&(left.0 / left.1)));
    let (mut left_ns, mut run_ns) = (stall_ns, -free_ns);
    for (spared_ns, duration_ns) in runs {
        if left_ns - spared_ns <= run_ns + duration_ns {
            // The two meet within this run: left - x * spared = run + x * duration.
            let share = (left_ns - run_ns) / (spared_ns + duration_ns);
            return if share >= 0.0 { run_ns + share * duration_ns } else { left_ns };
        }
        left_ns -= spared_ns;
        run_ns += duration_ns;
    }
    left_ns.max(run_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_testing::Random;

    #[test]
    fn no_choice_of_runs_leaves_less() {
        for seed in 1..300 {
            let mut random = Random::new(seed);
            let (stall_ns, free_ns) = (random.below(1000) as f64, random.below(50) as f64);
            // Many take no time at all.
            let run = |random: &mut Random| {
                (random.below(200) as f64 / 7.0, random.below(2) as f64 * random.below(300) as f64 / 3.0)
            };
            let runs: Vec<(f64, f64)> = (0..random.below(9)).map(|_| run(&mut random)).collect();
            let least = least_of(stall_ns, runs.clone(), free_ns);
            for chosen in 0..1usize << runs.len() {
                let of = |value: fn(&(f64, f64)) -> f64| {
                    (0..runs.len()).filter(|run| chosen >> run & 1 > 0).map(|run| value(&runs[run])).sum::<f64>()
                };
                let left_ns = (stall_ns - of(|run| run.0)).max(of(|run| run.1) - free_ns);
                assert!(least <= left_ns + 1e-6, "seed {seed}: {least}, but {chosen:b} leaves {left_ns}: {runs:?}");
            }
            let many: Vec<(f64, f64)> = (0..200).map(|_| run(&mut random)).collect();
            assert!(least_of(stall_ns, many, free_ns) <= stall_ns.max(0.0), "seed {seed}");
        }
    }
}
