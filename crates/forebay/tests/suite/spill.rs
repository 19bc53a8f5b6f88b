//! Plans whose tensors fit neither the device nor the host: the same bits by way of a disk, and nothing is lost if the disk fails.

use std::path::Path;
use std::sync::Arc;

use forebay::{Device, EngineOptions, Error, MemoryMode, MemorySize, Trainer};
use forebay_device::chaos::ChaosDevice;
use forebay_device::host::{HostDevice, HostOptions};
use forebay_golden::{Case, Run, assert_same, everything, host, recipe, run, trainer_on, trainer_options};
use forebay_plan::PlanError;
use tempfile::TempDir;

/// A folder to spill to, which is removed with the test.
fn spill_folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn assert_empty(folder: &Path) {
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0, "something is left in {}", folder.display());
}

/// The results of a case in core, and the smallest budgets for it.
struct Limits {
    case: Case,
    folder: TempDir,
    device_bytes: u64,
    /// The smallest host budget, including the device's own memory.
    host_bytes: u64,
    /// The host memory that the plan takes without a limit.
    roomy_host_bytes: u64,
    expected: Run,
}

fn options(device_bytes: u64, host_bytes: Option<u64>, folder: &Path) -> EngineOptions {
    let mut options = host(2).check(true).simulate_device(MemorySize::Bytes(device_bytes)).spill_dir(folder);
    options.memory.host_memory = host_bytes.map(MemorySize::Bytes);
    options
}

impl Limits {
    fn of(name: &'static str, steps: usize) -> Limits {
        let (case, folder) = (Case::read(name), spill_folder());
        let mut in_core = trainer_on(case.model(), recipe(&case), host(2), None);
        let statistics = in_core.statistics();
        let device_bytes = (statistics.in_core_peak_bytes / 3).max(statistics.minimum_budget_bytes);
        let expected = run(&case, &mut in_core, steps);
        let roomy = trainer_on(case.model(), recipe(&case), options(device_bytes, None, folder.path()), None);
        let roomy_host_bytes = roomy.statistics().host_bytes;
        let tight = trainer_options(recipe(&case), options(device_bytes, Some(1), folder.path()));
        let host_bytes = match Trainer::new(case.model(), tight).err() {
            Some(Error::Plan(PlanError::HostBudget { needed_bytes, spilled: true, .. })) => needed_bytes,
            other => panic!("{name}: {other:?}"),
        };
        Limits { case, folder, device_bytes, host_bytes, roomy_host_bytes, expected }
    }

    fn trainer(&self, host_bytes: u64, device: Option<Arc<dyn Device>>) -> Trainer {
        let options = options(self.device_bytes, Some(host_bytes), self.folder.path());
        trainer_on(self.case.model(), recipe(&self.case), options, device)
    }

    /// The smallest budget, at which the data that steps change is on disk, and one that is halfway to enough.
    fn budgets(&self) -> [u64; 2] {
        [self.host_bytes, self.host_bytes.midpoint(self.roomy_host_bytes)]
    }
}

fn device(options: HostOptions) -> Arc<dyn Device> {
    Arc::new(HostDevice::new(&HostOptions { threads: Some(2), ..options }).unwrap())
}

fn same_bits_by_way_of_a_disk(name: &'static str, steps: usize, kinds: &[&str]) {
    let limits = Limits::of(name, steps);
    for (host_bytes, is_least) in limits.budgets().into_iter().zip([true, false]) {
        for &kind in kinds {
            let device: Option<Arc<dyn Device>> = match kind {
                "slow disk" => {
                    Some(device(HostOptions { disk_bytes_per_second: Some(200 << 20), ..HostOptions::default() }))
                }
                "chaos" => Some(Arc::new(ChaosDevice::new(device(HostOptions::default()), 5).unwrap())),
                _ => None,
            };
            let what = format!("{name} on {kind} with {host_bytes} host bytes");
            let mut trainer = limits.trainer(host_bytes, device);
            let plan = trainer.plan();
            assert!(plan.turns.is_some() || !is_least, "{what}");
            let planned_bytes = plan.statistics.spill_bytes;
            assert!(planned_bytes > 0, "{what}");
            assert_same(&limits.expected, &run(&limits.case, &mut trainer, steps), &what);
            let usage = trainer.usage();
            // The first step may have led to another plan, with which the others ran.
            let replanned_bytes = trainer.statistics().spill_bytes;
            assert!([planned_bytes, replanned_bytes].contains(&usage.disk_bytes), "{what}: {}", usage.disk_bytes);
            assert!(usage.host_peak_bytes <= host_bytes, "{what}: {} host bytes", usage.host_peak_bytes);
            assert!(usage.heap_peak_bytes <= limits.device_bytes, "{what}");
            assert_empty(limits.folder.path());
        }
    }
}

#[test]
fn digits_cnn() {
    same_bits_by_way_of_a_disk("digits-cnn", 3, &["host", "slow disk", "chaos"]);
}

#[test]
fn unet3d() {
    same_bits_by_way_of_a_disk("unet3d", 1, &["host"]);
}

/// Whichever write fails, the error says where and why, everything is as before the step, and another trainer can continue from there.
#[test]
fn a_write_that_fails_loses_nothing() {
    const STEPS: usize = 3;
    let limits = Limits::of("digits-cnn", STEPS);
    // If the data that steps change is on disk, the first writes put it there before the first step.
    for (host_bytes, writes) in limits.budgets().into_iter().zip([[0, 22, 37], [0, 1, 2]]) {
        for writes in writes {
            let what = format!("{host_bytes} host bytes, {writes} writes");
            let failing = HostOptions { disk_writes_before_failure: Some(writes), ..HostOptions::default() };
            let mut trainer = limits.trainer(host_bytes, Some(device(failing)));
            let (mut losses, mut error) = (Vec::new(), None);
            while losses.len() < STEPS && error.is_none() {
                let (batch, labels) = limits.case.batch(losses.len());
                match trainer.step(batch, labels) {
                    Ok(report) => losses.push(report.loss.to_bits()),
                    Err(found) => error = Some(found.to_string()),
                }
            }
            let text = error.unwrap_or_else(|| panic!("{what}: nothing failed"));
            assert!(text.contains("No space left on device") && text.contains("--spill-dir"), "{what}: {text}");
            assert!(text.contains(&limits.folder.path().display().to_string()), "{what}: {text}");
            assert_empty(limits.folder.path());
            let checkpoint = trainer.checkpoint(&serde_json::Value::Null).unwrap();
            drop(trainer);
            let mut next = limits.trainer(host_bytes, None);
            next.restore(&checkpoint).unwrap();
            while losses.len() < STEPS {
                let (batch, labels) = limits.case.batch(losses.len());
                losses.push(next.step(batch, labels).unwrap().loss.to_bits());
            }
            assert_same(&limits.expected, &Run { losses, values: everything(&next) }, &what);
        }
    }
}

/// With managed memory, a disk that fails can take values with it. Reading them then fails; whatever can be read is as before the step.
#[test]
fn a_write_that_fails_leaves_no_wrong_values_in_managed_memory() {
    const STEPS: usize = 3;
    let (case, folder) = (Case::read("digits-cnn"), spill_folder());
    let mut in_core = trainer_on(case.model(), recipe(&case), host(2), None);
    let values = |trainer: &Trainer| [trainer.parameters(), trainer.state()].map(Result::ok);
    let mut expected = vec![values(&in_core)];
    for step in 0..STEPS {
        let (batch, labels) = case.batch(step);
        in_core.step(batch, labels).unwrap();
        expected.push(values(&in_core));
    }
    for memory in [MemoryMode::Direct, MemoryMode::Cooperative, MemoryMode::Automatic] {
        for writes in [0, 4] {
            let what = format!("{memory:?}, {writes} writes");
            let failing = HostOptions { disk_writes_before_failure: Some(writes), ..HostOptions::default() };
            let (device, engine) =
                (device(failing), options(1280 << 10, Some(9900 << 10), folder.path()).memory_mode(memory));
            let mut trainer = trainer_on(case.model(), recipe(&case), engine, Some(device.clone()));
            let mut steps = 0;
            let error = loop {
                assert!(steps < STEPS, "{what}: nothing failed");
                let (batch, labels) = case.batch(steps);
                match trainer.step(batch, labels) {
                    Ok(_) => steps += 1,
                    Err(error) => break error.to_string(),
                }
            };
            assert!(error.contains("No space left on device"), "{what}: {error}");
            // Someone else who uses the device clears the failure.
            device.recover().unwrap();
            for (found, expected) in values(&trainer).into_iter().zip(&expected[steps]) {
                assert!(found.is_none() || found == *expected, "{what}, after {steps} steps");
            }
            drop(trainer);
            assert!(device.submit(&[]).is_ok(), "{what}: the device cannot be used any more");
            assert_empty(folder.path());
        }
    }
}

#[test]
fn a_folder_that_cannot_be_used_is_refused_before_anything_is_planned() {
    let case = Case::read("digits-cnn");
    let folder = spill_folder();
    let missing = folder.path().join("missing");
    let training = trainer_options(recipe(&case), options(1 << 30, None, &missing));
    let error = Trainer::new(case.model(), training).err().expect("no folder").to_string();
    assert!(error.contains("missing") && error.contains("--spill-dir"), "{error}");
}
