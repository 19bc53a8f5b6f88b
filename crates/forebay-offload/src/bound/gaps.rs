//! Gaps: spans of a step in which bytes are needed but not touched.

/// Bytes that must be on the device as a whole at some positions of a step.
pub struct Block {
    /// The number of bytes.
    pub size_bytes: u64,
    /// Where its contents come from, if no kernel wrote them.
    pub origin: Origin,
    /// Its touches, by ascending position, at most one at each.
    pub touches: Vec<Touch>,
}

/// The origin of contents that no kernel of this step wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nowhere, or they appear on the device when they are first touched.
    Made,
    /// The host writes them before each step, and keeps them as long as nothing changes them.
    Given,
    /// The step before.
    Lasting,
}

/// A position at which a block is needed.
#[derive(Clone, Copy)]
pub struct Touch {
    /// The position, in the order of the step.
    pub position: usize,
    /// Whether earlier contents are needed.
    pub reads: bool,
    /// The last kernel that writes it there, if any.
    pub written: Option<Written>,
    /// The least time from the start of the first kernel that touches it to the end of the position.
    pub due_ns: f64,
}

/// The kernel that writes a block at a position.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// The kernel.
    pub kernel: usize,
    /// The least time from the start of the position to the end of the kernel.
    pub done_ns: f64,
}

/// A gap between two positions that touch a block whose contents are needed again.
///
/// The numbers of positions continue into the next step.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockGap {
    pub bytes: f64,
    /// Where the contents appeared on the device; `None` if another memory has held them all the time.
    pub written: Option<i64>,
    /// The kernel that wrote them there; `None` if none did.
    pub writer: Option<Written>,
    /// The position before the gap.
    pub from: i64,
    /// The position after it.
    pub to: i64,
    /// [`Touch::due_ns`] at that position.
    pub due_ns: f64,
}

impl BlockGap {
    /// Moves the gap by whole steps of `count` positions so that `peak` lies in it.
    pub fn around(self, peak: i64, count: i64) -> BlockGap {
        // The gap starts before the peak, in the latest step in which it does.
        let shift = (peak - 1 - self.from).div_euclid(count) * count;
        BlockGap { written: self.written.map(|at| at + shift), from: self.from + shift, to: self.to + shift, ..self }
    }
}

/// Returns all gaps of contents that are needed again, in a step of `count` positions.
pub(super) fn gaps(blocks: &[Block], count: i64) -> Vec<BlockGap> {
    let mut gaps = Vec::new();
    for block in blocks {
        let touches = &block.touches;
        let lasting = block.origin == Origin::Lasting;
        let last_written = |touch: &Touch| touch.written.map(|written| (touch.position as i64, written));
        let written_before = touches.iter().rev().find_map(last_written);
        let mut written_so_far = None;
        for (index, touch) in touches.iter().enumerate() {
            written_so_far = last_written(touch).or(written_so_far);
            let (to, next) = match touches.get(index + 1) {
                Some(next) => (next.position as i64, next),
                None if lasting => (touches[0].position as i64 + count, &touches[0]),
                None => continue,
            };
            if !next.reads {
                continue;
            }
            let (written, writer) = match (written_so_far, written_before, block.origin) {
                (Some((at, writer)), ..) => (Some(at), Some(writer)),
                (None, Some((at, writer)), Origin::Lasting) => (Some(at - count), Some(writer)),
                (None, _, Origin::Made) => (Some(touches[0].position as i64), None),
                (None, ..) => (None, None),
            };
            let (bytes, from) = (block.size_bytes as f64, touch.position as i64);
            gaps.push(BlockGap { bytes, written, writer, from, to, due_ns: next.due_ns });
        }
    }
    gaps
}
