//! Windows: which rows of the first spatial dimension see which other rows through a sliding window.

use forebay_base::kernel::Window;

use super::rows::Rows;

/// A part of a windowed kernel: the rows that it needs on the other side, and its own window.
pub(super) struct Seen {
    pub rows: Rows,
    pub window: Window,
}

fn with_pads(window: &Window, begin: u64, end: u64) -> Window {
    let mut window = window.clone();
    window.pads_begin[0] = begin;
    window.pads_end[0] = end;
    window
}

/// Returns which of `input` rows some output rows see. Only parts at a border have padding.
pub(super) fn input_rows(window: &Window, output: Rows, input: u64) -> Option<Seen> {
    let (stride, begin) = (window.strides[0], window.pads_begin[0]);
    let reach = (window.kernel[0] - 1) * window.dilations[0] + 1;
    let start = (output.start * stride).saturating_sub(begin);
    let end = ((output.end - 1) * stride + reach).saturating_sub(begin).min(input);
    (start < end).then(|| Seen {
        rows: Rows { start, end },
        window: with_pads(window, start + begin - output.start * stride, window.pads_end[0] + (input - end)),
    })
}

/// Returns which of `output` rows see some input rows.
pub(super) fn output_rows(window: &Window, input: Rows, output: u64) -> Option<Seen> {
    let (stride, begin) = (window.strides[0], window.pads_begin[0]);
    let reach = (window.kernel[0] - 1) * window.dilations[0];
    let first = (input.start + begin).saturating_sub(reach).div_ceil(stride);
    // At the latest where the window still begins at or before the part's first row: padding is never negative.
    let start = first.min((input.start + begin) / stride).min(output - 1);
    let end = ((input.end - 1 + begin) / stride + 1).clamp(start + 1, output);
    Some(Seen {
        rows: Rows { start, end },
        window: with_pads(window, begin + input.start - start * stride, window.pads_end[0]),
    })
}

/// Returns the input rows that only these output rows see, for windows that do not overlap; rows that no window sees go to the part before
/// them.
pub(super) fn own_input_rows(window: &Window, rows: Rows, output: u64, input: u64) -> Option<Seen> {
    let (stride, begin) = (window.strides[0], window.pads_begin[0]);
    let reach = (window.kernel[0] - 1) * window.dilations[0] + 1;
    if reach > stride {
        return None;
    }
    let line = |row: u64| match row {
        0 => Some(0),
        row if row == output => Some(input),
        row => (row * stride).checked_sub(begin).filter(|&line| line < input),
    };
    let (start, end) = (line(rows.start)?, line(rows.end)?);
    let own_begin = if rows.start == 0 { begin } else { 0 };
    (start < end).then(|| Seen {
        rows: Rows { start, end },
        window: with_pads(window, own_begin, window.pads_end[0] + (input - end)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    /// Every pair of rows that see each other through a tap does so in its part, and through the same tap.
    #[test]
    fn parts_see_what_the_whole_sees() {
        for seed in 0..400 {
            let mut random = Random::new(seed);
            let kernel = 1 + random.below(4);
            let (stride, dilation) = (1 + random.below(3), 1 + random.below(2));
            let begin = random.below((kernel - 1) * dilation + 1);
            let one = |value| vec![value];
            let window = Window {
                kernel: one(kernel),
                strides: one(stride),
                dilations: one(dilation),
                pads_begin: one(begin),
                pads_end: one(0),
            };
            let output = 1 + random.below(9);
            let input =
                ((output - 1) * stride + (kernel - 1) * dilation + 1).saturating_sub(begin).max(1) + random.below(3);
            let seen = |window: &Window, at: u64, tap: u64| {
                (at * window.strides[0] + tap * window.dilations[0]).checked_sub(window.pads_begin[0])
            };
            let start = random.below(output);
            let rows = Rows { start, end: start + 1 + random.below(output - start) };
            for own in [false, true] {
                let part =
                    if own { own_input_rows(&window, rows, output, input) } else { input_rows(&window, rows, input) };
                let Some(part) = part else { continue };
                for at in rows.start..rows.end {
                    for tap in 0..kernel {
                        let whole = seen(&window, at, tap).filter(|&row| row < input);
                        let local = seen(&part.window, at - rows.start, tap).filter(|&row| row < part.rows.len());
                        assert_eq!(local.map(|row| row + part.rows.start), whole, "seed {seed}, row {at}, tap {tap}");
                    }
                }
            }
            let start = random.below(input);
            let rows = Rows { start, end: start + 1 + random.below(input - start) };
            let part = output_rows(&window, rows, output).unwrap();
            for at in 0..output {
                for tap in 0..kernel {
                    let Some(row) = seen(&window, at, tap).filter(|row| (rows.start..rows.end).contains(row)) else {
                        continue;
                    };
                    assert!((part.rows.start..part.rows.end).contains(&at), "seed {seed}: {at} sees {row}");
                    let local = seen(&part.window, at - part.rows.start, tap);
                    assert_eq!(local, Some(row - rows.start), "seed {seed}, output {at}, tap {tap}");
                }
            }
        }
    }
}
