//! Tables of images: `.csv` files with a line for each image, which has its path and label.
//!
//! The first line names the columns: `path`, and one or more columns of labels. Paths are relative to the table's folder. Class labels are
//! integers, or words, which are numbered in alphabetical order. Value labels are numbers, one in each column. A column `weight` holds the
//! weights of samples for weighted sampling, which is optional.

use std::collections::BTreeMap;
use std::path::Path;

use forebay_base::{DataType, Tensor};

use crate::convert::convert;
use crate::dataset::{LabelKind, Requirements, Source};
use crate::error::DataError;
use crate::image_file::Images;
use crate::image_set::ImageSet;

/// The largest table.
const TABLE_BYTES_MAX: u64 = 4 << 30;

/// Opens a table. Images are read on demand.
///
/// # Errors
/// [`DataError`] naming the table and the line.
pub fn open(path: &Path, requirements: &Requirements) -> Result<Box<dyn Source>, DataError> {
    let mut any_labels = requirements.clone();
    any_labels.labels = LabelKind::Classes;
    let images = Images::of(&any_labels, "a table of images").map_err(|reason| DataError::layout(path, reason))?;
    let text = forebay_limits::read_text(path, TABLE_BYTES_MAX).map_err(|error| DataError::io(path, error))?;
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let at = |line: usize, reason: String| DataError::malformed(format!("{}, line {line}", path.display()), reason);
    let columns = lines.next().map(|(_, line)| cells(line)).unwrap_or_default();
    if columns.first().map(String::as_str) != Some("path") || columns.len() < 2 {
        return Err(at(
            1,
            "the columns are not named; the first line must be path,label (or path and several labels)".into(),
        ));
    }
    let weight = columns.iter().position(|column| column == "weight");
    let folder = path.parent().unwrap_or(Path::new(""));
    let (mut files, mut labels, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    for (line, text) in lines {
        let mut row = cells(text).into_iter();
        let file = row.next().filter(|file| !file.is_empty()).ok_or_else(|| at(line, "the path is missing".into()))?;
        let mut row: Vec<String> = row.collect();
        if row.len() + 1 != columns.len() {
            return Err(at(line, format!("{} columns, but the first line names {}", row.len() + 1, columns.len())));
        }
        files.push(folder.join(file));
        if let Some(weight) = weight {
            let word = row.remove(weight - 1);
            let number = word.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
            let wrong = || at(line, format!("the weight must be a number of at least 0, but is '{word}'"));
            weights.push(number.ok_or_else(wrong)?);
        }
        labels.push((line, row));
    }
    let labels = match requirements.labels {
        LabelKind::Classes => classes(&labels, requirements),
        LabelKind::Values(data_type) => values(&labels, data_type, requirements, path),
    };
    let labels = labels.map_err(|(line, reason)| at(line, reason))?;
    let kind = format!("a table of images with the columns {}", columns.join(", "));
    let weights = weight.map(|_| weights);
    Ok(Box::new(ImageSet { kind, files, labels, weights, images }))
}

/// Labels with their line numbers.
type Labels = [(usize, Vec<String>)];

fn classes(labels: &Labels, requirements: &Requirements) -> Result<Tensor, (usize, String)> {
    let wanted = &requirements.label_shape;
    if let Some((line, row)) = labels.iter().find(|(_, row)| row.len() != 1 || !wanted.is_empty()) {
        return Err((*line, format!("found {} class labels, but the model expects {wanted:?} per sample", row.len())));
    }
    let words = || labels.iter().map(|(_, row)| row[0].as_str());
    let numbers: Option<Vec<i64>> = words().map(|word| word.parse().ok()).collect();
    let numbers = numbers.unwrap_or_else(|| {
        let mut names: BTreeMap<&str, i64> = words().map(|word| (word, 0)).collect();
        names.values_mut().zip(0..).for_each(|(class, number)| *class = number);
        words().map(|word| names[word]).collect()
    });
    Ok(Tensor::from_i64(&[numbers.len() as u64], &numbers))
}

fn values(
    labels: &Labels,
    data_type: DataType,
    requirements: &Requirements,
    path: &Path,
) -> Result<Tensor, (usize, String)> {
    let count: u64 = requirements.label_shape.iter().product();
    let mut numbers = Vec::new();
    for (line, row) in labels {
        if row.len() as u64 != count {
            let wanted = &requirements.label_shape;
            return Err((*line, format!("found {} labels, but the model expects {wanted:?} per sample", row.len())));
        }
        for word in row {
            let number: Option<f32> = word.parse().ok();
            numbers.push(number.ok_or_else(|| (*line, format!("'{word}' is not a number")))?);
        }
    }
    let shape: Vec<u64> = [labels.len() as u64].into_iter().chain(requirements.label_shape.iter().copied()).collect();
    let tensor = Tensor::from_f32(&shape, &numbers);
    convert(tensor, data_type, 1.0, &path.display().to_string()).map_err(|error| (1, error.to_string()))
}

/// Returns the cells of a line. A cell in double quotes can contain commas, and quotes if they are doubled.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let (mut quoted, mut letters) = (false, line.chars().peekable());
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                cells.last_mut().into_iter().for_each(|cell| cell.push('"'))
            }
            '"' => {
                quoted = !quoted;
                continue;
            }
            ',' if !quoted => {
                cells.push(String::new());
                continue;
            }
            letter => cells.last_mut().into_iter().for_each(|cell| cell.push(letter)),
        }
        if letter == '"' {
            letters.next();
        }
    }
    cells.into_iter().map(|cell| cell.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::InputDescription;
    use std::path::PathBuf;

    fn requirements(labels: LabelKind, label_shape: &[u64]) -> Requirements {
        let input = InputDescription { name: "x".into(), data_type: DataType::Float32, sample_shape: vec![1, 1, 1] };
        Requirements { inputs: vec![input], input_scale: 1.0, labels, label_shape: label_shape.to_vec() }
    }

    fn table(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("images")).unwrap();
        for (name, grey) in [("a", 51), ("b, 2", 102)] {
            let image = forebay_images::image::GrayImage::from_pixel(2, 2, forebay_images::image::Luma([grey]));
            image.save(folder.path().join(format!("images/{name}.png"))).unwrap();
        }
        let path = folder.path().join("table.csv");
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    fn labels(text: &str, labels: LabelKind, label_shape: &[u64]) -> Result<Tensor, String> {
        let (_folder, path) = table(text);
        let mut set = open(&path, &requirements(labels, label_shape)).map_err(|error| error.to_string())?;
        let batch = set.batch(&[1, 0]).unwrap();
        assert_eq!(batch.inputs["x"], Tensor::from_f32(&[2, 1, 1, 1], &[0.4, 0.2]));
        Ok(batch.labels)
    }

    #[test]
    fn labels_are_numbers_words_or_values() {
        let rows = |labels: [&str; 2]| {
            format!("path,label\nimages/a.png,{}\n\n\"images/b, 2.png\",{}\n", labels[0], labels[1])
        };
        assert_eq!(labels(&rows(["7", "3"]), LabelKind::Classes, &[]).unwrap(), Tensor::from_i64(&[2], &[3, 7]));
        assert_eq!(labels(&rows(["dog", "cat"]), LabelKind::Classes, &[]).unwrap(), Tensor::from_i64(&[2], &[0, 1]));
        let values = LabelKind::Values(DataType::Float32);
        assert_eq!(labels(&rows(["0.5", "-2"]), values, &[1]).unwrap(), Tensor::from_f32(&[2, 1], &[-2.0, 0.5]));
        let two = "path,u,v\nimages/a.png,1,2\n\"images/b, 2.png\",3,4\n";
        assert_eq!(labels(two, values, &[2]).unwrap(), Tensor::from_f32(&[2, 2], &[3.0, 4.0, 1.0, 2.0]));
    }

    #[test]
    fn a_column_says_how_often_samples_come_and_classes_are_balanced() {
        let text = "path,weight,label\nimages/a.png,0.5,0\nimages/a.png,2,0\n\"images/b, 2.png\",0,1\n";
        let (_folder, path) = table(text);
        let requirements = requirements(LabelKind::Classes, &[]);
        let source = || open(&path, &requirements).unwrap();
        assert_eq!(source().weights(), Some(vec![0.5, 2.0, 0.0]));
        let set = |rows: &str| {
            crate::dataset::DataSet::new(source(), crate::dataset::RowSelection::parse(rows), "t").unwrap()
        };
        assert_eq!(set("1..3").weights().unwrap(), [2.0, 0.0]);
        assert!(set("2..3").weights().unwrap_err().to_string().contains("all samples are 0"));
        assert_eq!(set("0..3").class_weights().unwrap(), [0.5, 0.5, 1.0]);
        let (_folder, path) = table("path,label,weight\nimages/a.png,1,-1\n");
        let error = open(&path, &requirements).err().unwrap().to_string();
        assert!(error.contains("line 2: the weight must be a number of at least 0, but is '-1'"), "{error}");
    }

    #[test]
    fn lines_without_a_meaning_are_named() {
        let values = LabelKind::Values(DataType::Float32);
        for (text, kind, shape, words) in [
            ("images/a.png,1\n", LabelKind::Classes, [].as_slice(), "line 1: the columns are not named"),
            ("path,label\nimages/a.png\n", LabelKind::Classes, &[], "line 2: 1 columns, but the first line names 2"),
            ("path,label\n,1\n", LabelKind::Classes, &[], "line 2: the path is missing"),
            ("path,a,b\nimages/a.png,1,2\n", LabelKind::Classes, &[], "line 2: found 2 class labels"),
            ("path,label\nimages/a.png,x\n", values, &[1], "line 2: 'x' is not a number"),
        ] {
            let error = labels(text, kind, shape).unwrap_err();
            assert!(error.contains("table.csv") && error.contains(words), "{error}");
        }
    }
}
