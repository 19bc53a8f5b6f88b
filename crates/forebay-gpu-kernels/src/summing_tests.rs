//! How kernels that sum are lowered: what must not depend on the size of a part, and what is refused.

use forebay_base::kernel::{Activation, ReduceOp, Summing};
use forebay_base::{DataType, Kernel, TensorDesc};

use super::{Dispatch, Operand, Target, Unsupported, lower};

fn packed(data_type: DataType, sizes: &[u64]) -> TensorDesc {
    TensorDesc::packed(data_type, sizes).unwrap()
}

fn float(sizes: &[u64]) -> TensorDesc {
    packed(DataType::Float32, sizes)
}

fn dispatches(kernel: &Kernel, reads: &[TensorDesc], writes: &[TensorDesc], gpu: &Target) -> Vec<Dispatch> {
    lower(kernel, reads, writes, gpu).unwrap_or_else(|error| panic!("{kernel}: {error}")).dispatches
}

fn refusal(kernel: &Kernel, reads: &[TensorDesc], writes: &[TensorDesc], gpu: &Target) -> String {
    match lower(kernel, reads, writes, gpu) {
        Err(Unsupported { reason, .. }) => reason,
        other => panic!("{kernel} is refused, not {other:?}"),
    }
}

/// Returns the words of a reduction that determine the order of its sums: invocations of a team, elements, and elements of a chunk.
fn order(sizes: &[u64], axes: &[usize], y: &[u64]) -> [u32; 3] {
    let kernel = Kernel::Reduce { op: ReduceOp::Mean, axes: axes.to_vec() };
    let dispatch = dispatches(&kernel, &[float(sizes)], &[float(y)], &Target::LEAST).remove(0);
    [dispatch.parameters[1], dispatch.parameters[6], dispatch.parameters[7]]
}

#[test]
fn the_order_of_a_reduction_depends_on_the_reduced_elements_alone() {
    for depth in [1, 31, 33, 2047, 2049, 70_000] {
        let whole = order(&[16, depth, 9], &[1], &[16, 9]);
        assert_eq!(order(&[1, depth, 9], &[1], &[1, 9]), whole, "{depth}");
        assert_eq!(order(&[depth, 5], &[0], &[5]), whole, "{depth}");
        assert_eq!(order(&[5, depth], &[1], &[5]), whole, "{depth}");
        assert_eq!(whole[1], depth as u32);
    }
}

#[test]
fn axes_that_lie_together_are_one() {
    let kernel = Kernel::Reduce { op: ReduceOp::Max, axes: vec![2, 3] };
    let dispatch = dispatches(&kernel, &[float(&[2, 3, 4, 5])], &[float(&[2, 3])], &Target::LEAST).remove(0);
    // One dimension of each kind, sizes and strides.
    assert_eq!(dispatch.parameters[9..], [1, 1, 6, 20, 20, 1]);
}

#[test]
fn normalization_beyond_a_binding_runs_in_parts() {
    let gpu = Target { binding_bytes_max: 1 << 16, ..Target::LEAST };
    let (x, channel) = (float(&[40, 3, 25, 25]), float(&[3]));
    let kernel = Kernel::BatchNormalization { epsilon: 1e-5, activation: Activation::None };
    let reads = [x.clone(), channel.clone(), channel.clone(), channel.clone(), channel.clone()];
    let parts = dispatches(&kernel, &reads, std::slice::from_ref(&x), &gpu);
    let image_bytes = 4 * 3 * 625;
    let mut images = 0;
    for part in &parts {
        // Each part's first element is where the images before it end, in x (words from 16 on) and in y.
        for (binding, operand, word) in [(0, Operand::Read(0), 16), (5, Operand::Write(0), 20)] {
            let bound = &part.bindings[binding];
            assert_eq!(bound.operand, operand);
            assert_eq!(bound.offset_bytes + 4 * u64::from(part.parameters[word]), images * image_bytes);
            assert_eq!(bound.offset_bytes % 256, 0);
        }
        assert_eq!(part.bindings[1].size_bytes, None, "every part has all channels");
        images += u64::from(part.parameters[7]);
    }
    assert_eq!((parts.len(), images), (5, 40));
    let kernel = Kernel::BatchNormalizationTraining { epsilon: 1e-5, activation: Activation::None, group_size: 1 };
    let writes = [x, channel.clone(), channel];
    let whole = lower(&kernel, &reads[..3], &writes, &gpu).unwrap();
    assert!(whole.ordered && whole.dispatches[0].shader.is_by_address(), "a channel's sum is not cut");
    let names: Vec<&str> = whole.dispatches.iter().map(|dispatch| dispatch.shader.name).collect();
    assert_eq!(names[..2], ["sums_statistics_f32_far", "from_sums_statistics_f32"]);
    assert_eq!((names.len(), names[2]), (7, "batch_normalization_f32"), "elements are cut");
}

#[test]
fn channels_are_normalized_by_workgroups_of_their_own_where_there_are_many() {
    let (x, channel) = (float(&[10, 130, 25, 25]), float(&[130]));
    let kernel = Kernel::BatchNormalizationTraining { epsilon: 1e-5, activation: Activation::None, group_size: 1 };
    let reads = [x.clone(), channel.clone(), channel.clone()];
    let lowered = lower(&kernel, &reads, &[x, channel.clone(), channel], &Target::LEAST).unwrap();
    assert_eq!((lowered.dispatches.len(), lowered.ordered, lowered.workspace_bytes), (1, false, 0));
}

#[test]
fn workgroups_share_all_chunks_of_a_sum() {
    for sizes in [[300, 3, 64, 64], [1, 200, 90, 90], [7, 5, 3, 2], [1, 1, 3000, 3000]] {
        let kernel = Kernel::Sums { of: Summing::BatchStatistics { group_size: 1 } };
        let sums = packed(DataType::Float64, &[4, sizes[1]]);
        let lowered = lower(&kernel, &[float(&sizes)], &[sums], &Target::LEAST).unwrap();
        let words = &lowered.dispatches[0].parameters;
        let (groups, group_chunks, channel_groups, chunks) = (words[1], words[2], words[3], words[13]);
        assert_eq!(groups, channel_groups * sizes[1] as u32, "{sizes:?}");
        assert!(group_chunks * channel_groups >= chunks, "{sizes:?}: {group_chunks} x {channel_groups} < {chunks}");
        assert!(group_chunks * (channel_groups - 1) < chunks, "{sizes:?}: a workgroup has nothing to do");
        let partial_bytes = if channel_groups > 1 { sizes[1] * u64::from(chunks) * 32 } else { 0 };
        assert_eq!(lowered.workspace_bytes, partial_bytes, "{sizes:?}");
    }
}

#[test]
fn the_sums_of_a_large_layers_gradient_fit_a_binding() {
    let kernel = Kernel::LayerNormalizationGradient { axis: 1 };
    for (rows, length, most_bytes) in [(1 << 20, 2048, 64 << 20), (3, 1 << 23, 64 << 20), (64, 1024, 16 << 10)] {
        let (x, row, column) = (float(&[rows, length]), float(&[rows]), float(&[length]));
        let reads = [x.clone(), x.clone(), column.clone(), row.clone(), row];
        let lowered = lower(&kernel, &reads, &[x, column.clone(), column], &Target::LEAST).unwrap();
        assert_eq!(lowered.workspace_bytes, most_bytes, "{rows} rows of {length}");
        let [groups, _, _, block_rows, blocks] = lowered.dispatches[0].parameters[3..8] else { unreachable!() };
        assert!(u64::from(groups * blocks * block_rows) >= rows, "{rows} rows of {length}");
        assert!(blocks.is_power_of_two(), "{rows} rows of {length}: no subtree");
    }
}

#[test]
fn what_shaders_lack_is_refused_with_a_reason() {
    let (gpu, without) = (Target::LEAST, Target { float64: false, ..Target::LEAST });
    let sums = Kernel::Sums { of: Summing::Channels };
    let (x, table) = (float(&[2, 3, 4]), packed(DataType::Float64, &[1, 3]));
    let double = packed(DataType::Float64, &[2, 3, 4]);
    assert!(refusal(&sums, std::slice::from_ref(&double), std::slice::from_ref(&table), &without).contains("float64"));
    assert!(lower(&sums, std::slice::from_ref(&double), &[table], &gpu).is_ok());
    let reduce = |op| Kernel::Reduce { op, axes: vec![0] };
    let integers = |data_type| (packed(data_type, &[4, 5]), packed(data_type, &[5]));
    let (wide, y) = integers(DataType::Int64);
    assert!(refusal(&reduce(ReduceOp::Sum), &[wide], &[y], &gpu).contains("int64"));
    let (x32, y) = integers(DataType::Int32);
    assert!(refusal(&reduce(ReduceOp::L2), &[x32], &[y], &gpu).contains("wider integers"));
    let loss = Kernel::SoftmaxCrossEntropy { axis: 1, ignore_index: None };
    let labels = packed(DataType::UInt8, &[2, 4]);
    assert!(refusal(&loss, &[x, labels], &[float(&[1])], &gpu).contains("uint8"));
    let softmax = Kernel::Softmax { axis: 2 };
    assert!(refusal(&softmax, &[float(&[5])], &[float(&[5])], &gpu).contains("no axis 2"));
}

#[test]
fn kernels_do_without_what_shaders_lack() {
    let without = Target { float64: false, storage16: false, ..Target::LEAST };
    let small = Target { binding_bytes_max: 64, ..without };
    let of = Summing::Channels;
    let (x, table) = (float(&[2, 3, 4]), packed(DataType::Float64, &[of.rows(), 3]));
    let half = |sizes: &[u64]| packed(DataType::Float16, sizes);
    let launches = [
        (Kernel::Sums { of }, vec![x], vec![table], "sums_channels_f32"),
        (Kernel::product(false, false), vec![half(&[8, 8]), half(&[8, 8])], vec![half(&[8, 8])], "matmul_32x32_f16"),
    ];
    for (kernel, reads, writes, name) in launches {
        for (gpu, suffix) in [(Target::LEAST, ""), (without, "_portable"), (small, "_portable_far")] {
            let lowered = lower(&kernel, &reads, &writes, &gpu).unwrap();
            assert_eq!(lowered.dispatches[0].shader.name, format!("{name}{suffix}"));
            let usual = lower(&kernel, &reads, &writes, &Target::LEAST).unwrap();
            assert_eq!(lowered.workspace_bytes, usual.workspace_bytes, "plans do not depend on it");
        }
    }
}
