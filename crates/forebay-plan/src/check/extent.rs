//! Extent: which piece of a launch a part computes.

use forebay_model::program::Operand;

use super::lines::{Line, Lines, Side, Work, function, same_operand, writes};
use super::windows::{self, Range};

/// The piece of the whole launch that a part computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Extent {
    /// All of it.
    All,
    /// A range of a line: of its results or, if they are sums over the line, of what they are sums of.
    Range {
        /// Which line.
        line: (bool, usize),
        range: Range,
    },
}

/// Returns which piece of a launch a part computes, given the lines of both, if any. Both have their operands in the same order.
///
/// # Errors
/// Describes what is wrong with the part.
pub(super) fn of_part(whole: &Work, lines: Option<&Lines>, part: &Work, own: Option<Lines>) -> Result<Extent, String> {
    if function(&part.kernel) != function(&whole.kernel) {
        return Err(format!("{} is not the same function as {}", part.kernel, whole.kernel));
    }
    if (part.reads.len(), part.writes.len()) != (whole.reads.len(), whole.writes.len()) {
        return Err(format!("it has {} reads and {} writes", part.reads.len(), part.writes.len()));
    }
    match (lines, own) {
        (Some(lines), Some(own)) => lines.extent(whole, part, &own),
        (None, None) => {
            let same = |a: &[Operand], b: &[Operand]| a.iter().zip(b).all(|(a, b)| same_operand(a, b));
            match same(&whole.reads, &part.reads) && same(&whole.writes, &part.writes) {
                true => Ok(Extent::All),
                false => Err("its operands differ".to_owned()),
            }
        }
        _ => Err("the sizes of its operands do not match".to_owned()),
    }
}

impl Lines {
    /// Returns which piece of this launch a part computes. Both have their operands in the same order.
    ///
    /// # Errors
    /// Describes what is wrong with the part.
    pub fn extent(&self, whole: &Work, part: &Work, lines: &Lines) -> Result<Extent, String> {
        for (index, (own, other)) in whole.operands().zip(part.operands()).enumerate() {
            if own.buffer != other.buffer || own.desc.data_type() != other.desc.data_type() {
                return Err(format!("operand {index} is not the same operand"));
            }
            if self.counts[index].is_none() && !same_operand(own, other) {
                return Err(format!("operand {index} is not all of the operand that it needs"));
            }
        }
        let distances: Vec<i64> = lines.bases.iter().zip(&self.bases).map(|(part, whole)| part - whole).collect();
        let mut found: Option<Extent> = None;
        let mut note = |extent: Extent| match found.replace(extent) {
            Some(_) => Err("it is cut along two axes".to_owned()),
            None => Ok(()),
        };
        let mut explained = vec![0; distances.len()];
        if self.ordered.len() != lines.ordered.len() {
            return Err("its number of windows differs".to_owned());
        }
        let writes_from = whole.reads.len();
        let mut unmatched: Vec<&Line> = lines.others.iter().collect();
        let of_others = self.others.iter().enumerate().map(|(index, own)| {
            let is_same = |other: &&Line| {
                other.role == own.role
                    && other.is_reduced == own.is_reduced
                    && other.target.strides == own.target.strides
            };
            ((false, index), own, unmatched.iter().position(is_same).map(|place| unmatched.remove(place)))
        });
        let of_others: Vec<_> = of_others.collect();
        let of_ordered = self.ordered.iter().zip(&lines.ordered).enumerate();
        let pairs = of_ordered.map(|(index, (own, other))| ((true, index), own, Some(other))).chain(of_others);
        for (line, own, other) in pairs {
            let range = match (&own.source, other) {
                (Some(_), Some(other)) => sliding_range(own, other, &distances, writes_from)?,
                _ => plain_range(own, other, &distances)?,
            };
            takes_the_same(own, other, whole, part, range.is_some())?;
            if let Some((range, moved)) = range {
                note(Extent::Range { line, range })?;
                explained.iter_mut().zip(moved).for_each(|(sum, own)| *sum += own);
            }
        }
        if !unmatched.is_empty() {
            return Err("an axis has another layout in memory than in the whole launch".to_owned());
        }
        if let Some(index) = (0..distances.len()).find(|&index| distances[index] != explained[index]) {
            let (is, should) = (distances[index], explained[index]);
            return Err(format!("operand {index} begins {is} elements after the whole launch's, not {should}"));
        }
        Ok(found.unwrap_or(Extent::All))
    }
}

/// Returns the index at which a part begins, derived from where its operands begin, and how far that moves each operand.
fn start_of(side: &Side, distances: &[i64]) -> Result<(u64, Vec<i64>), String> {
    let first = side.strides.iter().zip(distances).find(|&(&stride, _)| stride != 0);
    let (&stride, &distance) = first.ok_or("the axis that is cut belongs to no operand")?;
    let start = distance / stride;
    if start < 0 || start * stride != distance {
        return Err(format!("the offset of {distance} elements is not a multiple of {stride}"));
    }
    Ok((start as u64, side.strides.iter().map(|stride| stride * start).collect()))
}

/// Returns the range of a line that a part covers, and how far it moves each operand; `None` for the whole line.
fn plain_range(own: &Line, other: Option<&Line>, distances: &[i64]) -> Result<Option<(Range, Vec<i64>)>, String> {
    let size = other.map_or(1, |other| other.target.size);
    if size == own.target.size {
        return Ok(None);
    }
    if other.is_some_and(|other| other.target.strides != own.target.strides) {
        return Err("an axis has another layout in memory than in the whole launch".to_owned());
    }
    let (start, moved) = start_of(&own.target, distances)?;
    let range = Range { start, end: start + size };
    match range.end <= own.target.size {
        true => Ok(Some((range, moved))),
        false => Err(format!("{range:?} is out of bounds for an axis of {} indices", own.target.size)),
    }
}

/// Checks whether operands of which a line takes only some indices have these: reads have no others or, if they are not cut, all of the
/// whole launch's.
fn takes_the_same(own: &Line, other: Option<&Line>, whole: &Work, part: &Work, is_cut: bool) -> Result<(), String> {
    let size_in = |work: &Work, index: usize, axis: usize| -> Option<u64> {
        work.operands().nth(index)?.desc.sizes().get(axis).copied()
    };
    let Some(other) = other else {
        return if own.taken.is_empty() { Ok(()) } else { Err("an operand is not used at all".to_owned()) };
    };
    for &(index, along) in &other.taken {
        let (of_whole, size) = (size_in(whole, index, along.axis), size_in(part, index, along.axis));
        let last = along.first as i64 + along.step * (other.target.size as i64 - 1);
        let needed = (along.first as i64).max(last) + 1;
        let is_tight = size.map(|size| size as i64) == Some(needed) && (along.first == 0 || last == 0);
        let is_whole = size == of_whole && size.is_some_and(|size| needed <= size as i64);
        let fits = (is_tight && index < whole.reads.len()) || (is_whole && (!is_cut || index >= whole.reads.len()));
        if !fits || last < 0 {
            return Err(format!("operand {index} has {size:?} indices of an axis, but {needed} are needed"));
        }
    }
    Ok(())
}

/// Returns the range of a window's line that a part covers, and how far it moves each operand; `None` for the whole line.
fn sliding_range(
    own: &Line,
    other: &Line,
    distances: &[i64],
    writes_from: usize,
) -> Result<Option<(Range, Vec<i64>)>, String> {
    let (Some((window, own_source)), Some((moved, source))) = (&own.source, &other.source) else {
        return Err("a window is missing".to_owned());
    };
    let lies_the_same = |a: &Side, b: &Side| a.strides == b.strides || (a.size == 1 && b.size == 1);
    if !lies_the_same(&own.target, &other.target) || !lies_the_same(own_source, source) {
        return Err("what a window sees has another layout in memory than in the whole launch".to_owned());
    }
    if own.target.size == other.target.size && own_source.size == source.size {
        return match window == moved {
            true => Ok(None),
            false => Err("a window is moved".to_owned()),
        };
    }
    let (target_start, target_moved) = start_of(&own.target, distances)?;
    let (source_start, source_moved) = start_of(own_source, distances)?;
    let targets = Range { start: target_start, end: target_start + other.target.size };
    let sources = Range { start: source_start, end: source_start + source.size };
    if targets.end > own.target.size || sources.end > own_source.size {
        return Err(format!(
            "results {targets:?}, or what they see, {sources:?}, are out of the whole launch's bounds"
        ));
    }
    let is_written = writes(own_source, writes_from);
    let is_read = own_source.strides.iter().take(writes_from).any(|&stride| stride != 0);
    let sizes = (own.target.size, own_source.size);
    windows::judge(window, moved, targets, sources, sizes, (is_read, is_written))?;
    let moved = target_moved.iter().zip(&source_moved).map(|(a, b)| a + b).collect();
    Ok(Some((if is_written { sources } else { targets }, moved)))
}
