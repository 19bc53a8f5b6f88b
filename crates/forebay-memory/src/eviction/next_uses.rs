//! Which units will be used when, as far as it is known.

use std::collections::{BTreeMap, BTreeSet};

use super::UnitId;

/// Future uses, counted in commits.
#[derive(Clone, Debug, Default)]
pub(super) struct NextUseOracle {
    now: u64,
    uses: BTreeMap<UnitId, BTreeSet<u64>>,
}

impl NextUseOracle {
    /// Replaces what is known with the units of each coming commit, in order.
    pub fn replace(&mut self, uses: &[Vec<UnitId>]) {
        self.uses.clear();
        for (step, units) in (self.now..).zip(uses) {
            for &unit in units {
                self.uses.entry(unit).or_default().insert(step);
            }
        }
    }

    /// The commit that uses a unit next; the end of time if none is known.
    pub fn next_use(&self, unit: UnitId) -> u64 {
        let next = self.uses.get(&unit).and_then(|steps| steps.range(self.now..).next());
        next.copied().unwrap_or(u64::MAX)
    }

    /// Notes that a commit that uses these units has passed.
    pub fn advance(&mut self, units: impl Iterator<Item = UnitId>) {
        self.now += 1;
        for unit in units {
            if let Some(steps) = self.uses.get_mut(&unit) {
                *steps = steps.split_off(&self.now);
            }
        }
    }

    /// Forgets a unit that was removed.
    pub fn forget(&mut self, unit: UnitId) {
        self.uses.remove(&unit);
    }
}
