//! Windows: what a part of a kernel with a window has to read.

use std::fmt;

use forebay_base::kernel::facts::SlidingAxis;

/// A half-open range of indices.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Range {
    pub start: u64,
    pub end: u64,
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// Checks whether a part with its own window finds through each tap what the whole finds, and has no more indices than it needs.
///
/// # Errors
/// Describes what is wrong with it.
pub(super) fn judge(
    whole: &SlidingAxis,
    part: &SlidingAxis,
    targets: Range,
    sources: Range,
    (all_targets, all_sources): (u64, u64),
    (reads_sources, writes_sources): (bool, bool),
) -> Result<(), String> {
    let (stride, pad) = (whole.stride as i128, i128::from(whole.pad_begin));
    // On both sides, an index of the whole is the index of the part plus the beginning of the part.
    let own_pad = pad + i128::from(sources.start) - i128::from(targets.start) * stride;
    if i128::from(part.pad_begin) != own_pad {
        return Err(format!("its window has {} elements of padding at the beginning, not {own_pad}", part.pad_begin));
    }
    let end = |pad_end: Option<u64>, last: u64| pad_end.map(|pad_end| u128::from(pad_end) + u128::from(last));
    if end(part.pad_end, sources.end) != end(whole.pad_end, all_sources) {
        return Err(format!("its window has {:?} elements of padding at the end", part.pad_end));
    }
    let seen = seen(whole, targets, all_sources);
    if !writes_sources {
        return match seen == Some(sources) {
            true => Ok(()),
            false => Err(format!("results {targets:?} see {seen:?}, but it reads {sources:?}")),
        };
    }
    if reads_sources && seen.is_none_or(|seen| seen.start < sources.start || seen.end > sources.end) {
        return Err(format!("windows {targets:?} see {seen:?}, but it has {sources:?}"));
    }
    let needed = seeing(whole, sources, all_targets);
    let (begins, ends) = match needed {
        // A window may begin before the rows of the part: padding cannot be negative.
        Some(needed) => (
            targets.start == needed.start || (targets.start < needed.start && own_pad < stride),
            targets.end == needed.end,
        ),
        // Every part has an index.
        None => (true, targets.end == targets.start + 1),
    };
    match begins && ends {
        true => Ok(()),
        false => Err(format!("results {sources:?} are seen by {needed:?}, but it reads {targets:?}")),
    }
}

/// Returns the sources between the first tap of the first of these windows and the last tap of the last one; `None` if there are none.
fn seen(window: &SlidingAxis, targets: Range, sources: u64) -> Option<Range> {
    let at = |target: u64| i128::from(target) * i128::from(window.stride) - i128::from(window.pad_begin);
    let first = at(targets.start).max(0);
    let last = (at(targets.end.checked_sub(1)?) + i128::from(window.reach())).min(i128::from(sources));
    (first < last).then_some(Range { start: first as u64, end: last as u64 })
}

/// Returns the windows that cover one of these sources.
fn seeing(window: &SlidingAxis, sources: Range, targets: u64) -> Option<Range> {
    let is_seeing = |target: u64| {
        let first = i128::from(target) * i128::from(window.stride) - i128::from(window.pad_begin);
        first < i128::from(sources.end) && first + i128::from(window.reach()) > i128::from(sources.start)
    };
    // Windows that begin no later than the last source, and end no earlier than the first.
    let last = (sources.end - 1 + window.pad_begin) / window.stride;
    let first = (sources.start + window.pad_begin).saturating_sub(window.reach() - 1).div_ceil(window.stride);
    let range = Range { start: first, end: (last + 1).min(targets) };
    (range.start < range.end && is_seeing(range.start) && is_seeing(range.end - 1)).then_some(range)
}
