//! Programs with launches in parts, as candidates.

use forebay_base::Limits;
use forebay_model::program::Program;

use crate::cost::Costs;
use crate::order::Ordered;
use crate::partition::least_limit_bytes;
use crate::parts::{Parts, costs_of_parts};
use crate::tuning::CUT_DIVISORS;

use super::Planner;
use super::candidate::{Candidate, minimum_budget};

/// A program with launches in parts, ready for planning.
pub(super) struct Cutting {
    /// The parts, and which launches they are parts of.
    pub(super) parts: Parts,
    /// The program of parts in its original order.
    pub(super) file: Candidate,
    /// The costs of parts.
    pub(super) costs: Costs,
}

impl Cutting {
    /// Cuts launches into parts that touch at most this many bytes, if they can be cut that far. Returns `None` if nothing is cut.
    pub(super) fn new(program: &Program, limit_bytes: u64, limits: &Limits, costs: &Costs) -> Option<Cutting> {
        let parts = Parts::new(program, limit_bytes, limits)?;
        let costs = costs_of_parts(costs, &parts.shares);
        let file = Candidate::new(Ordered::as_it_comes(parts.partition.program.clone()), &costs);
        Some(Cutting { parts, file, costs })
    }

    /// Cuts launches into the smallest possible parts.
    pub(super) fn finest(program: &Program, limits: &Limits, costs: &Costs) -> Option<Cutting> {
        Cutting::new(program, least_limit_bytes(program), limits, costs)
    }
}

impl Planner<'_> {
    /// Returns distinct ways to cut the program that have a plan within the capacity; the finest if no other has.
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
