//! Merge: the first two axes of a launch's tensors as one, where its kernel cannot tell.
//!
//! Two sequences of a thousand positions are two rows of the first axis; merged with the second, they are two thousand.

use forebay_base::kernel::{sums_rows, ReduceOp};
use forebay_base::{Kernel, TensorDesc};
use forebay_model::program::{Operand, ProgramLaunch};

/// The same launch with its first two axes merged; none where its kernel tells them apart, or tensors do not lie so.
pub(super) fn merged(launch: &ProgramLaunch) -> Option<ProgramLaunch> {
    let is_of_rows =
        matches!(&launch.kernel, Kernel::Reduce { op: ReduceOp::Sum, axes } if sums_rows(axes, &launch.reads[0].desc));
    let mut launch = launch.clone();
    let reads: &[usize] = match &mut launch.kernel {
        Kernel::Unary(_) | Kernel::Cast => &[0],
        Kernel::UnaryGradient(_) | Kernel::Binary { .. } => &[0, 1],
        Kernel::Select => &[0, 1, 2],
        Kernel::Dropout { .. } => &[0],
        Kernel::Softmax { axis } | Kernel::LogSoftmax { axis } if *axis > 1 => {
            *axis -= 1;
            &[0]
        }
        Kernel::SoftmaxGradient { axis } | Kernel::LogSoftmaxGradient { axis } if *axis > 1 => {
            *axis -= 1;
            &[0, 1]
        }
        Kernel::LayerNormalization { axis, .. } if *axis > 1 => {
            *axis -= 1;
            &[0]
        }
        Kernel::LayerNormalizationGradient { axis } if *axis > 1 => {
            *axis -= 1;
            &[0, 1]
        }
        Kernel::Reduce { axes, .. } if is_of_rows && axes.len() > 1 => {
            axes.pop();
            &[0]
        }
        Kernel::MeanSquaredError => &[0, 1],
        Kernel::MeanSquaredErrorGradient => &[1, 2],
        Kernel::MatMul { .. } if launch.reads.len() == 2 && launch.writes[0].desc.sizes().len() > 3 => &[0, 1],
        _ => return None,
    };
    // Statistics of a layer's rows are in one dimension already, and results of sums have none of these axes.
    let writes = match launch.kernel {
        Kernel::MeanSquaredError | Kernel::Reduce { .. } => 0,
        Kernel::LayerNormalization { .. } | Kernel::LayerNormalizationGradient { .. } => 1,
        _ => launch.writes.len(),
    };
    let first = launch.reads[reads[0]].desc.sizes().get(..2)?.to_vec();
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
