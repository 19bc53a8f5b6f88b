//! Dispatches that go through the elements of a tensor: the counterpart of the repository's `kernels/elements.slang`.
//!
//! Elements are gone through in the order in which the output lies, with dimensions merged that lie seamlessly in every
//! operand. What is too large for one dispatch (a binding holds a limited number of bytes) is cut along the outermost dimension, or,
//! where that gives too many parts, reached by its address.

pub(super) use forebay_base::kernel::opcodes::ElementKind as Kind;
use forebay_base::narrow::{self, Narrowing};
use forebay_base::{DataType, TensorDesc, rounded_to_odd};
use half::{bf16, f16};

use super::operands::broadcast_strides;
use super::{Bound, Dispatch, Operand, Shader, Target, groups};

/// Elements, or words of smaller elements, that a workgroup makes.
const ITEMS_PER_GROUP: u64 = 256 * 4;
/// Elements that one dispatch makes at most: their numbers, and those of invocations past the end, fit 32 bits.
const ELEMENTS_MAX: u64 = 1 << 31;
/// Parts of one launch at most. Where an operand's elements are not gone through in the order in which they lie, cutting helps
/// little.
const PARTS_MAX: usize = 64;
/// What bindings start at multiples of.
const BINDING_ALIGNMENT_BYTES: u64 = 256;

/// How an operand's elements lie.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// Whose bytes.
    pub operand: Operand,
    /// Bytes of an element.
    pub element_bytes: u64,
    /// Bytes of the operand.
    pub total_bytes: u64,
    /// Place of the first element.
    pub first: i64,
    /// Strides in elements.
    pub strides: Vec<i64>,
    /// Whether the shader finds its way by itself: all of the operand is bound.
    is_whole: bool,
}

impl Layout {
    /// An operand in which the shader finds its way by itself.
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

    /// An operand in which the shader finds its way from a place of each element on: by dimension, how far these are apart.
    pub fn from_places(operand: Operand, desc: &TensorDesc, strides: Vec<i64>) -> Layout {
        Layout { strides, ..Layout::whole(operand, desc, &[]) }
    }

    /// The same for an operand of which only what the elements take is bound.
    pub fn in_part(mut self) -> Layout {
        self.is_whole = false;
        self
    }

    /// An operand that broadcasts to `sizes`: dimensions align at the last, size 1 broadcasts.
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

/// Elements to go through: sizes, and how every operand lies, the output last.
#[derive(Clone, Debug)]
pub(super) struct Elements {
    /// Sizes.
    pub sizes: Vec<u64>,
    /// Operands.
    pub layouts: Vec<Layout>,
    /// The number of the output's first element, for shaders that count elements.
    first: u64,
    is_cut: bool,
}

/// What a shader is told beyond its elements.
#[derive(Clone, Debug)]
pub(super) struct Task {
    /// The shader.
    pub shader: &'static Shader,
    /// Its specialization constants from 5 on.
    pub constants: Vec<u32>,
    /// Its own words.
    pub arguments: Vec<u32>,
}

impl Elements {
    /// Elements of these sizes.
    pub fn new(sizes: &[u64], layouts: Vec<Layout>) -> Elements {
        Elements { sizes: sizes.to_vec(), layouts, first: 0, is_cut: false }
    }

    /// The same, counted from another number than 0.
    pub fn counted_from(self, first: u64) -> Elements {
        Elements { first, ..self }
    }

    /// Elements of the operands of a launch, which broadcast to the sizes of what is written.
    pub fn of(reads: &[TensorDesc], write: &TensorDesc) -> Result<Elements, String> {
        let sizes = write.sizes();
        let read = |(number, desc): (usize, &TensorDesc)| Layout::broadcast(Operand::Read(number), desc, sizes);
        let mut layouts = reads.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
        layouts.push(Layout::broadcast(Operand::Write(0), write, sizes)?);
        Ok(Elements::new(sizes, layouts))
    }

    /// Elements of 8 bytes as two of 4: a dimension more. Operands of other sizes (a condition) stay.
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

    /// Elements of less than 4 bytes as words, where all operands have as many of them in every word.
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

    /// The dispatches that go through them: few enough, with what bindings hold, or as few as can be.
    pub fn dispatches(self, task: &Task, gpu: &Target) -> Result<Vec<Dispatch>, String> {
        let whole = self.merged();
        let parts = whole.clone().cut(PARTS_MAX, |elements| elements.fits(gpu));
        let parts = parts.or_else(|| whole.cut(usize::MAX, Elements::are_few)).unwrap_or_default();
        parts.iter().map(|elements| elements.dispatch(task, gpu)).collect()
    }

    /// Parts that fit; none where there are more than `most`, or one element does not.
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

    /// The same elements with dimensions in the order in which the output lies, and merged where that changes nothing.
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

    /// Number of elements.
    fn count(&self) -> u64 {
        self.sizes.iter().product()
    }

    /// First and last place that an operand's elements take.
    fn extent(&self, layout: &Layout) -> (i64, i64) {
        let reaches = self.sizes.iter().zip(&layout.strides).map(|(&size, &stride)| (size as i64 - 1) * stride);
        let (below, above): (Vec<i64>, Vec<i64>) = reaches.partition(|&device_address| device_address < 0);
        (layout.first + below.iter().sum::<i64>(), layout.first + above.iter().sum::<i64>())
    }

    /// The bytes that a binding has to hold, from a multiple of its alignment on, in words.
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

    /// The elements in two parts, cut along the outermost dimension, at a multiple of 256 where it is long; none of one.
    fn halves(self) -> Option<(Elements, Elements)> {
        let (&size, inner) = self.sizes.split_first()?;
        let step = [BINDING_ALIGNMENT_BYTES, 4, 1].into_iter().find(|step| size >= 2 * step).unwrap_or(1);
        let middle = size / 2 / step * step;
        let part = |start: u64, length: u64| {
            let mut part = self.clone();
            part.sizes = [&[length], inner].concat();
            part.is_cut = true;
            part.layouts.iter_mut().for_each(|layout| layout.first += start as i64 * layout.strides[0]);
            // A dimension of one element is none.
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

    /// The layout's code where nothing lies between the elements of any operand, all of which begin at place 0: a bit for that,
    /// and one for every operand that is not the same element throughout.
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

    /// Whether the output's elements lie one after the other in the order in which they are gone through.
    fn is_dense(&self, output: &Layout) -> bool {
        let mut expected = 1;
        self.sizes.iter().zip(&output.strides).rev().all(|(&size, &stride)| {
            let fits = stride == expected;
            expected *= size as i64;
            fits
        })
    }

    /// Whether a dense output's words are its own, the last perhaps in part: others' elements may follow where it is cut.
    fn has_whole_words(&self, output: &Layout) -> bool {
        let per_word = (4 / output.element_bytes).max(1);
        let end = output.first as u64 + self.count();
        (output.first as u64).is_multiple_of(per_word) && (end.is_multiple_of(per_word) || !self.is_cut)
    }
}

/// A divisor as `divisor.slang` wants it: with a factor (0 for 1) and a shift by which numbers below 2^31 are divided.
pub(super) fn divisor(number: u32) -> [u32; 3] {
    // The least power of two that is not below the number; the factor then has 32 bits, and is too large by so little that
    // it does not matter for numbers of 31 bits. Source: Granlund and Montgomery, "Division by invariant integers".
    let shift = u32::BITS - number.saturating_sub(1).leading_zeros();
    match shift.checked_sub(1) {
        Some(after) => [number, ((1u64 << (31 + shift)) / u64::from(number) + 1) as u32, after],
        None => [number, 0, 0],
    }
}

/// A value as an element's bits, in the low bytes of a word.
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
