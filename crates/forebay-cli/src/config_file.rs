//! A file of flags: `forebay train CONFIG.toml`. Every long flag of `train` is a key; flags of the command line win.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::Value;

use crate::failure::Failure;

/// The command that takes such a file.
pub const COMMAND: &str = "train";
/// The key of the model, which is a positional argument on the command line.
const MODEL: &str = "model";
/// The name of the file that is stored next to the results of a run.
pub const FILE_NAME: &str = "config.toml";
/// The maximum file length; no legitimate file is longer.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// How similar an unknown key must be to a known one to be considered a typo.
const ALIKE_MIN: f64 = 0.7;

/// A command line with the flags of a file in it.
pub struct Expanded {
    /// All arguments, the program's name first.
    pub arguments: Vec<OsString>,
    /// The file.
    pub file: Option<PathBuf>,
}

/// Inserts the flags of a file into the command line that names it. A command line without a file is unchanged.
///
/// # Errors
/// Fails if the file cannot be read, is not TOML, or has a key that is not a flag.
pub fn expand(arguments: Vec<OsString>, root: &mut Command) -> Result<Expanded, Failure> {
    root.build();
    let command = root.find_subcommand(COMMAND).filter(|_| arguments.get(1).is_some_and(|name| name == COMMAND));
    let Some(command) = command else { return Ok(Expanded { arguments, file: None }) };
    let given = Given::of(&arguments[2..], command);
    let Some(place) = given.file else { return Ok(Expanded { arguments, file: None }) };
    let path = PathBuf::from(&arguments[2 + place]);
    let origin = path.display().to_string();
    let failed = |reason: String| Failure::Usage(format!("{origin}: {reason}"));
    let text = forebay_limits::read_text(&path, FILE_BYTES_MAX).map_err(|error| failed(error.to_string()))?;
    let table: toml::Table = text.parse().map_err(|error| failed(format!("invalid TOML: {error}")))?;
    let mut expanded = arguments[..2].to_vec();
    let mut model = None;
    for (key, value) in &table {
        if value.is_table() {
            return Err(failed(format!(
                "'{key}' is a section, which is not supported; write all keys at the top level"
            )));
        }
        let flag = key.replace('_', "-");
        if flag == MODEL {
            let name = value.as_str().ok_or_else(|| failed("model: expected the path of a model in quotes".into()))?;
            model = Some(OsString::from(name));
            continue;
        }
        let Some(arg) = flags(command).find(|arg| arg.get_long() == Some(&flag)) else {
            return Err(failed(unknown(key, &flag, command)));
        };
        if !given.overrides(arg, command) {
            expanded.extend(written(arg, &flag, value).map_err(|reason| failed(format!("{key}: {reason}")))?);
        }
    }
    let others = arguments[2..].iter().enumerate().filter(|(at, _)| *at != place).map(|(_, argument)| argument.clone());
    expanded.extend(others);
    if !given.has_model {
        expanded.extend(model);
    }
    Ok(Expanded { arguments: expanded, file: Some(path) })
}

/// Returns the flags that a file can contain.
fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    let is_flag =
        |arg: &&Arg| !matches!(arg.get_action(), ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong);
    command.get_arguments().filter(|arg| arg.get_long().is_some()).filter(is_flag)
}

fn unknown(key: &str, flag: &str, command: &Command) -> String {
    let names = flags(command).filter_map(Arg::get_long).chain([MODEL]);
    let alike = names.map(|name| (strsim::jaro_winkler(flag, name), name));
    let nearest = alike.max_by(|one, other| one.0.total_cmp(&other.0)).filter(|(alike, _)| *alike >= ALIKE_MIN);
    let way_out = match nearest {
        Some((_, name)) => format!("the most similar key is '{name}'"),
        None => "keys are the long flags of `forebay train --help`, without their dashes".to_owned(),
    };
    format!("unknown key '{key}'; {way_out}")
}

/// What the command line itself specifies.
pub struct Given {
    /// Ids of flags.
    flags: Vec<String>,
    /// The position of the file.
    file: Option<usize>,
    /// Whether there is also a model.
    has_model: bool,
}

impl Given {
    /// Reads the arguments after the name of a command.
    pub fn of(arguments: &[OsString], command: &Command) -> Given {
        let mut given = Given { flags: Vec::new(), file: None, has_model: false };
        let mut rest = arguments.iter().enumerate();
        while let Some((place, argument)) = rest.next() {
            let text = argument.to_string_lossy();
            let Some(flag) = text.strip_prefix("--").filter(|flag| !flag.is_empty()) else {
                match is_config(argument) && given.file.is_none() {
                    true => given.file = Some(place),
                    false => given.has_model |= !text.starts_with('-'),
                }
                continue;
            };
            let (name, has_value) = flag.split_once('=').map_or((flag, false), |(name, _)| (name, true));
            let Some(arg) = command.get_arguments().find(|arg| arg.get_long() == Some(name)) else { continue };
            given.flags.push(arg.get_id().to_string());
            if arg.get_action().takes_values() && !has_value {
                rest.next();
            }
        }
        given
    }

    /// Returns whether the command line has this flag.
    fn has(&self, arg: &Arg) -> bool {
        self.flags.iter().any(|id| arg.get_id() == id.as_str())
    }

    /// Returns whether the command line has this flag or one that conflicts with it.
    pub fn overrides(&self, arg: &Arg, command: &Command) -> bool {
        let given = command.get_arguments().filter(|arg| self.has(arg));
        let conflicts = |one: &Arg, other: &Arg| {
            command.get_arg_conflicts_with(one).iter().any(|conflict| conflict.get_id() == other.get_id())
        };
        self.has(arg) || given.into_iter().any(|given| conflicts(given, arg) || conflicts(arg, given))
    }
}

fn is_config(argument: &OsStr) -> bool {
    Path::new(argument).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("toml"))
}

/// Converts a key to command-line arguments.
fn written(arg: &Arg, flag: &str, value: &Value) -> Result<Vec<OsString>, String> {
    if !arg.get_action().takes_values() {
        return match value {
            Value::Boolean(true) => Ok(vec![format!("--{flag}").into()]),
            Value::Boolean(false) => Ok(Vec::new()),
            _ => Err("expected true or false".to_owned()),
        };
    }
    let scalar = |value: &Value| match value {
        Value::String(text) => Ok(OsString::from(format!("--{flag}={text}"))),
        Value::Integer(number) => Ok(format!("--{flag}={number}").into()),
        Value::Float(number) => Ok(format!("--{flag}={number}").into()),
        Value::Boolean(_) => Err("expected a string or a number, not true or false".to_owned()),
        Value::Table(_) | Value::Datetime(_) | Value::Array(_) => Err("expected a string or a number".to_owned()),
    };
    match value {
        Value::Array(_) if !matches!(arg.get_action(), ArgAction::Append) => {
            Err("the flag accepts one value, not a list".to_owned())
        }
        Value::Array(values) => values.iter().map(scalar).collect(),
        value => Ok(vec![scalar(value)?]),
    }
}

/// Returns the effective configuration of a command, from the command line, a file and the environment, as a file that repeats it if the
/// command takes one.
pub fn effective(matches: &ArgMatches, root: &Command, command: &str) -> String {
    let Some(command) = root.find_subcommand(command) else { return String::new() };
    let mut table = toml::Table::new();
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        let is_said = matches!(matches.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable));
        let Some(key) = arg.get_long().or((id == MODEL).then_some(MODEL)).filter(|_| is_said) else { continue };
        if !arg.get_action().takes_values() {
            table.insert(key.to_owned(), matches.get_flag(id).into());
            continue;
        }
        let values = matches.get_raw(id).into_iter().flatten();
        let mut values: Vec<Value> = values.map(|value| value_of(&value.to_string_lossy())).collect();
        let value = match (values.len(), matches!(arg.get_action(), ArgAction::Append)) {
            (1, _) => values.remove(0),
            (_, true) => Value::Array(values),
            _ => continue,
        };
        table.insert(key.to_owned(), value);
    }
    table.remove("dry-run");
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "# The model and flags of a run of Forebay {version}: `forebay train {FILE_NAME}` repeats the run.\n{table}"
    )
}

/// Parses a value as a number if possible, otherwise as a string.
fn value_of(text: &str) -> Value {
    if let Some(number) = text.parse::<i64>().ok().filter(|number| number.to_string() == text) {
        return number.into();
    }
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && number.to_string() == text);
    number.map_or_else(|| text.into(), Value::Float)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use clap::CommandFactory;

    fn expanded(text: &str, others: &[&str]) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        std::fs::write(&path, text).unwrap();
        let arguments = ["forebay", COMMAND, path.to_str().unwrap()].iter().chain(others).map(OsString::from).collect();
        let expanded = expand(arguments, &mut Arguments::command()).map_err(|failure| failure.to_string())?;
        assert_eq!(expanded.file, Some(path));
        Ok(expanded.arguments[2..].iter().map(|argument| argument.to_str().unwrap().to_owned()).collect())
    }

    #[test]
    fn keys_become_flags_and_the_command_line_wins() {
        let text = "model = 'm.onnx'\ndata = 'd.npz'\nbatch_size = 4\nlearning-rate = 1e-4\nepochs = 2\n\
                    freeze = ['a*', 'b']\nno-compare = true\nnesterov = false\nclass-axis = -1\n";
        let all =
            ["--data=d.npz", "--batch-size=4", "--learning-rate=0.0001", "--epochs=2", "--freeze=a*", "--freeze=b"];
        let mut found = expanded(text, &[]).unwrap();
        assert_eq!(found.pop().as_deref(), Some("m.onnx"));
        for flag in all.iter().chain(&["--no-compare", "--class-axis=-1"]) {
            assert!(found.iter().any(|found| found == flag), "{flag} is not in {found:?}");
        }
        assert_eq!(found.len(), 8, "{found:?}");
        // The same flag, a flag that excludes another, and another model.
        let found = expanded(text, &["--batch-size", "8", "--steps=7", "--freeze", "c", "other.onnx"]).unwrap();
        for gone in ["--batch-size=4", "--epochs=2", "--freeze=a*", "m.onnx"] {
            assert!(!found.iter().any(|found| found == gone), "{gone} is in {found:?}");
        }
        assert!(found.contains(&"other.onnx".to_owned()), "{found:?}");
    }

    #[test]
    fn what_has_no_meaning_is_named() {
        for (text, words) in [
            ("batch-sise = 4", "unknown key 'batch-sise'; the most similar key is 'batch-size'"),
            ("zzzz = 4", "unknown key 'zzzz'; keys are the long flags"),
            ("help = true", "unknown key 'help'"),
            ("no-compare = 1", "no-compare: expected true or false"),
            ("data = true", "data: expected a string or a number, not true or false"),
            ("data = ['a', 'b']", "data: the flag accepts one value"),
            ("[training]\nbatch-size = 4", "'training' is a section"),
            ("batch-size = ", "invalid TOML"),
        ] {
            let error = expanded(text, &[]).unwrap_err();
            assert!(error.contains("run.toml: ") && error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn what_a_run_was_asked_for_asks_for_it_again() {
        let words =
            ["forebay", COMMAND, "m.onnx", "--data", "d.npz", "--learning-rate", "1e-4", "--freeze", "a", "--freeze"];
        let words = words.iter().chain(&["5", "--nesterov", "--momentum", "0.9", "--class-axis=-1", "--dry-run"]);
        let mut root = Arguments::command();
        let arguments = expand(words.map(OsString::from).collect(), &mut root).unwrap().arguments;
        let matches = root.clone().try_get_matches_from(&arguments).unwrap();
        let text = effective(matches.subcommand_matches(COMMAND).unwrap(), &root, COMMAND);
        let again = expanded(&text, &[]).unwrap();
        let mut wanted = vec!["--data=d.npz", "--learning-rate=1e-4", "--freeze=a", "--freeze=5", "--nesterov"];
        wanted.extend(["--momentum=0.9", "--class-axis=-1", "m.onnx"]);
        for flag in &wanted {
            assert!(again.iter().any(|found| found == flag), "{flag} is not in {again:?}");
        }
        assert_eq!(again.len(), wanted.len(), "{text}");
    }
}
