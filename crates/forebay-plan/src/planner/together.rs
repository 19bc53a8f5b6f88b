//! Plans whose residency and repeats are decided together ([`crate::joint`]).

use crate::error::PlanError;
use crate::joint::{joint_residency, with_repeats, JointRoom};
use crate::liveness::liveness;
use crate::order::Ordered;
use crate::stores::stores;

use super::variant::{split, Variant};
use super::{Filled, Planner, WORSE_MAX};

/// Parts of the capacity, in percent, that are filled; the rest is for the gaps that placement cannot fill. The first that has
/// a placement is taken.
const FILL_PERCENT: [u64; 7] = [98, 94, 88, 80, 70, 62, 55];
/// Bytes that the host may hold where there is no budget.
const ANY_BYTES: u64 = u64::MAX;

impl Planner<'_> {
    /// The fastest such plan, of the launches as they come and with launches that run again; `None` where none was found.
    pub(super) fn together(&self, file: &Variant, capacity_bytes: u64) -> Result<Option<Filled>, PlanError> {
        let Some(mut best) = self.filled_together(file, &FILL_PERCENT, capacity_bytes)? else { return Ok(None) };
        let ordered = Ordered { program: file.apart.clone(), ..file.ordered.clone() };
        let live = liveness(&ordered.program, false);
        let mut worse = 0;
        for repeating in with_repeats(&ordered, &live, &file.costs, capacity_bytes, self.host_bytes()) {
            // What was too much for placement still is.
            let percents: Vec<u64> = FILL_PERCENT.into_iter().filter(|&percent| percent <= best.percent).collect();
            let next = self.filled_together(&Variant::new(repeating, self.costs), &percents, capacity_bytes)?;
            match next.filter(|next| next.is_better(&best)) {
                Some(next) => (best, worse) = (next, 0),
                None => worse += 1,
            }
            if worse == WORSE_MAX {
                break;
            }
        }
        Ok(Some(best))
    }

    fn host_bytes(&self) -> u64 {
        self.room.map_or(ANY_BYTES, |room| room.budget_bytes)
    }

    fn filled_together(
        &self,
        variant: &Variant,
        percents: &[u64],
        capacity_bytes: u64,
    ) -> Result<Option<Filled>, PlanError> {
        let live = split(variant);
        let (program, costs) = (&variant.ordered.program, &variant.costs);
        let changing_away = self.room.is_some_and(|room| room.changing_on_disk);
        for &percent in percents {
            let room = JointRoom {
                device_bytes: capacity_bytes / 100 * percent,
                host_bytes: self.host_bytes(),
                changing_away,
            };
            let find = |lost_bytes: &[u64]| {
                let (live, residency) = joint_residency(program, &live, costs, room, lost_bytes)?;
                let stores = stores(program, &live, &residency, costs, self.room);
                Some((live, residency, stores))
            };
            if let Some(plan) = self.fitted(variant, capacity_bytes, find)? {
                return Ok(Some(self.filled(plan, percent)));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use forebay_base::Command;

    use crate::cost::estimate;
    use crate::planner::{plan, PlanOptions};
    use crate::testing::{limits, random_training_program, Random};

    #[test]
    fn plans_for_slow_links_are_checked_run_launches_again_and_keep_the_bound() {
        let mut repeating = 0;
        for seed in 1..9 {
            let mut random = Random::new(seed);
            let depth = 3 + random.below(5) as usize;
            let program = crate::fuse::fuse(random_training_program(&mut random, depth));
            let mut costs = estimate(&program, &limits());
            for way in [&mut costs.link.to_device, &mut costs.link.from_device] {
                way.bytes_per_second /= [4.0, 30.0][seed as usize % 2];
                way.latency_ns = 0;
            }
            let planned = |device_budget_bytes| {
                let options = PlanOptions { device_budget_bytes, check: true, ..PlanOptions::default() };
                plan(&program, &options, &limits(), &costs).unwrap_or_else(|error| panic!("seed {seed}: {error}"))
            };
            let whole = planned(None).statistics;
            let (low, high) = (whole.minimum_budget_bytes, whole.in_core_peak_bytes);
            for percent in [10, 30, 60, 80] {
                let budget_bytes = low + (high - low) * percent / 100;
                let plan = planned(Some(budget_bytes));
                let found = &plan.statistics;
                assert!(found.device_peak_bytes <= budget_bytes, "seed {seed}, {percent} %");
                assert!(found.lower_bound_ns <= found.predicted_ns, "seed {seed}, {percent} %: {found:?}");
                let labels: BTreeSet<u32> = (plan.commands.iter())
                    .filter_map(|command| match command {
                        Command::Launch { launch, .. } => Some(launch.label),
                        _ => None,
                    })
                    .collect();
                let least = if found.launches_cut > 0 { program.launches.len() + 1 } else { program.launches.len() };
                assert!(labels.len() >= least, "seed {seed}, {percent} %: each runs");
                repeating += usize::from(found.repeats > 0);
            }
        }
        assert!(repeating > 3, "{repeating} plans run launches again");
    }
}
