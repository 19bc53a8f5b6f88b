//! The processes of a run: which one this is, what they agree on, and how a failure of one of them ends all.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use clap::{Args, ValueEnum};
use forebay::{DeviceOptions, ProcessGroup, Shard, communicator};
use serde_json::{Value, json};

use crate::device_arguments::positive_count;
use crate::failure::Failure;
use crate::output;

/// How long a failed process waits for the others to fail as well: if all fail in the same way, the first one reports it.
const ALIKE: Duration = Duration::from_secs(2);

/// The number of bytes of failures that are compared.
const FAILURE_BYTES: usize = 1024;

/// The number of bytes at the start of a model's file that are compared; for a longer file, as many at its end are as well.
const LOOKED_AT_BYTES: u64 = 64 << 20;

/// Keys of a run's configuration that can differ between processes, because no result depends on them.
const OWN_KEYS: [&str; 34] = [
    "best-checkpoint",
    "check",
    "checkpoint",
    "checkpoint-every",
    "costs",
    "data-memory",
    "device",
    "device-memory",
    "device-memory-file",
    "heap-size",
    "histograms",
    "histograms-every",
    "host-memory",
    "json",
    "keep-checkpoints",
    "log",
    "memory",
    "memory-limit",
    "mpi",
    "network-timeout",
    "no-compare",
    "order",
    "output-dir",
    "report",
    "save",
    "save-adapters",
    "save-costs",
    "save-ema",
    "show-predictions",
    "simulate-device",
    "spill-dir",
    "tensorboard",
    "threads",
    "trace",
];

/// Those of these keys that must be the same with `--shard`, because all processes send their slices when the first one writes these files.
const COLLECTING_KEYS: [&str; 6] =
    ["best-checkpoint", "checkpoint", "checkpoint-every", "save", "save-adapters", "save-ema"];

/// Whether a run is one of several processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum MpiKind {
    /// If mpirun, srun or another MPI launcher started it
    #[default]
    Auto,
    /// Always
    On,
    /// Never
    Off,
}

/// What is sharded across the processes. Each choice includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ShardKind {
    /// The optimizer's state (ZeRO's stage 1)
    State,
    /// Gradients as well (stage 2)
    Gradients,
    /// Parameters as well; they are exchanged before use (stage 3)
    Parameters,
}

impl ShardKind {
    /// Converts the flag to the library's option.
    pub fn shard(kind: Option<ShardKind>) -> Shard {
        match kind {
            None => Shard::Nothing,
            Some(ShardKind::State) => Shard::State,
            Some(ShardKind::Gradients) => Shard::Gradients,
            Some(ShardKind::Parameters) => Shard::Parameters,
        }
    }
}

/// The flags for runs with several processes.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Processes")]
pub struct ProcessArguments {
    /// Whether to run as one of several MPI processes (`mpirun -n 4 forebay ...`): each process computes its share of every batch, and the
    /// results are bit-identical to those of a single process. Only the first process prints and writes output files
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", env = "FOREBAY_MPI")]
    pub mpi: MpiKind,
    /// Fail if another process does not respond, or end after this one has, within this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = positive_count)]
    pub network_timeout: u64,
}

/// The connection to the other processes, if there are any.
static CONNECTION: OnceLock<ProcessGroup> = OnceLock::new();

/// Ends the connection to the other processes once all of them do. Call this last: if a process has failed, the launcher can end the others
/// as soon as it exits, even if they still have output.
///
/// # Errors
/// Fails if a process does not end.
pub fn finish() -> Result<(), Failure> {
    let Some(group) = CONNECTION.get() else { return Ok(()) };
    let named = |reason| Failure::Failed(format!("process {} of {}: {reason}", group.rank(), group.size()));
    group.communicator().finish().map_err(named)
}

/// The processes of a run, from the perspective of this one.
#[derive(Clone, Debug, Default)]
pub struct Processes {
    /// `None` if this process is the only one.
    group: Option<ProcessGroup>,
}

impl Processes {
    /// Connects to the other processes, if there are any. All but the first one are silent from then on.
    ///
    /// # Errors
    /// Fails if there is an MPI launcher but its library cannot be found or used.
    pub fn join(arguments: &ProcessArguments) -> Result<Processes, Failure> {
        let launched = forebay_mpi::started_by();
        let is_one_of_many = match arguments.mpi {
            MpiKind::Auto => launched.is_some_and(|launched| launched.processes > 1),
            MpiKind::On => true,
            MpiKind::Off => false,
        };
        if !is_one_of_many {
            return Ok(Processes::default());
        }
        let timeout = Some(Duration::from_secs(arguments.network_timeout));
        let options = forebay_mpi::Options {
            library: std::env::var("FOREBAY_MPI_LIBRARY").ok().filter(|name| !name.is_empty()),
            timeout,
            end_timeout: timeout,
            others_call: false,
        };
        let communicator = forebay_mpi::connect(&options)
            .map_err(|error| Failure::Failed(format!("{error}; --mpi off runs this process alone")))?;
        let on_this_machine = launched.and_then(|launched| launched.on_this_machine).unwrap_or(1);
        let group = ProcessGroup::new(communicator).with_on_this_machine(on_this_machine);
        if let Some(launched) = launched.filter(|launched| launched.processes != group.size()) {
            return Err(Failure::Failed(format!(
                "the launcher started {} processes, but the MPI library reports {}; this library is not the launcher's (name \
                 the launcher's in FOREBAY_MPI_LIBRARY)",
                launched.processes,
                group.size()
            )));
        }
        if group.rank() > 0 {
            output::be_silent();
        }
        let _ = CONNECTION.set(group.clone());
        Ok(Processes { group: Some(group).filter(|group| group.size() > 1) })
    }

    /// Returns the processes, or `None` if this one is alone.
    pub fn group(&self) -> Option<&ProcessGroup> {
        self.group.as_ref()
    }

    /// Returns whether this process prints and writes.
    pub fn is_first(&self) -> bool {
        self.group.as_ref().is_none_or(|group| group.rank() == 0)
    }

    /// Makes a device part of these processes.
    pub fn enter(&self, device: &mut DeviceOptions) {
        device.threads = device.threads.or(self.threads());
        device.processes = self.group.clone();
    }

    /// Returns the default number of threads of this process: its share of the machine's.
    fn threads(&self) -> Option<usize> {
        let group = self.group.as_ref()?;
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        Some((available / group.on_this_machine()).max(1))
    }

    /// Returns whether this is true for any of the processes. All of them must call it.
    ///
    /// # Errors
    /// Fails if a process does not answer.
    pub fn any(&self, own: bool) -> Result<bool, Failure> {
        let Some(group) = &self.group else { return Ok(own) };
        let all = communicator::gather_sized(&**group.communicator(), vec![u8::from(own)], |_| 1);
        Ok(all.map_err(Failure::Failed)?.iter().any(|answer| answer == &[1]))
    }

    /// Compares what the processes are about to do, and informs all of them of the first one that fails. Returns what this one has
    /// prepared.
    ///
    /// # Errors
    /// Returns the failure of a process, or how it differs from the first one.
    pub fn agree<T>(&self, own: Result<(T, BTreeMap<String, String>), Failure>) -> Result<T, Failure> {
        if self.group.is_none() {
            return own.map(|(prepared, _)| prepared);
        }
        let said = match &own {
            Ok((_, facts)) => json!({ "facts": facts }),
            Err(failure) => json!({ "failure": failure.to_string(), "code": failure.exit_code() }),
        };
        let all = self.gather(&said)?;
        let size = all.len();
        for (rank, said) in all.iter().enumerate() {
            if let Some(reason) = said["failure"].as_str() {
                let text = match all.iter().all(|other| other["failure"] == said["failure"]) {
                    true => reason.to_owned(),
                    false => format!("process {rank} of {size}: {reason}"),
                };
                return Err(if said["code"] == 2 { Failure::Usage(text) } else { Failure::Failed(text) });
            }
        }
        for (rank, said) in all.iter().enumerate().skip(1) {
            let (first, facts) = (&all[0]["facts"], &said["facts"]);
            let keys = first.as_object().into_iter().chain(facts.as_object()).flat_map(|facts| facts.keys());
            if let Some(key) = keys.into_iter().find(|key| first[*key] != facts[*key]) {
                let has = |facts: &Value| match facts[key].as_str() {
                    Some(value) => format!("has {key} {value}"),
                    None => format!("has no {key}"),
                };
                return Err(Failure::Failed(format!(
                    "process {rank} of {size} {}, but process 0 {}; all processes must agree",
                    has(facts),
                    has(first)
                )));
            }
        }
        own.map(|(prepared, _)| prepared)
    }

    /// Returns a value from every process, by rank; empty if this one is alone. All processes must call it.
    ///
    /// # Errors
    /// Fails if a process does not answer.
    pub fn gather(&self, own: &Value) -> Result<Vec<Value>, Failure> {
        let Some(group) = &self.group else { return Ok(Vec::new()) };
        let all = communicator::gather(&**group.communicator(), own.to_string().as_bytes()).map_err(Failure::Failed)?;
        Ok(all.iter().map(|said| serde_json::from_slice(said).unwrap_or_default()).collect())
    }

    /// Ends all processes because this one cannot continue. Returns the failure if it is alone or all failed in the same way.
    pub fn fail(&self, failure: Failure) -> Failure {
        let Some(group) = &self.group else { return failure };
        let (communicator, text) = (&**group.communicator(), failure.to_string());
        let mut own = text.as_bytes()[..text.len().min(FAILURE_BYTES)].to_vec();
        own.resize(FAILURE_BYTES, 0);
        let tag = communicator::FAILURE_TAG;
        let all = communicator::gather_within(communicator, tag, own.clone(), |_| FAILURE_BYTES, Some(ALIKE));
        if !matches!(all, Ok(Some(all)) if all.iter().all(|other| *other == own)) {
            output::complain_aloud(&format!("error: process {} of {}: {failure}", group.rank(), group.size()));
            communicator.abort();
        }
        failure
    }
}

/// Returns what must be the same in all processes: the flags that affect results, and the model's file.
///
/// # Errors
/// Fails if a file cannot be read.
pub fn facts_of(configuration: &str, model: &Path) -> Result<BTreeMap<String, String>, Failure> {
    let lines = configuration.lines().filter_map(|line| line.split_once(" = "));
    let is_sharded = lines.clone().any(|(key, _)| key == "shard");
    let is_own = |key: &str| OWN_KEYS.contains(&key) && !(is_sharded && COLLECTING_KEYS.contains(&key));
    let decide = lines.filter(|(key, _)| !is_own(key) && *key != "model");
    let mut facts: BTreeMap<String, String> =
        decide.map(|(key, value)| (format!("--{key}"), value.to_owned())).collect();
    let digest = digest(model).map_err(|error| Failure::Failed(format!("cannot read {}: {error}", model.display())))?;
    facts.insert("model".to_owned(), format!("{} (digest {digest})", model.display()));
    facts.insert("Forebay version".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    Ok(facts)
}

/// Returns a digest of a file: of its length, its first bytes and its last bytes.
fn digest(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(size);
    let mut add = |file: &mut File| {
        let mut bytes = Vec::new();
        file.take(LOOKED_AT_BYTES).read_to_end(&mut bytes)?;
        hasher.write(&bytes);
        Ok::<(), io::Error>(())
    };
    add(&mut file)?;
    if size > LOOKED_AT_BYTES {
        file.seek(SeekFrom::Start(size - LOOKED_AT_BYTES))?;
        add(&mut file)?;
    }
    Ok(format!("{:016x}", hasher.finish()))
}
