//! Distribute: one program for several processes, each of which computes its share of a batch.
//!
//! This is another way to cut a program ([`mod@crate::partition`]): each process runs the part of each launch that works on its images.
//! Sums over images are built from nodes of the sum tree of the whole batch ([`forebay_base::sum_tree`]); processes exchange the sums that
//! they have, and each process adds all of them in the order of the tree. A launch that cannot be cut this way is computed by every
//! process, from operands that are exchanged whole. Every result therefore has the bits that a single process would compute, whatever the
//! number of processes; how much is exchanged affects only the speed.
//!
//! The programs of all processes have the same exchanges in the same order, because every decision considers the parts of all processes.

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
    /// For each input of which the process is fed only its share, the indices of that share along the first axis, part by part. Other
    /// inputs are fed whole.
    pub inputs: BTreeMap<String, Vec<Range<u64>>>,
    /// The number of parts in which all processes together go through the batch, one after the other.
    pub parts: u64,
    /// For each sharded parameter or state, the elements of each process's slice. This process's slice is the persistent operand.
    pub shards: BTreeMap<String, Vec<Range<u64>>>,
    /// How much is shared out.
    pub work: SharedWork,
}

/// The part of a training step of which each process keeps only a slice instead of all of it: the stages of ZeRO. Each stage includes those
/// before it.
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
    /// Names of launches that every process computes whole, from operands that are exchanged for this.
    pub whole_launches: Vec<String>,
    /// The number of exchanges in a step.
    pub exchanges: usize,
    /// Bytes that this process sends to all others together in a step.
    pub sent_bytes: u64,
    /// Bytes that all processes send in a step.
    pub all_sent_bytes: u64,
    /// Operations that the process with the most work executes in a step.
    pub operations: f64,
    /// Bytes of the parameters and state that are sharded.
    pub sharded_bytes: u64,
    /// Bytes of this process's slices of them.
    pub own_shard_bytes: u64,
}

/// What to share out of a program, and what to shard.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Inputs with images along their first axis.
    pub batch: &'a BTreeSet<String>,
    /// Which part of a training step is sharded.
    pub shard: Shard,
    /// Constants that are sharded: in an evaluation, the parameters that a training step shards.
    pub sharded: &'a BTreeSet<String>,
    /// Slices of parameters begin at multiples of at least this many elements, in all programs of a run. This is more than 1 if the state
    /// has one element for each block of elements.
    pub block_elements: u64,
    /// The number of parts in which a step goes through its batch, one after the other. If parameters are sharded, all processes go through
    /// the same part at the same time, so that each needs to keep only its slice of the sum up to this part. Otherwise each process goes
    /// through its own share of the batch, in parts that [`accumulate`](crate::accumulate::accumulate) cuts: its own sum is exchanged once.
    pub parts: u64,
}

/// Returns the program of the process `rank` of `processes`. Returns `None` if nothing can be shared out or sharded; every process computes
/// everything in that case.
pub fn distribute(program: &Program, request: Request, (rank, processes): (usize, usize)) -> Option<Distributed> {
    if processes < 2 || rank >= processes {
        return None;
    }
    let sharding = Sharding::of(program, request, processes);
    // Sums whose reduction blocks hold several images can be shared out only between blocks, and products only at multiples of rows, so
    // several shares are tried to find the best.
    let cheapest = |parts: u64, fits: &dyn Fn(&SharedWork) -> bool| {
        let attempts = (0..QUANTUM_POWERS).filter_map(|power| {
            let mut building = Building::new(program, &sharding, (rank, processes), (1 << power, parts));
            let inputs = building.share_inputs(request.batch);
            building.build()?;
            building.finish(inputs)
        });
        let attempts = attempts.filter(|found| fits(&found.work));
        attempts.min_by(|one, other| cost(&one.work, processes).total_cmp(&cost(&other.work, processes)))
    };
    let at_once = cheapest(1, &|_| true)?;
    if request.parts < 2 || request.shard < Shard::Parameters {
        return Some(at_once);
    }
    // Small shares of parts often end within reduction blocks. If every process computes another launch whole, from the operands of all
    // parts, or one has a larger share, it needs more memory instead of less.
    let (whole, operations) = (at_once.work.whole_launches.len(), at_once.work.operations * OPERATIONS_MORE);
    let fits = |work: &SharedWork| work.whole_launches.len() <= whole && work.operations <= operations;
    Some(cheapest(request.parts, &fits).unwrap_or(at_once))
}

/// Shares begin at multiples of a power of two images. This is the number of powers that are tried.
const QUANTUM_POWERS: u32 = 6;

/// Processes go through the same part of a batch at the same time if the process with the most work then executes at most this many times as
/// many operations.
const OPERATIONS_MORE: f64 = 1.05;

/// Operations that a kernel executes in the time in which a network moves a byte from one process to another.
const OPERATIONS_OF_A_BYTE: f64 = 20.0;

/// The cost of a step in operations. It is the same for all processes.
fn cost(work: &SharedWork, processes: usize) -> f64 {
    work.operations + work.all_sent_bytes as f64 / processes as f64 * OPERATIONS_OF_A_BYTE
}
