//! Files of one NumPy array: the `.npy` format, versions 1 to 3.
//!
//! Source: `numpy/lib/format.py`. Ten to twelve bytes of preamble are followed by a Python dictionary with `descr`, `fortran_order` and
//! `shape`, and then by the elements. Big-endian elements are swapped and arrays in Fortran order are transposed, so that a [`Tensor`] is
//! always little-endian and row-major. bfloat16 has no NumPy name; the `ml_dtypes` package writes it as `V2`, and so does this module.

use std::io::{Read, Write};
use std::path::Path;

use forebay_base::DataType;
use forebay_files::Pending;

use crate::error::DataError;
use forebay_base::host_tensor::{Tensor, TensorType, packed_size_bytes};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// The elements start at a multiple of this number of bytes.
const HEADER_ALIGNMENT_BYTES: usize = 64;
/// The longest header; NumPy itself refuses more than 10,000 characters.
const HEADER_BYTES_MAX: usize = 10_000;
/// NumPy's own limit on dimensions.
const DIMENSIONS_MAX: usize = 64;

/// Reads an `.npy` file.
///
/// # Errors
/// [`DataError`] naming the file if it is unreadable, truncated, corrupt or of an unsupported element type.
pub fn read(path: &Path) -> Result<Tensor, DataError> {
    let origin = path.display().to_string();
    let file = forebay_limits::open_regular(path).map_err(|error| DataError::io(path, error))?;
    let size_bytes = file.metadata().map_err(|error| DataError::io(path, error))?.len();
    read_from(std::io::BufReader::new(file), size_bytes, &origin)
}

/// Reads an array from a stream that holds at most `size_bytes_max` bytes. A header that promises more is an error.
///
/// # Errors
/// [`DataError`] naming `origin`.
pub fn read_from(mut stream: impl Read, size_bytes_max: u64, origin: &str) -> Result<Tensor, DataError> {
    let malformed = |reason: String| DataError::malformed(origin, reason);
    let layout = Layout::read(&mut stream, origin)?;
    let size_bytes = layout.size_bytes_within(size_bytes_max, origin)?;
    let Layout { ty, big_endian, fortran_order, .. } = layout;
    // The elements can be compressed, so memory is allocated only as they are actually read.
    let bytes = forebay_limits::read_up_to(stream, size_bytes);
    let mut bytes = bytes.map_err(|error| malformed(format!("cannot read the elements: {error}")))?;
    if (bytes.len() as u64) < size_bytes {
        return Err(malformed(format!("truncated: {} of the {size_bytes} bytes of its elements", bytes.len())));
    }
    if big_endian {
        bytes.chunks_exact_mut(ty.data_type.size_bytes() as usize).for_each(<[u8]>::reverse);
    }
    if ty.data_type == DataType::Bool && bytes.iter().any(|&byte| byte > 1) {
        return Err(malformed("it contains a boolean that is neither 0 nor 1".into()));
    }
    if fortran_order {
        bytes = row_major(&bytes, ty.data_type.size_bytes() as usize, &ty.shape);
    }
    Ok(Tensor::new(ty.data_type, &ty.shape, bytes).expect("as many bytes as shape and type say"))
}

/// The layout of an array's elements in a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    /// The type and shape.
    pub(crate) ty: TensorType,
    /// Whether elements are stored with their highest byte first.
    pub(crate) big_endian: bool,
    /// Whether the first axis is the fastest.
    pub(crate) fortran_order: bool,
    /// The number of bytes before the elements.
    pub(crate) header_bytes: u64,
}

impl Layout {
    /// Reads a header.
    ///
    /// # Errors
    /// [`DataError`] naming `origin`.
    pub(crate) fn read(stream: impl Read, origin: &str) -> Result<Layout, DataError> {
        let mut counted = Counted { stream, bytes: 0 };
        let (header, data_type, big_endian) = read_header(&mut counted, origin)?;
        let Header { shape, fortran_order, .. } = header;
        Ok(Layout { ty: TensorType::new(data_type, &shape), big_endian, fortran_order, header_bytes: counted.bytes })
    }

    /// Returns the number of bytes of the elements. A header that promises more than `size_bytes_max` is an error.
    ///
    /// # Errors
    /// [`DataError`] naming `origin`.
    pub(crate) fn size_bytes_within(&self, size_bytes_max: u64, origin: &str) -> Result<u64, DataError> {
        let TensorType { data_type, shape, .. } = &self.ty;
        let size_bytes = packed_size_bytes(*data_type, shape).filter(|&size_bytes| size_bytes <= size_bytes_max);
        size_bytes.ok_or_else(|| {
            let reason = format!("{data_type}{shape:?} does not fit in the {size_bytes_max} bytes that are present");
            DataError::malformed(origin, reason)
        })
    }
}

/// A stream whose bytes are counted.
struct Counted<R> {
    stream: R,
    bytes: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.bytes += count as u64;
        Ok(count)
    }
}

/// Returns the type of an array; only its header is read.
///
/// # Errors
/// [`DataError`] naming `origin`.
pub fn read_type(stream: impl Read, origin: &str) -> Result<TensorType, DataError> {
    Ok(Layout::read(stream, origin)?.ty)
}

/// Reads the header, the element type, and whether elements are stored with their highest byte first.
fn read_header(mut stream: impl Read, origin: &str) -> Result<(Header, DataType, bool), DataError> {
    let malformed = |reason: String| DataError::malformed(origin, reason);
    let mut preamble = [0u8; 8];
    read_exact(&mut stream, &mut preamble, "the preamble", origin)?;
    if &preamble[..6] != MAGIC {
        return Err(malformed("not a NumPy array: the file does not start with \\x93NUMPY".into()));
    }
    let header_bytes = match preamble[6] {
        1 => {
            let mut length = [0u8; 2];
            read_exact(&mut stream, &mut length, "the header's length", origin)?;
            usize::from(u16::from_le_bytes(length))
        }
        2 | 3 => {
            let mut length = [0u8; 4];
            read_exact(&mut stream, &mut length, "the header's length", origin)?;
            u32::from_le_bytes(length) as usize
        }
        version => return Err(malformed(format!("version {version} of the NumPy format is not supported"))),
    };
    if header_bytes > HEADER_BYTES_MAX {
        return Err(malformed(format!(
            "the header has {header_bytes} bytes, but at most {HEADER_BYTES_MAX} are allowed"
        )));
    }
    let mut header = vec![0u8; header_bytes];
    read_exact(&mut stream, &mut header, "the header", origin)?;
    let header = String::from_utf8(header).map_err(|_| malformed("the header is not text".into()))?;
    let header = Header::parse(&header).map_err(|reason| malformed(format!("header {header:?}: {reason}")))?;
    let (data_type, big_endian) = element_type(&header.descr).ok_or_else(|| {
        DataError::unsupported(origin, format!("elements of type '{}' are not supported", header.descr))
    })?;
    Ok((header, data_type, big_endian))
}

/// Writes an `.npy` file atomically: as a whole or not at all.
///
/// # Errors
/// [`DataError::Io`].
pub fn write(path: &Path, array: &Tensor) -> Result<(), DataError> {
    pending(path, array)?.commit().map_err(|error| DataError::io(path, error))
}

/// Writes a complete `.npy` file that is moved into place when it is committed.
///
/// # Errors
/// [`DataError::Io`].
pub fn pending(path: &Path, array: &Tensor) -> Result<Pending, DataError> {
    Pending::new(path, |file| write_to(file, array)).map_err(|error| DataError::io(path, error))
}

/// Writes an array in version 1 of the format. It has no narrow types, so these are converted by [`Tensor::widened`] first.
///
/// # Errors
/// Errors of the stream.
pub fn write_to(mut stream: impl Write, array: &Tensor) -> std::io::Result<()> {
    let array = array.clone().widened();
    let shape: Vec<String> = array.shape().iter().map(u64::to_string).collect();
    let shape = match shape.as_slice() {
        [one] => format!("({one},)"),
        several => format!("({})", several.join(", ")),
    };
    let descr =
        type_name(array.data_type()).ok_or_else(|| std::io::Error::other("NumPy files cannot store this type"))?;
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    // The newline ends the header, and the elements start at an aligned offset.
    let unpadded = MAGIC.len() + 4 + header.len() + 1;
    header.push_str(&" ".repeat(unpadded.next_multiple_of(HEADER_ALIGNMENT_BYTES) - unpadded));
    header.push('\n');
    stream.write_all(MAGIC)?;
    stream.write_all(&[1, 0])?;
    let length = u16::try_from(header.len()).map_err(|_| std::io::Error::other("too many dimensions for a header"))?;
    stream.write_all(&length.to_le_bytes())?;
    stream.write_all(header.as_bytes())?;
    stream.write_all(array.bytes())
}

fn read_exact(stream: &mut impl Read, bytes: &mut [u8], what: &str, origin: &str) -> Result<(), DataError> {
    stream.read_exact(bytes).map_err(|error| {
        let reason = match error.kind() {
            std::io::ErrorKind::UnexpectedEof => format!("truncated: it ends within {what}"),
            _ => format!("cannot read {what}: {error}"),
        };
        DataError::malformed(origin, reason)
    })
}

/// Returns the element type that a `descr` names, and whether its bytes are swapped.
fn element_type(descr: &str) -> Option<(DataType, bool)> {
    let (order, kind) = match descr.strip_prefix(['<', '>', '|', '=']) {
        Some(kind) => (descr.as_bytes()[0], kind),
        None => (b'|', descr),
    };
    let data_type = match kind {
        "f8" => DataType::Float64,
        "f4" => DataType::Float32,
        "f2" => DataType::Float16,
        "V2" | "bfloat16" => DataType::BFloat16,
        "i8" => DataType::Int64,
        "i4" => DataType::Int32,
        "i2" => DataType::Int16,
        "i1" => DataType::Int8,
        "u8" => DataType::UInt64,
        "u4" => DataType::UInt32,
        "u2" => DataType::UInt16,
        "u1" => DataType::UInt8,
        "b1" => DataType::Bool,
        _ => return None,
    };
    Some((data_type, order == b'>'))
}

/// Returns the name of a type in a `descr`, or `None` if it has no name.
fn type_name(data_type: DataType) -> Option<&'static str> {
    Some(match data_type {
        DataType::Float64 => "<f8",
        DataType::Float32 => "<f4",
        DataType::Float16 => "<f2",
        DataType::BFloat16 => "<V2",
        DataType::Int64 => "<i8",
        DataType::Int32 => "<i4",
        DataType::Int16 => "<i2",
        DataType::Int8 => "|i1",
        DataType::UInt64 => "<u8",
        DataType::UInt32 => "<u4",
        DataType::UInt16 => "<u2",
        DataType::UInt8 => "|u1",
        DataType::Bool => "|b1",
        DataType::Float8E4M3FN
        | DataType::Float8E4M3FNUZ
        | DataType::Float8E5M2
        | DataType::Float8E5M2FNUZ
        | DataType::Float8E8M0
        | DataType::Float4E2M1
        | DataType::Int4
        | DataType::UInt4
        | DataType::Int2
        | DataType::UInt2 => return None,
    })
}

/// Reorders elements from first-axis-fastest to last-axis-fastest.
pub(crate) fn row_major(bytes: &[u8], element_bytes: usize, shape: &[u64]) -> Vec<u8> {
    let mut result = Vec::with_capacity(bytes.len());
    let sizes: Vec<usize> = shape.iter().map(|&size| size as usize).collect();
    let mut strides = Vec::with_capacity(sizes.len());
    let mut stride = element_bytes;
    for &size in &sizes {
        strides.push(stride);
        stride *= size;
    }
    let mut index = vec![0usize; sizes.len()];
    let mut offset = 0;
    for _ in 0..bytes.len() / element_bytes {
        result.extend_from_slice(&bytes[offset..offset + element_bytes]);
        for axis in (0..sizes.len()).rev() {
            index[axis] += 1;
            offset += strides[axis];
            if index[axis] < sizes[axis] {
                break;
            }
            offset -= sizes[axis] * strides[axis];
            index[axis] = 0;
        }
    }
    result
}

#[derive(Debug, PartialEq)]
struct Header {
    descr: String,
    fortran_order: bool,
    shape: Vec<u64>,
}

impl Header {
    /// Parses the Python dictionary literal. Keys can be in any order.
    fn parse(text: &str) -> Result<Header, String> {
        let mut rest = text.trim();
        rest = expect(rest, "{")?;
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        while !rest.starts_with('}') {
            let (key, after) = quoted(rest)?;
            rest = expect(after, ":")?;
            match key {
                "descr" if rest.starts_with('[') => return Err("structured elements are not supported".into()),
                "descr" => {
                    let (value, after) = quoted(rest)?;
                    (descr, rest) = (Some(value.to_owned()), after);
                }
                "fortran_order" => {
                    let (value, after) = match (rest.strip_prefix("True"), rest.strip_prefix("False")) {
                        (Some(after), _) => (true, after),
                        (_, Some(after)) => (false, after),
                        _ => return Err("fortran_order is neither True nor False".into()),
                    };
                    (fortran_order, rest) = (Some(value), after.trim_start());
                }
                "shape" => {
                    let (value, after) = tuple(rest)?;
                    (shape, rest) = (Some(value), after);
                }
                other => return Err(format!("unknown key '{other}'")),
            }
            match rest.strip_prefix(',') {
                Some(after) => rest = after.trim_start(),
                None if rest.starts_with('}') => {}
                None => return Err("a comma is missing".into()),
            }
        }
        Ok(Header {
            descr: descr.ok_or("descr is missing")?,
            fortran_order: fortran_order.ok_or("fortran_order is missing")?,
            shape: shape.ok_or("shape is missing")?,
        })
    }
}

fn expect<'a>(text: &'a str, token: &str) -> Result<&'a str, String> {
    text.strip_prefix(token).map(str::trim_start).ok_or_else(|| format!("'{token}' is missing"))
}

fn quoted(text: &str) -> Result<(&str, &str), String> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"')).ok_or("a quoted word is missing")?;
    let (word, rest) = text[1..].split_once(quote).ok_or("a quote is not closed")?;
    Ok((word, rest.trim_start()))
}

fn tuple(text: &str) -> Result<(Vec<u64>, &str), String> {
    let (inside, rest) = expect(text, "(")?.split_once(')').ok_or("the shape is not closed")?;
    let mut words: Vec<&str> = inside.split(',').map(str::trim).collect();
    // Both `()` and the trailing comma of `(3,)` leave an empty last word.
    if words.last() == Some(&"") {
        words.pop();
    }
    if words.len() > DIMENSIONS_MAX {
        return Err(format!("it has {} dimensions, but at most {DIMENSIONS_MAX} are supported", words.len()));
    }
    let size = |word: &str| word.trim_end_matches('L').parse().map_err(|_| format!("'{word}' is not a size"));
    Ok((words.into_iter().map(size).collect::<Result<_, _>>()?, rest.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::to_f64;

    fn written(array: &Tensor) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_to(&mut bytes, array).unwrap();
        bytes
    }

    fn read_bytes(bytes: &[u8]) -> Result<Tensor, DataError> {
        read_from(bytes, bytes.len() as u64, "a.npy")
    }

    /// A file with the given header text, as other programs write it.
    fn file(header: &str, elements: &[u8]) -> Vec<u8> {
        [MAGIC.as_slice(), &[1, 0], &(header.len() as u16).to_le_bytes(), header.as_bytes(), elements].concat()
    }

    #[test]
    fn every_type_and_rank_survives_a_round_trip() {
        for data_type in DataType::NOT_NARROW {
            for shape in [vec![], vec![3], vec![2, 3], vec![1, 0, 4], vec![2, 1, 2, 1, 2]] {
                let count: u64 = shape.iter().product();
                let bytes: Vec<u8> = (0..count * data_type.size_bytes()).map(|byte| (byte % 2) as u8).collect();
                let array = Tensor::new(data_type, &shape, bytes).unwrap();
                let file = written(&array);
                assert_eq!((file.len() as u64 - count * data_type.size_bytes()) % 64, 0);
                assert_eq!(read_bytes(&file).unwrap(), array, "{data_type}{shape:?}");
            }
        }
    }

    #[test]
    fn narrow_types_are_written_as_numbers() {
        let numbers = |data_type, bytes: &[u8]| {
            let array = Tensor::new(data_type, &[bytes.len() as u64], bytes).unwrap();
            read_bytes(&written(&array)).unwrap()
        };
        assert_eq!(
            numbers(DataType::Float8E4M3FN, &[0x38, 0xb8, 0x01]),
            Tensor::from_f32(&[3], &[1.0, -1.0, 1.0 / 512.0])
        );
        assert_eq!(numbers(DataType::Int4, &[0xf8, 7]), Tensor::new(DataType::Int8, &[2], vec![0xf8, 7]).unwrap());
        assert_eq!(numbers(DataType::UInt2, &[3]), Tensor::new(DataType::UInt8, &[1], vec![3]).unwrap());
    }

    #[test]
    fn big_endian_and_fortran_order_are_converted() {
        let elements: Vec<u8> = [0i16, 10, 1, 11, 2, 12].iter().flat_map(|v| v.to_be_bytes()).collect();
        let array = read_bytes(&file("{'shape': (2, 3), 'fortran_order': True, 'descr': '>i2'}\n", &elements)).unwrap();
        assert_eq!(to_f64(&array), [0.0, 1.0, 2.0, 10.0, 11.0, 12.0]);
        assert_eq!(array.shape(), [2, 3]);
    }

    #[test]
    fn fortran_order_matches_a_naive_model() {
        let shape = [3u64, 1, 4, 2];
        let bytes: Vec<u8> = (0..24).collect();
        let result = row_major(&bytes, 1, &shape);
        for (row_major_index, value) in result.iter().enumerate() {
            let (mut rest, mut expected, mut stride) = (row_major_index, 0, 24);
            for &size in shape.iter().rev() {
                stride /= size as usize;
                expected += (rest % size as usize) * stride;
                rest /= size as usize;
            }
            assert_eq!(usize::from(*value), expected);
        }
    }

    #[test]
    fn every_truncation_is_an_error() {
        let file = written(&Tensor::from_f32(&[2, 3], &[1.0; 6]));
        for length in 0..file.len() {
            assert!(read_bytes(&file[..length]).is_err(), "{length} bytes of {}", file.len());
        }
    }

    #[test]
    fn every_flipped_byte_of_the_header_is_survived() {
        let original = written(&Tensor::from_f32(&[2, 3], &[1.0; 6]));
        for position in 0..128 {
            for flip in 1..=255u8 {
                let mut file = original.clone();
                file[position] ^= flip;
                let _ = read_bytes(&file);
            }
        }
    }

    #[test]
    fn sizes_are_not_believed() {
        for shape in ["(18446744073709551615,)", "(4294967296, 4294967296)", "(1099511627776,)"] {
            let file = file(&format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n"), &[0; 16]);
            let error = read_bytes(&file).unwrap_err().to_string();
            assert!(error.contains("does not fit"), "{error}");
        }
    }

    #[test]
    fn unsupported_types_are_named() {
        let complex = file("{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }\n", &[0; 8]);
        assert_eq!(read_bytes(&complex).unwrap_err().to_string(), "a.npy: elements of type '<c8' are not supported");
        let structured = file("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }\n", &[0; 8]);
        assert!(read_bytes(&structured).unwrap_err().to_string().contains("structured"));
        let objects = file("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", &[0; 8]);
        assert!(read_bytes(&objects).is_err());
    }

    #[test]
    fn writing_leaves_no_partial_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("y.npy");
        let array = Tensor::from_i64(&[2], &[4, 5]);
        write(&path, &array).unwrap();
        assert_eq!(read(&path).unwrap(), array);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(write(&folder.path().join("missing/y.npy"), &array).is_err());
        assert!(read(&folder.path().join("none.npy")).unwrap_err().to_string().contains("none.npy"));
    }
}
