//! The contents of an initializer: its type and the location of its elements.
//!
//! The weights of a model can be larger than memory. A graph therefore only describes them, and their bytes are read in pieces when they
//! are needed, directly to their destination. Only small tensors are in memory from the start.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use forebay_base::{DataType, narrow};

use super::Tensor;
use super::numbers::Numbers;
use super::source::FileRange;
use crate::error::ModelError;
use crate::graph::TensorType;

/// Contents are passed in pieces of at most this many bytes.
const PIECE_BYTES: u64 = 1 << 20;
/// The most elements of a floating-point tensor that are read because a plan depends on them, such as the scales of a resize.
const FLOAT_COUNT_MAX: u64 = 16;
/// The same limit for integers and booleans, such as shapes and indices.
const INTEGER_COUNT_MAX: u64 = 1 << 20;
/// The number of first elements that show what kind of tensor it is.
const FIRST_COUNT_MAX: u64 = 4096;

/// A tensor that is computed when it is needed.
pub trait Compute: fmt::Debug + Send + Sync {
    /// Computes the tensor.
    ///
    /// # Errors
    /// Fails if an operand cannot be read.
    fn compute(&self) -> Result<Tensor, ModelError>;
}

/// Memory that holds the elements of a tensor and is released when dropped.
pub trait Hold: fmt::Debug + Send + Sync {
    /// Returns the bytes of the elements.
    fn bytes(&self) -> &[u8];
}

/// The type of a tensor and the location of its elements. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Contents {
    ty: TensorType,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    /// In memory.
    Memory(Tensor),
    /// In memory allocated elsewhere.
    Held(Arc<dyn Hold>),
    /// Zeros, which take no memory.
    Zeros,
    /// In a file.
    File(Arc<Stored>),
    /// Computed from other tensors.
    Computed(Arc<Computed>),
    /// Elements of other contents, starting at an index.
    Slice(Arc<Contents>, u64),
}

/// A tensor in a file.
#[derive(Debug)]
struct Stored {
    name: String,
    place: Place,
    /// The tensor, once a plan depended on it.
    read: OnceLock<Tensor>,
}

/// The location of a tensor in a file.
#[derive(Debug, PartialEq)]
enum Place {
    /// The bytes of the tensor, unchanged.
    Bytes(FileRange),
    /// Elements of fewer than 8 bits, several to a byte.
    Packed(FileRange),
    /// Numbers to be decoded; for elements of fewer than 8 bits, these are bytes that several elements share.
    Numbers(Numbers),
}

/// A computed tensor.
#[derive(Debug)]
struct Computed {
    compute: Box<dyn Compute>,
    /// The tensor, once a plan depended on it.
    read: OnceLock<Tensor>,
    /// The length of the longest chain of computations it takes.
    depth: u32,
    /// The number of computations it takes in all.
    work: u32,
}

impl Contents {
    /// Creates contents that are all zeros.
    pub fn zeros(ty: TensorType) -> Contents {
        Contents { ty, source: Source::Zeros }
    }

    /// Creates contents in memory allocated elsewhere, or returns `None` if their number does not match the type.
    pub fn held(ty: TensorType, hold: Arc<dyn Hold>) -> Option<Contents> {
        let fits = ty.checked_size_bytes()? == hold.bytes().len() as u64;
        fits.then_some(Contents { ty, source: Source::Held(hold) })
    }

    /// Returns whether the elements are in memory that is released with the last clone of these contents.
    pub fn is_held(&self) -> bool {
        matches!(self.source, Source::Held(_))
    }

    /// Creates contents from bytes of a file, as the tensor `name`, or returns `None` if their number does not match the type.
    pub fn stored(name: &str, ty: TensorType, range: FileRange) -> Option<Contents> {
        let fits = ty.checked_size_bytes()? == range.size_bytes();
        fits.then(|| Contents::in_file(name, ty, Place::Bytes(range)))
    }

    /// Creates contents from bytes of an ONNX file, in which elements of fewer than 8 bits share bytes, or returns `None` if their number
    /// does not match the type.
    pub fn packed(name: &str, ty: TensorType, range: FileRange) -> Option<Contents> {
        if ty.data_type.file_bits() >= 8 {
            return Contents::stored(name, ty, range);
        }
        let fits = narrow::file_bytes(ty.data_type, ty.checked_size_bytes()?)? == range.size_bytes();
        fits.then(|| Contents::in_file(name, ty, Place::Packed(range)))
    }

    /// Creates contents from numbers of an ONNX file, as the tensor `name`, or returns `None` if their count does not match the type.
    pub fn numbers(name: &str, ty: TensorType, numbers: Numbers) -> Option<Contents> {
        ty.checked_size_bytes()?;
        let wanted = match ty.data_type.file_bits() {
            bits if bits < 8 => narrow::file_bytes(ty.data_type, ty.count())?,
            _ => ty.count(),
        };
        let fits = wanted == numbers.count();
        fits.then(|| Contents::in_file(name, ty, Place::Numbers(numbers)))
    }

    fn in_file(name: &str, ty: TensorType, place: Place) -> Contents {
        let stored = Stored { name: name.to_string(), read: OnceLock::new(), place };
        Contents { ty, source: Source::File(Arc::new(stored)) }
    }

    /// Creates contents that are computed `from` others.
    pub fn computed(ty: TensorType, compute: Box<dyn Compute>, from: &[&Contents]) -> Contents {
        let depth = from.iter().map(|contents| contents.depth()).max().unwrap_or(0).saturating_add(1);
        let work = from.iter().fold(1u32, |sum, contents| sum.saturating_add(contents.work()));
        Contents { ty, source: Source::Computed(Arc::new(Computed { compute, read: OnceLock::new(), depth, work })) }
    }

    /// Returns some of the elements, in row-major order, as a tensor with one axis.
    ///
    /// # Panics
    /// If there are not that many elements.
    pub fn slice(&self, elements: Range<u64>) -> Contents {
        assert!(elements.start <= elements.end && elements.end <= self.ty.count(), "{elements:?} of {}", self.ty);
        let ty = TensorType::new(self.ty.data_type, &[elements.end - elements.start]);
        Contents { ty, source: Source::Slice(Arc::new(self.clone()), elements.start) }
    }

    /// Returns the element type.
    pub fn data_type(&self) -> DataType {
        self.ty.data_type
    }

    /// Returns the sizes: empty for a scalar; a size can be 0.
    pub fn shape(&self) -> &[u64] {
        &self.ty.shape
    }

    /// Returns the element type and the sizes.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Returns the number of bytes of the elements.
    pub fn size_bytes(&self) -> u64 {
        self.ty.count().saturating_mul(self.ty.data_type.size_bytes())
    }

    /// Returns whether these are the same elements, as far as can be told without reading them.
    pub fn are_those_of(&self, other: &Contents) -> bool {
        let same = match (&self.source, &other.source) {
            (Source::Memory(one), Source::Memory(other)) => {
                std::ptr::eq(one.bytes(), other.bytes()) || one.bytes() == other.bytes()
            }
            (Source::Held(one), Source::Held(other)) => Arc::ptr_eq(one, other),
            (Source::Zeros, Source::Zeros) => true,
            (Source::File(one), Source::File(other)) => Arc::ptr_eq(one, other),
            (Source::Computed(one), Source::Computed(other)) => Arc::ptr_eq(one, other),
            (Source::Slice(one, first), Source::Slice(other, others)) => first == others && one.are_those_of(other),
            _ => false,
        };
        same && self.ty == other.ty
    }

    /// Returns whether the elements are read from a file when they are needed, so that they take no memory themselves.
    pub fn is_in_file(&self) -> bool {
        match &self.source {
            Source::File(_) => true,
            Source::Slice(of, _) => of.is_in_file(),
            Source::Memory(_) | Source::Held(_) | Source::Zeros | Source::Computed(_) => false,
        }
    }

    /// Returns the tensor if it is in memory.
    pub fn in_memory(&self) -> Option<&Tensor> {
        match &self.source {
            Source::Memory(tensor) => Some(tensor),
            Source::File(stored) => stored.read.get(),
            Source::Computed(computed) => computed.read.get(),
            Source::Held(_) | Source::Zeros | Source::Slice(..) => None,
        }
    }

    /// Returns the length of the longest chain of computations it takes; 0 for contents that are only read.
    pub fn depth(&self) -> u32 {
        match &self.source {
            Source::Computed(computed) if computed.read.get().is_none() => computed.depth,
            Source::Slice(of, _) => of.depth(),
            _ => 0,
        }
    }

    /// Returns the number of computations it takes in all.
    pub fn work(&self) -> u32 {
        match &self.source {
            Source::Computed(computed) if computed.read.get().is_none() => computed.work,
            Source::Slice(of, _) => of.work(),
            _ => 0,
        }
    }

    /// Returns the elements of a small tensor, on which a plan can depend, or `None` for a large one. They stay in memory.
    ///
    /// # Errors
    /// Fails if a file cannot be read.
    pub fn small(&self) -> Result<Option<&Tensor>, ModelError> {
        let count_max = if self.ty.data_type.is_float() { FLOAT_COUNT_MAX } else { INTEGER_COUNT_MAX };
        if self.ty.count() > count_max {
            return Ok(None);
        }
        let read = match &self.source {
            Source::Memory(tensor) => return Ok(Some(tensor)),
            Source::Held(_) | Source::Zeros | Source::Slice(..) => return Ok(None),
            Source::File(stored) => &stored.read,
            Source::Computed(computed) => &computed.read,
        };
        if read.get().is_none() {
            let tensor = self.to_tensor()?;
            return Ok(Some(read.get_or_init(|| tensor)));
        }
        Ok(read.get())
    }

    /// Returns all elements.
    ///
    /// # Errors
    /// Fails if a file cannot be read or memory cannot be allocated.
    pub fn to_tensor(&self) -> Result<Tensor, ModelError> {
        if let Some(tensor) = self.in_memory() {
            return Ok(tensor.clone());
        }
        if let Source::Computed(computed) = &self.source {
            return computed.compute.compute();
        }
        let size_bytes = self.size_bytes();
        let refused = |error: std::io::Error| ModelError::Request { reason: format!("{}: {error}", self.name()) };
        // The tensor is a copy of the bytes read.
        forebay_limits::check(size_bytes.saturating_mul(2), forebay_limits::Use::Private)
            .map_err(|shortage| refused(std::io::Error::other(shortage)))?;
        let mut bytes = forebay_limits::buffer(size_bytes).map_err(refused)?;
        bytes.resize(size_bytes as usize, 0);
        self.reader()?.read(0, &mut bytes)?;
        Tensor::new(self.ty.data_type, &self.ty.shape, bytes).ok_or_else(|| ModelError::Request {
            reason: format!("{} is {}, which is too large", self.name(), self.ty),
        })
    }

    /// Returns the bytes of the first elements, at most [`FIRST_COUNT_MAX`] of them.
    ///
    /// # Errors
    /// Fails if a file cannot be read.
    pub(crate) fn first_bytes(&self) -> Result<Vec<u8>, ModelError> {
        let count = self.ty.count().min(FIRST_COUNT_MAX);
        let mut bytes = vec![0; (count * self.ty.data_type.size_bytes()) as usize];
        self.reader()?.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns the first elements of a float32 tensor; none if it has another type, if it is large and would have to be computed, or if it
    /// cannot be read, which is an error only where it is loaded.
    pub(crate) fn first_floats(&self) -> Vec<f32> {
        let is_known = self.depth() == 0 || self.ty.count() <= FIRST_COUNT_MAX;
        if self.ty.data_type != DataType::Float32 || !is_known {
            return Vec::new();
        }
        let bytes = self.first_bytes().unwrap_or_default();
        bytes.as_chunks::<4>().0.iter().map(|&element| f32::from_le_bytes(element)).collect()
    }

    /// Returns the name used in error messages.
    fn name(&self) -> String {
        match &self.source {
            Source::File(stored) => format!("tensor '{}'", stored.name),
            _ => format!("a tensor {}", self.ty),
        }
    }

    /// Passes the bytes of the elements to `take`, in successive pieces of at most 1 MiB.
    ///
    /// # Errors
    /// Fails if the source cannot be read, and returns the errors of `take`.
    pub fn give_in_pieces<E: From<ModelError>>(&self, take: &mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let (size_bytes, reader) = (self.size_bytes(), self.reader()?);
        let mut piece = vec![0; size_bytes.min(PIECE_BYTES) as usize];
        for start in (0..size_bytes).step_by(PIECE_BYTES as usize) {
            let piece = &mut piece[..(size_bytes - start).min(PIECE_BYTES) as usize];
            reader.read(start, piece)?;
            take(piece)?;
        }
        Ok(())
    }

    /// Returns a reader of the elements in pieces. Computed contents are computed now.
    ///
    /// # Errors
    /// Fails if an operand cannot be read.
    pub fn reader(&self) -> Result<Reader, ModelError> {
        let pieces = match &self.source {
            _ if self.in_memory().is_some() => Pieces::Memory(self.to_tensor()?),
            Source::File(stored) => Pieces::File(stored.clone(), self.ty.clone()),
            Source::Held(hold) => Pieces::Held(hold.clone()),
            Source::Zeros => Pieces::Zeros,
            Source::Memory(_) | Source::Computed(_) => Pieces::Memory(self.to_tensor()?),
            Source::Slice(of, first) => {
                Pieces::Slice(Box::new(of.reader()?), first * self.ty.data_type.size_bytes(), self.size_bytes())
            }
        };
        Ok(Reader { pieces, directly: false })
    }
}

/// Reads contents in pieces.
#[derive(Debug)]
pub struct Reader {
    pieces: Pieces,
    /// Whether reads of files bypass the system's page cache.
    directly: bool,
}

#[derive(Debug)]
enum Pieces {
    Memory(Tensor),
    Held(Arc<dyn Hold>),
    Zeros,
    File(Arc<Stored>, TensorType),
    /// A part of another reader: the offset of its elements and their size, in bytes.
    Slice(Box<Reader>, u64, u64),
}

impl Reader {
    /// Makes the reader bypass the system's page cache on file systems that support it ([`SourceFile::read_directly`]).
    ///
    /// [`SourceFile::read_directly`]: super::SourceFile::read_directly
    pub fn directly(mut self) -> Reader {
        if let Pieces::Slice(of, first_bytes, size_bytes) = self.pieces {
            self.pieces = Pieces::Slice(Box::new(of.directly()), first_bytes, size_bytes);
        }
        self.directly = true;
        self
    }

    /// Reads bytes of the elements, starting at `offset_bytes`. Bytes past the last element are zeros.
    ///
    /// # Errors
    /// Fails if a file cannot be read or has changed since the model was read.
    pub fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), ModelError> {
        let size_bytes = match &self.pieces {
            Pieces::Memory(tensor) => tensor.bytes().len() as u64,
            Pieces::Held(hold) => hold.bytes().len() as u64,
            Pieces::Zeros => 0,
            Pieces::File(_, ty) => ty.checked_size_bytes().unwrap_or_default(),
            Pieces::Slice(_, _, size_bytes) => *size_bytes,
        };
        let length = size_bytes.saturating_sub(offset_bytes).min(into.len() as u64);
        let (held, behind) = into.split_at_mut(length as usize);
        behind.fill(0);
        match &self.pieces {
            _ if held.is_empty() => {}
            Pieces::Memory(tensor) => held.copy_from_slice(&tensor.bytes()[offset_bytes as usize..][..held.len()]),
            Pieces::Held(hold) => held.copy_from_slice(&hold.bytes()[offset_bytes as usize..][..held.len()]),
            Pieces::Zeros => {}
            Pieces::Slice(of, first_bytes, _) => of.read(first_bytes + offset_bytes, held)?,
            Pieces::File(stored, ty) => {
                let what = format!("tensor '{}'", stored.name);
                match &stored.place {
                    Place::Bytes(range) if self.directly => {
                        range.file.read_directly(&what, range.bytes.start + offset_bytes, held)?;
                    }
                    Place::Bytes(range) => range.file.read(&what, range.bytes.start + offset_bytes, held)?,
                    Place::Packed(range) => unpacked(ty.data_type, offset_bytes, held, |first, packed| {
                        range.file.read(&what, range.bytes.start + first, packed)
                    })?,
                    Place::Numbers(numbers) if ty.data_type.file_bits() < 8 => {
                        unpacked(ty.data_type, offset_bytes, held, |first, packed| {
                            numbers.read(&what, DataType::UInt8, first, packed)
                        })?;
                    }
                    Place::Numbers(numbers) => numbers.read(&what, ty.data_type, offset_bytes, held)?,
                }
                if ty.data_type == DataType::Bool {
                    held.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
                }
            }
        }
        Ok(())
    }
}

/// Unpacks elements of fewer than 8 bits, starting at index `first`. `read` reads the packed bytes of the file, starting at an offset.
fn unpacked(
    data_type: DataType,
    first: u64,
    elements: &mut [u8],
    read: impl FnOnce(u64, &mut [u8]) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    let per_byte = 8 / data_type.file_bits();
    let skip = first % per_byte;
    let mut file = vec![0; (skip + elements.len() as u64).div_ceil(per_byte) as usize];
    read(first / per_byte, &mut file)?;
    narrow::unpack(data_type, &file, skip as usize, elements);
    Ok(())
}

impl From<Tensor> for Contents {
    fn from(tensor: Tensor) -> Contents {
        Contents { ty: tensor.ty(), source: Source::Memory(tensor) }
    }
}

/// Two contents are equal if they are certain, without reading anything, to hold the same elements.
impl PartialEq for Contents {
    fn eq(&self, other: &Contents) -> bool {
        self.ty == other.ty
            && match (&self.source, &other.source) {
                (Source::Zeros, Source::Zeros) => true,
                (Source::Held(one), Source::Held(other)) => Arc::ptr_eq(one, other),
                (Source::File(one), Source::File(other)) => one.place == other.place,
                (Source::Computed(one), Source::Computed(other)) => Arc::ptr_eq(one, other),
                (Source::Slice(one, first), Source::Slice(other, others)) => first == others && one == other,
                _ => self.in_memory().is_some() && self.in_memory() == other.in_memory(),
            }
    }
}

impl PartialEq<Tensor> for Contents {
    fn eq(&self, other: &Tensor) -> bool {
        self.in_memory() == Some(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Count;

    impl Compute for Count {
        fn compute(&self) -> Result<Tensor, ModelError> {
            Ok(Tensor::from_i64(&[3, 4], &(0..12).collect::<Vec<_>>()))
        }
    }

    #[test]
    fn a_slice_is_some_of_the_elements_wherever_they_are() {
        let ty = TensorType::new(DataType::Int64, &[3, 4]);
        let in_memory = Contents::from(Count.compute().unwrap());
        let computed = Contents::computed(ty.clone(), Box::new(Count), &[]);
        for whole in [&in_memory, &computed, &in_memory.slice(0..12)] {
            let slice = whole.slice(5..9);
            assert_eq!(slice.ty(), &TensorType::new(DataType::Int64, &[4]));
            assert_eq!(slice.to_tensor().unwrap(), Tensor::from_i64(&[4], &[5, 6, 7, 8]));
            assert_eq!(slice.slice(1..3).to_tensor().unwrap(), Tensor::from_i64(&[2], &[6, 7]));
            let mut given = Vec::new();
            slice
                .give_in_pieces::<ModelError>(&mut |piece| {
                    given.extend_from_slice(piece);
                    Ok(())
                })
                .unwrap();
            assert_eq!(given.len(), 32);
            assert!(slice.are_those_of(&whole.slice(5..9)) && !slice.are_those_of(&whole.slice(4..8)));
        }
        let zeros = Contents::zeros(ty).slice(0..0);
        assert_eq!(zeros.to_tensor().unwrap().bytes(), &[] as &[u8]);
    }

    #[test]
    #[should_panic(expected = "11..13")]
    fn a_slice_ends_with_the_elements() {
        Contents::zeros(TensorType::new(DataType::Int64, &[3, 4])).slice(11..13);
    }
}
