//! Scans: elements along an axis, one after the other.

use forebay_base::Kernel;
use forebay_base::kernel::ScanOp;

use super::element::{Number, for_type};
use super::parallel::{Pointer, for_each, require_packed, split_at_axis};
use super::{View, unsupported};
use crate::device::DeviceError;

/// Elements after the axis that one task processes: their sums are computed side by side.
const COLUMNS: usize = 64;

/// The parameters of a scan.
#[derive(Clone, Copy)]
struct Way {
    op: ScanOp,
    exclusive: bool,
    reverse: bool,
}

/// Runs one kernel of this family.
///
/// # Safety
/// As [`super::run`].
pub(super) unsafe fn run(kernel: &Kernel, reads: &[View], writes: &[View]) -> Result<(), DeviceError> {
    let Kernel::Scan { axis, op, exclusive, reverse } = *kernel else {
        return Err(unsupported(kernel, "not a scan".to_string()));
    };
    let way = Way { op, exclusive, reverse };
    // SAFETY: the caller's promises.
    unsafe { scan(axis, way, reads, &writes[0]) }.map_err(|reason| unsupported(kernel, reason))
}

/// # Safety
/// As [`super::run`].
unsafe fn scan(axis: usize, way: Way, reads: &[View], y: &View) -> Result<(), String> {
    let sizes = y.sizes();
    let (expected, data_type) = (if way.op == ScanOp::Recurrence { 2 } else { 1 }, y.desc.data_type());
    let fits = |view: &View| view.sizes() == sizes && view.desc.data_type() == data_type;
    if axis >= sizes.len() || reads.len() != expected || !reads.iter().all(fits) {
        return Err(format!("{} operands do not result in {} along axis {axis}", reads.len(), y.desc));
    }
    require_packed(reads)?;
    require_packed(&[*y])?;
    let sizes = split_at_axis(&sizes, axis);
    // A scan without factors does not read them.
    let (x, factors) = (&reads[0], &reads[reads.len() - 1]);
    // SAFETY: the caller's promises, and the sizes fit.
    unsafe {
        match data_type.is_float() {
            true => for_type!(data_type, floats, T => {
                rows::<T>(sizes, way, [Pointer::of(x), Pointer::of(factors)], Pointer::of(y));
                Ok(())
            }),
            false => for_type!(data_type, integers, T => {
                rows::<T>(sizes, way, [Pointer::of(x), Pointer::of(factors)], Pointer::of(y));
                Ok(())
            }),
        }
    }
}

/// # Safety
/// As [`super::run`]: all are \[outer, size, inner].
unsafe fn rows<T: Number>(
    (outer, size, inner): (usize, usize, usize),
    way: Way,
    [x, factors]: [Pointer<T>; 2],
    y: Pointer<T>,
) {
    let blocks = inner.div_ceil(COLUMNS);
    let first = if way.op == ScanOp::Product { T::from_f64(1.0) } else { T::ZERO };
    for_each(outer * blocks, |task| {
        let column = task % blocks * COLUMNS;
        let count = COLUMNS.min(inner - column);
        let mut state = [first; COLUMNS];
        let state = &mut state[..count];
        let at = |step: usize| {
            let index = if way.reverse { size - 1 - step } else { step };
            (task / blocks * size + index) * inner + column
        };
        for step in 0..size {
            // SAFETY: in bounds; no one writes the elements that are read, and these elements of y belong to this task.
            let (x, y) = unsafe { (x.slice(at(step), count), y.slice_mut(at(step), count)) };
            if way.exclusive {
                y.copy_from_slice(state);
            }
            match way.op {
                ScanOp::Sum => state.iter_mut().zip(x).for_each(|(state, &x)| *state = state.plus(x)),
                ScanOp::Product => state.iter_mut().zip(x).for_each(|(state, &x)| *state = state.times(x)),
                ScanOp::Recurrence if step == 0 => state.copy_from_slice(x),
                ScanOp::Recurrence => {
                    let from = at(if way.exclusive { step } else { step - 1 });
                    // SAFETY: as above.
                    let factors = unsafe { factors.slice(from, count) };
                    let terms = x.iter().zip(factors);
                    state
                        .iter_mut()
                        .zip(terms)
                        .for_each(|(state, (&x, &factor))| *state = x.plus(factor.times(*state)));
                }
            }
            if !way.exclusive {
                y.copy_from_slice(state);
            }
        }
    });
}

#[cfg(test)]
mod tests;
