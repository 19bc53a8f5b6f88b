//! Merge: combines the first two axes of a launch's tensors if its kernel does not distinguish them.
//!
//! Two sequences of a thousand positions are two rows of the first axis; merged with the second axis, they are two thousand rows.

use forebay_base::TensorDesc;
use forebay_model::program::{Operand, ProgramLaunch};

use super::cut::descs;

/// Returns the launch with its first two axes merged; `None` if its kernel distinguishes them, or the layout of its tensors does not allow
/// it.
pub(super) fn merged(launch: &ProgramLaunch) -> Option<ProgramLaunch> {
    let leading = launch.kernel.facts().merged_axes(&descs(&launch.reads))?;
    let mut launch = launch.clone();
    launch.kernel = launch.kernel.with_leading_axes_merged()?;
    let (reads, writes) = (leading.reads, leading.writes.min(launch.writes.len()));
    let first = launch.reads.get(*reads.first()?)?.desc.sizes().get(..2)?.to_vec();
    let same = |operand: &Operand| operand.desc.sizes().get(..2) == Some(&first);
    for &read in reads {
        launch.reads[read] = Some(&launch.reads[read]).filter(|read| same(read)).and_then(merged_operand)?;
    }
    for write in &mut launch.writes[..writes] {
        *write = Some(&*write).filter(|write| same(write)).and_then(merged_operand)?;
    }
    Some(launch)
}

fn merged_operand(operand: &Operand) -> Option<Operand> {
    let desc = &operand.desc;
    let &[outer, inner, ref rest @ ..] = desc.sizes() else { return None };
    let sizes = [&[outer * inner], rest].concat();
    let strides = desc.effective_strides();
    let lies_together = outer == 1 || strides[0] == inner * strides[1];
    let stride = if inner == 1 { strides[0] } else { strides[1] };
    let merged = if desc.is_packed() {
        TensorDesc::packed(desc.data_type(), &sizes)
    } else if lies_together || inner == 1 {
        TensorDesc::strided(desc.data_type(), &sizes, &[&[stride], &strides[2..]].concat())
    } else {
        return None;
    };
    Some(Operand { desc: merged.ok()?, ..operand.clone() })
}
