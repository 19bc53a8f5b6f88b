//! `forebay data`: the contents of a data set, and pictures of its samples.

use forebay::data::{DataSet, Reading, Sampler, Transform, guess_with, open_with, sheet};
use forebay::{Tensor, format_bytes};
use serde_json::{Value, json};

use crate::data_arguments::{LookArguments, Normalize};
use crate::failure::Failure;
use crate::feeding;
use crate::output;

/// The most classes whose shares in mixed samples are shown: each sample has a number for each class.
const MIXED_CLASSES_MAX: u64 = 32_768;

/// The samples on a sheet.
struct Shown {
    /// Their indices.
    samples: Vec<u64>,
    /// Their labels, if each has one class.
    labels: Option<Vec<i64>>,
    /// The classes of each, with their shares; empty if labels are no classes.
    shares: Vec<Vec<(i64, f64)>>,
    /// The file.
    path: String,
}

/// Describes a data set and draws some of its samples.
///
/// # Errors
/// Fails if data is missing or corrupt, or if samples are not images.
pub fn data(arguments: &LookArguments) -> Result<(), Failure> {
    if let Some(path) = &arguments.out {
        output::check_writable(path)?;
        output::check_unread(&[("--out", path.as_path())], &[arguments.data.as_str()])?;
    }
    let mut reading = Reading::default();
    reading.text = arguments.text.options();
    let mut set = open_with(&arguments.data, &guess_with(&arguments.data, arguments.image_size, &reading)?, &reading)?;
    let found = set.description()?;
    let shown = match arguments.show.zip(arguments.out.as_deref()) {
        Some((count, path)) => {
            prepare(&mut set, arguments)?;
            let count = count.min(set.sample_count());
            let mut sampler = Sampler::new(set.sample_count(), count, arguments.shuffle);
            let samples = sampler.batch(0);
            let batch = set.batch_of_step(&samples, &sampler, 0)?;
            sheet::write(path, &batch, set.class_names().unwrap_or_default())?;
            let shares = sheet::shares(&batch.labels).unwrap_or_default();
            let labels = Some(&batch.labels).filter(|labels| labels.count() == count).and_then(Tensor::to_i64);
            Some(Shown { samples, labels, shares, path: path.display().to_string() })
        }
        None => None,
    };
    let names = set.class_names().unwrap_or_default();
    if arguments.json {
        let shown = shown.map(|Shown { samples, labels, shares, path }| {
            let classes: Vec<Value> = shares.iter().map(|shares| classes(shares, names)).collect();
            json!({"samples": samples, "labels": labels, "classes": classes, "path": path})
        });
        let object = json!({
            "kind": found.kind,
            "samples": found.samples,
            "tensors": found.tensors,
            "size_bytes": found.size_bytes,
            "shown": shown,
        });
        output::say(&format!("{object:#}"));
        return Ok(());
    }
    let line = |name: &str, text: String| output::say(&format!("{name:<16} {text}"));
    line("data", format!("{}: {}", arguments.data, found.kind));
    line("samples", found.samples.to_string());
    found.tensors.iter().for_each(|tensor| line("", tensor.clone()));
    line("size", format_bytes(found.size_bytes));
    if let Some(Shown { samples, labels, shares, path }) = shown {
        line("shown", format!("{} samples in {path}, row by row: {}", samples.len(), listed(&samples)));
        match labels {
            Some(labels) => line("labels", listed(&labels)),
            None if shares.is_empty() => {}
            None => {
                let captions: Vec<String> = shares.iter().map(|shares| sheet::caption(shares, names)).collect();
                line("classes", captions.join(", "));
            }
        }
    }
    Ok(())
}

/// Sets samples up to be transformed as in training.
fn prepare(set: &mut DataSet, arguments: &LookArguments) -> Result<(), Failure> {
    feeding::augment(set, &arguments.augment, arguments.shuffle, None);
    let is_mixed = arguments.augment.iter().any(|transform| Transform::is_mixing(*transform));
    if is_mixed && let Some(classes) = set.class_count()? {
        if classes > MIXED_CLASSES_MAX {
            return Err(Failure::Usage(format!(
                "--augment: mixup and cutmix can be shown for up to {MIXED_CLASSES_MAX} classes, but {} has {classes} (one more than its \
                 highest label, unless classes have names); leave mixup and cutmix out of --augment",
                arguments.data
            )));
        }
        set.soften_labels(classes, 1);
    }
    match &arguments.normalize {
        Some(Normalize::Measured) => {
            let measured = set.measure()?;
            let pairs: Vec<String> =
                measured.channels.iter().map(|(mean, deviation)| format!("{mean}/{deviation}")).collect();
            output::complain(&format!("note: measured normalization: --normalize {}", pairs.join(",")));
            set.normalize(measured);
        }
        Some(Normalize::Given(given)) => set.normalize(given.clone()),
        None => {}
    }
    Ok(())
}

/// Returns the classes of a sample and their shares as JSON.
fn classes(shares: &[(i64, f64)], names: &[String]) -> Value {
    let class = |class: i64| match usize::try_from(class).ok().and_then(|class| names.get(class)) {
        Some(name) => json!(name),
        None => json!(class),
    };
    shares.iter().map(|&(number, share)| json!({"class": class(number), "share": share})).collect()
}

fn listed(numbers: &[impl ToString]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}
