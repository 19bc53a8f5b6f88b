//! Lists of commands that finish before another thread would wake up: the submitting thread does their work.

use forebay_base::kernel::facts::OperandRef;
use forebay_base::{Command, Kernel, Launch};

use super::isa::{self, InstructionSet};

/// The maximum estimated time of such a list on one thread, in nanoseconds: about the time it takes to wake a thread of the pool, and then
/// the thread that waits for it.
const TIME_MAX_NS: f64 = 40_000.0;
/// The number of bytes that one thread reads and writes in a nanosecond.
const BYTES_PER_NS: f64 = 8.0;
/// The fixed time of a launch, a copy or a fill, in nanoseconds.
const START_NS: f64 = 500.0;

/// Returns whether a list has so little work that no thread of the pool is woken for it.
pub(super) fn is_brief(commands: &[Command]) -> bool {
    let mut left_ns = TIME_MAX_NS;
    commands.iter().all(|command| {
        left_ns -= time_ns(command);
        left_ns >= 0.0
    })
}

/// Estimates how long one thread takes for a command.
fn time_ns(command: &Command) -> f64 {
    match command {
        Command::Launch { launch, .. } => match launch.kernel {
            // An exchange waits for other processes.
            Kernel::Exchange(_) => f64::INFINITY,
            _ => {
                let operations_ns = operations(launch) / operations_per_ns(&launch.kernel);
                START_NS + f64::max(operations_ns, bytes(launch) / BYTES_PER_NS)
            }
        },
        Command::Copy { from: region, .. } | Command::Fill { region, .. } => {
            START_NS + region.range.len() as f64 / BYTES_PER_NS
        }
        _ => 0.0,
    }
}

/// Returns roughly how many operations one thread performs in a nanosecond, for small kernels.
fn operations_per_ns(kernel: &Kernel) -> f64 {
    let [narrow, eight, sixteen] = match kernel {
        Kernel::MatMul { .. } => [10.0, 40.0, 80.0],
        Kernel::Convolution { .. } => [10.0, 20.0, 40.0],
        _ => [10.0; 3],
    };
    if isa::has(InstructionSet::Avx512) {
        sixteen
    } else if isa::has(InstructionSet::Neon) {
        eight
    } else {
        narrow
    }
}

fn bytes(launch: &Launch) -> f64 {
    launch.reads.iter().chain(&launch.writes).map(|binding| binding.region.range.len() as f64).sum()
}

fn operations(launch: &Launch) -> f64 {
    let binding = |operand| match operand {
        OperandRef::Read(index) => launch.reads.get(index),
        OperandRef::Write(index) => launch.writes.get(index),
    };
    launch.kernel.facts().operations(|operand| Some(&binding(operand)?.desc))
}
