//! Whether a run can resume from a checkpoint: its data and batches must be those of the checkpoint.

use forebay::data::DataSet;
use serde_json::{Value, json};

use crate::arguments::{DataChangedKind, TrainArguments};
use crate::failure::Failure;
use crate::output;

/// Checks that the data is what the checkpoint was trained on, as far as that is known, and returns its digest if it was needed.
///
/// # Errors
/// Fails if the data differs and that is not allowed, or if it cannot be read.
pub fn check_data(arguments: &TrainArguments, data: &DataSet, position: &Value) -> Result<Option<String>, Failure> {
    let is_allowed = arguments.data_changed == DataChangedKind::Ok;
    let differs = |reason: String| match is_allowed {
        true => {
            output::complain(&format!("warning: {reason}; training continues because of --data-changed ok"));
            Ok(())
        }
        false => Err(Failure::Failed(format!("{reason} (--data-changed ok continues anyway)"))),
    };
    let name = &arguments.data;
    let earlier = position.get("data").and_then(Value::as_str).unwrap_or("other data");
    let (now, then) = (data.sample_count(), position.get("samples").and_then(Value::as_u64));
    if let Some(then) = then.filter(|&then| then != now) {
        differs(format!(
            "{name} has {now} samples, but {earlier}, which the checkpoint was trained on, had {then}; the checkpoint's \
             position in the data does not apply"
        ))?;
    }
    // Checkpoints of earlier versions have no digest.
    let Some(then) = position.get("digest").and_then(Value::as_str) else { return Ok(None) };
    let now = data.digest()?;
    if now != then && data.sample_count() == position.get("samples").and_then(Value::as_u64).unwrap_or_default() {
        differs(format!(
            "the content of {name} is not what the checkpoint was trained on: its digest is {now}, but that of {earlier} \
             was {then}"
        ))?;
    }
    Ok(Some(now))
}

/// Returns the batching settings, in the form stored in a checkpoint.
pub fn batches(arguments: &TrainArguments) -> Value {
    let parts = Some(arguments.training.gradients.parts()).filter(|&parts| parts > 1);
    let reading = &arguments.reading;
    let changes: Vec<String> = reading.augment.iter().map(|change| format!("{change:?}")).collect();
    json!({
        "bucket_by": arguments.bucket_by,
        "pad_to": arguments.pad_to,
        "accumulate": parts,
        "split": reading.split.map(|percent| json!([percent, reading.split_seed])),
        "patch": reading.patch.as_ref().map(|sizes| json!([sizes.0, reading.patches])),
        "balance": reading.balance.map(|balance| format!("{balance:?}")),
        "augment": Some(changes).filter(|changes| !changes.is_empty()),
        "normalize": reading.normalize.as_ref().map(|normalize| format!("{normalize:?}")),
        "input_scale": Some(arguments.input_scale).filter(|&scale| scale != 1.0),
    })
}

/// Checks that batches are made as before the checkpoint, which determines the samples of each step.
///
/// # Errors
/// Fails if the flags differ from those of the checkpoint.
pub fn check_batches(arguments: &TrainArguments, position: &Value) -> Result<(), Failure> {
    // Checkpoints of other programs say nothing about batches.
    if position.get("batch_size").is_none() {
        return Ok(());
    }
    let now = batches(arguments);
    for (flag, key) in [
        ("--bucket-by", "bucket_by"),
        ("--pad-to", "pad_to"),
        ("--accumulate", "accumulate"),
        ("--split", "split"),
        ("--patch", "patch"),
        ("--balance", "balance"),
        ("--augment", "augment"),
        ("--normalize", "normalize"),
        ("--input-scale", "input_scale"),
    ] {
        // Checkpoints of earlier versions say nothing about this one.
        if key == "input_scale" && position.get(key).is_none() {
            continue;
        }
        let then = position.get(key).unwrap_or(&Value::Null);
        if *then != now[key] {
            let then = match then {
                Value::Null => "without it".to_owned(),
                Value::Number(number) => format!("with {flag} {number}"),
                Value::String(text) if key == "bucket_by" => format!("with {flag} {text}"),
                _ => format!("with another {flag} (config.toml in the checkpoint's folder has it)"),
            };
            return Err(Failure::Usage(format!(
                "{flag}: the checkpoint was made {then}, and its position does not apply otherwise"
            )));
        }
    }
    Ok(())
}

/// Returns a setting that determines the samples of each step: that of the checkpoint if there is one, because its position in
/// the data is meaningless with another setting.
///
/// # Errors
/// Fails if the setting differs from that of the checkpoint.
pub fn agreed(flag: &str, given: Option<u64>, of_checkpoint: Option<Option<u64>>) -> Result<Option<u64>, Failure> {
    match (given, of_checkpoint) {
        (given, None) => Ok(given),
        (None, Some(earlier)) => Ok(earlier),
        (Some(given), Some(earlier)) if Some(given) == earlier => Ok(earlier),
        (Some(given), Some(earlier)) => {
            let earlier = earlier.map_or("without it".to_owned(), |earlier| format!("with {earlier}"));
            Err(Failure::Usage(format!("{flag} {given}: the checkpoint was made {earlier}; leave the flag out")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Arguments, Command};
    use clap::Parser;

    #[test]
    fn a_checkpoint_decides_what_a_step_sees() {
        assert_eq!(agreed("--shuffle", Some(3), None).unwrap(), Some(3));
        assert_eq!(agreed("--shuffle", None, Some(Some(4))).unwrap(), Some(4));
        assert_eq!(agreed("--shuffle", Some(4), Some(Some(4))).unwrap(), Some(4));
        let error = agreed("--shuffle", Some(3), Some(None)).unwrap_err();
        assert_eq!((error.exit_code(), error.to_string().contains("made without it")), (2, true));
    }

    #[test]
    fn batches_are_those_of_the_checkpoint_if_it_knows_them() {
        let arguments = |flags: &str| {
            let words = ["forebay", "train", "m.onnx", "--data", "d.npz"].into_iter().chain(flags.split_whitespace());
            match Arguments::try_parse_from(words).unwrap().command {
                Command::Train(arguments) => arguments,
                other => panic!("{other:?}"),
            }
        };
        let position = |flags: &str| {
            let mut position = batches(&arguments(flags));
            position["batch_size"] = 8.into();
            position
        };
        let check = |flags: &str, position: &Value| {
            check_batches(&arguments(flags), position).map_err(|failure| failure.to_string())
        };
        for (then, now, words) in [
            ("--input-scale 0.1", "", "--input-scale: the checkpoint was made with --input-scale 0.1, and"),
            ("", "--input-scale 0.1", "--input-scale: the checkpoint was made without it"),
            ("--accumulate 3", "", "with --accumulate 3, and"),
            ("--bucket-by length", "", "with --bucket-by length, and"),
            ("--normalize 0.1/0.2", "--normalize 0/1", "with another --normalize (config.toml"),
            ("--augment crop:1", "", "with another --augment (config.toml"),
        ] {
            let position = position(then);
            assert!(check(now, &position).unwrap_err().contains(words), "{:?}", check(now, &position));
            check(then, &position).unwrap();
        }
        let mut earlier = position("");
        earlier.as_object_mut().unwrap().remove("input_scale");
        check("--input-scale 0.1", &earlier).unwrap();
        check("--normalize 0/1", &json!({ "epoch": 1, "batch": 2 })).unwrap();
    }
}
