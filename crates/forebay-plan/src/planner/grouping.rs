//! The groups of launches that need the fewest barriers, found by counting them on whole plans.

use std::rc::Rc;

use forebay_model::program::Program;

use crate::alias::{alias, alias_in_any_order};
use crate::dependences::Dependences;
use crate::error::PlanError;
use crate::liveness::{Liveness, liveness};
use crate::order::{Choice, Grouping, Ordered, group_up_to};
use crate::plan::Plan;
use crate::tuning;

use super::candidate::Candidate;
use super::{Planner, UNLIMITED};

impl Planner<'_> {
    /// Plans launches in groups, without a budget and within a peak; `None` if they have no placement within it.
    pub(super) fn in_core_groups(&self, candidate: &Candidate, peak_bytes: u64) -> Result<Option<Plan>, PlanError> {
        self.attempt(candidate, &candidate.live, UNLIMITED, true, peak_bytes)
    }

    /// Returns the groups of launches with the fewest barriers; `None` if file order has no more at this peak.
    pub(super) fn fewest_barriers(&self, in_file_order: &Plan) -> Result<Option<Vec<Vec<usize>>>, PlanError> {
        let peak_bytes = in_file_order.statistics.device_peak_bytes;
        let synchronizations = |plan: &Plan| (plan.statistics.barriers, plan.statistics.waits);
        let (mut fewest, waits) = synchronizations(in_file_order);
        let mut fewest_together = fewest + waits;
        let (mut bases, mut tried, mut best) = (Bases::new(self.program), Vec::new(), None);
        let tried_max =
            (tuning::GROUPINGS_LAUNCHES_MAX / self.program.launches.len().max(1)).max(tuning::GROUPINGS_MIN);
        // Less room does not lead to fewer groups: if the best grouping of a limit fits, lower limits cannot improve on it.
        let mut enough_percent = 0;
        for percent in tuning::GROUP_PERCENT {
            if percent < enough_percent || tried.len() >= tried_max {
                continue;
            }
            for (rank, groups) in bases.groupings(peak_bytes, percent, fewest).into_iter().enumerate() {
                // There is a barrier between two groups, so no plan with more groups can be better.
                if groups.len() > fewest || tried.len() >= tried_max {
                    break;
                }
                if tried.contains(&groups) {
                    continue;
                }
                let candidate = Candidate::new(Ordered::by_groups(self.program, &groups), self.costs);
                tried.push(groups);
                let Some(plan) = self.in_core_groups(&candidate, peak_bytes)? else { continue };
                let (barriers, waits) = synchronizations(&plan);
                if barriers < fewest && barriers + waits <= fewest_together {
                    (fewest, fewest_together) = (barriers, barriers + waits);
                    best = tried.last().cloned();
                    if rank == 0 {
                        enough_percent = percent;
                    }
                }
            }
        }
        Ok(best.map(|groups: Groups| groups.to_vec()))
    }
}

/// The indices of launches, group by group.
type Groups = Rc<[Vec<usize>]>;

/// A program with outputs in the place of inputs, in two variants. Outputs that take over inputs save bytes but constrain the order of the
/// launches that read these inputs, and either can be the bottleneck.
struct Bases {
    bases: [Base; 2],
    /// Bytes that last from step to step.
    lasting_bytes: u64,
}

/// One of these variants.
struct Base {
    program: Program,
    live: Liveness,
    dependences: Dependences,
    /// The results so far; `None` if there were too many groups. Most choices lead to the same groups as an earlier one.
    known: Vec<(Grouping, Option<Groups>)>,
}

impl Base {
    fn new(program: Program) -> Base {
        let live = liveness(&program, false);
        Base { dependences: Dependences::all(&live), program, live, known: Vec::new() }
    }

    /// Returns the groups of a choice, unless there are more than `groups_max`, which must never increase between calls.
    fn groups(&mut self, choice: Choice, groups_max: usize) -> Option<Groups> {
        if let Some((_, groups)) = self.known.iter().find(|(grouping, _)| grouping.holds_for(choice)) {
            return groups.clone().filter(|groups| groups.len() <= groups_max);
        }
        let mut grouping = group_up_to(&self.program, &self.live, &self.dependences, choice, groups_max);
        let groups = grouping.groups.take().map(Groups::from);
        self.known.push((grouping, groups.clone()));
        groups
    }
}

impl Bases {
    fn new(program: &Program) -> Bases {
        let alone: Vec<u32> = (0..program.launches.len() as u32).collect();
        let lasting = program.buffers.iter().filter(|buffer| buffer.role.is_persistent());
        Bases {
            lasting_bytes: lasting.map(|buffer| buffer.size_bytes).fold(0, u64::saturating_add),
            bases: [alias_in_any_order(program.clone()), alias(program.clone(), &alone)].map(Base::new),
        }
    }

    /// Returns several ways to divide the program into groups, those with the fewest groups first, and none with more than `groups_max`,
    /// which must never increase between calls.
    fn groupings(&mut self, peak_bytes: u64, percent: u64, groups_max: usize) -> Vec<Groups> {
        let limit_bytes = self.lasting_bytes + peak_bytes.saturating_sub(self.lasting_bytes) / 100 * percent;
        let mut found: Vec<Groups> = Vec::new();
        for base in &mut self.bases {
            for (window, lazy) in [(usize::MAX, false), (usize::MAX, true), (64, false), (20, false), (8, false)] {
                found.extend(base.groups(Choice { limit_bytes, window, lazy }, groups_max));
            }
        }
        found.sort_by_key(|groups| groups.len());
        found
    }
}
