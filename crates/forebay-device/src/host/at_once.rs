//! Lists of commands that are over before another thread would be awake: the thread that submits them does the work.

use forebay_base::kernel::facts::OperandRef;
use forebay_base::{Command, Kernel, Launch};

use super::isa::{self, InstructionSet};

/// How long the work of such a list takes one thread at most, in nanoseconds, as estimated here: about what it takes to wake a thread of
/// the pool, and then the one that waits for it.
const TIME_MAX_NS: f64 = 40_000.0;
/// Bytes that one thread reads and writes in a nanosecond.
const BYTES_PER_NS: f64 = 8.0;
/// What a launch, a copy or a fill takes however small it is, in nanoseconds.
const START_NS: f64 = 500.0;

/// Whether the work of a list is so little that threads of the pool are not woken for it.
pub(super) fn is_brief(commands: &[Command]) -> bool {
    let mut left_ns = TIME_MAX_NS;
    commands.iter().all(|command| {
        left_ns -= time_ns(command);
        left_ns >= 0.0
    })
}

/// About how long one thread takes for a command.
fn time_ns(command: &Command) -> f64 {
    match command {
        Command::Launch { launch, .. } => match launch.kernel {
            // It waits for other processes.
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

/// Operations of one thread in a nanosecond, about: those of small kernels.
fn operations_per_ns(kernel: &Kernel) -> f64 {
    let [scalar, avx2, avx512] = match kernel {
        Kernel::MatMul { .. } => [10.0, 40.0, 80.0],
        Kernel::Convolution { .. } => [10.0, 20.0, 40.0],
        _ => [10.0; 3],
    };
    if isa::has(InstructionSet::Avx512) {
        avx512
    } else if isa::has(InstructionSet::Avx2) {
        avx2
    } else {
        scalar
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
