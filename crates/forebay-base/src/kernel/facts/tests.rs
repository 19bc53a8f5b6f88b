//! Checks that the facts of every kernel's samples are consistent.

use std::collections::BTreeSet;

use super::super::samples::{self, Sample};
use super::super::{
    ATTENTION_KEYS, ATTENTION_ROWS, Activation, AttentionOptions, Convolution, Kernel, KernelKind, PRODUCT_COLUMNS,
    PRODUCT_ROWS, ProductPart, ReduceOp, Window,
};
use super::{AxisRole, Dimension, ElementTypes, OperandRef, SlidingAxis};
use crate::{DataType, TensorDesc};

fn dimensions(sample: &Sample) -> Option<Vec<Dimension>> {
    let (reads, writes) = (sample.reads.iter().collect::<Vec<_>>(), sample.writes.iter().collect::<Vec<_>>());
    sample.kernel.facts().dimensions(&reads, &writes)
}

fn desc(sample: &Sample, operand: OperandRef) -> Option<&TensorDesc> {
    match operand {
        OperandRef::Read(index) => sample.reads.get(index),
        OperandRef::Write(index) => sample.writes.get(index),
    }
}

fn packed(sizes: &[u64]) -> TensorDesc {
    TensorDesc::packed(DataType::Float32, sizes).unwrap()
}

#[test]
fn every_kernel_has_samples_of_its_own_kind() {
    for &kind in KernelKind::ALL {
        let samples = samples::of(kind);
        assert!(!samples.is_empty(), "{kind:?} has no sample, or one whose sizes are none of a tensor");
        assert!(samples.iter().all(|sample| sample.kernel.facts().kind == kind), "{kind:?}");
    }
    let names: BTreeSet<&str> = KernelKind::ALL.iter().map(|kind| kind.name()).collect();
    assert_eq!(names.len(), KernelKind::ALL.len());
    assert!(samples::of_sixteen_bits().len() > samples::stored_in_sixteen_bits().len());
}

/// Every axis of an operand that any dimension runs through has a role, and no axis has two.
#[test]
fn all_axes_of_samples_have_one_role() {
    for sample in samples::all() {
        let dimensions = dimensions(&sample).unwrap_or_else(|| panic!("{}: sizes do not fit", sample.name()));
        let reads = (0..sample.reads.len()).map(OperandRef::Read);
        for operand in reads.chain((0..sample.writes.len()).map(OperandRef::Write)) {
            // Heads are both groups and members of groups.
            let own = dimensions.iter().filter_map(|one| one.along(operand)).filter(|(own, _)| own.indices.is_none());
            let axes: Vec<usize> = own.map(|(along, _)| along.axis).collect();
            let distinct: BTreeSet<usize> = axes.iter().copied().collect();
            assert_eq!(axes.len(), distinct.len(), "{}: {operand:?} has an axis with two roles", sample.name());
            let sizes = desc(&sample, operand).unwrap().sizes();
            let lacks = |&axis: &usize| !distinct.contains(&axis) && sizes[axis] > 1;
            let missing: Vec<usize> = (0..sizes.len()).filter(lacks).collect();
            assert!(axes.is_empty() || missing.is_empty(), "{}: {operand:?} lacks roles of {missing:?}", sample.name());
        }
    }
}

#[test]
fn facts_name_operands_that_there_are() {
    for sample in samples::all() {
        let (facts, name) = (sample.kernel.facts(), sample.name());
        for &(write, read) in facts.in_place {
            // A result can only replace an operand of the same size.
            let (Some(write), Some(read)) = (sample.writes.get(write), sample.reads.get(read)) else { continue };
            let is_same = write.element_count() == read.element_count();
            assert!(is_same, "{name}: {write} in the place of {read}");
        }
        if let Some(read) = facts.continues {
            assert_eq!(sample.reads.get(read), sample.writes.first(), "{name} goes on from its result");
        }
        // What makes an element has none of its own to count along.
        assert!(desc(&sample, facts.counted_along).is_some(), "{name}");
        if let Some((read, limit)) = sample.kernel.index_limit(|operand| desc(&sample, operand)) {
            assert!(!sample.reads[read].data_type().is_float() && limit > 0, "{name}");
        }
        let first = sample.reads.first().or(sample.writes.first()).unwrap();
        assert!(facts.take(first.data_type()), "{name}: {first}");
        assert!(facts.operations(|operand| desc(&sample, operand)) >= 1.0, "{name}");
    }
}

#[test]
fn types_of_operands_must_fit_each_other() {
    let types = |descs: &[TensorDesc]| descs.iter().map(TensorDesc::data_type).collect::<Vec<_>>();
    for sample in samples::all().into_iter().chain(samples::of_sixteen_bits()) {
        let (reads, writes) = (types(&sample.reads), types(&sample.writes));
        assert_eq!(sample.kernel.check_types(&reads, &writes), Ok(()), "{}", sample.name());
        // What computes with real numbers reads no bytes.
        if sample.kernel.facts().types == ElementTypes::Floats {
            for read in 1..reads.len() {
                let mut others = reads.clone();
                others[read] = DataType::UInt8;
                assert!(sample.kernel.check_types(&others, &writes).is_err(), "{}: {read}", sample.name());
            }
        }
    }
    let select = |a: DataType, b: DataType, y: DataType| Kernel::Select.check_types(&[DataType::Bool, a, b], &[y]);
    assert_eq!(select(DataType::Int8, DataType::Int8, DataType::Int8), Ok(()));
    let error = select(DataType::Int8, DataType::UInt8, DataType::Int8).unwrap_err();
    assert_eq!(error, "operand 2 must be int8, not uint8");
    let gather = Kernel::Gather { axis: 0 };
    let error = gather.check_types(&[DataType::Int8, DataType::Int16], &[DataType::Int8]).unwrap_err();
    assert_eq!(error, "operand 1 must be int32 or int64, not int16");
    let error = gather.check_types(&[DataType::Int8, DataType::Int32], &[DataType::Int32]).unwrap_err();
    assert_eq!(error, "result 0 must be int8, not int32");
}

/// A kernel that sums names sums whose kernel reads the same number of operands and computes every result except the first.
#[test]
fn kernels_that_sum_agree_with_their_sums() {
    let mut summing = BTreeSet::new();
    for sample in samples::all() {
        let (reads, writes) = (sample.reads.iter().collect::<Vec<_>>(), sample.writes.iter().collect::<Vec<_>>());
        let Some(sums) = sample.kernel.sums_in_parts(&reads, &writes) else { continue };
        summing.insert(sample.kernel.facts().kind);
        // Its parts are cut in the same way.
        let own: Vec<_> = sums.reads.iter().map(|&read| reads[read]).collect();
        let table = TensorDesc::packed(DataType::Float64, &[sums.of.rows(), 1]).unwrap();
        let parts = Kernel::Sums { of: sums.of };
        let leaves = |dimensions: Vec<Dimension>| dimensions.iter().map(|one| one.leaves).collect::<Vec<_>>();
        let of_parts = leaves(parts.facts().dimensions(&own, &[&table]).unwrap());
        assert!(of_parts.iter().any(Option::is_some), "{}", sample.name());
        assert_eq!(of_parts, leaves(dimensions(&sample).unwrap())[..of_parts.len()], "{}", sample.name());
        assert_eq!(sums.rest.is_some(), sums.first_finished > 0, "{}", sample.name());
        let reduced = dimensions(&sample).unwrap().into_iter().any(|one| one.role == AxisRole::Reduced);
        assert!(reduced, "{}: nothing is summed over", sample.name());
    }
    assert_eq!(summing.len(), 6, "{summing:?}");
}

#[test]
fn a_window_ties_rows_of_results_to_rows_that_they_see() {
    let two = |value: u64| vec![value; 2];
    let window = Window { kernel: two(3), strides: two(2), dilations: two(1), pads_begin: two(1), pads_end: two(0) };
    let convolution = Convolution { window, groups: 1 };
    let forward = Kernel::Convolution { convolution: convolution.clone(), activation: Activation::None };
    let backward = Kernel::ConvolutionDataGradient { convolution, activation: Activation::None };
    let (x, w, y) = (packed(&[1, 2, 8, 8]), packed(&[4, 2, 3, 3]), packed(&[1, 4, 4, 4]));
    let sliding = SlidingAxis { taps: 3, stride: 2, dilation: 1, pad_begin: 1, pad_end: None };
    let found = forward.facts().dimensions(&[&x, &w], &[&y]).unwrap();
    let rows = |found: &[Dimension]| found.iter().find(|one| one.role == AxisRole::Spatial(sliding)).cloned().unwrap();
    assert_eq!(
        rows(&found).along(OperandRef::Read(0)).map(|(along, is_source)| (along.axis, is_source)),
        Some((2, true))
    );
    assert_eq!(rows(&found).along(OperandRef::Write(0)).map(|(_, is_source)| is_source), Some(false));
    let found = backward.facts().dimensions(&[&y, &w], &[&x]).unwrap();
    assert!(rows(&found).writes_sources() && !rows(&found).is_reduced());
}

/// Parts can begin where the reduction blocks of the sums do.
#[test]
fn cuts_keep_to_lines() {
    let product = Kernel::product(false, false);
    let (a, b, y) = (packed(&[300, 600]), packed(&[600, 700]), packed(&[300, 700]));
    let found = product.facts().dimensions(&[&a, &b], &[&y]).unwrap();
    let steps: Vec<_> = found.iter().map(|one| one.cut).collect();
    assert_eq!(steps, [Some(1), Some(PRODUCT_COLUMNS), Some(super::super::PRODUCT_TERMS)]);
    assert_eq!(found[0].at_once, PRODUCT_ROWS);
    let trees: Vec<_> = found.iter().map(|one| one.leaves.is_some()).collect();
    assert_eq!(trees, [false, false, true], "only terms are summed");
    let sixteen = [&a, &b, &y].map(|desc| TensorDesc::packed(DataType::Float16, desc.sizes()).unwrap());
    for (result, terms) in [(&sixteen[2], None), (&y, Some(super::super::PRODUCT_TERMS))] {
        let found = product.facts().dimensions(&[&sixteen[0], &sixteen[1]], &[result]).unwrap();
        let steps: Vec<_> = found.iter().map(|one| one.cut).collect();
        assert_eq!(steps, [Some(1), Some(PRODUCT_COLUMNS), terms], "sums of 16 bits are rounded");
    }
    // The columns of a part are counted from its first column.
    let mut columns = product.clone();
    if let super::Placement::Product(part, _) = columns.placement() {
        *part = ProductPart::Columns { first: 256 };
    }
    let found = columns.facts().dimensions(&[&a, &packed(&[600, 300]), &packed(&[300, 700])], &[&packed(&[300, 700])]);
    let along = found.unwrap()[1].along(OperandRef::Write(0)).unwrap().0;
    assert_eq!((along.axis, along.first), (1, 256));
    let sum = Kernel::Reduce { op: ReduceOp::Sum, axes: vec![0, 2] };
    let (x, y) = (packed(&[64, 3, 100]), packed(&[3]));
    let found = sum.facts().dimensions(&[&x], &[&y]).unwrap();
    // 512 positions hold five images of a hundred; a block has a power of two of images.
    assert_eq!((found[0].role, found[0].cut), (AxisRole::Reduced, Some(4)));
    assert_eq!((found[1].role, found[1].cut), (AxisRole::Free, Some(1)));
    let largest = Kernel::Reduce { op: ReduceOp::Max, axes: vec![0, 2] };
    assert_eq!(largest.facts().dimensions(&[&x], &[&y]).unwrap()[0].cut, None, "only sums go on from each other");
}

/// Separate launches read what the launch reads, and together write each of its results once.
#[test]
fn separate_launches_write_all_results_once() {
    let mut separable = BTreeSet::new();
    for sample in samples::all() {
        let separate = sample.kernel.separate();
        if separate.is_empty() {
            continue;
        }
        separable.insert(sample.kernel.facts().kind);
        let mut written = 0;
        for one in separate {
            assert_eq!(one.writes.start, written, "{}", sample.name());
            written = one.writes.end;
            let own =
                Sample { kernel: one.kernel, reads: sample.reads.clone(), writes: sample.writes[one.writes].to_vec() };
            assert!(dimensions(&own).is_some() && own.kernel.separate().is_empty(), "{}", own.name());
        }
        assert_eq!(written, sample.writes.len(), "{}", sample.name());
    }
    assert_eq!(separable, BTreeSet::from([KernelKind::AttentionGradient]));
}

/// Attention is cut along the first of its axes with more than one index; it is not cut along an axis over which something is summed.
#[test]
fn attention_is_cut_axis_by_axis() {
    let options = AttentionOptions { scale: 1.0, softcap: 0.0, causal: Some(0) };
    let cuts = |kernel: Kernel, [batch, heads, groups]: [u64; 3]| {
        let (q, k) = (packed(&[batch, heads, 640, 8]), packed(&[batch, groups, 640, 8]));
        let logarithms = packed(&[batch, heads, 640, 2]);
        let (reads, writes) = match kernel {
            Kernel::Attention(_) => (vec![&q, &k, &k], vec![&q, &logarithms]),
            Kernel::AttentionQueryGradient(_) => (vec![&q, &q, &k, &k, &q, &logarithms], vec![&q]),
            _ => (vec![&q, &q, &k, &k, &q, &logarithms], vec![&k, &k]),
        };
        let found = kernel.facts().dimensions(&reads, &writes).unwrap();
        let all = found.into_iter().enumerate();
        all.filter_map(|(number, one)| Some((number, one.role, one.cut?))).collect::<Vec<_>>()
    };
    let free = |number: usize| (number, AxisRole::Free, 1);
    for kernel in [Kernel::Attention(options), Kernel::AttentionQueryGradient(options)] {
        let cuts = |sizes: [u64; 3]| cuts(kernel.clone(), sizes);
        assert_eq!(cuts([2, 4, 2]), [free(0)]);
        assert_eq!(cuts([1, 4, 2]), [free(0), free(1)]);
        assert_eq!(cuts([1, 2, 1]), [free(0), free(1), free(2)]);
        assert_eq!(cuts([1, 1, 1]), [free(0), free(1), (2, AxisRole::Diagonal(1), ATTENTION_ROWS)]);
    }
    let cuts = |sizes: [u64; 3]| cuts(Kernel::AttentionKeyGradient(options), sizes);
    assert_eq!(cuts([1, 4, 2]), [free(0), free(1)]);
    assert_eq!(cuts([1, 2, 1]), [free(0), free(1), (4, AxisRole::Diagonal(-1), ATTENTION_KEYS)]);
}
