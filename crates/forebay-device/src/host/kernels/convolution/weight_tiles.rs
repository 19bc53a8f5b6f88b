//! How the weights of a gradient are divided among tasks.

use super::Geometry;
use super::microkernel::CHANNELS;
use super::slab::Span;

/// The number of tasks that keeps a few threads busy to the end.
pub(super) const TASKS_MIN: usize = 8;

/// A group's weights tile by tile, along outputs, then inputs. Tiles are computed on demand, not listed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    pub groups: usize,
    /// Channels of y and of x in a group.
    pub outputs: usize,
    pub inputs: usize,
    /// Channels of y, a multiple of [`CHANNELS`], and of x in a tile.
    pub output_tile: usize,
    pub input_tile: usize,
    /// Sums are padded to a multiple of this many inputs; whole tiles already have such a multiple.
    pub lanes: usize,
    pub taps: usize,
}

/// The weights of one task.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub group: usize,
    pub outputs: Span,
    pub inputs: Span,
    /// Where its sums begin among those of all tiles, and how many there are.
    pub sums: Span,
}

impl Tiles {
    /// Tiles with these numbers of channels of y and of x.
    pub fn of(geometry: &Geometry, [output_tile, input_tile]: [usize; 2]) -> Tiles {
        let Geometry { groups, outputs, inputs, .. } = *geometry;
        Tiles { groups, outputs, inputs, output_tile, input_tile, lanes: 1, taps: geometry.taps() }
    }

    fn per_group(&self) -> usize {
        self.outputs.div_ceil(self.output_tile) * self.inputs.div_ceil(self.input_tile)
    }

    /// The number of tiles.
    pub fn count(&self) -> usize {
        self.groups * self.per_group()
    }

    pub fn get(&self, number: usize) -> Tile {
        let (group, number) = (number / self.per_group(), number % self.per_group());
        let columns = self.inputs.div_ceil(self.input_tile);
        let span = |start: usize, size: usize, count: usize| Span { start, len: size.min(count - start) };
        let outputs = span(number / columns * self.output_tile, self.output_tile, self.outputs);
        let inputs = span(number % columns * self.input_tile, self.input_tile, self.inputs);
        let rows = outputs.len.next_multiple_of(CHANNELS);
        let before = outputs.start * self.inputs.next_multiple_of(self.lanes) + rows * inputs.start;
        let start = group * self.sums_per_group() + before * self.taps;
        Tile {
            group,
            outputs,
            inputs,
            sums: Span { start, len: rows * inputs.len.next_multiple_of(self.lanes) * self.taps },
        }
    }

    fn sums_per_group(&self) -> usize {
        self.outputs.next_multiple_of(CHANNELS) * self.inputs.next_multiple_of(self.lanes) * self.taps
    }

    /// The number of sums of all tiles.
    pub fn sums_count(&self) -> usize {
        self.groups * self.sums_per_group()
    }
}
