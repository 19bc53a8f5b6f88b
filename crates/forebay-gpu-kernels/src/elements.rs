//! Dispatches that iterate over the elements of a tensor: the counterpart of the repository's `kernels/elements.slang`.
//!
//! Elements are visited in the memory order of the output, and dimensions that are contiguous in every operand are merged. What is too
//! large for one dispatch (a binding holds a limited number of bytes) is cut along the outermost dimension or, if that gives too many
//! parts, accessed through its address.

pub(super) use forebay_base::kernel::opcodes::ElementKind as Kind;
use forebay_base::narrow::{self, Narrowing};
use forebay_base::{DataType, TensorDesc, rounded_to_odd};
use half::{bf16, f16};

use super::operands::{BINDING_ALIGNMENT_BYTES, broadcast_strides};
use super::{Bound, Dispatch, Operand, Shader, Target, groups};

/// The number of elements, or of words of smaller elements, that a workgroup computes.
const ITEMS_PER_GROUP: u64 = 256 * 4;
/// The maximum number of elements that one dispatch computes: their indices, and those of invocations past the end, fit in 32 bits.
const ELEMENTS_MAX: u64 = 1 << 31;
/// The maximum number of parts of one launch. If an operand's elements are not visited in memory order, cutting helps little.
const PARTS_MAX: usize = 64;

/// How an operand's elements are laid out in memory.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// The operand.
    pub operand: Operand,
    /// The size of an element in bytes.
    pub element_bytes: u64,
    /// The size of the operand in bytes.
    pub total_bytes: u64,
    /// The position of the first element.
    pub first: i64,
    /// The strides in elements.
    pub strides: Vec<i64>,
    /// Whether the shader computes positions itself, so that all of the operand is bound.
    is_whole: bool,
}

impl Layout {
    /// Returns the layout of an operand in which the shader computes positions itself.
    pub fn whole(operand: Operand, desc: &TensorDesc, sizes: &[u64]) -> Layout {
        Layout {
            operand,
            element_bytes: desc.data_type().size_bytes(),
            total_bytes: desc.total_size_bytes(),
            first: 0,
            strides: vec![0; sizes.len()],
            is_whole: true,
        }
    }

    /// Returns the layout of an operand in which the shader computes positions itself, from one starting position per element; `strides`
    /// are the distances between these by dimension.
    pub fn from_places(operand: Operand, desc: &TensorDesc, strides: Vec<i64>) -> Layout {
        Layout { strides, ..Layout::whole(operand, desc, &[]) }
    }

    /// Returns the same layout for an operand of which only the part that the elements occupy is bound.
    pub fn in_part(mut self) -> Layout {
        self.is_whole = false;
        self
    }

    /// Returns the layout of an operand that broadcasts to `sizes`: dimensions are aligned at the last one, and size 1 broadcasts.
    pub fn broadcast(operand: Operand, desc: &TensorDesc, sizes: &[u64]) -> Result<Layout, String> {
        let strides = broadcast_strides(desc.sizes(), &desc.effective_strides(), sizes)?;
        Ok(Layout {
            operand,
            element_bytes: desc.data_type().size_bytes(),
            total_bytes: desc.total_size_bytes(),
            first: 0,
            strides: strides.into_iter().map(|stride| stride as i64).collect(),
            is_whole: false,
        })
    }
}

/// Elements to iterate over: their sizes, and the layout of every operand, the output last.
#[derive(Clone, Debug)]
pub(super) struct Elements {
    /// The size of each dimension.
    pub sizes: Vec<u64>,
    /// The layouts of the operands, the output last.
    pub layouts: Vec<Layout>,
    /// The index of the output's first element, for shaders that number elements.
    first: u64,
    is_cut: bool,
}

/// A shader and its parameters, apart from the elements.
#[derive(Clone, Debug)]
pub(super) struct Task {
    /// The shader.
    pub shader: &'static Shader,
    /// Its specialization constants from 5 on.
    pub constants: Vec<u32>,
    /// Its additional parameters.
    pub arguments: Vec<u32>,
}

impl Elements {
    /// Returns elements of these sizes.
    pub fn new(sizes: &[u64], layouts: Vec<Layout>) -> Elements {
        Elements { sizes: sizes.to_vec(), layouts, first: 0, is_cut: false }
    }

    /// Returns the same elements, numbered from `first` instead of 0.
    pub fn counted_from(self, first: u64) -> Elements {
        Elements { first, ..self }
    }

    /// Returns the elements of a launch's operands, which broadcast to the sizes of the output.
    pub fn of(reads: &[TensorDesc], write: &TensorDesc) -> Result<Elements, String> {
        let sizes = write.sizes();
        let read = |(number, desc): (usize, &TensorDesc)| Layout::broadcast(Operand::Read(number), desc, sizes);
        let mut layouts = reads.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
        layouts.push(Layout::broadcast(Operand::Write(0), write, sizes)?);
        Ok(Elements::new(sizes, layouts))
    }

    /// Returns the same elements, with those of 8 bytes as two of 4 bytes along an additional dimension. Operands with elements of other
    /// sizes (a condition) stay unchanged.
    pub fn in_words(mut self) -> Elements {
        if self.layouts.iter().all(|layout| layout.element_bytes != 8) {
            return self;
        }
        self.sizes.push(2);
        for layout in &mut self.layouts {
            let is_wide = layout.element_bytes == 8;
            if is_wide {
                layout.element_bytes = 4;
                layout.first *= 2;
                layout.strides.iter_mut().for_each(|stride| *stride *= 2);
            }
            layout.strides.push((is_wide && !layout.is_whole) as i64);
        }
        self
    }

    /// Returns elements of less than 4 bytes as words, if all operands have equally many of them in every word.
    pub fn in_whole_words(self) -> Elements {
        let mut merged = self.merged();
        let per_word = (4 / merged.layouts[0].element_bytes) as i64;
        let Some(size) = merged.sizes.last_mut().filter(|size| **size % per_word as u64 == 0) else {
            return self;
        };
        let is_word = |layout: &Layout| {
            let (inner, outer) = layout.strides.split_last().unwrap_or((&0, &[]));
            *inner == 1 && layout.first % per_word == 0 && outer.iter().all(|stride| stride % per_word == 0)
        };
        if !merged.layouts.iter().all(is_word) {
            return self;
        }
        *size /= per_word as u64;
        for layout in &mut merged.layouts {
            layout.element_bytes = 4;
            layout.first /= per_word;
            let outer = layout.strides.len() - 1;
            layout.strides[..outer].iter_mut().for_each(|stride| *stride /= per_word);
        }
        merged
    }

    /// Returns the dispatches that iterate over the elements: few enough dispatches that each fit in bindings, or else as few as possible.
    pub fn dispatches(self, task: &Task, gpu: &Target) -> Result<Vec<Dispatch>, String> {
        let whole = self.merged();
        let parts = whole.clone().cut(PARTS_MAX, |elements| elements.fits(gpu));
        let parts = parts.or_else(|| whole.cut(usize::MAX, Elements::are_few)).unwrap_or_default();
        parts.iter().map(|elements| elements.dispatch(task, gpu)).collect()
    }

    /// Cuts the elements into parts that fit; `None` if there are more than `most`, or if a single element does not fit.
    fn cut(self, most: usize, fits: impl Fn(&Elements) -> bool) -> Option<Vec<Elements>> {
        let mut parts = Vec::new();
        let mut rest = vec![self];
        while let Some(elements) = rest.pop() {
            if fits(&elements) {
                parts.push(elements);
            } else {
                let (first, second) = elements.halves()?;
                rest.extend([second, first]);
            }
            if parts.len() + rest.len() > most {
                return None;
            }
        }
        Some(parts)
    }

    /// Returns the same elements with dimensions in the memory order of the output, merged wherever that changes nothing.
    fn merged(&self) -> Elements {
        let stride = |operand: usize, dimension: usize| self.layouts[operand].strides[dimension];
        let output = self.layouts.len() - 1;
        let mut order: Vec<usize> = (0..self.sizes.len()).filter(|&dimension| self.sizes[dimension] > 1).collect();
        order.sort_by_key(|&dimension| std::cmp::Reverse(stride(output, dimension).unsigned_abs()));
        let mut merged = self.clone();
        merged.sizes.clear();
        merged.layouts.iter_mut().for_each(|layout| layout.strides.clear());
        for dimension in order {
            let size = self.sizes[dimension];
            let is_seamless = |(operand, layout): (usize, &Layout)| {
                layout.strides.last() == stride(operand, dimension).checked_mul(size as i64).as_ref()
            };
            let seamless = merged.layouts.iter().enumerate().all(is_seamless);
            match merged.sizes.last_mut() {
                Some(last) if seamless => {
                    *last *= size;
                    merged.layouts.iter_mut().for_each(|layout| _ = layout.strides.pop());
                }
                _ => merged.sizes.push(size),
            }
            for (operand, layout) in merged.layouts.iter_mut().enumerate() {
                layout.strides.push(stride(operand, dimension));
            }
        }
        merged
    }

    /// Returns the number of elements.
    fn count(&self) -> u64 {
        self.sizes.iter().product()
    }

    /// Returns the first and last positions that an operand's elements occupy.
    fn extent(&self, layout: &Layout) -> (i64, i64) {
        let reaches = self.sizes.iter().zip(&layout.strides).map(|(&size, &stride)| (size as i64 - 1) * stride);
        let (below, above): (Vec<i64>, Vec<i64>) = reaches.partition(|&reach| reach < 0);
        (layout.first + below.iter().sum::<i64>(), layout.first + above.iter().sum::<i64>())
    }

    /// Returns the offset and the number of bytes that a binding must hold, from a multiple of its alignment on and in whole words.
    fn bytes_of(&self, layout: &Layout) -> (u64, u64) {
        if layout.is_whole {
            return (0, layout.total_bytes);
        }
        let (first, last) = self.extent(layout);
        let start = first as u64 * layout.element_bytes / BINDING_ALIGNMENT_BYTES * BINDING_ALIGNMENT_BYTES;
        let end = ((last as u64 + 1) * layout.element_bytes).next_multiple_of(4);
        (start, end - start)
    }

    fn fits(&self, gpu: &Target) -> bool {
        let fits = |layout: &Layout| self.bytes_of(layout).1 <= gpu.binding_bytes_max;
        self.are_few() && self.layouts.iter().all(fits)
    }

    fn are_few(&self) -> bool {
        self.count() <= ELEMENTS_MAX
    }

    /// Cuts the elements in two along the outermost dimension, at a multiple of 256 if it is long; `None` for a single element.
    fn halves(self) -> Option<(Elements, Elements)> {
        let (&size, inner) = self.sizes.split_first()?;
        let step = [BINDING_ALIGNMENT_BYTES, 4, 1].into_iter().find(|step| size >= 2 * step).unwrap_or(1);
        let middle = size / 2 / step * step;
        let part = |start: u64, length: u64| {
            let mut part = self.clone();
            part.sizes = [&[length], inner].concat();
            part.is_cut = true;
            part.layouts.iter_mut().for_each(|layout| layout.first += start as i64 * layout.strides[0]);
            // A dimension of one element is dropped.
            part.merged()
        };
        Some((part(0, middle), part(middle, size - middle)))
    }

    fn dispatch(&self, task: &Task, gpu: &Target) -> Result<Dispatch, String> {
        let output = self.layouts.last().ok_or("nothing is written")?;
        let per_word = (4 / output.element_bytes).max(1);
        let mut bindings = Vec::new();
        let mut firsts = Vec::new();
        let mut beginning = 0;
        for layout in &self.layouts {
            let (start, length) = self.bytes_of(layout);
            let is_whole = start == 0 && layout.total_bytes <= gpu.binding_bytes_max;
            let size_bytes = if is_whole { None } else { Some(length) };
            bindings.push(Bound { operand: layout.operand, offset_bytes: start, size_bytes });
            beginning = self.first + start / layout.element_bytes;
            firsts.push((layout.first - (start / layout.element_bytes) as i64) as u32);
        }
        let is_dense = per_word == 1 || self.is_dense(output) && self.has_whole_words(output);
        let per_item = if is_dense { per_word } else { 1 };
        let groups = groups(self.count().div_ceil(per_item).div_ceil(ITEMS_PER_GROUP), gpu);
        let bytes = |operand: usize| self.layouts.get(operand).map_or(4, |layout| layout.element_bytes as u32);
        let read = |operand: usize| if operand + 1 < self.layouts.len() { bytes(operand) } else { 4 };
        let layout = self.flat(&firsts).unwrap_or(is_dense as u32);
        let mut constants = vec![layout, output.element_bytes as u32, read(0), read(1), read(2)];
        constants.extend(&task.constants);
        let mut parameters = vec![groups[0], self.count() as u32, self.sizes.len().max(1) as u32];
        parameters.extend([beginning as u32, (beginning >> 32) as u32]);
        parameters.extend(&task.arguments);
        parameters.extend(firsts);
        for dimension in (0..self.sizes.len()).rev() {
            parameters.extend(divisor(self.sizes[dimension] as u32));
            parameters.extend(self.layouts.iter().map(|layout| layout.strides[dimension] as u32));
        }
        if self.sizes.is_empty() {
            parameters.extend(divisor(1).into_iter().chain(self.layouts.iter().map(|_| 0)));
        }
        Ok(Dispatch { shader: task.shader, constants, bindings, parameters, groups })
    }

    /// Returns the layout's code if the elements of every operand are contiguous and begin at position 0: a bit for that, and one for each
    /// operand that is not the same element throughout.
    fn flat(&self, firsts: &[u32]) -> Option<u32> {
        let is_run = |layout: &Layout| match layout.strides.as_slice() {
            [] | [0] => Some(false),
            [1] => Some(true),
            _ => None,
        };
        let runs: Vec<bool> = self.layouts.iter().map(is_run).collect::<Option<_>>()?;
        let writes_words = self.layouts.last().is_some_and(|output| self.has_whole_words(output));
        let code = runs.iter().enumerate().fold(2, |code, (operand, &run)| code | (run as u32) << (2 + operand));
        (writes_words && firsts.iter().all(|&first| first == 0)).then_some(code)
    }

    /// Returns whether the output's elements are contiguous in the order in which they are visited.
    fn is_dense(&self, output: &Layout) -> bool {
        let mut expected = 1;
        self.sizes.iter().zip(&output.strides).rev().all(|(&size, &stride)| {
            let fits = stride == expected;
            expected *= size as i64;
            fits
        })
    }

    /// Returns whether a dense output shares none of its words with another part. Its last word can be partial unless it is cut, because
    /// elements of another part can then follow.
    fn has_whole_words(&self, output: &Layout) -> bool {
        let per_word = (4 / output.element_bytes).max(1);
        let end = output.first as u64 + self.count();
        (output.first as u64).is_multiple_of(per_word) && (end.is_multiple_of(per_word) || !self.is_cut)
    }
}

/// Returns a divisor in the form that `divisor.slang` expects: with a factor (0 for 1) and a shift that divide numbers below 2^31.
pub(super) fn divisor(number: u32) -> [u32; 3] {
    // The exponent of the smallest power of two that is at least the number. The factor then has 32 bits, and is too large by so little
    // that it does not matter for 31-bit numbers. Source: Granlund and Montgomery, "Division by invariant integers".
    let shift = u32::BITS - number.saturating_sub(1).leading_zeros();
    match shift.checked_sub(1) {
        Some(after) => [number, ((1u64 << (31 + shift)) / u64::from(number) + 1) as u32, after],
        None => [number, 0, 0],
    }
}

/// Returns a value as an element's bits, in the low bytes of a word.
pub(super) fn bits_of(value: f64, data_type: DataType) -> u64 {
    match data_type {
        DataType::Float64 => value.to_bits(),
        DataType::Float32 => (value as f32).to_bits() as u64,
        DataType::Float16 => f16::from_f32(rounded_to_odd(value)).to_bits() as u64,
        DataType::BFloat16 => bf16::from_f32(rounded_to_odd(value)).to_bits() as u64,
        DataType::Int64 => value as i64 as u64,
        DataType::Int32 => value as i32 as u64,
        DataType::Int16 => value as i16 as u64,
        DataType::Int8 => value as i8 as u64,
        DataType::UInt64 => value as u64,
        DataType::UInt32 => value as u32 as u64,
        DataType::UInt16 => value as u16 as u64,
        DataType::UInt8 => value as u8 as u64,
        DataType::Bool => (value != 0.0) as u64,
        DataType::Float8E4M3FN
        | DataType::Float8E4M3FNUZ
        | DataType::Float8E5M2
        | DataType::Float8E5M2FNUZ
        | DataType::Float8E8M0
        | DataType::Float4E2M1
        | DataType::Int4
        | DataType::UInt4
        | DataType::Int2
        | DataType::UInt2 => {
            narrow::encode(data_type, value, Narrowing { saturate: false, ..Narrowing::default() }).into()
        }
    }
}

#[cfg(test)]
mod tests;
