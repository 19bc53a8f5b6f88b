//! Positions: the number of positions that the mean of a loss counts.

use std::collections::BTreeMap;

use forebay_base::kernel::Summing;
use forebay_base::{DataType, Kernel, TensorDesc};
use forebay_model::program::{Buffer, BufferId, Operand, Program, ProgramLaunch, Role};

use crate::partition::{LOSS_GRADIENT_READS, uncounted_loss};

/// Returns the operand with the number of positions that the mean of a loss counts, if its gradient reads it.
pub(super) fn counts(launch: &ProgramLaunch) -> Option<&Operand> {
    launch.kernel.facts().gradient_of_loss.and_then(|_| launch.reads.get(LOSS_GRADIENT_READS))
}

/// Adds launches that count the positions of losses from labels alone, so that the gradients of these losses need not wait for the losses.
/// These launches are inserted where labels are known, before everything else: exchanges between processes keep the order of their program.
pub fn count_positions(program: &mut Program) {
    let mut known: Vec<(Summing, Operand, Operand)> = Vec::new();
    // The launches that count, by the launch that they precede.
    let mut counting: BTreeMap<usize, Vec<ProgramLaunch>> = BTreeMap::new();
    for index in 0..program.launches.len() {
        let launch = &program.launches[index];
        let Some(of) = uncounted_loss(launch) else { continue };
        let labels = launch.reads[LOSS_GRADIENT_READS - 1].clone();
        let found = known.iter().find(|(other, own, _)| (other, own) == (&of, &labels));
        let counts = found.map(|(.., counts)| counts.clone()).or_else(|| {
            let writes = |launch: &ProgramLaunch| launch.writes.iter().any(|write| write.buffer == labels.buffer);
            let after = program.launches[..index].iter().rposition(writes).map_or(0, |last| last + 1);
            let counts = count(&mut program.buffers, counting.entry(after).or_default(), of, launch)?;
            known.push((of, labels, counts.clone()));
            Some(counts)
        });
        program.launches[index].reads.extend(counts);
    }
    let added = counting.range(..program.update_start).map(|(_, launches)| launches.len()).sum::<usize>();
    let launches = std::mem::take(&mut program.launches);
    program.launches.reserve(launches.len() + added);
    for (index, launch) in launches.into_iter().enumerate() {
        program.launches.extend(counting.remove(&index).unwrap_or_default());
        program.launches.push(launch);
    }
    program.update_start += added;
}

/// Appends the launches that count: the sums of a loss whose predictions do not matter. Returns `None` if labels have another layout.
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
        // Arbitrary logits of a single class: as many as there are positions.
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
