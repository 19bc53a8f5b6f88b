//! Data sets in tar shards, in the format of WebDataset: one `.tar` file, or a folder of them in the order of their names.
//!
//! Members of a shard whose names are the same up to the first dot of the file name form a sample: `000017.jpg` and `000017.cls`. An image
//! is the model's only input, or `000017.x.npy` is its input `x`. Labels are `cls` (a number in text) or `y.npy`. The table of members is
//! read when the set is opened, and their contents for each batch. A sample that is incomplete because its shard is damaged can be left out;
//! if the table itself is damaged, what follows counts as one such sample.

use std::collections::BTreeMap;
use std::fs::File;
use std::iter;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_base::Tensor;

use crate::archive_set::{label_type, scale_for};
use crate::convert::convert;
use crate::dataset::{Batch, Description, Requirements, Source, size_of_files};
use crate::digest::Digest;
use crate::error::DataError;
use crate::image_file::{Images, is_image};
use crate::names::files_with;
use crate::npy;

/// The unit in which tar files are written.
const BLOCK_BYTES: u64 = 512;
/// The largest member.
const MEMBER_BYTES_MAX: u64 = 4 << 30;

/// The position of a member.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Member {
    shard: u32,
    start: u64,
    size_bytes: u64,
}

/// A sample as the table of its shard has it.
struct Found {
    key: String,
    shard: u32,
    /// By the part of their names after the key.
    members: BTreeMap<String, Member>,
    /// Why it cannot be read: which part of the shard is damaged, and how.
    damage: Option<(String, String)>,
}

/// A sample.
struct Sample {
    key: String,
    /// Why it cannot be read, if it cannot.
    content: Result<Content, (String, String)>,
}

/// The members that hold the inputs, in their order, and the labels.
struct Content {
    inputs: Vec<Member>,
    labels: Member,
}

struct TarSet {
    shards: Vec<(PathBuf, File)>,
    samples: Vec<Sample>,
    /// Shards that end early, in words.
    cut_off: Vec<String>,
    /// The conversion of images, if inputs are images.
    images: Option<Images>,
    /// Whether labels are numbers in text.
    has_classes: bool,
    requirements: Requirements,
}

/// Returns whether a path is a shard or a folder of shards.
///
/// # Errors
/// [`DataError`] if the folder cannot be listed.
pub(crate) fn is_shards(path: &Path) -> Result<bool, DataError> {
    Ok(!shards(path)?.is_empty())
}

fn shards(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    files_with(path, &["tar"])
}

/// Opens shards, and reads their tables of members. With `skips_bad`, samples that cannot be read are errors only when they are read.
///
/// # Errors
/// [`DataError`] naming the shard, and the member or sample.
pub fn open(path: &Path, requirements: &Requirements, skips_bad: bool) -> Result<Box<dyn Source>, DataError> {
    let (mut opened, mut cut_off) = (Vec::new(), BTreeMap::new());
    let mut found: Vec<Found> = Vec::new();
    for (number, shard) in (0..).zip(shards(path)?) {
        let file = forebay_limits::open_regular(&shard).map_err(|error| match is_pattern(&shard) {
            true => {
                DataError::layout(&shard, "no such file; for several tar shards, pass the folder that contains them")
            }
            false => DataError::io(&shard, error),
        })?;
        if let Some(reason) = members(&shard, &file, number, skips_bad, &mut found)? {
            cut_off.insert(number, reason);
        }
        opened.push((shard, file));
    }
    let has_arrays = |members: &BTreeMap<String, Member>| {
        requirements.inputs.iter().all(|input| members.contains_key(&format!("{}.npy", input.name)))
    };
    // A picture with a longer name next to the model's inputs is not an input.
    let has_image = |members: &BTreeMap<String, Member>| match images_of(members)[..] {
        [] => false,
        [first, ..] => !first.contains('.') || !has_arrays(members),
    };
    let images = match found.first().is_some_and(|first| has_image(&first.members)) {
        false => None,
        true => {
            let mut any_labels = requirements.clone();
            any_labels.labels = crate::dataset::LabelKind::Classes;
            Some(Images::of(&any_labels, "tar shards of images").map_err(|reason| DataError::layout(path, reason))?)
        }
    };
    let has_classes = found.first().is_some_and(|first| first.members.contains_key("cls"));
    let content_of = |members: &BTreeMap<String, Member>| {
        let named = |name: &str| {
            let present: Vec<&str> = members.keys().map(String::as_str).collect();
            let reason = || format!("this sample has no {name}; it has {}", present.join(", "));
            members.get(name).copied().ok_or_else(reason)
        };
        let inputs = match &images {
            Some(_) => match images_of(members)[..] {
                [] => return Err("this sample has no image".to_owned()),
                [image] => vec![named(image)?],
                ref several => {
                    return Err(format!(
                        "this sample has several images, {}; the input is the one without a further dot in its name, such \
                         as {}, of which there may be only one",
                        several.join(" and "),
                        several[0].rsplit('.').next().unwrap_or_default()
                    ));
                }
            },
            None => {
                let names = requirements.inputs.iter().map(|input| named(&format!("{}.npy", input.name)));
                names.collect::<Result<_, _>>()?
            }
        };
        let labels = match (has_classes, members.get("y.npy")) {
            (true, _) => named("cls")?,
            (false, Some(&labels)) => labels,
            (false, None) => named(if images.is_some() { "cls or y.npy" } else { "y.npy" })?,
        };
        Ok(Content { inputs, labels })
    };
    let last_of_shards: BTreeMap<u32, usize> =
        found.iter().enumerate().map(|(number, sample)| (sample.shard, number)).collect();
    let mut samples = Vec::with_capacity(found.len());
    for (number, Found { key, shard, members, damage }) in found.into_iter().enumerate() {
        let content = damage.map_or_else(
            || {
                content_of(&members).map_err(|reason| {
                    let is_last = last_of_shards.get(&shard) == Some(&number);
                    let cut_off = cut_off.get(&shard).filter(|_| is_last).map(|reason| format!("; {reason}"));
                    let origin = format!("{}[{key}]", opened[shard as usize].0.display());
                    (origin, format!("{reason}{}", cut_off.unwrap_or_default()))
                })
            },
            Err,
        );
        match content {
            Err((origin, reason)) if !skips_bad => return Err(DataError::malformed(origin, reason)),
            content => samples.push(Sample { key, content }),
        }
    }
    let name = |shard: u32| opened[shard as usize].0.file_name().unwrap_or_default().display().to_string();
    let cut_off = cut_off.into_iter().map(|(shard, reason)| format!("{} {reason}", name(shard))).collect();
    let requirements = requirements.clone();
    Ok(Box::new(TarSet { shards: opened, samples, cut_off, images, has_classes, requirements }))
}

/// Returns whether the name of a file that does not exist may be meant as a pattern for several files, as other programs read it.
fn is_pattern(path: &Path) -> bool {
    path.to_string_lossy().contains(['*', '?', '{']) && !path.exists()
}

/// Returns the names of those members that can be a sample's image: those whose name after the sample's is only the extension of an image,
/// or, if there are none, those with more before it (`rgb.png`).
fn images_of(members: &BTreeMap<String, Member>) -> Vec<&str> {
    let is_image = |name: &&str| is_image(Path::new(&format!("image.{name}")));
    let all: Vec<&str> = members.keys().map(String::as_str).filter(is_image).collect();
    let plain: Vec<&str> = all.iter().copied().filter(|name| !name.contains('.')).collect();
    if plain.is_empty() { all } else { plain }
}

/// Adds the members of a shard to the samples, in their order. Returns how the shard ends if that is not as a tar file ends. With
/// `skips_bad`, damage becomes a sample that cannot be read.
///
/// # Errors
/// [`DataError`] naming the shard, and the member.
fn members(
    path: &Path,
    file: &File,
    shard: u32,
    skips_bad: bool,
    found: &mut Vec<Found>,
) -> Result<Option<String>, DataError> {
    let wrong =
        |error: std::io::Error| DataError::malformed(path.display().to_string(), format!("not a tar file: {error}"));
    let end = file.metadata().map_err(|error| DataError::io(path, error))?.len();
    let earlier = found.len();
    let mut archive = tar::Archive::new(file);
    // Where the next header is.
    let mut next = 0;
    for entry in archive.entries_with_seek().map_err(wrong)? {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) if skips_bad && found.len() > earlier => {
                let damage =
                    Some((path.display().to_string(), format!("no table of members from byte {next} on: {error}")));
                let key = format!("{}, from byte {next} on", path.display());
                found.push(Found { key, shard, members: BTreeMap::new(), damage });
                return Ok(None);
            }
            Err(error) if next == 0 => return Err(wrong(error)),
            Err(error) => {
                let reason = format!("damaged: no table of members from byte {next} on: {error}");
                return Err(DataError::malformed(path.display().to_string(), reason));
            }
        };
        let (start, size_bytes) = (entry.raw_file_position(), entry.size());
        next = start.saturating_add(size_bytes).checked_next_multiple_of(BLOCK_BYTES).unwrap_or(u64::MAX);
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let name = entry.path().map_err(wrong)?.display().to_string();
        let (folder, file_name) = name.rsplit_once('/').map_or(("", name.as_str()), |(folder, file)| (folder, file));
        let Some((stem, extension)) = file_name.split_once('.').filter(|(stem, _)| !stem.is_empty()) else { continue };
        let key = if folder.is_empty() { stem.to_owned() } else { format!("{folder}/{stem}") };
        if found[earlier..].last().is_none_or(|last| last.key != key) {
            found.push(Found { key, shard, members: BTreeMap::new(), damage: None });
        }
        let Some(sample) = found.last_mut() else { unreachable!("it was just added") };
        if size_bytes > MEMBER_BYTES_MAX || start.saturating_add(size_bytes) > end {
            let origin = format!("{}[{name}]", path.display());
            let reason = format!("truncated: it has {size_bytes} bytes at byte {start} of a file of {end} bytes");
            if !skips_bad {
                return Err(DataError::malformed(origin, reason));
            }
            sample.damage = Some((origin, reason));
            return Ok(None);
        }
        let member = Member { shard, start, size_bytes };
        if let Some(first) = sample.members.insert(extension.to_owned(), member) {
            let reason = format!(
                "there are two such members, at bytes {} and {start}; every sample needs a name of its own",
                first.start
            );
            return Err(DataError::malformed(format!("{}[{name}]", path.display()), reason));
        }
    }
    // Blocks of zeros follow the last member.
    let is_cut_off = next.saturating_add(BLOCK_BYTES) > end;
    Ok(is_cut_off
        .then(|| format!("ends at byte {end} without the mark for the end of a tar file, so samples may be missing")))
}

impl TarSet {
    /// Returns the members of a sample.
    ///
    /// # Errors
    /// [`DataError`] if the sample cannot be read.
    fn content(sample: &Sample) -> Result<&Content, DataError> {
        sample.content.as_ref().map_err(|(origin, reason)| DataError::malformed(origin, reason))
    }

    fn origin(&self, sample: &Sample, member: Member) -> String {
        let (path, _) = &self.shards[member.shard as usize];
        format!("{}[{}], at byte {}", path.display(), sample.key, member.start)
    }

    fn bytes(&self, member: Member, origin: &str) -> Result<Vec<u8>, DataError> {
        let buffer = forebay_limits::buffer(member.size_bytes);
        let mut bytes: Vec<u8> = buffer.map_err(|error| DataError::malformed(origin, error.to_string()))?;
        bytes.resize(member.size_bytes as usize, 0);
        let (_, file) = &self.shards[member.shard as usize];
        let read = file.read_exact_at(&mut bytes, member.start);
        read.map_err(|error| DataError::malformed(origin, format!("cannot read the sample: {error}")))?;
        Ok(bytes)
    }

    /// Reads an array of a sample.
    fn array(&self, sample: &Sample, member: Member, shape: &[u64]) -> Result<Tensor, DataError> {
        let origin = self.origin(sample, member);
        let bytes = self.bytes(member, &origin)?;
        let array = npy::read_from(bytes.as_slice(), bytes.len() as u64, &origin)?;
        match array.shape() == shape {
            true => Ok(array),
            false => {
                let found = array.shape().to_vec();
                Err(DataError::Shape { origin, found, expected: format!("{shape:?}") })
            }
        }
    }

    fn labels(&self, sample: &Sample) -> Result<Tensor, DataError> {
        let (member, wanted) = (TarSet::content(sample)?.labels, label_type(&self.requirements));
        let origin = self.origin(sample, member);
        let shape = &self.requirements.label_shape;
        if !self.has_classes {
            return convert(self.array(sample, member, shape)?, wanted, 1.0, &origin);
        }
        let bytes = self.bytes(member, &origin)?;
        let text = String::from_utf8_lossy(&bytes);
        let number = text.trim().parse::<i64>();
        let number =
            number.map_err(|_| DataError::malformed(&origin, format!("'{}' is not a whole number", text.trim())))?;
        if shape.iter().any(|&size| size != 1) {
            return Err(DataError::Shape { origin, found: Vec::new(), expected: format!("{shape:?}") });
        }
        convert(Tensor::from_i64(shape, &[number]), wanted, 1.0, &origin)
    }
}

impl Source for TarSet {
    fn description(&self) -> Result<Description, DataError> {
        let inputs = self.requirements.inputs.iter().map(|input| match self.images {
            Some(_) => format!("images, resized to {:?}", input.sample_shape),
            None => format!("{}.npy: {:?}", input.name, input.sample_shape),
        });
        let labels = if self.has_classes { "cls: a number" } else { "y.npy" };
        Ok(Description {
            kind: iter::once(format!("{} tar shards", self.shards.len()))
                .chain(self.cut_off.iter().cloned())
                .collect::<Vec<_>>()
                .join("; "),
            tensors: inputs.chain([labels.to_owned()]).collect(),
            size_bytes: size_of_files(self.shards.iter().map(|(path, _)| path.as_path()))?,
            ..Description::default()
        })
    }

    fn sample_count(&self) -> u64 {
        self.samples.len() as u64
    }

    fn batch(&mut self, samples: &[u64]) -> Result<Batch, DataError> {
        let inputs = &self.requirements.inputs;
        let mut columns: Vec<Vec<Tensor>> = vec![Vec::new(); inputs.len()];
        let mut labels = Vec::with_capacity(samples.len());
        for &sample in samples {
            let sample = &self.samples[sample as usize];
            let members = &TarSet::content(sample)?.inputs;
            for ((input, &member), column) in inputs.iter().zip(members).zip(&mut columns) {
                let origin = self.origin(sample, member);
                column.push(match &self.images {
                    Some(images) => images.decode(&self.bytes(member, &origin)?, &origin)?,
                    None => {
                        let array = self.array(sample, member, &input.sample_shape)?;
                        let scale = scale_for(input.data_type, self.requirements.input_scale);
                        convert(array, input.data_type, scale, &origin)?
                    }
                });
            }
            labels.push(self.labels(sample)?);
        }
        let stacked = |tensors: &[Tensor]| Tensor::stack(&tensors.iter().collect::<Vec<_>>()).expect("one shape");
        let inputs = inputs.iter().zip(&columns).map(|(input, column)| (input.name.clone(), stacked(column)));
        Ok(Batch { inputs: inputs.collect(), labels: stacked(&labels) })
    }

    fn classes(&mut self) -> Result<Option<Vec<i64>>, DataError> {
        if !self.has_classes {
            return Ok(None);
        }
        let labels = self.samples.iter().map(|sample| self.labels(sample)).collect::<Result<Vec<_>, _>>()?;
        Ok(labels.iter().map(|label| label.to_i64().and_then(|label| label.first().copied())).collect())
    }

    fn digest(&self, samples: Range<u64>, digest: &mut Digest) -> Result<(), DataError> {
        for sample in &self.samples[samples.start as usize..samples.end as usize] {
            digest.add(sample.key.as_bytes());
            let Ok(Content { inputs, labels }) = &sample.content else { continue };
            inputs.iter().chain([labels]).for_each(|member| digest.add(&member.size_bytes.to_le_bytes()));
        }
        digest.add_files(self.shards.iter().map(|(path, _)| path.as_path()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{InputDescription, LabelKind};
    use forebay_base::DataType;

    fn shard(path: &Path, members: &[(&str, &[u8])]) {
        let mut builder = tar::Builder::new(File::create(path).unwrap());
        for (name, bytes) in members {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, name, *bytes).unwrap();
        }
        builder.finish().unwrap();
    }

    fn requirements(sample_shape: &[u64]) -> Requirements {
        let input =
            InputDescription { name: "x".into(), data_type: DataType::Float32, sample_shape: sample_shape.to_vec() };
        Requirements { inputs: vec![input], input_scale: 1.0, labels: LabelKind::Classes, label_shape: vec![] }
    }

    fn png(gray: u8) -> Vec<u8> {
        let mut bytes = std::io::Cursor::new(Vec::new());
        forebay_images::image::GrayImage::from_pixel(2, 2, forebay_images::image::Luma([gray]))
            .write_to(&mut bytes, forebay_images::image::ImageFormat::Png)
            .unwrap();
        bytes.into_inner()
    }

    #[test]
    fn shards_of_images_are_one_set_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b, c) = (png(51), png(102), png(153));
        shard(&folder.path().join("1.tar"), &[("c.png", &c), ("c.cls", b"5\n")]);
        shard(
            &folder.path().join("0.tar"),
            &[("d/a.cls", b"3"), ("d/a.png", &a), ("b.png", &b), ("b.cls", b"4"), ("b.json", b"{}")],
        );
        // Some systems store metadata in hidden files.
        std::fs::write(folder.path().join("._0.tar"), [0; 100]).unwrap();
        assert!(is_shards(folder.path()).unwrap());
        let mut set = open(folder.path(), &requirements(&[1, 1, 1]), false).unwrap();
        let batch = set.batch(&[2, 0, 1]).unwrap();
        assert_eq!(batch.inputs["x"], Tensor::from_f32(&[3, 1, 1, 1], &[0.6, 0.2, 0.4]));
        assert_eq!(batch.labels, Tensor::from_i64(&[3], &[5, 3, 4]));
        assert_eq!((set.sample_count(), set.description().unwrap().kind.as_str()), (3, "2 tar shards"));
    }

    #[test]
    fn further_images_are_not_the_input() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.tar");
        let (a, b) = (png(51), png(102));
        let opened = |members: &[(&str, &[u8])], sample_shape: &[u64]| {
            shard(&path, members);
            let mut set = open(&path, &requirements(sample_shape), false).map_err(|error| error.to_string())?;
            Ok::<_, String>(set.batch(&[0]).unwrap().inputs["x"].to_f32().unwrap())
        };
        let (cls, pixel) = (("1.cls", b"1".as_slice()), [1, 1, 1]);
        assert_eq!(opened(&[("1.mask.png", &b), ("1.png", &a), cls], &pixel).unwrap(), [0.2]);
        assert_eq!(opened(&[("1.depth.png", &b), ("1.PNG", &a), cls], &pixel).unwrap(), [0.2]);
        assert_eq!(opened(&[("1.rgb.png", &a), cls], &pixel).unwrap(), [0.2]);
        for (first, second) in [("rgb.png", "mask.png"), ("png", "jpg")] {
            let names = [format!("1.{first}"), format!("1.{second}")];
            let error = opened(&[(&names[0], &a), (&names[1], &b), cls], &pixel).unwrap_err();
            assert!(error.contains("[1]: this sample has several images") && error.contains(first), "{error}");
            assert!(error.contains(second), "{error}");
        }
        let mut array = Vec::new();
        npy::write_to(&mut array, &Tensor::from_f32(&[2], &[1.0, 2.0])).unwrap();
        assert_eq!(opened(&[("1.x.npy", &array), ("1.preview.png", &a), cls], &[2]).unwrap(), [1.0, 2.0]);
    }

    #[test]
    fn samples_of_one_name_are_kept_in_two_shards_and_refused_in_one() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (png(51), png(102));
        shard(&folder.path().join("0.tar"), &[("0.png", &a), ("0.cls", b"1")]);
        shard(&folder.path().join("1.tar"), &[("0.png", &b), ("0.cls", b"2")]);
        let mut set = open(folder.path(), &requirements(&[1, 1, 1]), false).unwrap();
        assert_eq!(set.sample_count(), 2);
        assert_eq!(set.batch(&[0, 1]).unwrap().labels, Tensor::from_i64(&[2], &[1, 2]));
        shard(&folder.path().join("1.tar"), &[("0.png", &a), ("0.cls", b"1"), ("0.png", &b), ("0.cls", b"2")]);
        let error = open(folder.path(), &requirements(&[1, 1, 1]), false).err().unwrap().to_string();
        assert!(error.contains("1.tar[0.png]: there are two such members, at bytes 512 and"), "{error}");
        shard(&folder.path().join("0.tar"), &[("0.png", &a), ("1.png", &b), ("0.cls", b"1"), ("1.cls", b"1")]);
        let refused =
            |name: &str| open(&folder.path().join(name), &requirements(&[1, 1, 1]), false).err().unwrap().to_string();
        assert!(refused("0.tar").contains("[0]: this sample has no cls or y.npy; it has png"), "{}", refused("0.tar"));
        for pattern in ["*.tar", "{0..1}.tar"] {
            assert!(refused(pattern).ends_with("pass the folder that contains them"), "{}", refused(pattern));
        }
    }

    #[test]
    fn arrays_come_by_their_names_and_damage_is_named_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.tar");
        let array = |tensor: &Tensor| {
            let mut bytes = Vec::new();
            npy::write_to(&mut bytes, tensor).unwrap();
            bytes
        };
        let (x, y) = (array(&Tensor::from_f32(&[2], &[1.0, 2.0])), array(&Tensor::from_i64(&[], &[9])));
        shard(&path, &[("s.x.npy", &x), ("s.y.npy", &y), ("t.x.npy", &x[..x.len() - 1]), ("t.y.npy", &y)]);
        let mut set = open(&path, &requirements(&[2]), false).unwrap();
        let batch = set.batch(&[0]).unwrap();
        assert_eq!(
            (&batch.inputs["x"], &batch.labels),
            (&Tensor::from_f32(&[1, 2], &[1.0, 2.0]), &Tensor::from_i64(&[1], &[9]))
        );
        let error = set.batch(&[0, 1]).unwrap_err().to_string();
        assert!(error.contains("data.tar[t], at byte ") && error.contains("truncated: 7 of the 8 bytes"), "{error}");
        shard(&path, &[("s.x.npy", &x)]);
        let error = open(&path, &requirements(&[2]), false).err().unwrap().to_string();
        assert!(error.contains("[s]: this sample has no y.npy; it has x.npy"), "{error}");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..520]).unwrap();
        assert!(open(&path, &requirements(&[2]), false).err().unwrap().to_string().contains("truncated"));
    }

    #[test]
    fn damaged_shards_keep_the_samples_before_the_damage() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.tar");
        let samples = |first: u8| {
            let named = |number: u8| [(format!("{number}.png"), png(51)), (format!("{number}.cls"), b"1".to_vec())];
            (first..first + 3).flat_map(named).collect::<Vec<_>>()
        };
        let write = |path: &Path, first| {
            let members = samples(first);
            shard(path, &members.iter().map(|(name, bytes)| (&**name, &**bytes)).collect::<Vec<_>>());
        };
        write(&path, 0);
        write(&folder.path().join("1.tar"), 3);
        let whole = std::fs::read(&path).unwrap();
        let opened = |bytes: &[u8], skips_bad| {
            std::fs::write(&path, bytes).unwrap();
            open(folder.path(), &requirements(&[1, 1, 1]), skips_bad)
        };
        assert_eq!(opened(&whole, false).unwrap().description().unwrap().kind, "2 tar shards");
        // Each member has a block for its header and one for its content.
        let mut changed = whole.clone();
        changed[8 * 512] ^= 1;
        let damages = [
            (&whole[..9 * 512 + 7], 6, "0.tar[2.png]: truncated: it has ", "at byte 4608 of a file of 4615 bytes"),
            (
                &whole[..10 * 512],
                6,
                "0.tar[2]: this sample has no cls; it has png; ends at byte 5120",
                "may be missing",
            ),
            (&changed, 6, "no table of members from byte 4096 on: ", "checksum"),
        ];
        for (bytes, count, words, more) in damages {
            let refused = opened(bytes, false).err().unwrap().to_string();
            let mut set = opened(bytes, true).unwrap();
            assert_eq!(set.sample_count(), count, "{refused}");
            let bad = count - 4;
            let error = set.batch(&[0, bad]).unwrap_err().to_string();
            assert_eq!(set.batch(&[0, bad + 1]).unwrap().labels, Tensor::from_i64(&[2], &[1, 1]));
            for error in [refused, error] {
                assert!(error.contains(words) && error.contains(more), "{error}");
            }
        }
        // Between two samples, only the mark for the end is missing.
        let mut set = opened(&whole[..8 * 512], false).unwrap();
        assert_eq!(set.sample_count(), 5);
        let kind = set.description().unwrap().kind;
        assert!(kind.starts_with("2 tar shards; 0.tar ends at byte 4096 without the mark for the end"), "{kind}");
        assert!(set.batch(&[0, 1, 2, 3, 4]).is_ok());
    }
}
