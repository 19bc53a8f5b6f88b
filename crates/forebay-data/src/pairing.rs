//! Which label file belongs to which image file.
//!
//! Two layouts are supported:
//! - folders `imagesTr` and `labelsTr` (Medical Segmentation Decathlon, nnU-Net): the label file has the image file's name;
//!   images whose names end in `_0000`, `_0001`, ... are the channels of one sample;
//! - one folder with both: a label file has the word `label`, `labels`, `seg`, `segmentation` or `mask` in its name (words are separated by
//!   `_`, `-`, `.` or a space). Its image is the file whose name equals the label file's name without the word for labels (`case7` and
//!   `case7_seg`) or, if there is none, does so after one word is removed (`t1_2mm` and `labels_2mm`, `case7_image` and `case7_label`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::error::DataError;
use crate::names::{file_name, listed};
use crate::volume_file;

const LABEL_WORDS: [&str; 5] = ["label", "labels", "seg", "segmentation", "mask"];

/// The files of one sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The image files: one per channel, or one with all channels.
    pub images: Vec<PathBuf>,
    /// The label file.
    pub labels: PathBuf,
}

impl Pair {
    /// Returns all files of the sample, including those that headers refer to.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        self.images.iter().chain([&self.labels]).flat_map(|path| volume_file::files(path)).collect()
    }
}

/// Returns whether a folder seems to have one of the two layouts.
///
/// # Errors
/// [`DataError::Io`] if the folder cannot be listed.
pub fn is_volume_folder(folder: &Path) -> Result<bool, DataError> {
    Ok(folder.join("imagesTr").is_dir() || !volumes(folder)?.is_empty())
}

/// Pairs the files of a folder, in the order of their names.
///
/// # Errors
/// [`DataError::Layout`] naming a file that has no partner, or several.
pub fn pairs(folder: &Path) -> Result<Vec<Pair>, DataError> {
    if folder.join("imagesTr").is_dir() { pairs_in_two_folders(folder) } else { pairs_in_one_folder(folder) }
}

/// Returns the files of volumes, by their names without extension.
fn volumes(folder: &Path) -> Result<BTreeMap<String, PathBuf>, DataError> {
    let mut found = BTreeMap::new();
    for path in listed(folder)? {
        if let Some(stem) = volume_file::stem(&path)
            && let Some(twin) = found.insert(stem.to_owned(), path.clone())
        {
            let reason = format!("both {} and {} exist", file_name(&twin), file_name(&path));
            return Err(DataError::layout(folder, reason));
        }
    }
    Ok(found)
}

fn pairs_in_two_folders(folder: &Path) -> Result<Vec<Pair>, DataError> {
    let mut labels = volumes(&folder.join("labelsTr"))?;
    let mut samples: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for (stem, path) in volumes(&folder.join("imagesTr"))? {
        let sample = match stem.rsplit_once('_') {
            Some((sample, channel)) if channel.len() == 4 && channel.bytes().all(|byte| byte.is_ascii_digit()) => {
                sample
            }
            _ => &stem,
        };
        // The name of a Decathlon case can itself end in four digits; its label file then has the whole name.
        let sample = if labels.contains_key(&stem) { &stem } else { sample };
        samples.entry(sample.to_owned()).or_default().push(path);
    }
    let pair = |(sample, images): (String, Vec<PathBuf>)| match labels.remove(&sample) {
        Some(labels) => Ok(Pair { images, labels }),
        None => {
            Err(DataError::layout(folder, format!("labelsTr has no file named {sample} for {}", file_name(&images[0]))))
        }
    };
    let pairs = samples.into_iter().map(pair).collect::<Result<Vec<_>, _>>()?;
    match labels.into_keys().next() {
        Some(label) => {
            Err(DataError::layout(folder, format!("imagesTr has no file named {label}, but labelsTr has one")))
        }
        None if pairs.is_empty() => {
            Err(DataError::layout(folder, "imagesTr and labelsTr hold no .nii, .nii.gz, .nrrd or .nhdr files"))
        }
        None => Ok(pairs),
    }
}

fn pairs_in_one_folder(folder: &Path) -> Result<Vec<Pair>, DataError> {
    let (labels, images): (Vec<_>, Vec<_>) =
        volumes(folder)?.into_iter().partition(|(stem, _)| label_key(stem).is_some());
    if labels.is_empty() {
        let reason = format!(
            "no label file among {} NIfTI or NRRD files; a label file has one of {LABEL_WORDS:?} in its name",
            images.len()
        );
        return Err(DataError::layout(folder, reason));
    }
    // Two label files of one image would take each other's images.
    let mut keys: BTreeMap<Vec<String>, &PathBuf> = BTreeMap::new();
    for (stem, path) in &labels {
        if let Some(twin) = label_key(stem).and_then(|key| keys.insert(key, path)) {
            let reason = format!("both {} and {} could be the labels of one image", file_name(twin), file_name(path));
            return Err(DataError::layout(folder, reason));
        }
    }
    // The images by the words of their names, and by these words without any one of them.
    let (mut by_all, mut by_others): (Index, Index) = Default::default();
    for (image, (stem, _)) in images.iter().enumerate() {
        let words = words(stem);
        for skipped in 0..words.len() {
            let mut others = words.clone();
            others.remove(skipped);
            by_others.entry(others).or_default().insert(image);
        }
        by_all.entry(words).or_default().insert(image);
    }
    // The image of each label file. All exact names come first, so that no other label file takes their images.
    let mut chosen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for index in [by_all, by_others] {
        for (stem, path) in &labels {
            let fitting =
                label_key(stem).and_then(|key| index.get(&key)).filter(|_| !chosen.contains_key(stem.as_str()));
            let mut fitting = fitting.into_iter().flatten().copied().filter(|image| !taken.contains(image));
            let (first, second) = (fitting.next(), fitting.next());
            if let (Some(first), Some(second)) = (first, second) {
                let names = [&images[first].1, &images[second].1, path].map(|path| file_name(path));
                let reason = format!("both {} and {} could belong to {}", names[0], names[1], names[2]);
                return Err(DataError::layout(folder, reason));
            }
            if let Some(image) = first {
                chosen.insert(stem, image);
                taken.insert(image);
            }
        }
    }
    let pair = |(stem, labels): &(String, PathBuf)| match chosen.get(stem.as_str()) {
        Some(&image) => Ok(Pair { images: vec![images[image].1.clone()], labels: labels.clone() }),
        None => Err(DataError::layout(folder, format!("no image file belongs to {}", file_name(labels)))),
    };
    let pairs = labels.iter().map(pair).collect::<Result<_, _>>()?;
    match (0..images.len()).find(|image| !taken.contains(image)) {
        Some(image) => {
            let name = file_name(&images[image].1);
            Err(DataError::layout(folder, format!("no label file belongs to {name}")))
        }
        None => Ok(pairs),
    }
}

/// The numbers of images by words.
type Index = BTreeMap<Vec<String>, BTreeSet<usize>>;

fn words(stem: &str) -> Vec<String> {
    stem.split(['_', '-', '.', ' ']).filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

/// Returns the words of a label file's name without its first word for labels, or `None` if it has no such word.
fn label_key(stem: &str) -> Option<Vec<String>> {
    let mut words = words(stem);
    let position = words.iter().position(|word| LABEL_WORDS.contains(&word.as_str()))?;
    words.remove(position);
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paired(files: &[&str]) -> Result<Vec<(Vec<String>, String)>, String> {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"").unwrap();
        }
        let names = |pair: Pair| (pair.images.iter().map(|path| file_name(path)).collect(), file_name(&pair.labels));
        pairs(folder.path()).map(|pairs| pairs.into_iter().map(names).collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn one_folder() {
        for (image, label) in [
            ("t1_2mm.nii.gz", "labels_2mm.nii.gz"),
            ("case7_image.nii", "case7_label.nii"),
            ("case7.nii.gz", "case7_seg.nii.gz"),
            ("T1.nii", "labels.nii"),
            ("sub-01_T1w.nii.gz", "sub-01_Mask.nii.gz"),
        ] {
            let result = paired(&[image, label, "README", "unet3d.onnx"]).unwrap();
            assert_eq!(result, [(vec![image.to_owned()], label.to_owned())]);
        }
    }

    #[test]
    fn several_pairs_come_in_the_order_of_their_names() {
        let result = paired(&["t1_2mm.nii.gz", "labels_1mm.nii.gz", "labels_2mm.nii.gz", "t1_1mm.nii.gz"]).unwrap();
        assert_eq!(result[0], (vec!["t1_1mm.nii.gz".to_owned()], "labels_1mm.nii.gz".to_owned()));
        assert_eq!(result.len(), 2);
    }

    #[test]
    fn exact_names_come_first() {
        let files = ["scan.nii", "scan_seg.nii", "scan_v2.nii", "scan_v2_seg.nii", "p_t2.nii", "p_label_t2.nii"];
        let result = paired(&[&files[..], &["q_label.nii", "q_scan.nii"]].concat()).unwrap();
        let pair = |image: &str, label: &str| (vec![image.to_owned()], label.to_owned());
        let expected = [
            pair("p_t2.nii", "p_label_t2.nii"),
            pair("q_scan.nii", "q_label.nii"),
            pair("scan.nii", "scan_seg.nii"),
            pair("scan_v2.nii", "scan_v2_seg.nii"),
        ];
        assert_eq!(result, expected);
    }

    #[test]
    fn two_folders_with_channels() {
        let files = ["imagesTr/a_0000.nii.gz", "imagesTr/a_0001.nii.gz", "labelsTr/a.nii.gz"];
        let result = paired(&files).unwrap();
        assert_eq!(result, [(vec!["a_0000.nii.gz".to_owned(), "a_0001.nii.gz".to_owned()], "a.nii.gz".to_owned())]);
        let result = paired(&["imagesTr/hippocampus_0001.nii.gz", "labelsTr/hippocampus_0001.nii.gz"]).unwrap();
        assert_eq!(result.len(), 1);
    }

    #[test]
    fn files_without_partner_are_named() {
        let error = |files: &[&str]| paired(files).unwrap_err();
        assert!(error(&["t1.nii", "t2.nrrd"]).contains("no label file among 2 NIfTI or NRRD files"));
        assert!(error(&["a_label.nii", "b_image.nii"]).contains("no image file belongs to a_label.nii"));
        assert!(error(&["a_label.nii", "a.nii", "b.nii"]).contains("no label file belongs to b.nii"));
        assert!(error(&["a_seg.nii", "a_t1.nii", "a_t2.nii"]).contains("both a_t1.nii and a_t2.nii could belong"));
        let twins = error(&["p.nii", "p_t2.nii", "p_mask.nii", "p_seg.nii"]);
        assert!(twins.contains("both p_mask.nii and p_seg.nii could be the labels of one image"), "{twins}");
        assert!(error(&["imagesTr/a.nii", "labelsTr/b.nii"]).contains("labelsTr has no file named a for a.nii"));
        assert!(error(&["a.nii", "a.nii.gz", "a_seg.nii"]).contains("both"));
        let unknown = error(&["imagesTr/a.mha", "labelsTr/a.mha"]);
        assert!(unknown.contains("imagesTr and labelsTr hold no .nii, .nii.gz, .nrrd or .nhdr files"), "{unknown}");
    }
}
