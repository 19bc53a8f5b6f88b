//! Positions: how many of them the mean of a loss counts.

use forebay_base::kernel::Summing;
use forebay_base::{DataType, Kernel, TensorDesc};
use forebay_model::program::{Buffer, BufferId, Operand, Program, ProgramLaunch, Role};

use crate::partition::{uncounted_loss, LOSS_GRADIENT_READS};

/// What says how many positions the mean of a loss counts, if its gradient reads it.
pub(super) fn counts(launch: &ProgramLaunch) -> Option<&Operand> {
    launch.kernel.facts().gradient_of_loss.and_then(|_| launch.reads.get(LOSS_GRADIENT_READS))
}

/// Has launches of their own count the positions of losses, from labels alone, before the gradients of these losses: a gradient need not wait
/// for the loss then.
pub fn count_positions(program: &mut Program) {
    let mut known: Vec<(Summing, Operand, Operand)> = Vec::new();
    let mut launches = Vec::with_capacity(program.launches.len());
    let mut update_start = program.update_start;
    for (index, mut launch) in std::mem::take(&mut program.launches).into_iter().enumerate() {
        if let Some(of) = uncounted_loss(&launch) {
            let labels = launch.reads[LOSS_GRADIENT_READS - 1].clone();
            let found = known.iter().find(|(other, own, _)| (other, own) == (&of, &labels));
            let counts = found.map(|(.., counts)| counts.clone()).or_else(|| {
                let before = launches.len();
                let counts = count(&mut program.buffers, &mut launches, of, &launch)?;
                update_start += if index < program.update_start { launches.len() - before } else { 0 };
                known.push((of, labels, counts.clone()));
                Some(counts)
            });
            launch.reads.extend(counts);
        }
        launches.push(launch);
    }
    (program.launches, program.update_start) = (launches, update_start);
}

/// Appends the launches that count: the sums of a loss whose predictions do not matter. None where labels lie in another way.
fn count(
    buffers: &mut Vec<Buffer>,
    launches: &mut Vec<ProgramLaunch>,
    of: Summing,
    gradient: &ProgramLaunch,
) -> Option<Operand> {
    let mut buffer = |what: &str, desc: TensorDesc| {
        let buffer = BufferId(u32::try_from(buffers.len()).ok()?);
        let name = format!("{what} of {}", gradient.name);
        buffers.push(Buffer { name, size_bytes: desc.total_size_bytes(), role: Role::Temporary });
        Some(Operand { buffer, offset_bytes: 0, desc })
    };
    let labels = gradient.reads[LOSS_GRADIENT_READS - 1].clone();
    let table = TensorDesc::packed(DataType::Float64, &[of.rows(), 1]).ok()?;
    let predictions = match of {
        // Logits of a single class, whatever they are: as many as there are positions.
        Summing::CrossEntropy { axis, .. } => {
            let mut sizes = gradient.reads[LOSS_GRADIENT_READS - 2].desc.sizes().to_vec();
            *sizes.get_mut(axis)? = 1;
            let desc = TensorDesc::packed(DataType::Float32, &sizes).ok()?;
            if !labels.desc.is_packed() || labels.desc.element_count() != desc.element_count() {
                return None;
            }
            let logits = buffer("positions", desc)?;
            let numbers = TensorDesc::packed(DataType::Float32, labels.desc.sizes()).ok()?;
            let write = Operand { desc: numbers, ..logits.clone() };
            let name = format!("positions of {}", gradient.name);
            launches.push(ProgramLaunch::new(name, Kernel::cast(), vec![labels.clone()], vec![write]));
            logits
        }
        _ => labels.clone(),
    };
    let counts = buffer("counts", table)?;
    let reads = vec![predictions, labels];
    launches.push(ProgramLaunch::new(
        format!("counts of {}", gradient.name),
        Kernel::Sums { of },
        reads,
        vec![counts.clone()],
    ));
    Some(counts)
}
