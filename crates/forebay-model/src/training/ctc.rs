//! Connectionist temporal classification: the loss of a sequence of labels whose positions in a longer sequence of predictions are unknown.
//!
//! "Connectionist Temporal Classification", Graves and others, 2006. The states are the labels, with a blank before, between and after
//! them. At each position, a path stays in its state, moves on to the next one, or skips a blank between two different labels. The loss is
//! minus the logarithm of the total probability of all paths, summed position by position in the log domain.

use forebay_base::kernel::{BinaryOp, ReduceOp, UnaryOp};
use forebay_base::{DataType, Kernel, Tensor};

use super::formula::Formula;
use super::loss::Ctc;
use super::term::{Term, refuse};
use crate::error::ModelError;
use crate::graph::{Attribute, TensorType, ValueId};

/// The log probability of the impossible: finite, so that nothing becomes NaN.
const IMPOSSIBLE: f32 = -1e30;
/// A loss of at least this value is that of impossible labels.
const INFINITE: f32 = 1e29;
/// The most positions: they are processed one after the other, with a few kernels each.
const POSITIONS_MAX: u64 = 4096;
/// The number of states that lead to a state: itself, the one before it, and the one before that, across a blank.
const WAYS: u64 = 3;

/// The sizes of a prediction: samples, positions, classes, and the most labels of a sample.
struct Sizes {
    samples: u64,
    positions: u64,
    classes: u64,
    labels: u64,
}

impl Sizes {
    fn of(ty: &TensorType, options: &Ctc, name: &str) -> Result<Sizes, ModelError> {
        let &[first, second, classes] = ty.shape.as_slice() else {
            return refuse(format!(
                "CTC requires an output of samples, positions and classes, but '{name}' is {ty} (with --time-first, \
                 positions come first)"
            ));
        };
        let (samples, positions) = if options.time_first { (second, first) } else { (first, second) };
        if options.blank >= classes || options.label_length == 0 || positions > POSITIONS_MAX {
            return refuse(format!(
                "CTC does not fit '{name}', {ty}, with blank {}, label length {} and {positions} positions: the blank must be one of \
                 {classes} classes, the label length at least 1, and the number of positions at most {POSITIONS_MAX}",
                options.blank, options.label_length
            ));
        }
        Ok(Sizes { samples, positions, classes, labels: options.label_length })
    }

    /// Returns the number of labels with a blank before, between and after them.
    fn states(&self) -> u64 {
        2 * self.labels + 1
    }
}

/// Returns the type of the labels of a prediction: classes, with -1 after the last one of a sample.
pub(super) fn labels_type(ty: &TensorType, options: &Ctc, name: &str) -> Result<TensorType, ModelError> {
    let sizes = Sizes::of(ty, options, name)?;
    Ok(TensorType::new(DataType::Int64, &[sizes.samples, sizes.labels]))
}

/// Returns the type of the numbers of positions that count, one for each sample.
pub(super) fn lengths_type(ty: &TensorType, options: &Ctc, name: &str) -> Result<TensorType, ModelError> {
    Ok(TensorType::new(DataType::Int64, &[Sizes::of(ty, options, name)?.samples]))
}

/// Returns the mean over samples of the loss divided by the number of labels, as in PyTorch.
pub(super) fn ctc(
    term: &mut Term,
    labels: ValueId,
    lengths: Option<ValueId>,
    options: &Ctc,
) -> Result<ValueId, ModelError> {
    let sizes = Sizes::of(&term.ty(), options, term.name)?;
    let mut logarithms = term.log_softmax(2);
    if options.time_first {
        logarithms = term.f.transpose(logarithms, &[1, 0, 2]);
    }
    let mut states = States { f: &mut *term.f, sizes };
    let of_states = states.classes(labels, options.blank)?;
    let steps = states.steps(logarithms, of_states)?;
    let ways = states.ways(of_states, options.blank)?;
    let last = states.last(steps, ways, lengths)?;
    let (ends, counts) = states.ends(labels);
    let all = states.f.add(last, ends);
    let total = states.log_sum(all, 1)?;
    let f = states.f;
    let losses = f.scaled(total, -1.0);
    let limit = f.number(INFINITE);
    let is_infinite = f.binary(BinaryOp::Greater, losses, limit);
    let instead = f.number(if options.zero_infinity { 0.0 } else { f32::INFINITY });
    let losses = f.select(is_infinite, instead, losses);
    let at_least_one = f.unary(UnaryOp::Clip { low: 1.0, high: f32::MAX }, counts);
    let losses = f.divide(losses, at_least_one);
    Ok(f.mean(losses))
}

/// Builds a formula of the states of all samples.
struct States<'f, 'g> {
    f: &'f mut Formula<'g>,
    sizes: Sizes,
}

impl States<'_, '_> {
    /// Returns a constant \[1, states, ways] or \[1, states].
    fn constant(&mut self, shape: &[u64], value: impl Fn(u64, u64) -> f32) -> ValueId {
        let (states, ways) = (shape[1], shape.get(2).copied().unwrap_or(1));
        let values: Vec<f32> = (0..states * ways).map(|i| value(i / ways, i % ways)).collect();
        self.f.constant(Tensor::from_f32(shape, &values))
    }

    /// Returns constant places along the second axis of \[samples, n].
    fn places(&mut self, shape: &[u64], place: impl Fn(u64) -> u64) -> ValueId {
        let places: Vec<i64> = (0..shape.iter().product()).map(|i| place(i) as i64).collect();
        self.f.constant(Tensor::from_i64(shape, &places))
    }

    /// Gathers elements of \[samples, n] along the second axis, at places that are the same for all samples.
    fn gather(&mut self, x: ValueId, places: ValueId) -> Result<ValueId, ModelError> {
        self.f.onnx("Gather", &[x, places], &[("axis", Attribute::Int(1))])
    }

    /// Returns the class of each state: blanks and labels alternate.
    fn classes(&mut self, labels: ValueId, blank: u64) -> Result<ValueId, ModelError> {
        let states = self.sizes.states();
        let blank = self.f.constant(Tensor::from_i64(&[], &[blank as i64]));
        let zero = self.f.constant(Tensor::from_i64(&[], &[0]));
        let is_behind = self.f.binary(BinaryOp::Less, labels, zero);
        let labels = self.f.select(is_behind, blank, labels);
        let most = self.sizes.labels - 1;
        let places = self.places(&[states], |state| (state / 2).min(most));
        let own = self.gather(labels, places)?;
        let is_blank =
            self.f.constant(Tensor::from_i64(&[1, states], &(0..states as i64).map(|s| s % 2).collect::<Vec<_>>()));
        let is_blank = self.f.binary(BinaryOp::Equal, is_blank, zero);
        Ok(self.f.select(is_blank, blank, own))
    }

    /// Returns the log probabilities of the states for each position: \[samples, states] each.
    fn steps(&mut self, logarithms: ValueId, of_states: ValueId) -> Result<Vec<ValueId>, ModelError> {
        let Sizes { samples, positions, classes, .. } = self.sizes;
        let states = self.sizes.states();
        debug_assert_eq!(self.f.ty(logarithms).shape, [samples, positions, classes]);
        let row = self.f.reshape(of_states, &[samples, 1, states]);
        let shape = self.f.ints(&[samples as i64, positions as i64, states as i64]);
        let everywhere = self.f.onnx("Expand", &[row, shape], &[])?;
        let all = self.f.onnx("GatherElements", &[logarithms, everywhere], &[("axis", Attribute::Int(2))])?;
        let count = positions as usize;
        let parts = self.f.split(all, 1, &vec![1; count], &vec![true; count]);
        Ok(parts.into_iter().flatten().map(|part| self.f.reshape(part, &[samples, states])).collect())
    }

    /// Returns, for each state, 0 for each state that can lead to it and [`IMPOSSIBLE`] for the others: \[samples, states, ways].
    fn ways(&mut self, of_states: ValueId, blank: u64) -> Result<ValueId, ModelError> {
        let (samples, states) = (self.sizes.samples, self.sizes.states());
        let places = self.places(&[states], |state| state.saturating_sub(2));
        let two_before = self.gather(of_states, places)?;
        let is_same = self.f.binary(BinaryOp::Equal, of_states, two_before);
        let blank = self.f.constant(Tensor::from_i64(&[], &[blank as i64]));
        let is_blank = self.f.binary(BinaryOp::Equal, of_states, blank);
        let cannot_skip = self.f.binary(BinaryOp::Or, is_same, is_blank);
        let cannot_skip = self.f.reshape(cannot_skip, &[samples, states, 1]);
        let shape = [1, states, WAYS];
        let is_outside = |state: u64, way: u64| way > state;
        let without =
            self.constant(&shape, |state, way| if is_outside(state, way) || way == 2 { IMPOSSIBLE } else { 0.0 });
        let with = self.constant(&shape, |state, way| if is_outside(state, way) { IMPOSSIBLE } else { 0.0 });
        Ok(self.f.select(cannot_skip, without, with))
    }

    /// Returns the log probabilities of all paths to each state at the last position that counts: \[samples, states].
    fn last(&mut self, steps: Vec<ValueId>, ways: ValueId, lengths: Option<ValueId>) -> Result<ValueId, ModelError> {
        let (samples, states) = (self.sizes.samples, self.sizes.states());
        let beginnings = self.constant(&[1, states], |state, _| if state < 2 { 0.0 } else { IMPOSSIBLE });
        let lengths = lengths.map(|lengths| self.f.reshape(lengths, &[samples, 1]));
        let origins = self.places(&[states, WAYS], |i| (i / WAYS).saturating_sub(i % WAYS));
        let mut all = None;
        for (position, step) in steps.into_iter().enumerate() {
            let Some(before) = all else {
                all = Some(self.f.add(step, beginnings));
                continue;
            };
            let from = self.gather(before, origins)?;
            let from = self.f.add(from, ways);
            let sum = self.log_sum(from, 2)?;
            let mut next = self.f.add(sum, step);
            if let Some(lengths) = lengths {
                let position = self.f.constant(Tensor::from_i64(&[], &[position as i64]));
                let counts = self.f.binary(BinaryOp::Greater, lengths, position);
                next = self.f.select(counts, next, before);
            }
            all = Some(next);
        }
        match all {
            Some(all) => Ok(all),
            None => refuse("CTC needs at least one position".to_string()),
        }
    }

    /// Returns 0 for the states in which a path can end and [`IMPOSSIBLE`] for the others, \[samples, states], and the number of labels of
    /// each sample.
    fn ends(&mut self, labels: ValueId) -> (ValueId, ValueId) {
        let (samples, states) = (self.sizes.samples, self.sizes.states());
        let zero = self.f.constant(Tensor::from_i64(&[], &[0]));
        let is_label = self.f.binary(BinaryOp::GreaterOrEqual, labels, zero);
        let ones = self.f.floats(is_label);
        let counts = self.f.sum(ones, &[1]);
        let last = self.f.affine(counts, 2.0, 0.0);
        let numbers = self.constant(&[1, states], |state, _| state as f32);
        let distance = self.f.subtract(last, numbers);
        // A path ends in the last blank or in the label before it.
        let (zero, one, impossible) = (self.f.number(0.0), self.f.number(1.0), self.f.number(IMPOSSIBLE));
        let is_last = self.f.binary(BinaryOp::Equal, distance, zero);
        let is_before = self.f.binary(BinaryOp::Equal, distance, one);
        let is_end = self.f.binary(BinaryOp::Or, is_last, is_before);
        let ends = self.f.select(is_end, zero, impossible);
        (ends, self.f.reshape(counts, &[samples]))
    }

    /// Returns the logarithm of a sum of exponentials along the last axis, which is removed. The maximum is rounded so that it has no
    /// gradient.
    fn log_sum(&mut self, x: ValueId, axis: usize) -> Result<ValueId, ModelError> {
        let mut ty = self.f.ty(x);
        ty.shape[axis] = 1;
        let largest = self.f.one(Kernel::Reduce { op: ReduceOp::Max, axes: vec![axis] }, &[x], ty.clone());
        let largest = self.f.unary(UnaryOp::Floor, largest);
        let rest = self.f.subtract(x, largest);
        let shares = self.f.unary(UnaryOp::Exp, rest);
        let sum = self.f.sum(shares, &[axis]);
        let logarithm = self.f.unary(UnaryOp::Log, sum);
        let sum = self.f.add(logarithm, largest);
        ty.shape.pop();
        Ok(self.f.reshape(sum, &ty.shape))
    }
}
