//! Tables of images: `.csv` files with a line for each image, which has its path and label.
//!
//! The first line names the columns: `path`, and one or more columns of labels. Paths are relative to the table's folder. Class labels are
//! whole numbers, or words, which are numbered in alphabetical order. Value labels are numbers, one in each column. A column `weight` holds
//! the weights of samples for weighted sampling, which is optional.

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

/// Opens a table. Images are read on demand. Some of them can be missing if samples that cannot be read will be left out.
///
/// # Errors
/// [`DataError`] naming the table and the line.
pub fn open(path: &Path, requirements: &Requirements, skips_missing: bool) -> Result<Box<dyn Source>, DataError> {
    let mut any_labels = requirements.clone();
    any_labels.labels = LabelKind::Classes;
    let images = Images::of(&any_labels, "a table of images").map_err(|reason| DataError::layout(path, reason))?;
    let text = forebay_limits::read_text(path, TABLE_BYTES_MAX).map_err(|error| DataError::io(path, error))?;
    let at = |line: usize, reason: String| DataError::malformed(format!("{}, line {line}", path.display()), reason);
    // Some programs begin a file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut records = records(text).map_err(|(line, reason)| at(line, reason))?.into_iter();
    let columns = records.next().map(|(_, columns)| columns).unwrap_or_default();
    let columns: Vec<String> = columns.iter().map(|column| column.trim().to_owned()).collect();
    if columns.first().map(String::as_str) != Some("path") || columns.len() < 2 {
        return Err(at(
            1,
            "the columns are not named; the first line must be path,label (or path and several labels)".into(),
        ));
    }
    let weight = columns.iter().position(|column| column == "weight");
    let folder = path.parent().unwrap_or(Path::new(""));
    let (mut files, mut labels, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    for (line, row) in records {
        let mut row = row.into_iter();
        let file = row.next().filter(|file| !file.trim().is_empty());
        let file = file.ok_or_else(|| at(line, "the path is missing".into()))?;
        let mut row: Vec<String> = row.map(|cell| cell.trim().to_owned()).collect();
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
        LabelKind::Values(data_type) => values(&labels, data_type, requirements, path).map(|values| (values, None)),
    };
    let (labels, classes) = labels.map_err(|(line, reason)| at(line, reason))?;
    let kind = format!("a table of images with the columns {}", columns.join(", "));
    let weights = weight.map(|_| weights);
    Ok(Box::new(ImageSet { kind, files, labels, classes, weights, images, skips_missing }))
}

/// The cells of a line, with its number.
type Row = (usize, Vec<String>);

/// Labels with their line numbers.
type Labels = [Row];

/// The classes of samples, and the names of classes in order if labels are words.
type Classes = (Tensor, Option<Vec<String>>);

/// Returns labels as classes.
fn classes(labels: &Labels, requirements: &Requirements) -> Result<Classes, (usize, String)> {
    let wanted = &requirements.label_shape;
    if let Some((line, row)) = labels.iter().find(|(_, row)| row.len() != 1 || !wanted.is_empty()) {
        return Err((*line, format!("found {} class labels, but the model expects {wanted:?} per sample", row.len())));
    }
    let words = || labels.iter().map(|(_, row)| row[0].as_str());
    let first = |is_wanted: &dyn Fn(&str) -> bool| {
        labels.iter().map(|(line, row)| (*line, row[0].as_str())).find(|(_, word)| is_wanted(word))
    };
    // Programs that write tables turn whole numbers into numbers like 2.0.
    let number = |word: &str| word.parse().ok().or_else(|| whole(word.parse().ok()?));
    let is_number = |word: &str| word.parse::<f64>().is_ok_and(f64::is_finite);
    // Words can look like numbers, as the classes of characters 0 to 9 and A to Z do, and a class can be called NA.
    let has_words = first(&|word| !is_number(word) && !is_missing(word)).is_some();
    let (numbers, names) = match words().map(number).collect::<Option<Vec<i64>>>() {
        Some(numbers) => (numbers, None),
        None if has_words && words().all(|word| !word.is_empty()) => {
            let mut classes: BTreeMap<&str, i64> = words().map(|word| (word, 0)).collect();
            classes.values_mut().zip(0..).for_each(|(class, number)| *class = number);
            let numbers: Vec<i64> = words().map(|word| classes[word]).collect();
            (numbers, Some(classes.into_keys().map(str::to_owned).collect()))
        }
        None => {
            return Err(match first(&|word| if has_words { word.is_empty() } else { is_missing(word) }) {
                Some((line, "")) => (line, "the label is missing".to_owned()),
                Some((line, word)) => (line, format!("the label is missing: '{word}'")),
                None => {
                    let (line, word) = first(&|word| number(word).is_none()).unwrap_or((1, ""));
                    (line, format!("the label '{word}' is not a class: classes are whole numbers or words"))
                }
            });
        }
    };
    Ok((Tensor::from_i64(&[numbers.len() as u64], &numbers), names))
}

/// Returns whether a cell has no value among numbers: it is empty, or what some programs write for that.
fn is_missing(word: &str) -> bool {
    let markers = ["", "n/a", "na", "nan", "-nan", "none", "null", "nil", "?", "-"];
    markers.contains(&word.trim_start_matches('#').to_ascii_lowercase().as_str())
}

/// Returns a number as an integer, if it is one that float64 represents exactly.
fn whole(number: f64) -> Option<i64> {
    const EXACT: f64 = (1u64 << 53) as f64;
    (number.fract() == 0.0 && number.abs() <= EXACT).then_some(number as i64)
}

fn values(
    labels: &Labels,
    data_type: DataType,
    requirements: &Requirements,
    path: &Path,
) -> Result<Tensor, (usize, String)> {
    let count: u64 = requirements.label_shape.iter().product();
    // Numbers for float64 are not rounded to float32 first.
    let is_single = data_type.is_float() && data_type != DataType::Float64;
    let number = |word: &str| match is_single {
        true => word.parse::<f32>().ok().filter(|number| number.is_finite()).map(f64::from),
        false => word.parse::<f64>().ok().filter(|number| number.is_finite()),
    };
    let holder = if is_single { DataType::Float32 } else { DataType::Float64 };
    let mut numbers: Vec<u8> = Vec::new();
    for (line, row) in labels {
        if row.len() as u64 != count {
            let wanted = &requirements.label_shape;
            return Err((*line, format!("found {} labels, but the model expects {wanted:?} per sample", row.len())));
        }
        for word in row {
            let wrong = || (*line, format!("'{word}' is not a number that {holder} can hold"));
            numbers.extend(number(word).ok_or_else(wrong)?.to_le_bytes());
        }
    }
    let shape: Vec<u64> = [labels.len() as u64].into_iter().chain(requirements.label_shape.iter().copied()).collect();
    let tensor = Tensor::new(DataType::Float64, &shape, numbers).expect("as many numbers as the shape has");
    convert(tensor, data_type, 1.0, &path.display().to_string()).map_err(|error| (1, error.to_string()))
}

/// Splits a table into the cells of its lines, without empty lines; each comes with the number of its first line. A cell that begins with a
/// double quote ends with one, and can contain commas, line breaks, spaces at its ends, and quotes if they are doubled.
///
/// # Errors
/// The number of a line and what is wrong with it.
fn records(text: &str) -> Result<Vec<Row>, (usize, String)> {
    let (mut records, mut cells, mut cell) = (Vec::new(), Vec::new(), String::new());
    // The line in which a quoted cell begins, while it is read.
    let mut quoted: Option<usize> = None;
    // Whether the cell begins with a quote. Otherwise, spaces around it do not count.
    let mut is_exact = false;
    let end = |cell: &mut String, is_exact: &mut bool| {
        let cell = std::mem::take(cell);
        if std::mem::take(is_exact) { cell } else { cell.trim().to_owned() }
    };
    let (mut line, mut first) = (1, 1);
    let mut letters = text.chars().peekable();
    while let Some(mut letter) = letters.next() {
        if letter == '\r' {
            letters.next_if_eq(&'\n');
            letter = '\n';
        }
        line += usize::from(letter == '\n');
        match letter {
            '"' if quoted.is_some() => match letters.next_if_eq(&'"') {
                Some(_) => cell.push('"'),
                None => quoted = None,
            },
            _ if quoted.is_some() => cell.push(letter),
            '"' if !is_exact && cell.trim().is_empty() => {
                cell.clear();
                (quoted, is_exact) = (Some(line), true);
            }
            ',' => cells.push(end(&mut cell, &mut is_exact)),
            '\n' => {
                cells.push(end(&mut cell, &mut is_exact));
                records.push((first, std::mem::take(&mut cells)));
                first = line;
            }
            ' ' | '\t' if is_exact => {}
            _ => cell.push(letter),
        }
    }
    if let Some(line) = quoted {
        return Err((line, "a cell begins with a double quote, but none ends it".to_owned()));
    }
    cells.push(end(&mut cell, &mut is_exact));
    records.push((first, cells));
    records.retain(|(_, cells)| *cells != [""]);
    Ok(records)
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
        for (name, gray) in [("a", 51), ("b, 2", 102)] {
            let image = forebay_images::image::GrayImage::from_pixel(2, 2, forebay_images::image::Luma([gray]));
            image.save(folder.path().join(format!("images/{name}.png"))).unwrap();
        }
        let path = folder.path().join("table.csv");
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    fn labels(text: &str, labels: LabelKind, label_shape: &[u64]) -> Result<Tensor, String> {
        let (_folder, path) = table(text);
        let mut set = open(&path, &requirements(labels, label_shape), false).map_err(|error| error.to_string())?;
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
        // Large and exact numbers, if the type holds them.
        let values = LabelKind::Values(DataType::Float64);
        let bytes: Vec<u8> = [1e39f64, 0.1].iter().flat_map(|number| number.to_le_bytes()).collect();
        let expected = Tensor::new(DataType::Float64, &[2, 1], bytes).unwrap();
        assert_eq!(labels(&rows(["0.1", "1e39"]), values, &[1]).unwrap(), expected);
        let values = LabelKind::Values(DataType::Float32);
        let error = labels(&rows(["0.1", "1e39"]), values, &[1]).unwrap_err();
        assert!(error.contains("line 4: '1e39' is not a number that float32 can hold"), "{error}");
        let two = "path,u,v\nimages/a.png,1,2\n\"images/b, 2.png\",3,4\n";
        assert_eq!(labels(two, values, &[2]).unwrap(), Tensor::from_f32(&[2, 2], &[3.0, 4.0, 1.0, 2.0]));
    }

    #[test]
    fn whole_numbers_keep_their_values_and_missing_ones_are_named() {
        let rows =
            |labels: [&str; 2]| format!("path,label\nimages/a.png,{}\n\"images/b, 2.png\",{}\n", labels[0], labels[1]);
        let classes = |words: [&str; 2]| labels(&rows(words), LabelKind::Classes, &[]);
        assert_eq!(classes(["2.0", "10.0"]).unwrap(), Tensor::from_i64(&[2], &[10, 2]));
        assert_eq!(classes(["2", "-1"]).unwrap(), Tensor::from_i64(&[2], &[-1, 2]));
        assert_eq!(classes(["7", "A"]).unwrap(), Tensor::from_i64(&[2], &[1, 0]), "digits and letters");
        assert_eq!(classes(["Na", "Cl"]).unwrap(), Tensor::from_i64(&[2], &[0, 1]));
        for (words, reason) in [
            (["0", ""], "line 3: the label is missing"),
            (["NaN", "1"], "line 2: the label is missing: 'NaN'"),
            (["cat", ""], "line 3: the label is missing"),
            (["7", "N/A"], "line 3: the label is missing: 'N/A'"),
            (["1.5", "2"], "line 2: the label '1.5' is not a class"),
            (["3", "99999999999999999999"], "line 3: the label '99999999999999999999' is not a class"),
        ] {
            let error = classes(words).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let values = LabelKind::Values(DataType::Float32);
        let error = labels(&rows(["1", "nan"]), values, &[1]).unwrap_err();
        assert!(error.contains("line 3: 'nan' is not a number"), "{error}");
    }

    #[test]
    fn tables_of_other_programs_are_read() {
        let expected = Tensor::from_i64(&[2], &[3, 7]);
        for text in [
            "\u{feff}path,label\r\nimages/a.png,7\r\n\"images/b, 2.png\",3\r\n",
            "\u{feff}\"path\",\"label\"\rimages/a.png,7\r\r \"images/b, 2.png\" ,3",
        ] {
            assert_eq!(labels(text, LabelKind::Classes, &[]).unwrap(), expected);
        }
        let read = |text| records(text).unwrap();
        let row = |line: usize, cells: &[&str]| (line, cells.iter().map(|&cell| cell.to_owned()).collect::<Vec<_>>());
        assert_eq!(
            read("a,b\n\n\"two\r\nlines, \"\"x\"\"\",1\n5\" disk,\n"),
            [row(1, &["a", "b"]), row(3, &["two\nlines, \"x\"", "1"]), row(5, &["5\" disk", ""])]
        );
        assert_eq!(records("a,b\n1,\"2\n3,4\n").unwrap_err().0, 2);
        assert_eq!(read(" a , \" b\t\" ,\"\" \n"), [row(1, &["a", " b\t", ""])]);
        let spaces = table("path,label\n\" c.png\",\" 7\"\n");
        std::fs::rename(spaces.0.path().join("images/a.png"), spaces.0.path().join(" c.png")).unwrap();
        let mut set = open(&spaces.1, &requirements(LabelKind::Classes, &[]), false).unwrap();
        assert_eq!(set.batch(&[0]).unwrap().labels, Tensor::from_i64(&[1], &[7]));
    }

    #[test]
    fn a_column_says_how_often_samples_come_and_classes_are_balanced() {
        let text = "path,weight,label\nimages/a.png,0.5,0\nimages/a.png,2,0\n\"images/b, 2.png\",0,1\n";
        let (_folder, path) = table(text);
        let requirements = requirements(LabelKind::Classes, &[]);
        let source = || open(&path, &requirements, false).unwrap();
        assert_eq!(source().weights(), Some(vec![0.5, 2.0, 0.0]));
        let set = |rows: &str| {
            crate::dataset::DataSet::new(source(), crate::dataset::RowSelection::parse(rows), "t").unwrap()
        };
        assert_eq!(set("1..3").weights().unwrap(), [2.0, 0.0]);
        assert!(set("2..3").weights().unwrap_err().to_string().contains("all samples are 0"));
        assert_eq!(set("0..3").class_weights().unwrap(), [0.5, 0.5, 1.0]);
        let (_folder, path) = table("path,label,weight\nimages/a.png,1,-1\n");
        let error = open(&path, &requirements, false).err().unwrap().to_string();
        assert!(error.contains("line 2: the weight must be a number of at least 0, but is '-1'"), "{error}");
    }

    #[test]
    fn files_can_be_missing_only_if_they_are_left_out() {
        let (_folder, path) = table("path,label\nimages/none.png,0\nimages/a.png,1\n");
        let set = |skips_missing: bool| {
            let source = open(&path, &requirements(LabelKind::Classes, &[]), skips_missing).unwrap();
            crate::dataset::DataSet::new(source, None, "t").unwrap()
        };
        let mut strict = set(false);
        for error in [strict.description().map(|_| ()), strict.digest().map(|_| ()), strict.batch(&[0]).map(|_| ())] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains("images/none.png: No such file"), "{error}");
        }
        let mut set = set(true);
        set.skip_bad(1);
        assert!(set.description().unwrap().size_bytes > 0 && set.digest().is_ok());
        assert_eq!(set.batch(&[0, 1]).unwrap().labels, Tensor::from_i64(&[2], &[1, 1]));
        assert!(set.bad_samples().next().unwrap().contains("images/none.png"));
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
        // Reading a device would never end.
        let (_folder, path) = table("path,label\n/dev/zero,1\n");
        let mut set = open(&path, &requirements(LabelKind::Classes, &[]), false).unwrap();
        let error = set.batch(&[0]).unwrap_err().to_string();
        assert!(error.contains("/dev/zero: it is not a regular file"), "{error}");
    }
}
