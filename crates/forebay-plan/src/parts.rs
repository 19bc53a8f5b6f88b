//! Parts: a program whose launches are split into parts, and the costs of its launches.

use forebay_base::Limits;
use forebay_model::program::Program;

use crate::cost::{Costs, estimate};
use crate::partition::{Partition, partition};
use crate::plan::{Plan, Share};

/// A program whose launches are split into parts.
pub(crate) struct Parts {
    limit_bytes: u64,
    pub partition: Partition,
    /// By launch: which part of a launch of the given program it is.
    pub shares: Vec<Share>,
}

impl Parts {
    /// Splits launches into parts that touch at most this many bytes, if they can be cut that far. Returns `None` if nothing is cut.
    pub fn new(program: &Program, limit_bytes: u64, limits: &Limits) -> Option<Parts> {
        let partition = partition(program, limit_bytes)?;
        let (whole, parts) = (estimate(program, limits), estimate(&partition.program, limits));
        let share = |(&source, &part_ns): (&usize, &u64)| Share {
            launch: source as u32,
            time: part_ns as f64 / whole.launch_ns[source].max(1) as f64,
        };
        let shares = partition.origins().iter().zip(&parts.launch_ns).map(share).collect();
        Some(Parts { limit_bytes, partition, shares })
    }

    /// Records in a plan of the parts which launches they are parts of.
    pub fn note(&self, plan: &mut Plan) {
        let mut sources = self.partition.origins();
        sources.sort_unstable();
        plan.statistics.launches_cut = sources.chunk_by(|a, b| a == b).filter(|parts| parts.len() > 1).count();
        plan.cut_bytes = Some(self.limit_bytes);
        plan.shares.clone_from(&self.shares);
    }
}

/// Returns the costs of a plan's launches, by label, derived from the costs of the launches of the given program.
pub fn costs_of_parts(costs: &Costs, shares: &[Share]) -> Costs {
    if shares.is_empty() {
        return costs.clone();
    }
    let launch_ns = |share: &Share| (costs.launch_ns[share.launch as usize] as f64 * share.time) as u64;
    Costs {
        launch_ns: shares.iter().map(launch_ns).collect(),
        launch_workers: shares.iter().map(|share| costs.launch_workers[share.launch as usize]).collect(),
        ..*costs
    }
}
