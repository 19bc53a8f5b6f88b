//! Programs with launches in parts, as candidates.

use forebay_base::Limits;
use forebay_model::program::Program;

use crate::cost::Costs;
use crate::order::Ordered;
use crate::parts::{Parts, costs_of_parts};
use crate::tuning::CUT_DIVISORS;

use super::Planner;
use super::candidate::{Candidate, minimum_budget};

/// A program with launches in parts, ready to be planned.
pub(super) struct Cutting {
    /// The parts, and how they stand for launches.
    pub(super) parts: Parts,
    /// The program of parts in its own order.
    pub(super) file: Candidate,
    /// Costs of parts.
    pub(super) costs: Costs,
}

impl Cutting {
    /// Parts that touch at most this many bytes, where launches can be cut that far; none where nothing is cut.
    pub(super) fn new(program: &Program, limit_bytes: u64, limits: &Limits, costs: &Costs) -> Option<Cutting> {
        let parts = Parts::new(program, limit_bytes, limits)?;
        let costs = costs_of_parts(costs, &parts.shares);
        let file = Candidate::new(Ordered::as_it_comes(parts.partition.program.clone()), &costs);
        Some(Cutting { parts, file, costs })
    }
}

impl Planner<'_> {
    /// Ways to cut the program that have a plan within the capacity, none of them twice; the finest where no other has.
    pub(super) fn cuttings(&self, capacity_bytes: u64, finest: Option<Cutting>) -> Vec<Cutting> {
        let mut cuttings: Vec<Cutting> = Vec::new();
        for divisor in CUT_DIVISORS {
            let Some(cutting) = Cutting::new(self.program, capacity_bytes / divisor, self.limits, self.costs) else {
                continue;
            };
            let fits = minimum_budget(&cutting.file, self.limits).0 <= capacity_bytes;
            if fits && cuttings.iter().all(|other| other.parts.partition != cutting.parts.partition) {
                cuttings.push(cutting);
            }
        }
        if cuttings.is_empty() {
            cuttings.extend(finest.filter(|finest| minimum_budget(&finest.file, self.limits).0 <= capacity_bytes));
        }
        cuttings
    }
}
