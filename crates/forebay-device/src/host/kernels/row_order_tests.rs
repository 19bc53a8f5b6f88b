//! Operands stored row by row: every kernel that may have them gives the bits of packed operands, whichever of its operands are stored so,
//! and leaves the bytes between them alone.

use std::collections::BTreeSet;

use forebay_base::kernel::{
    Activation, BinaryOp, Convolution, KernelKind, PoolOp, ReduceOp, UnaryOp, Window, facts::ByRows, samples,
};
use forebay_base::{DataType, Kernel, TensorDesc};

use super::testing::{Random, Tensor, desc, run, strided};

/// A launch: the kernel, its reads and its writes, packed.
struct Case(Kernel, Vec<TensorDesc>, Vec<TensorDesc>);

/// The channels of images.
const CHANNELS: u64 = 6;
/// The channels of the concatenation around images that are a part of one.
const CHANNELS_AROUND: u64 = 11;

/// A launch of every kernel that may have operands stored row by row, on one image of these spatial sizes.
fn cases(spatial: &[u64]) -> Vec<Case> {
    let shape = |before: &[u64], spatial: &[u64]| [before, spatial].concat();
    let float = |sizes: &[u64]| desc(DataType::Float32, sizes);
    let all = |value: u64| vec![value; spatial.len()];
    let window = |kernel, pad| Window {
        kernel: all(kernel),
        strides: all(1),
        dilations: all(1),
        pads_begin: all(pad),
        pads_end: all(pad),
    };
    let image = shape(&[1, CHANNELS], spatial);
    let image_of = |data_type| desc(data_type, &image);
    let (x, w) = (float(&image), float(&shape(&[CHANNELS, CHANNELS / 2], &all(3))));
    let (channels, one) = (float(&[CHANNELS]), float(&[1]));
    let labels = desc(DataType::Int64, &shape(&[1], spatial));
    let convolution = || Convolution { window: window(3, 1), groups: 2 };
    let (epsilon, activation) = (1e-5, Activation::Relu);
    let mut cases = vec![
        Case(Kernel::Unary(UnaryOp::Tanh), vec![x.clone()], vec![x.clone()]),
        Case(Kernel::UnaryGradient(UnaryOp::Sigmoid), vec![x.clone(); 2], vec![x.clone()]),
        Case(Kernel::Binary { op: BinaryOp::Subtract, activation }, vec![x.clone(); 2], vec![x.clone()]),
        Case(Kernel::Select, vec![image_of(DataType::Bool), x.clone(), x.clone()], vec![x.clone()]),
        Case(Kernel::cast(), vec![x.clone()], vec![image_of(DataType::Int32)]),
        Case(Kernel::cast(), vec![x.clone()], vec![image_of(DataType::BFloat16)]),
        Case(Kernel::Copy, vec![x.clone()], vec![x.clone()]),
        Case(
            Kernel::Convolution { convolution: convolution(), activation },
            vec![x.clone(), w.clone(), channels.clone()],
            vec![x.clone()],
        ),
        Case(
            Kernel::ConvolutionDataGradient { convolution: convolution(), activation: Activation::None },
            vec![x.clone(), w.clone()],
            vec![x.clone()],
        ),
        Case(Kernel::ConvolutionWeightGradient { convolution: convolution() }, vec![x.clone(); 2], vec![w.clone()]),
        Case(
            Kernel::BatchNormalization { epsilon, activation },
            [vec![x.clone()], vec![channels.clone(); 4]].concat(),
            vec![x.clone()],
        ),
        Case(
            Kernel::BatchNormalizationTraining { epsilon, activation, group_size: 1 },
            [vec![x.clone()], vec![channels.clone(); 2]].concat(),
            [vec![x.clone()], vec![channels.clone(); 2]].concat(),
        ),
        Case(
            Kernel::BatchNormalizationGradient { epsilon, activation, group_size: 1 },
            [vec![x.clone(); 2], vec![channels.clone(); 4]].concat(),
            [vec![x.clone()], vec![channels.clone(); 2]].concat(),
        ),
        Case(
            Kernel::Reduce { op: ReduceOp::Sum, axes: (0..image.len()).filter(|&axis| axis != 1).collect() },
            vec![x.clone()],
            vec![channels.clone()],
        ),
        Case(
            Kernel::SoftmaxCrossEntropy { axis: 1, ignore_index: Some(2) },
            vec![x.clone(), labels.clone()],
            vec![one.clone()],
        ),
        Case(
            Kernel::SoftmaxCrossEntropyGradient { axis: 1, ignore_index: Some(2) },
            vec![one, x.clone(), labels],
            vec![x.clone()],
        ),
    ];
    for op in [PoolOp::Max, PoolOp::Average { count_include_pad: false }] {
        cases.push(Case(Kernel::Pool { op, window: window(3, 1) }, vec![x.clone()], vec![x.clone()]));
        cases.push(Case(Kernel::PoolGradient { op, window: window(3, 1) }, vec![x.clone(); 2], vec![x.clone()]));
    }
    let in_sixteen_bits = |case: &Case| {
        let stored = case.0.facts().sixteen_bit;
        let narrow = |descs: &[TensorDesc], which: &[usize]| -> Vec<TensorDesc> {
            let narrow = |(i, own): (usize, &TensorDesc)| match which.contains(&i) {
                true => desc(DataType::BFloat16, own.sizes()),
                false => own.clone(),
            };
            descs.iter().enumerate().map(narrow).collect()
        };
        Case(case.0.clone(), narrow(&case.1, stored.reads), narrow(&case.2, stored.writes))
    };
    let has_narrow = |case: &&Case| {
        let stored = case.0.facts().sixteen_bit;
        !stored.reads.is_empty() || !stored.writes.is_empty()
    };
    let narrow: Vec<Case> = cases.iter().filter(has_narrow).map(in_sixteen_bits).collect();
    cases.extend(narrow);
    cases
}

/// The layouts of an operand: packed, and if it may be, row by row, alone and as a part of a concatenation.
fn layouts(packed: &TensorDesc, may_be_by_rows: bool) -> Vec<TensorDesc> {
    let sizes = packed.sizes();
    let places: u64 = sizes.iter().skip(3).product();
    let by_rows = |channels: u64| {
        let mut strides = packed.effective_strides();
        (strides[0], strides[1], strides[2]) = (channels * sizes[2] * places, places, channels * places);
        strided(packed.data_type(), sizes, &strides)
    };
    match may_be_by_rows && packed.data_type().computed_in() == DataType::Float32 && sizes.len() > 3 {
        true => vec![packed.clone(), by_rows(CHANNELS), by_rows(CHANNELS_AROUND)],
        false => vec![packed.clone()],
    }
}

/// Every combination of a layout per operand.
fn combinations(layouts: &[Vec<TensorDesc>]) -> Vec<Vec<TensorDesc>> {
    layouts.iter().fold(vec![Vec::new()], |combinations, layouts| {
        let extended = |combination: Vec<TensorDesc>| {
            layouts.iter().map(move |layout| [combination.as_slice(), std::slice::from_ref(layout)].concat())
        };
        combinations.into_iter().flat_map(extended).collect()
    })
}

fn values(random: &mut Random, desc: &TensorDesc) -> Vec<f64> {
    let mut value = || match desc.data_type() {
        DataType::Int64 => random.below(CHANNELS) as f64,
        DataType::Bool => random.below(2) as f64,
        data_type if !data_type.is_float() => random.below(100) as f64,
        // Variances are positive.
        _ if desc.sizes().len() == 1 => f64::from(random.float().abs() + 0.125),
        _ => f64::from(random.float()),
    };
    (0..desc.element_count()).map(|_| value()).collect()
}

#[test]
fn every_operand_may_be_stored_row_by_row_whatever_the_others_are() {
    let mut random = Random::new(7);
    let mut tried = BTreeSet::new();
    for spatial in [vec![7, 16], vec![3, 4, 8]] {
        for Case(kernel, reads, writes) in cases(&spatial) {
            let ByRows { reads: free_reads, writes: free_writes, .. } = kernel.facts().by_rows;
            tried.insert(kernel.facts().kind);
            let values: Vec<Vec<f64>> = reads.iter().map(|read| values(&mut random, read)).collect();
            let results = |descs: &[TensorDesc]| {
                let (reads, writes) = descs.split_at(values.len());
                let reads: Vec<Tensor> =
                    reads.iter().zip(&values).map(|(desc, values)| Tensor::arranged(desc, values)).collect();
                run(&kernel, &reads.iter().collect::<Vec<_>>(), writes)
            };
            let expected = results(&[reads.as_slice(), &writes].concat());
            let own = |descs: &[TensorDesc], free: &[usize]| -> Vec<Vec<TensorDesc>> {
                descs.iter().enumerate().map(|(i, desc)| layouts(desc, free.contains(&i))).collect()
            };
            for descs in combinations(&[own(&reads, free_reads), own(&writes, free_writes)].concat()) {
                for (found, expected) in results(&descs).iter().zip(&expected) {
                    let bits = |tensor: &Tensor| tensor.values().into_iter().map(f64::to_bits).collect::<Vec<_>>();
                    assert!(bits(found) == bits(expected), "{kernel}: other bits with {descs:?}");
                    assert!(found.has_untouched_gaps(), "{kernel}: writes outside of {descs:?}");
                }
            }
        }
    }
    let may = |kind: &KernelKind| {
        samples::of(*kind).iter().any(|sample| {
            let ByRows { reads, writes, .. } = sample.kernel.facts().by_rows;
            !reads.is_empty() || !writes.is_empty()
        })
    };
    let all: BTreeSet<KernelKind> = KernelKind::ALL.iter().copied().filter(may).collect();
    assert_eq!(tried, all, "each kernel that may have operands stored row by row is tried");
}
