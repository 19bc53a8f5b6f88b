//! Opens data sets of the kind that a path names.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::arrays::{Arrays, HeldBytes, is_safetensors, npy_names};
use crate::dataset::{DataSet, Requirements, RowSelection, Source};
use crate::error::DataError;
use crate::names::{has_extension, listed};
use crate::ragged_set::{self, FreeSizes};
use crate::reading::Reading;
use crate::table_files::format;
use crate::text_files::text_files;
use crate::{archive_set, image_set, manifest, pairing, patch_set, sound_set, tar_set, volume_set};

/// Opens the data set `PATH` or `PATH#START..END`: an `.npz` archive; a folder of `.npy` files, of pairs of volumes (NIfTI, NRRD), or of
/// images or sounds by class; a table of images (`.csv`); tar shards (WebDataset); Parquet or Arrow files; or text (`.txt`, `.jsonl`),
/// which needs the options of [`open_with`] to be converted to tokens.
///
/// # Errors
/// [`DataError`] naming the path, and what was expected there.
pub fn open(data: &str, requirements: &Requirements) -> Result<DataSet, DataError> {
    open_fixed(data, requirements, &Reading::default())
}

fn open_fixed(data: &str, requirements: &Requirements, reading: &Reading) -> Result<DataSet, DataError> {
    let (path, selection) = split(data)?;
    let source = match kind_of(path, reading)? {
        Kind::Columns => open_columns(path, requirements, reading)?,
        Kind::Text => open_text(path, requirements, reading)?,
        Kind::Shards => tar_set::open(path, requirements, reading.skips_bad)?,
        Kind::Table => manifest::open(path, requirements, reading.skips_bad)?,
        Kind::Volumes => volume_set::open(path, requirements)?,
        Kind::Sounds => sound_set::open(path, requirements)?,
        Kind::Images => image_set::open(path, requirements).map_err(|error| below(path).unwrap_or(error))?,
        Kind::Arrays | Kind::Ragged => archive_set::open(path, requirements, reading.held)?,
    };
    DataSet::new(source, selection, data)
}

/// Returns the error for a folder whose subfolders hold tables: one of them has to be named.
fn below(folder: &Path) -> Option<DataError> {
    let has_tables = |path: &PathBuf| path.is_dir() && format(path).is_ok_and(|found| found.is_some());
    let folders: Vec<PathBuf> = listed(folder).ok()?.into_iter().filter(has_tables).collect();
    let first = folders.first()?.display();
    let reason = format!(
        "no data in this folder itself, but tables in {} of its subfolders; use one of them, such as {first}",
        folders.len()
    );
    Some(DataError::layout(folder, reason))
}

#[cfg(feature = "text")]
fn open_text(path: &Path, requirements: &Requirements, reading: &Reading) -> Result<Box<dyn Source>, DataError> {
    crate::text_set::open(path, requirements, &reading.text, reading.held)
}

#[cfg(not(feature = "text"))]
fn open_text(path: &Path, _: &Requirements, _: &Reading) -> Result<Box<dyn Source>, DataError> {
    Err(DataError::unsupported(
        path.display().to_string(),
        "this program was built without text (cargo's feature `text`)",
    ))
}

#[cfg(feature = "tables")]
fn open_columns(path: &Path, requirements: &Requirements, reading: &Reading) -> Result<Box<dyn Source>, DataError> {
    match reading.text.tokenizer {
        Some(_) => open_text(path, requirements, reading),
        None => crate::table_set::open(path, crate::tables::open(path)?, requirements, reading),
    }
}

#[cfg(not(feature = "tables"))]
fn open_columns(path: &Path, _: &Requirements, _: &Reading) -> Result<Box<dyn Source>, DataError> {
    let name = format(path)?.map_or("tables", crate::table_files::Format::name);
    let reason = format!("this program was built without {name} (cargo's features `parquet` and `arrow`)");
    Err(DataError::unsupported(path.display().to_string(), reason))
}

/// The kind of data set that a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An archive or a folder of `.npy` files.
    Arrays,
    /// Samples that can differ in size.
    Ragged,
    /// Pairs of volumes.
    Volumes,
    /// A folder of images for each class.
    Images,
    /// A table of images.
    Table,
    /// Tar files.
    Shards,
    /// A folder of sounds for each class.
    Sounds,
    /// Text.
    Text,
    /// Tables of columns: Parquet or Arrow files.
    Columns,
}

/// Returns the path of a data set without its selection, and what the path names.
///
/// # Errors
/// [`DataError`] naming the path.
pub(crate) fn kind<'a>(data: &'a str, reading: &Reading) -> Result<(&'a Path, Kind), DataError> {
    let (path, _) = split(data)?;
    match is_ragged(path)? {
        true => Ok((path, Kind::Ragged)),
        false => Ok((path, kind_of(path, reading)?)),
    }
}

fn kind_of(path: &Path, reading: &Reading) -> Result<Kind, DataError> {
    let has_text = !text_files(path)?.is_empty();
    if tar_set::is_shards(path)? {
        return Ok(Kind::Shards);
    }
    if format(path)?.is_some() {
        return Ok(Kind::Columns);
    }
    if !path.is_dir() {
        return match (has_text, has_extension(path, &["csv"])) {
            (true, _) => Ok(Kind::Text),
            (_, true) => Ok(Kind::Table),
            _ => check_archive(path).map(|()| Kind::Arrays),
        };
    }
    // Without a tokenizer, text next to other data is a description of it.
    Ok(match has_text && reading.text.tokenizer.is_some() {
        true => Kind::Text,
        false if !npy_names(path)?.is_empty() => Kind::Arrays,
        false if pairing::is_volume_folder(path)? => Kind::Volumes,
        false if sound_set::is_sounds(path)? => Kind::Sounds,
        false if has_text && !image_set::is_images(path)? => Kind::Text,
        false => Kind::Images,
    })
}

/// Checks that a file is an archive, by its name or its first bytes.
///
/// # Errors
/// [`DataError`] naming the file, and what would be data.
fn check_archive(path: &Path) -> Result<(), DataError> {
    let io = |error| DataError::io(path, error);
    let mut start = Vec::new();
    forebay_limits::open_regular(path).map_err(io)?.take(2).read_to_end(&mut start).map_err(io)?;
    if has_extension(path, &["npz"]) || is_safetensors(path) || start == b"PK" {
        return Ok(());
    }
    let reason = "not a data set; a file of data is .npz, .safetensors, .csv, .tar, .parquet, .arrow, .txt or .jsonl, without \
                  further compression; volumes, images, sounds and .npy files are passed as the folder that contains them";
    Err(DataError::unsupported(path.display().to_string(), reason))
}

/// Opens a data set like [`fn@open`], or one whose samples differ in size: a folder of `.npz` files, one per sample, or an archive of
/// concatenated samples ([`ragged_set`]). `held` says how much of the samples can be in memory.
///
/// # Errors
/// [`DataError`] naming the path, and what was expected there.
pub fn open_free(
    data: &str,
    requirements: &Requirements,
    free: &FreeSizes,
    held: HeldBytes,
) -> Result<DataSet, DataError> {
    open_with(data, requirements, &Reading { free: free.clone(), held, ..Reading::default() })
}

/// Opens a data set like [`fn@open`], with all options.
///
/// # Errors
/// [`DataError`] naming the path, and what was expected there.
pub fn open_with(data: &str, requirements: &Requirements, reading: &Reading) -> Result<DataSet, DataError> {
    let (path, selection) = split(data)?;
    if let Some(patches) = &reading.patches {
        if !path.is_dir() || kind_of(path, reading)? != Kind::Volumes {
            return Err(DataError::unsupported(
                data,
                "patches require volumes, in a folder of pairs of NIfTI or NRRD files",
            ));
        }
        return DataSet::new(patch_set::open(path, requirements, patches, selection)?, None, data);
    }
    if is_ragged(path)? {
        let source = ragged_set::open(path, requirements, &reading.free, reading.held, reading.skips_bad)?;
        return DataSet::new(source, selection, data);
    }
    open_fixed(data, requirements, reading)
}

/// Returns whether samples can differ in size.
fn is_ragged(path: &Path) -> Result<bool, DataError> {
    match path.is_dir() {
        true => Ok(!ragged_set::files(path)?.is_empty()),
        false => Ok(kind_of(path, &Reading::default())? == Kind::Arrays && ragged_set::is_joined(path)?),
    }
}

/// Returns the sizes of one sample in each of these arrays, if the data set specifies them before it is read, as archives do. If samples
/// differ in size, the result has the largest size along each axis.
///
/// # Errors
/// [`DataError`] naming the path.
pub fn sample_shapes(data: &str, names: &[&str]) -> Result<BTreeMap<String, Vec<u64>>, DataError> {
    let (path, _) = split(data)?;
    if is_ragged(path)? {
        return ragged_set::largest(path, names);
    }
    let mut shapes = BTreeMap::new();
    if kind_of(path, &Reading::default())? != Kind::Arrays {
        return Ok(shapes);
    }
    let mut arrays = Arrays::open(path)?;
    for name in names {
        if let Some((_, sample)) = arrays.ty(name)?.as_ref().and_then(|ty| ty.shape.split_first()) {
            shapes.insert(name.to_string(), sample.to_vec());
        }
    }
    Ok(shapes)
}

/// Splits off the selection. A path that exists is not split, so that names with `#` remain usable.
fn split(data: &str) -> Result<(&Path, Option<RowSelection>), DataError> {
    let whole = Path::new(data);
    match data.rsplit_once('#') {
        Some((path, rows)) if !whole.exists() => match RowSelection::parse(rows) {
            Some(selection) => Ok((Path::new(path), Some(selection))),
            None => {
                let reason =
                    format!("'{rows}' is not a selection of rows; write 0..1500, 1500.. or ..1500 after the #");
                Err(DataError::Rows { data: data.to_owned(), reason })
            }
        },
        _ => Ok((whole, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{InputDescription, LabelKind};
    use crate::npz;
    use forebay_base::DataType;
    use forebay_base::Tensor;

    fn requirements() -> Requirements {
        let input = InputDescription { name: "x".into(), data_type: DataType::Int64, sample_shape: vec![] };
        Requirements { inputs: vec![input], input_scale: 1.0, labels: LabelKind::Classes, label_shape: vec![] }
    }

    #[test]
    fn rows_are_selected_after_a_hash() {
        let folder = tempfile::tempdir().unwrap();
        let numbers = Tensor::from_i64(&[5], &[0, 1, 2, 3, 4]);
        for name in ["d.npz", "d#1.npz"] {
            let path = folder.path().join(name);
            npz::write(&path, &[("x", &numbers), ("y", &numbers)], true).unwrap();
            let path = path.to_str().unwrap();
            assert_eq!(open(path, &requirements()).unwrap().sample_count(), 5);
            let mut rows = open(&format!("{path}#2..4"), &requirements()).unwrap();
            assert_eq!(rows.batch(&[0, 1]).unwrap().labels, Tensor::from_i64(&[2], &[2, 3]));
            let error = open(&format!("{path}#2-4"), &requirements()).err().unwrap().to_string();
            assert!(error.contains("'2-4' is not a selection of rows"), "{error}");
        }
    }

    #[test]
    fn a_description_next_to_data_is_no_data() {
        let folder = tempfile::tempdir().unwrap();
        let (path, mut with_tokenizer) = (folder.path(), Reading::default());
        with_tokenizer.text.tokenizer = Some("tokenizer.json".into());
        let found = |reading: &Reading| kind_of(path, reading).unwrap();
        std::fs::write(path.join("README.txt"), "words").unwrap();
        assert_eq!(found(&Reading::default()), Kind::Text);
        std::fs::create_dir(path.join("a")).unwrap();
        assert_eq!(found(&Reading::default()), Kind::Text);
        for (name, kind) in [("a/1.png", Kind::Images), ("a/1.wav", Kind::Sounds), ("1.nii", Kind::Volumes)] {
            std::fs::write(path.join(name), "").unwrap();
            assert_eq!(found(&Reading::default()), kind, "{name}");
            assert_eq!(found(&with_tokenizer), Kind::Text, "{name}");
        }
        std::fs::write(path.join("x.npy"), "").unwrap();
        assert_eq!(found(&Reading::default()), Kind::Arrays);
    }

    #[test]
    fn missing_paths_are_named() {
        assert!(open("none/d.npz", &requirements()).err().unwrap().to_string().starts_with("none/d.npz: "));
    }

    #[test]
    fn files_of_other_kinds_are_no_archives() {
        let folder = tempfile::tempdir().unwrap();
        let numbers = Tensor::from_i64(&[2], &[0, 1]);
        npz::write(&folder.path().join("d.zip"), &[("x", &numbers), ("y", &numbers)], false).unwrap();
        let opened = |name: &str| open(folder.path().join(name).to_str().unwrap(), &requirements());
        assert_eq!(opened("d.zip").unwrap().sample_count(), 2);
        for name in ["scan.nii.gz", "photo.png", "a.tar.gz", "data.json"] {
            std::fs::write(folder.path().join(name), "words").unwrap();
            let error = opened(name).err().unwrap().to_string();
            assert!(error.contains(name) && error.contains("not a data set; a file of data is .npz"), "{error}");
        }
        std::fs::write(folder.path().join("d.npz"), "words").unwrap();
        assert!(opened("d.npz").err().unwrap().to_string().contains("not an .npz archive"));
    }
}
