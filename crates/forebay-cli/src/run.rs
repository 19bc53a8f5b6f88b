//! `forebay run`: runs a model on arrays.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay::data::{Digest, npy};
use forebay::explain::explain;
use forebay::files::FolderLock;
use forebay::{Model, Session, SessionOptions, Tensor, TensorType};
use forebay_device::process::give_back;

use crate::arguments::MemoryKind;
use crate::failure::Failure;
use crate::feeding::{self, Tensors};
use crate::limits::{tell_of_budget, tell_of_limit};
use crate::output;
use crate::processes::{Processes, facts_of};
use crate::report::{Report, StepNumbers, of_run, resident_peak_bytes, say_json};
use crate::run_arguments::RunArguments;
use crate::shared_steps::SharedSteps;

/// The lock file in a folder while outputs are moved into place there.
const LOCK: &str = ".forebay-outputs.lock";
/// A wait for another run that takes longer than this is reported.
const REPORT_WAIT_AFTER: Duration = Duration::from_secs(1);

/// Runs a model, as one of several processes or alone.
///
/// # Errors
/// Fails with anything that prevents the run, or if outputs cannot be written (detected before anything runs).
pub fn run(arguments: &RunArguments) -> Result<(), Failure> {
    let processes = &Processes::join(&arguments.processes)?;
    let prepared = Prepared::new(arguments, processes).and_then(|prepared| {
        let facts = prepared.facts(arguments, processes)?;
        Ok((prepared, facts))
    });
    let Prepared { mut session, inputs, files, .. } = processes.agree(prepared)?;
    tell_of_limit(session.memory_limit());
    tell_of_budget(&arguments.device, session.budget_excludes_process());
    let mut steps = Vec::new();
    let mut outputs = Tensors::new();
    for _ in 0..arguments.repeat {
        outputs.clear();
        outputs = session.run(inputs.clone()).map_err(|error| processes.fail(error.into()))?;
        steps.push(StepNumbers::of_run(session.last_run()));
    }
    let shared =
        SharedSteps::of(processes, session.shared_work(), &steps).map_err(|failure| processes.fail(failure))?;
    let processes_json = shared.as_ref().map(SharedSteps::json);
    let processes_lines = shared.iter().flat_map(SharedSteps::lines).collect::<Vec<_>>();
    if !processes.is_first() {
        return Ok(());
    }
    if let Some(folder) = &arguments.output_dir {
        write_outputs(folder, &files, &outputs)?;
    }
    if let Some(path) = &arguments.trace.trace {
        output::write(path, &session.trace().to_string())?;
    }
    let device_peak_bytes = session.usage().heap_peak_bytes;
    let resident_peak_bytes = resident_peak_bytes();
    let limit = session.memory_limit();
    // A model without computation has no plan. A limit on the process leaves no room for a search for the smallest budget, which says
    // nothing about the limit.
    let plan = if limit.is_none() { session.plan() } else { session.plan_as_made() };
    let statistics = plan.map(|plan| plan.statistics.clone()).unwrap_or_default();
    let planned = plan.filter(|_| arguments.device.memory == MemoryKind::Planned);
    let explanation =
        planned.map(|plan| of_run(explain(plan), &arguments.device.device, device_peak_bytes, resident_peak_bytes));
    let report =
        Report { steps: &steps, statistics: &statistics, device_peak_bytes, resident_peak_bytes, limit, explanation };
    if arguments.report.json {
        let mut object = report.json();
        object.insert("processes".to_owned(), processes_json.into());
        return say_json(object);
    }
    for (name, tensor) in &outputs {
        let file = files.get(name).map(|file| format!(" in {}", file.display())).unwrap_or_default();
        output::say(&format!("{name}: {}{:?}{file}", tensor.data_type(), tensor.shape()));
    }
    report.lines().iter().chain(&processes_lines).for_each(|line| output::say(line));
    Ok(())
}

/// A model that is ready to run.
struct Prepared {
    session: Session,
    /// The inputs, with zeros in place of what only other processes read.
    inputs: Tensors,
    /// By input: the digest of its file, if there are several processes.
    digests: BTreeMap<String, String>,
    /// The files of the outputs, by name.
    files: BTreeMap<String, PathBuf>,
}

impl Prepared {
    fn new(arguments: &RunArguments, processes: &Processes) -> Result<Prepared, Failure> {
        let output_dir = arguments.output_dir.as_ref().filter(|_| processes.is_first());
        if let Some(folder) = output_dir {
            output::check_folder(folder)?;
        }
        if let Some(trace) = arguments.trace.trace.as_ref().filter(|_| processes.is_first()) {
            output::check_writable(trace)?;
        }
        let model = Model::from_file(&arguments.model)?;
        if let Some(info) = model.inputs().into_iter().chain(model.outputs()).find(|info| info.structure.is_some()) {
            let reason = format!(
                "'{info}' is not a tensor, and files can only hold tensors; use the library's Session::run_values"
            );
            return Err(Failure::Failed(reason));
        }
        let files = output_dir.map(|folder| output_files(folder, &model)).transpose()?.unwrap_or_default();
        let several = processes.group().is_some();
        let (arrays, mut inputs) = match several {
            true => feeding::open_inputs(arguments, &model)?,
            false => (BTreeMap::new(), feeding::read_inputs(arguments, &model)?),
        };
        let mut options = SessionOptions::default();
        options.engine = arguments.device.options(arguments.trace.trace.is_some());
        options.batch_size = arguments.batch_size;
        processes.enter(&mut options.engine.device);
        let mut session = Session::new(&model, &options)?;
        // Zeros take no memory until they are written or the plan is known to need other rows.
        let zeros = arrays.iter().map(|(name, array)| Ok((name.clone(), zeros(array.ty())?)));
        let zeros = zeros.collect::<Result<Tensors, Failure>>()?;
        session.prepare(&inputs.clone().into_iter().chain(zeros).collect())?;
        // The memory used for planning is no longer needed.
        give_back();
        let mut digests = BTreeMap::new();
        for (name, tensor) in inputs.iter().filter(|_| several) {
            let mut digest = Digest::default();
            digest.add(tensor.bytes());
            digests.insert(name.clone(), digest.text());
        }
        for (name, array) in arrays {
            digests.insert(name.clone(), array.digest()?);
            let tensor = match session.own_rows(&name) {
                Some(own) => array.among_zeros(own)?,
                None => array.read()?,
            };
            inputs.insert(name, tensor);
        }
        Ok(Prepared { session, inputs, digests, files })
    }

    /// Returns what must be the same in all processes.
    fn facts(&self, arguments: &RunArguments, processes: &Processes) -> Result<BTreeMap<String, String>, Failure> {
        if processes.group().is_none() {
            return Ok(BTreeMap::new());
        }
        let mut facts = facts_of(&arguments.configuration, &arguments.model)?;
        for (name, digest) in &self.digests {
            facts.insert(format!("input '{name}'"), format!("{} (digest {digest})", self.inputs[name].ty()));
        }
        Ok(facts)
    }
}

/// Returns a tensor of zeros.
///
/// # Errors
/// Fails if it has more bytes than this machine can address.
fn zeros(ty: TensorType) -> Result<Tensor, Failure> {
    let zeros = Tensor::zeros(ty.data_type, &ty.shape);
    zeros.ok_or_else(|| Failure::Failed(format!("an input of type {ty} has more bytes than this machine can address")))
}

/// Returns the files of the outputs, by name.
///
/// # Errors
/// Fails if two outputs would have the same file name.
fn output_files(folder: &Path, model: &Model) -> Result<BTreeMap<String, PathBuf>, Failure> {
    let mut files: BTreeMap<String, PathBuf> = BTreeMap::new();
    for name in model.outputs().into_iter().map(|info| info.name) {
        let path = folder.join(format!("{}.npy", output::file_name(&name)));
        if let Some((other, _)) = files.iter().find(|(_, taken)| **taken == path) {
            let path = path.display();
            return Err(Failure::Failed(format!("outputs {other} and {name} would both be written to {path}")));
        }
        output::check_existing(&path)?;
        files.insert(name, path);
    }
    Ok(files)
}

/// Writes each output to a separate file. All files are complete before the first one is moved into place, and meanwhile no other
/// run moves its outputs there, so the folder has the outputs of a single run, the last one to finish.
fn write_outputs(folder: &Path, files: &BTreeMap<String, PathBuf>, outputs: &Tensors) -> Result<(), Failure> {
    let refused = |error| output::refused(folder, &error);
    std::fs::create_dir_all(folder).map_err(refused)?;
    let mut complete = Vec::new();
    for (name, tensor) in outputs {
        let path = &files[name];
        complete.push((path, npy::pending(path, tensor)?));
    }
    let started = Instant::now();
    let mut told = false;
    let _lock = FolderLock::wait(folder, LOCK, |process| {
        if !told && started.elapsed() > REPORT_WAIT_AFTER {
            told = true;
            let process = process.map_or("another process".to_owned(), |process| format!("process {process}"));
            output::complain(&format!("waiting for {process}, which is writing its outputs to {}", folder.display()));
        }
    })
    .map_err(refused)?;
    for (path, file) in complete {
        file.commit().map_err(|error| output::refused(path, &error))?;
    }
    Ok(())
}
