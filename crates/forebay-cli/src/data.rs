//! `forebay data`: the contents of a data set, and pictures of its samples.

use forebay::data::{DataSet, Reading, Sampler, guess_with, open_with, sheet};
use forebay::format_bytes;
use serde_json::json;

use crate::data_arguments::{LookArguments, Normalize};
use crate::failure::Failure;
use crate::feeding;
use crate::output;

/// Describes a data set and draws some of its samples.
///
/// # Errors
/// Fails if data is missing or corrupt, or if samples are not images.
pub fn data(arguments: &LookArguments) -> Result<(), Failure> {
    arguments.out.as_deref().map(output::check_writable).transpose()?;
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
            sheet::write(path, &batch)?;
            let labels = Some(&batch.labels).filter(|labels| labels.count() == count);
            let labels = labels.and_then(|labels| labels.to_i64());
            Some((samples, labels, path.display().to_string()))
        }
        None => None,
    };
    if arguments.json {
        let shown = shown.map(|(samples, labels, path)| json!({"samples": samples, "labels": labels, "path": path}));
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
    if let Some((samples, labels, path)) = shown {
        line("shown", format!("{} samples in {path}, row by row: {}", samples.len(), listed(&samples)));
        labels.into_iter().for_each(|labels| line("labels", listed(&labels)));
    }
    Ok(())
}

/// Sets samples up to be transformed as in training.
fn prepare(set: &mut DataSet, arguments: &LookArguments) -> Result<(), Failure> {
    feeding::augment(set, &arguments.augment, arguments.shuffle, None);
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

fn listed(numbers: &[impl ToString]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}
