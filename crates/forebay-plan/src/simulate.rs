//! Simulate: predicted times of a plan's commands.
//!
//! Each stream does one thing at a time; a wait delays a stream until the record's time; barriers cost nothing beyond the
//! order that a stream has anyway. Copies go at the link's speed, launches take their cost.

use std::collections::BTreeMap;

use forebay_base::{Command, EventId, Space};

use crate::cost::Costs;
use crate::plan::Plan;

/// Predicted times of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// When the last command ends, in nanoseconds.
    pub step_ns: u64,
    /// How long the first stream waits for others, in nanoseconds.
    pub stall_ns: u64,
    /// By command: start and end in nanoseconds.
    pub times: Vec<(u64, u64)>,
}

/// Runs the plan's commands against a clock.
pub fn simulate(plan: &Plan, costs: &Costs) -> Prediction {
    let mut clocks = vec![0u64; plan.streams.len()];
    let mut fired: BTreeMap<(EventId, u64), u64> = BTreeMap::new();
    let mut stall_ns = 0;
    let mut times = Vec::with_capacity(plan.commands.len());
    for command in &plan.commands {
        let stream = command.stream().map_or(0, |stream| stream.0 as usize);
        let start = clocks[stream];
        match command {
            Command::Launch { launch, .. } => clocks[stream] += costs.launch_ns[launch.label as usize],
            Command::Copy { from, to, .. } => {
                let to_device = matches!(plan.memory(to.memory).space, Space::Device(_));
                let bytes = from.range.len();
                clocks[stream] += if to_device { costs.copy_in_ns(bytes) } else { costs.copy_out_ns(bytes) };
            }
            Command::Record { event, generation, .. } => {
                fired.insert((*event, *generation), start);
            }
            Command::Wait { event, generation, .. } => {
                let at = fired.get(&(*event, *generation)).copied().unwrap_or(0);
                clocks[stream] = start.max(at);
                if stream == 0 {
                    stall_ns += clocks[stream] - start;
                }
            }
            _ => {}
        }
        times.push((start, clocks[stream]));
    }
    Prediction { step_ns: clocks.iter().copied().max().unwrap_or(0), stall_ns, times }
}
