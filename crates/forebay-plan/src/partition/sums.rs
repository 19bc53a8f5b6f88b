//! Sums: how the parts of a launch that sums are added, and what is computed from their sums.

use std::iter;

use forebay_base::kernel::facts::{Rest, SumsInParts};
use forebay_base::kernel::{Activation, BinaryOp, Summing};
use forebay_base::{DataType, Kernel, TensorDesc};
use forebay_model::program::{Operand, ProgramLaunch};

/// Returns the table of the sums that parts of a launch compute.
pub(crate) fn table(of: Summing, launch: &ProgramLaunch) -> Option<TensorDesc> {
    let channels = launch.writes.last().map_or(1, |write| write.desc.element_count());
    TensorDesc::packed(DataType::Float64, &[of.rows(), channels]).ok()
}

/// Returns the kernel that adds the results of two parts that run this kernel, and applies `activation` to the sum.
pub(crate) fn addition(part: &Kernel, activation: Activation) -> Kernel {
    match *part {
        Kernel::Sums { of } => Kernel::AddSums { of },
        _ => Kernel::Binary { op: BinaryOp::Add, activation },
    }
}

/// Returns what a launch applies to its result: its parts leave that to the launch that completes their sum.
pub(crate) fn activation(launch: &ProgramLaunch) -> Activation {
    launch.kernel.activation().unwrap_or(Activation::None)
}

/// Returns the launches that compute results from the complete sums of a launch, and what else it computes, if anything.
pub(crate) fn finish(
    launch: &ProgramLaunch,
    summed: SumsInParts,
    sums: &Operand,
) -> (ProgramLaunch, Option<ProgramLaunch>) {
    let SumsInParts { of, finish_reads, first_finished, rest, .. } = summed;
    let finished = &launch.writes[first_finished..];
    let of_launch = finish_reads.iter().map(|&read| launch.reads[read].clone());
    let finishing = ProgramLaunch {
        name: format!("{} from sums", launch.name),
        kernel: Kernel::FromSums { of },
        reads: iter::once(sums.clone()).chain(of_launch).collect(),
        writes: finished.to_vec(),
        workspace_bytes: 0,
        ..launch.clone()
    };
    let rest = rest.map(|Rest { kernel, reads, reads_finished, reads_sums }| {
        let mut reads = launch.reads[..reads].to_vec();
        if reads_finished {
            reads.extend_from_slice(finished);
        }
        reads.extend(reads_sums.then(|| sums.clone()));
        ProgramLaunch { kernel, reads, writes: launch.writes[..first_finished].to_vec(), ..launch.clone() }
    });
    (finishing, rest)
}
