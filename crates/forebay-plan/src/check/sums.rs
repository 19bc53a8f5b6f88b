//! Sums: checks whether the sums that parts compute are added in the order of the whole launch's tree.
//!
//! Each part computes the sum of a node of the tree ([`forebay_base::sum_tree`]), in the launch's result or in a separate buffer. Launches
//! that add put the sum of two halves where the left half was. Following all of them in order shows whether the result has the sum of the
//! whole, every sum is used once, and none is overwritten while it is still needed. What the whole applies to its sums is applied by the
//! additions that complete them, and by nothing before them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use forebay_base::kernel::{Activation, BinaryOp};
use forebay_base::{ByteRange, Kernel};
use forebay_model::program::{BufferId, Operand, ProgramLaunch};

use super::extent::{self, Extent};
use super::lines::{Lines, Work, function};

/// A part, with its index in the program of parts.
type Placed<'a> = (usize, &'a ProgramLaunch);

/// Returns the kernel that adds what a kernel sums, however its axes are numbered, and then applies a function.
fn addition(kernel: &Kernel, activation: Activation) -> Kernel {
    match function(kernel) {
        Kernel::Sums { of } => Kernel::AddSums { of },
        _ => Kernel::Binary { op: BinaryOp::Add, activation },
    }
}

/// Returns the function that a kernel applies to its results.
fn applied(kernel: &Kernel) -> Activation {
    kernel.activation().unwrap_or(Activation::None)
}

/// Returns whether a part adds what other parts of the same launch sum, whatever function it applies.
fn is_addition(whole: &Work, part: &ProgramLaunch) -> bool {
    let kernel = function(&part.kernel);
    kernel == addition(&whole.kernel, applied(&kernel))
}

/// Returns whether there are launches among the parts that add what others sum.
pub(super) fn are_added(whole: &Work, parts: &[Placed]) -> bool {
    // An addition in the model itself is not a sum.
    let is_sum = addition(&whole.kernel, applied(&whole.kernel)) != whole.kernel;
    is_sum && parts.iter().any(|(_, part)| is_addition(whole, part))
}

/// The location of sums: the indices that are summed, by buffer and by piece of the result's bytes.
struct Slots<'a> {
    result: &'a Operand,
    own_buffers: usize,
    /// Where additions begin and end, in bytes of the result.
    bounds: Vec<u64>,
    sums: BTreeMap<BufferId, Vec<Option<Range<u64>>>>,
}

impl Slots<'_> {
    /// Returns the bytes of an operand within the slot that it is in, as bytes of the result.
    fn bytes(&self, operand: &Operand) -> Result<ByteRange, String> {
        let range = operand.range();
        let first = match operand.buffer {
            buffer if buffer == self.result.buffer => self.result.offset_bytes,
            buffer if buffer.0 as usize >= self.own_buffers => 0,
            _ => return Err("it has sums in a buffer that is neither the result's nor one added for sums".to_owned()),
        };
        let size = self.result.range().len();
        match (range.start.checked_sub(first), range.end.checked_sub(first)) {
            (Some(start), Some(end)) if end <= size && operand.desc.is_packed() => Ok(ByteRange { start, end }),
            _ => Err("its sums are not where sums belong".to_owned()),
        }
    }

    /// Returns the pieces of an operand in its buffer.
    fn pieces(&mut self, operand: &Operand) -> Result<&mut [Option<Range<u64>>], String> {
        let bytes = self.bytes(operand)?;
        let piece = |bound: u64| self.bounds.binary_search(&bound).map_err(|_| "an addition is missing".to_owned());
        let (first, end) = (piece(bytes.start)?, piece(bytes.end)?);
        let count = self.bounds.len() - 1;
        let all = self.sums.entry(operand.buffer).or_insert_with(|| vec![None; count]);
        Ok(&mut all[first..end])
    }
}

/// Checks whether parts and additions together are the sum over one line.
///
/// # Errors
/// Describes what is wrong, with the name of the part.
pub(super) fn judge(whole: &Work, lines: &Lines, parts: &[Placed], own_buffers: usize) -> Result<(), String> {
    let result = whole.writes.first().ok_or("the launch has no result")?;
    let size = result.range().len();
    let mut slots = Slots { result, own_buffers, bounds: vec![0, size], sums: BTreeMap::new() };
    let mut bounds = BTreeSet::from([0, size]);
    for (_, part) in parts.iter().filter(|(_, part)| is_addition(whole, part)) {
        for operand in part.reads.iter().chain(&part.writes) {
            let bytes = slots.bytes(operand).map_err(|reason| format!("'{}': {reason}", part.name))?;
            bounds.extend([bytes.start, bytes.end]);
        }
    }
    slots.bounds = bounds.into_iter().collect();
    let mut line = None;
    for &(_, part) in parts {
        let wrong = |reason: String| format!("'{}': {reason}", part.name);
        if is_addition(whole, part) {
            add(&mut slots, whole, lines, line, part).map_err(wrong)?;
        } else {
            let (own_line, range) = node(&slots, whole, lines, part).map_err(wrong)?;
            if *line.get_or_insert(own_line) != own_line {
                return Err(wrong("it is cut along another axis".to_owned()));
            }
            let pieces = slots.pieces(&part.writes[0]).map_err(wrong)?;
            if pieces.iter().any(Option::is_some) {
                return Err(wrong("it overwrites sums that are still to be added".to_owned()));
            }
            pieces.fill(Some(range));
        }
    }
    let all = line.map(|line| 0..lines.size(line, whole.reads.len()));
    let is_complete = |(buffer, pieces): (&BufferId, &Vec<Option<Range<u64>>>)| {
        let expected = all.as_ref().filter(|_| *buffer == result.buffer);
        pieces.iter().all(|piece| piece.as_ref() == expected)
    };
    match all.is_some() && slots.sums.contains_key(&result.buffer) && slots.sums.iter().all(is_complete) {
        true => Ok(()),
        false => Err("the result is not the sum of all parts".to_owned()),
    }
}

/// Returns the line along which a part is cut, and the indices that it sums: a node of the tree.
fn node(
    slots: &Slots,
    whole: &Work,
    lines: &Lines,
    part: &ProgramLaunch,
) -> Result<((bool, usize), Range<u64>), String> {
    let mut own = Work { kernel: part.kernel.clone(), reads: part.reads.clone(), writes: part.writes.clone() };
    let [write] = &mut own.writes[..] else { return Err("its number of results is not 1".to_owned()) };
    if applied(&own.kernel) != Activation::None {
        return Err("an activation is applied to sums that are not complete".to_owned());
    }
    if write.desc != slots.result.desc || slots.bytes(write)?.len() != slots.result.range().len() {
        return Err("its sums are not those of the whole launch".to_owned());
    }
    // Where its sums are is checked separately.
    *write = slots.result.clone();
    let own_lines = Lines::of(&own)?;
    let Extent::Range { line, range } = extent::of_part(whole, Some(lines), &own, own_lines)? else {
        return Err("it is the whole launch, but there are other parts".to_owned());
    };
    let range = range.start..range.end;
    match lines.is_reduced(line) && lines.is_node(line, &range) {
        true => Ok((line, range)),
        false => Err(format!("{range:?} is not a node of the sum tree")),
    }
}

/// Adds the sums of two halves.
fn add(
    slots: &mut Slots,
    whole: &Work,
    lines: &Lines,
    line: Option<(bool, usize)>,
    part: &ProgramLaunch,
) -> Result<(), String> {
    let ([left, right], [write]) = (&part.reads[..], &part.writes[..]) else {
        return Err("it does not add two sums".to_owned());
    };
    let line = line.ok_or("there are no sums yet")?;
    if left != write || left.desc != right.desc || left.buffer == right.buffer {
        return Err("it does not add to the left half".to_owned());
    }
    let (bytes, right_bytes) = (slots.bytes(left)?, slots.bytes(right)?);
    let is_table = matches!(part.kernel, Kernel::AddSums { .. });
    if bytes != right_bytes || (is_table && left.desc != slots.result.desc) {
        return Err("it adds sums of different results".to_owned());
    }
    let later: Vec<Option<Range<u64>>> = slots.pieces(right)?.iter_mut().map(Option::take).collect();
    for (earlier, later) in slots.pieces(left)?.iter_mut().zip(later) {
        let (Some(own), Some(later)) = (earlier.take(), later) else {
            return Err("it adds sums that do not exist".to_owned());
        };
        if !lines.are_halves(line, &own, &later) {
            return Err(format!("{own:?} and {later:?} are not the halves of a node"));
        }
        let sum = own.start..later.end;
        let is_complete = sum == (0..lines.size(line, whole.reads.len()));
        let expected = if is_complete { applied(&whole.kernel) } else { Activation::None };
        if applied(&part.kernel) != expected {
            return Err(format!("{:?} is applied to the sum of {sum:?}", applied(&part.kernel)));
        }
        *earlier = Some(sum);
    }
    Ok(())
}
