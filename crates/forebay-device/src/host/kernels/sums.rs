//! Kernels: partial sums over positions, and the results computed from them.
//!
//! The kernels that sum everything at once use the same functions, so parts agree with them bit for bit.

use forebay_base::kernel::{Summing, add_statistics};
use forebay_base::{DataType, Kernel};

use super::element::{Float, for_type};
use super::loss::{cross_entropy, squared_error};
use super::normalization::{batch, layer};
use super::parallel::{Pointer, require_packed};
use super::partial_sums::{check_sums, load_sums, store_sums};
use super::reduce::rows;
use super::{View, unsupported};
use crate::device::DeviceError;

/// Runs one kernel of this family.
///
/// # Safety
/// As [`super::run`].
pub(super) unsafe fn run(kernel: &Kernel, reads: &[View], writes: &[View]) -> Result<(), DeviceError> {
    // Sums are always float64; the summed operands determine the type.
    let data_type = match kernel {
        Kernel::AddSums { .. } | Kernel::FromSums { .. } => writes[0].desc.data_type(),
        Kernel::Sums { of: Summing::BatchStatistics { .. } | Summing::BatchGradient { .. } } => {
            reads[0].desc.data_type().computed_in()
        }
        _ => reads[0].desc.data_type(),
    };
    // SAFETY: the caller's promises, and the types are those of the views.
    let result = unsafe {
        match *kernel {
            Kernel::Sums { of } => for_type!(data_type, floats, T => sums::<T>(of, reads, &writes[0])),
            Kernel::AddSums { of } => add(of, reads, &writes[0]),
            Kernel::FromSums { of } => for_type!(data_type, floats, T => finish::<T>(of, reads, writes)),
            _ => Err("not a sum".into()),
        }
    };
    result.map_err(|reason| unsupported(kernel, reason))
}

/// # Safety
/// As [`super::run`], and the summed operands must be of type `T`.
unsafe fn sums<T: Float>(of: Summing, reads: &[View], sums: &View) -> Result<(), String> {
    // SAFETY: the caller's promises.
    unsafe {
        match of {
            Summing::BatchStatistics { .. } => store_sums(&batch::statistics_sums::<T>(&reads[0])?, sums),
            Summing::BatchGradient { epsilon, activation } => {
                store_sums(&batch::gradient_sums::<T>(epsilon, activation, reads)?, sums)
            }
            Summing::CrossEntropy { axis, ignore_index } => {
                store_sums(&[cross_entropy::sums::<T>(axis, ignore_index, &reads[0], &reads[1])?], sums)
            }
            Summing::SquaredError => store_sums(&[squared_error::sums::<T>(&reads[0], &reads[1])?], sums),
            Summing::LayerGradient { axis } => store_sums(&layer::parameter_sums::<T>(axis, reads)?, sums),
            Summing::Rows { axes } => rows::store_sums::<T>(axes, &reads[0], sums),
            Summing::Channels => store_sums(&batch::channel_sums::<T>(&reads[0])?, sums),
        }
    }
}

/// # Safety
/// As [`super::run`].
unsafe fn add(of: Summing, reads: &[View], sums: &View) -> Result<(), String> {
    let rows = of.rows() as usize;
    let (tables, count) = match sums.sizes()[..] {
        [tables, own, channels] => (tables, own * channels),
        _ => (1, sums.count()),
    };
    let channels = count / rows;
    let views = [&reads[0], &reads[1], sums];
    let mut apart = [0; 3];
    for (apart, view) in apart.iter_mut().zip(views) {
        *apart = tables_apart(view, tables, [rows, channels])?;
    }
    let first = views.map(Pointer::<f64>::of);
    for (table, channel) in (0..tables).flat_map(|table| (0..channels).map(move |channel| (table, channel))) {
        // SAFETY: the views have these elements, and earlier sums are read before the sums that replace them are written.
        unsafe {
            let at =
                |view: usize, row: usize| first[view].at((table * apart[view] + row * channels + channel) as isize);
            if matches!(of, Summing::BatchStatistics { .. }) {
                let [earlier, later] = [0, 1].map(|view| std::array::from_fn(|row| *at(view, row)));
                let both = add_statistics(earlier, later);
                both.iter().enumerate().for_each(|(row, &sum)| *at(2, row) = sum);
            } else {
                (0..rows).for_each(|row| *at(2, row) = *at(0, row) + *at(1, row));
            }
        }
    }
    Ok(())
}

/// Returns the number of elements from one table of sums to the next.
///
/// # Errors
/// Returns an error if the view does not hold these tables, or has gaps within one.
fn tables_apart(view: &View, tables: usize, [rows, channels]: [usize; 2]) -> Result<usize, String> {
    let (sizes, strides) = (view.sizes(), view.strides());
    if sizes.len() != 3 {
        return check_sums(view, tables * rows * channels).map(|()| rows * channels);
    }
    if sizes != [tables, rows, channels] || strides[1..] != [channels, 1] || view.desc.data_type() != DataType::Float64
    {
        return Err(format!("{} does not contain {tables} tables of {rows} x {channels} float64 sums", view.desc));
    }
    Ok(strides[0])
}

/// # Safety
/// As [`super::run`], and the results must be of type `T`.
unsafe fn finish<T: Float>(of: Summing, reads: &[View], writes: &[View]) -> Result<(), String> {
    require_packed(writes)?;
    let count = writes[0].count();
    // SAFETY: the caller's promises; all results have one element per channel.
    unsafe {
        match of {
            Summing::BatchStatistics { group_size } => {
                batch::statistics::<T>(&load_sums(&reads[0], count)?, group_size, &writes[0], &writes[1])?;
            }
            Summing::BatchGradient { epsilon, .. } => {
                let sums = load_sums(&reads[0], count)?;
                batch::parameter_gradients::<T>(epsilon, &sums, &reads[1], &writes[0], &writes[1]);
            }
            Summing::LayerGradient { .. } => {
                layer::store_parameter_gradients::<T>(&load_sums(&reads[0], count)?, writes);
            }
            Summing::CrossEntropy { .. } | Summing::SquaredError => {
                let sums = load_sums::<2>(&reads[0], 1)?[0];
                *Pointer::<T>::of(&writes[0]).at(0) = cross_entropy::mean(sums);
            }
            Summing::Rows { .. } => rows::from_sums::<T>(&reads[0], &writes[0])?,
            Summing::Channels => {
                let y = Pointer::<T>::of(&writes[0]).slice_mut(0, count);
                y.iter_mut().zip(load_sums::<1>(&reads[0], count)?).for_each(|(y, [sum])| *y = T::from_f64(sum));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use forebay_base::TensorDesc;
    use forebay_base::kernel::{Activation, reduction_block_of_channels, reduction_block_rows};
    use forebay_base::sum_tree::{PartialSums, nodes_of};

    use super::super::testing::{Random, Tensor, desc, run};
    use super::*;

    /// Some indices of the first axis.
    fn indices(tensor: &Tensor, range: &Range<u64>) -> Tensor {
        let mut sizes = tensor.desc.sizes().to_vec();
        let of_index = sizes[1..].iter().product::<u64>();
        sizes[0] = range.end - range.start;
        let values = tensor.values();
        let own = &values[(range.start * of_index) as usize..(range.end * of_index) as usize];
        Tensor::new(&desc(tensor.desc.data_type(), &sizes), own)
    }

    /// Checks that a sum over the first axis has the same bits if two ranges of the axis are summed separately: each range as the nodes of
    /// the sum tree that lie in it, whose sums are then added along the tree. The axis has `count` reduction blocks of `of_block` indices
    /// (the last one can be shorter). Operands whose positions are in `whole` do not have the axis, so every sum reads all of them.
    fn check(of: Summing, operands: &[Tensor], whole: &[usize], channels: u64, (count, of_block): (u64, u64)) {
        let table = [desc(DataType::Float64, &[of.rows(), channels])];
        let sums = |range: Range<u64>| {
            let size = operands[0].desc.sizes()[0];
            let range = range.start * of_block..size.min(range.end * of_block);
            let own = |(index, tensor): (usize, &Tensor)| match whole.contains(&index) {
                true => tensor.clone(),
                false => indices(tensor, &range),
            };
            let own: Vec<Tensor> = operands.iter().enumerate().map(own).collect();
            run(&Kernel::Sums { of }, &own.iter().collect::<Vec<_>>(), &table).remove(0)
        };
        let add = |earlier: Tensor, later: Tensor| run(&Kernel::AddSums { of }, &[&earlier, &later], &table).remove(0);
        let expected = sums(0..count).values();
        for cut in [count / 2, 1, count - 1] {
            let mut total = PartialSums::default();
            for range in [0..cut, cut..count] {
                let mut own = PartialSums::default();
                nodes_of(range, count).into_iter().for_each(|node| own.push(node.clone(), sums(node), add));
                total.append(own, add);
            }
            let found = total.total(add).unwrap().values();
            let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found), bits(&expected), "{of:?}, {count} blocks cut at {cut}");
        }
    }

    #[test]
    fn a_sum_is_what_two_ranges_hand_over() {
        let mut random = Random::new(5);
        let mut tensor = |sizes: &[u64]| {
            let shape: TensorDesc = desc(DataType::Float32, sizes);
            Tensor::new(&shape, &random.values(shape.element_count() as usize))
        };
        for blocks in [2, 6, 10, 13] {
            // Images of several blocks, and blocks of several images.
            for (rows, places) in [(40, 30), (5, 9)] {
                let of_block = reduction_block_of_channels(rows, places).images;
                let sizes = [blocks * of_block, 3, rows, places];
                let (x, dy) = (tensor(&sizes), tensor(&sizes));
                check(Summing::BatchStatistics { group_size: 1 }, std::slice::from_ref(&x), &[], 3, (blocks, of_block));
                check(Summing::Channels, std::slice::from_ref(&x), &[], 3, (blocks, of_block));
                let statistics = [(); 4].map(|()| Tensor::new(&desc(DataType::Float32, &[3]), &[0.5, 1.0, 2.0]));
                let operands = [vec![dy, x], statistics.to_vec()].concat();
                let of = Summing::BatchGradient { epsilon: 1e-3, activation: Activation::Relu };
                check(of, &operands, &[2, 3, 4, 5], 3, (blocks, of_block));
            }
            let (length, of_block) = (600, reduction_block_rows(600));
            let rows = blocks * of_block - 5;
            let (dy, x) = (tensor(&[rows, length]), tensor(&[rows, length]));
            let per_row = [tensor(&[rows]), tensor(&[rows])];
            check(Summing::Rows { axes: 1 }, std::slice::from_ref(&x), &[], length, (blocks, of_block));
            check(Summing::SquaredError, &[tensor(&[blocks, 512]), tensor(&[blocks, 512])], &[], 1, (blocks, 1));
            let operands = [vec![dy, x], per_row.to_vec()].concat();
            check(Summing::LayerGradient { axis: 1 }, &operands, &[], length, (blocks, of_block));
            let labels: Vec<f64> = (0..blocks * 2048).map(|position| (position % 7) as f64).collect();
            let labels = Tensor::new(&desc(DataType::Int64, &[blocks, 2048]), &labels);
            let of = Summing::CrossEntropy { axis: 1, ignore_index: Some(3) };
            check(of, &[tensor(&[blocks, 7, 2048]), labels], &[], 1, (blocks, 1));
        }
    }

    #[test]
    fn several_tables_are_added_at_once() {
        let (tables, channels) = (3, 5);
        for of in [Summing::BatchStatistics { group_size: 1 }, Summing::Rows { axes: 1 }] {
            let (rows, mut random) = (of.rows(), Random::new(8));
            let one = desc(DataType::Float64, &[rows, channels]);
            let mut table = || Tensor::new(&one, &random.values((rows * channels) as usize));
            let pairs: Vec<[Tensor; 2]> = (0..tables).map(|_| [table(), table()]).collect();
            // One after the other, or with room for four numbers between them.
            for gap in [0, 4] {
                let apart = rows * channels + gap;
                let all =
                    TensorDesc::strided(DataType::Float64, &[tables, rows, channels], &[apart, channels, 1]).unwrap();
                let of_all = |side: usize| {
                    Tensor::arranged(&all, &pairs.iter().flat_map(|pair| pair[side].values()).collect::<Vec<f64>>())
                };
                let found =
                    run(&Kernel::AddSums { of }, &[&of_all(0), &of_all(1)], std::slice::from_ref(&all)).remove(0);
                let sum = |[earlier, later]: &[Tensor; 2]| {
                    run(&Kernel::AddSums { of }, &[earlier, later], std::slice::from_ref(&one)).remove(0).values()
                };
                assert_eq!(found.values(), pairs.iter().flat_map(sum).collect::<Vec<f64>>(), "{of:?}, {gap}");
            }
        }
    }
}
