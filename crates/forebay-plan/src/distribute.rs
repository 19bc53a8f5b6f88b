//! Distribute: one program for several processes, each of which computes its share of a batch.
//!
//! Processes are one more way to cut a program ([`mod@crate::partition`]): each runs the part of a launch that has its images. Sums over
//! images are made of nodes of the tree that the whole sums by ([`forebay_base::sum_tree`]); processes exchange what they have of them,
//! and each adds all of it, in the order of the tree. What cannot be cut so is computed by every process, from operands that are
//! exchanged whole. So every result has the bits that one process would give it, whatever the number of processes; how much is
//! exchanged is a matter of speed alone.
//!
//! The programs of all processes have the same exchanges in the same order: every decision looks at the parts of all processes.

mod building;
mod sharding;
mod shares;
mod sharing;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use forebay_model::program::Program;

use building::Building;
use sharding::Sharding;

pub use shares::shares;

/// The program of one process.
#[derive(Clone, Debug, PartialEq)]
pub struct Distributed {
    /// The program.
    pub program: Program,
    /// By input that a process is fed its share of: which indices of the first axis that is. Others are fed whole.
    pub inputs: BTreeMap<String, Range<u64>>,
    /// By parameter or state that is sharded: the elements of each process's slice. This process's slice is the persistent operand.
    pub shards: BTreeMap<String, Vec<Range<u64>>>,
    /// How much is shared out.
    pub work: SharedWork,
}

/// What of a training step each process keeps a slice of, where every process would have all of it otherwise: the stages of ZeRO. Each
/// includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shard {
    /// Nothing.
    #[default]
    Nothing,
    /// The optimizer's state.
    State,
    /// Gradients, once they are summed.
    Gradients,
    /// Parameters: all processes exchange them before they are used.
    Parameters,
}

/// How much of a program is shared out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SharedWork {
    /// Launches of which each process computes a part.
    pub shared_launches: usize,
    /// Names of launches that every process computes whole, from operands that are exchanged for it.
    pub whole_launches: Vec<String>,
    /// Exchanges of a step.
    pub exchanges: usize,
    /// Bytes that this process sends in a step, to all others together.
    pub sent_bytes: u64,
    /// Bytes that all processes send in a step.
    pub all_sent_bytes: u64,
    /// Operations of a step of the process that has the most to do.
    pub operations: f64,
    /// Bytes of the parameters and of the state that are sharded.
    pub sharded_bytes: u64,
    /// Bytes of this process's slices of them.
    pub own_shard_bytes: u64,
}

/// What of a program is shared out, and what is sharded.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Inputs that have images along their first axis.
    pub batch: &'a BTreeSet<String>,
    /// What of a training step is sharded.
    pub shard: Shard,
    /// Constants that are sharded: in an evaluation, the parameters that a training step shards.
    pub sharded: &'a BTreeSet<String>,
    /// Slices of parameters begin at multiples of this many elements at least, in all programs of a run: more than 1 where state has an
    /// element for each block of them.
    pub block_elements: u64,
}

/// The program of the process `rank` of `processes`. None where nothing can be shared out or sharded: every process computes everything
/// then.
pub fn distribute(program: &Program, request: Request, (rank, processes): (usize, usize)) -> Option<Distributed> {
    if processes < 2 || rank >= processes {
        return None;
    }
    let sharding = Sharding::of(program, request, processes);
    // Sums whose reduction blocks hold several images can be shared out only between these, and products at multiples of rows: which
    // shares are the best is tried.
    let attempts = (0..QUANTUM_POWERS).filter_map(|power| {
        let mut building = Building::new(program, &sharding, (rank, processes), 1 << power);
        let inputs = building.share_inputs(request.batch);
        building.build()?;
        building.finish(inputs)
    });
    attempts.min_by(|one, other| cost(&one.work, processes).total_cmp(&cost(&other.work, processes)))
}

/// Shares begin at multiples of a power of two of images: of one of the first this many.
const QUANTUM_POWERS: u32 = 6;

/// Operations of a kernel in the time in which a network moves a byte from one process to another.
const OPERATIONS_OF_A_BYTE: f64 = 20.0;

/// What a step costs, in operations. The same for all processes.
fn cost(work: &SharedWork, processes: usize) -> f64 {
    work.operations + work.all_sent_bytes as f64 / processes as f64 * OPERATIONS_OF_A_BYTE
}
