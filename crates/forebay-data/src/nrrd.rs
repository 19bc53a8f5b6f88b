//! Volumes in NRRD files: `.nrrd`, or a header in `.nhdr` and the voxels in another file, raw or gzip-compressed, in either byte order.
//!
//! Source: <https://teem.sourceforge.net/nrrd/format.html>. A header of `field: value` lines ends with an empty line and is followed by the
//! elements, with the first axis fastest. Orientation (`space directions`) is ignored: volumes that belong together are expected to share a
//! grid.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use forebay_base::DataType;
use forebay_base::host_tensor::packed_size_bytes;

use crate::error::DataError;
use crate::gzip::Gzip;
use crate::names::without_ending;
use crate::nifti::{Header, VoxelStream};

/// The longest header.
const HEADER_BYTES_MAX: u64 = 1 << 20;

/// The fields of a header.
#[derive(Debug, Default)]
struct Fields {
    data_type: Option<DataType>,
    dimension: Option<usize>,
    sizes: Vec<u64>,
    encoding: String,
    big_endian: Option<bool>,
    data_file: Option<String>,
    line_skip: u64,
    /// The number of bytes before the voxels; `None` if the voxels are the last bytes of their file.
    byte_skip: Option<u64>,
    kinds: Vec<String>,
}

/// Returns the file's name without `.nrrd` or `.nhdr`, or `None` if it is not an NRRD file.
pub(crate) fn stem(path: &Path) -> Option<&str> {
    without_ending(path, &[".nrrd", ".nhdr"])
}

/// Returns the file of the voxels, if that is not the file of the header itself.
pub(crate) fn voxel_file(path: &Path) -> Option<PathBuf> {
    let header = forebay_limits::open_regular(path).ok()?;
    let fields = Fields::read(&mut BufReader::new(header)).ok()?;
    fields.data_file_next_to(path).filter(|path| path.is_file())
}

/// Opens a volume and reads its header. Voxels are read on demand.
///
/// # Errors
/// [`DataError`] naming the file and the field if it is unreadable, truncated, corrupt or of an unsupported kind.
pub(crate) fn open(path: &Path) -> Result<VoxelStream<Box<dyn Read>>, DataError> {
    let origin = path.display().to_string();
    let file = forebay_limits::open_regular(path).map_err(|error| DataError::io(path, error))?;
    let mut file_bytes = file.metadata().map_err(|error| DataError::io(path, error))?.len();
    let mut stream = BufReader::new(file);
    let fields = Fields::read(&mut stream).map_err(|reason| DataError::malformed(&origin, reason))?;
    let unsupported = |reason: String| DataError::unsupported(&origin, reason);
    if let (Some(name), Some(other)) = (&fields.data_file, fields.data_file_next_to(path)) {
        if fields.has_list() || name.contains('%') {
            return Err(unsupported(
                "voxels in several files are not supported; save them as one .nrrd file".to_owned(),
            ));
        }
        let file = forebay_limits::open_regular(&other).map_err(|error| DataError::io(&other, error))?;
        file_bytes = file.metadata().map_err(|error| DataError::io(&other, error))?.len();
        stream = BufReader::new(file);
    }
    let is_packed = match fields.encoding.as_str() {
        "raw" => false,
        "gzip" | "gz" => true,
        other => {
            return Err(unsupported(format!("encoding '{other}' is not supported; save the voxels as raw or gzip")));
        }
    };
    if let Some(kind) =
        fields.kinds.iter().find(|kind| !matches!(kind.as_str(), "domain" | "space" | "time" | "???" | "none"))
    {
        let reason = format!("an axis of kind '{kind}' is not a spatial axis; save each channel as a separate file");
        return Err(unsupported(reason));
    }
    let header = fields.header().map_err(|reason| DataError::malformed(&origin, reason))?;
    let size_bytes = packed_size_bytes(header.data_type, &header.shape).unwrap_or(u64::MAX);
    let voxels = voxels(stream, &fields, is_packed, size_bytes);
    let voxels =
        voxels.map_err(|error| DataError::malformed(&origin, format!("cannot skip to the voxels: {error}")))?;
    let stream = VoxelStream::of(voxels, &origin, header)?;
    if is_packed { stream.packed(file_bytes) } else { Ok(stream.stored(file_bytes)) }
}

/// Returns the stream of voxels, which take this many bytes, positioned at the first one.
fn voxels(
    mut stream: BufReader<File>,
    fields: &Fields,
    is_packed: bool,
    size_bytes: u64,
) -> std::io::Result<Box<dyn Read>> {
    let mut line = Vec::new();
    for _ in 0..fields.line_skip {
        line.clear();
        if stream.by_ref().take(HEADER_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            return Err(std::io::Error::other(format!("it has fewer than {} lines", fields.line_skip)));
        }
    }
    let Some(byte_skip) = fields.byte_skip else {
        if is_packed {
            return Err(std::io::Error::other("a byte skip of -1 requires the encoding raw"));
        }
        // A file that is too small is refused when its voxels are read.
        let file_bytes = stream.get_ref().metadata()?.len();
        stream.seek(SeekFrom::Start(file_bytes.saturating_sub(size_bytes)))?;
        return Ok(Box::new(stream));
    };
    let mut voxels: Box<dyn Read> = if is_packed { Box::new(Gzip::new(stream)) } else { Box::new(stream) };
    std::io::copy(&mut voxels.by_ref().take(byte_skip), &mut std::io::sink())?;
    Ok(voxels)
}

impl Fields {
    /// Reads a header up to its empty line, or up to the end of a file that contains only the header.
    fn read(stream: &mut impl BufRead) -> Result<Fields, String> {
        let mut fields = Fields { byte_skip: Some(0), ..Fields::default() };
        let (mut number, mut bytes) = (0, 0);
        loop {
            let mut line = Vec::new();
            let read = stream.by_ref().take(HEADER_BYTES_MAX).read_until(b'\n', &mut line);
            number += 1;
            bytes += read.map_err(|error| format!("line {number}: {error}"))? as u64;
            if bytes >= HEADER_BYTES_MAX {
                return Err(format!("its header does not end within {HEADER_BYTES_MAX} bytes"));
            }
            let is_end = line.is_empty();
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end();
            match (number, text) {
                (1, _) if !text.starts_with("NRRD000") => {
                    return Err("not an NRRD file: it does not begin with NRRD000".to_owned());
                }
                (1, _) => {}
                (_, "") if is_end && fields.data_file.is_none() => {
                    return Err("truncated: its header does not end with an empty line".to_owned());
                }
                (_, "") => return Ok(fields),
                _ if text.starts_with('#') || text.contains(":=") => {}
                _ => match text.split_once(':') {
                    Some((name, value)) => {
                        let taken = fields.take(&name.to_ascii_lowercase(), value.trim());
                        taken.map_err(|()| format!("line {number}: invalid {name} '{}'", value.trim()))?;
                        // The lines that follow are names of files.
                        if fields.has_list() {
                            return Ok(fields);
                        }
                    }
                    None => return Err(format!("line {number} is not a field: '{text}'")),
                },
            }
        }
    }

    /// Returns whether the names of several files of voxels follow the header.
    fn has_list(&self) -> bool {
        self.data_file.as_ref().is_some_and(|name| name.starts_with("LIST"))
    }

    /// Returns the path of the file of the voxels, which is relative to the header's folder.
    fn data_file_next_to(&self, header: &Path) -> Option<PathBuf> {
        Some(header.parent().unwrap_or(Path::new("")).join(self.data_file.as_ref()?))
    }

    /// Stores the value of a field.
    fn take(&mut self, name: &str, value: &str) -> Result<(), ()> {
        fn number<T: std::str::FromStr>(value: &str) -> Result<T, ()> {
            value.parse().map_err(|_| ())
        }
        match name {
            "type" => self.data_type = Some(element_type(&value.to_ascii_lowercase()).ok_or(())?),
            "dimension" => self.dimension = Some(number(value)?),
            "sizes" => self.sizes = value.split_whitespace().map(number).collect::<Result<_, _>>()?,
            "encoding" => self.encoding = value.to_ascii_lowercase(),
            "endian" => {
                self.big_endian = Some(match value.to_ascii_lowercase().as_str() {
                    "little" => false,
                    "big" => true,
                    _ => return Err(()),
                })
            }
            "data file" | "datafile" => self.data_file = Some(value.to_owned()),
            "line skip" | "lineskip" => self.line_skip = number(value)?,
            "byte skip" | "byteskip" if value == "-1" => self.byte_skip = None,
            "byte skip" | "byteskip" => self.byte_skip = Some(number(value)?),
            "kinds" => self.kinds = value.split_whitespace().map(str::to_ascii_lowercase).collect(),
            _ => {}
        }
        Ok(())
    }

    /// Returns the header of a volume with these fields.
    fn header(&self) -> Result<Header, String> {
        let data_type = self.data_type.ok_or("it has no field 'type'")?;
        let big_endian = match (self.big_endian, data_type.size_bytes()) {
            (Some(big_endian), _) => big_endian,
            (None, 1) => false,
            (None, _) => return Err(format!("it has no field 'endian', but its type is {data_type}")),
        };
        if self.sizes.is_empty() || self.dimension != Some(self.sizes.len()) {
            let dimension = self.dimension.map_or("none".to_owned(), |dimension| dimension.to_string());
            return Err(format!("its sizes {:?} and its dimension {dimension} do not describe a volume", self.sizes));
        }
        if self.sizes.contains(&0) {
            return Err(format!("the sizes of a volume must be at least 1, but are {:?}", self.sizes));
        }
        let shape = self.sizes.clone();
        Ok(Header { shape, data_type, slope: 1.0, intercept: 0.0, big_endian, voxel_offset: 0 })
    }
}

fn element_type(name: &str) -> Option<DataType> {
    Some(match name {
        "signed char" | "int8" | "int8_t" => DataType::Int8,
        "uchar" | "unsigned char" | "uint8" | "uint8_t" => DataType::UInt8,
        "short" | "short int" | "signed short" | "signed short int" | "int16" | "int16_t" => DataType::Int16,
        "ushort" | "unsigned short" | "unsigned short int" | "uint16" | "uint16_t" => DataType::UInt16,
        "int" | "signed int" | "int32" | "int32_t" => DataType::Int32,
        "uint" | "unsigned int" | "uint32" | "uint32_t" => DataType::UInt32,
        "longlong"
        | "long long"
        | "long long int"
        | "signed long long"
        | "signed long long int"
        | "int64"
        | "int64_t" => DataType::Int64,
        "ulonglong" | "unsigned long long" | "unsigned long long int" | "uint64" | "uint64_t" => DataType::UInt64,
        "float" => DataType::Float32,
        "double" => DataType::Float64,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(bytes: &[u8]) -> Result<Vec<u8>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.nrrd");
        std::fs::write(&path, bytes).unwrap();
        let mut stream = open(&path).map_err(|error| error.to_string())?;
        stream.check_size().map_err(|error| error.to_string())?;
        let mut voxels = vec![0; 4];
        stream.fill(&mut voxels).map_err(|error| error.to_string())?;
        Ok(voxels)
    }

    #[test]
    fn fields_are_read_and_voxels_follow() {
        let good = b"NRRD0004\n# words\ntype: ushort\ndimension: 2\nsizes: 2 1\nendian: big\nkey:=value: 1\nencoding: raw\nbyte skip: 1\n\nx\0\x01\x02\x03";
        assert_eq!(opened(good).unwrap(), [1, 0, 3, 2]);
        assert!(opened(&good[..good.len() - 1]).unwrap_err().contains("truncated: fewer than 4 bytes of voxels"));
        let changed = |from: &str, to: &str| opened(String::from_utf8_lossy(good).replace(from, to).as_bytes());
        assert_eq!(changed("byte skip: 1", "byte skip: -1").unwrap(), [1, 0, 3, 2]);
        assert_eq!(changed("type: ushort", "Type: USHORT").unwrap(), [1, 0, 3, 2]);
        assert_eq!(changed("endian: big", "endian: Big").unwrap(), [1, 0, 3, 2]);
        for (from, to, words) in [
            ("NRRD0004", "PNG", "does not begin with NRRD000"),
            ("ushort", "block", "line 3: invalid type 'block'"),
            ("sizes: 2 1", "sizes: 2", "its sizes [2] and its dimension 2 do not describe a volume"),
            ("sizes: 2 1", "sizes: 2 0", "the sizes of a volume must be at least 1, but are [2, 0]"),
            ("endian: big\n", "", "it has no field 'endian', but its type is uint16"),
            ("raw", "bzip2", "encoding 'bzip2' is not supported"),
            ("# words", "words", "line 2 is not a field: 'words'"),
            ("# words", "kinds: vector domain", "axis of kind 'vector'"),
            ("encoding: raw", "data file: LIST 2\na.raw\nb.raw", "several files"),
            ("encoding: raw", "data file: %03d.raw 1 9 1", "several files"),
            ("byte skip: 1", "line skip: 99999999999999999", "voxels: it has fewer than 99999999999999999 lines"),
            ("sizes: 2 1", "sizes: 2 9999999", "truncated: 119 bytes cannot hold 39999996 bytes of voxels"),
        ] {
            let error = changed(from, to).unwrap_err();
            assert!(error.contains(words), "{from} {to}: {error}");
        }
        let mut file = b"NRRD0004\ntype: uchar\ndimension: 1\nsizes: 4\nencoding: gzip\n\n".to_vec();
        file.extend(crate::nifti::samples::packed(&[3, 1, 2, 0]));
        assert_eq!(opened(&file).unwrap(), [3, 1, 2, 0]);
        *file.last_mut().unwrap() ^= 1;
        assert!(opened(&file).unwrap_err().contains("a.nrrd: damaged: corrupt gzip stream"));
        assert!(opened(b"NRRD0004\ntype: float\n").unwrap_err().contains("does not end with an empty line"));
    }
}
