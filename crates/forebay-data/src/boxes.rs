//! Boxes cut from tensors: patches of volumes, and windows of anything else with spatial axes.

use forebay_base::Tensor;

/// Cuts a box out of the last axes of a tensor. It begins at `start`, has the given sizes, and is filled with zeros outside the tensor.
///
/// ```
/// use forebay_base::Tensor;
/// use forebay_data::cut_box;
///
/// let rows = Tensor::from_f32(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
/// assert_eq!(cut_box(&rows, &[-1], &[3]).to_f32().unwrap(), [0.0, 1.0, 2.0, 0.0, 4.0, 5.0]);
/// ```
///
/// # Panics
/// If `sizes` is empty, differs in length from `start`, or is longer than the tensor has axes.
pub fn cut_box(tensor: &Tensor, start: &[i64], sizes: &[u64]) -> Tensor {
    let (rank, size) = (sizes.len(), tensor.data_type().size_bytes() as usize);
    let (outer, from) = tensor.shape().split_at(tensor.shape().len() - rank);
    let shape = [outer, sizes].concat();
    let rows: u64 = shape[..shape.len() - 1].iter().product();
    let length = sizes.last().map_or(1, |&length| length as i64);
    let whole = from.last().map_or(1, |&whole| whole as i64);
    let (first, last) = (start[rank - 1].max(0), (start[rank - 1] + length).min(whole));
    let mut bytes = Vec::with_capacity((rows * length as u64) as usize * size);
    for row in 0..rows {
        // The row's position along all axes but the last, in the box and in the tensor.
        let (mut number, mut place, mut step, mut is_inside) = (row, 0i64, 1i64, last > first);
        for axis in (0..rank - 1).rev() {
            let at = (number % sizes[axis]) as i64 + start[axis];
            is_inside &= (0..from[axis] as i64).contains(&at);
            place += at * step;
            (number, step) = (number / sizes[axis], step * from[axis] as i64);
        }
        place += number as i64 * step;
        let begin = bytes.len();
        if is_inside {
            bytes.resize(begin + (first - start[rank - 1]) as usize * size, 0);
            let source = (place * whole + first) as usize * size;
            bytes.extend_from_slice(&tensor.bytes()[source..][..(last - first) as usize * size]);
        }
        bytes.resize(begin + length as usize * size, 0);
    }
    Tensor::new(tensor.data_type(), &shape, bytes).expect("all rows of the box")
}
