//! Whichever mode decides what is on the device, the bits are those of the plan without a budget, and the budget is never exceeded.

use std::sync::Arc;

use forebay::managed::Policy;
use forebay::{
    Device, DeviceUsage, EngineOptions, Error, MemoryMode, MemorySize, Model, Session, StepMoves, Tensor, Trainer,
};
use forebay_golden::{Case, Run, chaos, everything, host, recipe, trainer_on, trainer_options};
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder};

const MODES: [(MemoryMode, Option<Policy>); 5] = [
    (MemoryMode::Direct, None),
    (MemoryMode::Automatic, None),
    (MemoryMode::Cooperative, None),
    (MemoryMode::Automatic, Some(Policy::Touch)),
    (MemoryMode::Automatic, Some(Policy::Planned)),
];

fn run(case: &Case, trainer: &mut Trainer, steps: usize) -> (Run, Vec<Option<StepMoves>>) {
    let (mut losses, mut moves) = (Vec::new(), Vec::new());
    for step in 0..steps {
        let (batch, labels) = case.batch(step);
        let report = trainer.step(batch, labels).unwrap();
        losses.push(report.loss.to_bits());
        moves.push(report.moves);
    }
    (Run { losses, values: everything(trainer) }, moves)
}

fn options(threads: usize, memory: MemoryMode, eviction: Option<Policy>, budget_bytes: Option<u64>) -> EngineOptions {
    let mut options = host(threads).memory_mode(memory);
    (options.memory.eviction, options.memory.simulate_device) = (eviction, budget_bytes.map(MemorySize::Bytes));
    options
}

fn trainer(case: &Case, options: EngineOptions, device: Option<Arc<dyn Device>>) -> Trainer {
    trainer_on(case.model(), recipe(case), options, device)
}

/// Budgets in percent of the peak, each with a number of threads; 0 for no budget.
type Budgets<'a> = &'a [(u64, usize)];

fn same_bits_in_every_mode(name: &'static str, modes: &[(MemoryMode, Option<Policy>)], budgets: Budgets) {
    let case = Case::read(name);
    let (expected, _) = run(&case, &mut trainer(&case, host(2), None), 2);
    let unlimited = trainer(&case, options(2, MemoryMode::Automatic, None, None), None);
    let (peak, minimum) = (unlimited.statistics().in_core_peak_bytes, unlimited.statistics().minimum_budget_bytes);
    for &(memory, eviction) in modes {
        for &(percent, threads) in budgets {
            let budget = (percent > 0).then_some((peak / 100 * percent).max(minimum));
            let what = format!("{name}, {memory:?} {eviction:?}, within {budget:?} of {peak} bytes, {threads} threads");
            let mut trainer = trainer(&case, options(threads, memory, eviction, budget), None);
            let (found, moves) = run(&case, &mut trainer, 2);
            assert_eq!(expected.losses, found.losses, "{what}");
            assert!(expected == found, "{what}: parameters or state");
            let heap_bytes = trainer.usage().heap_peak_bytes;
            assert!(heap_bytes <= budget.unwrap_or(peak + (2 << 20)), "{what}: {heap_bytes} heap bytes");
            let moves = moves[1].unwrap();
            assert!(moves.faults == 0 || memory != MemoryMode::Direct, "{what}: {moves:?}");
            assert!(moves.evictions > 0 || budget.is_none_or(|budget| budget >= peak), "{what}: {moves:?}");
        }
    }
}

#[test]
fn digits_cnn() {
    same_bits_in_every_mode("digits-cnn", &MODES, &[(0, 2), (75, 1), (50, 2), (1, 2)]);
}

#[test]
fn resnet20() {
    same_bits_in_every_mode("resnet20", &MODES[..2], &[(60, 1)]);
}

#[test]
fn tiny_gpt() {
    same_bits_in_every_mode("tiny-gpt", &MODES[..3], &[(50, 2)]);
}

#[test]
fn unet3d() {
    same_bits_in_every_mode("unet3d", &MODES[..2], &[(50, 2)]);
}

#[test]
fn the_most_permissive_order_gives_the_same_bits() {
    let case = Case::read("digits-cnn");
    let (expected, _) = run(&case, &mut trainer(&case, host(2), None), 2);
    let minimum = trainer(&case, options(2, MemoryMode::Automatic, None, None), None).statistics().minimum_budget_bytes;
    for (seed, (memory, eviction)) in (1..).zip(MODES) {
        for budget in [minimum, minimum * 3 / 2] {
            let options = options(2, memory, eviction, Some(budget));
            let mut shuffled = trainer(&case, options, Some(chaos(2, seed)));
            assert!(expected == run(&case, &mut shuffled, 2).0, "{memory:?} {eviction:?}, seed {seed}, {budget} bytes");
        }
    }
}

#[test]
fn what_fits_the_device_stays_there() {
    let case = Case::read("digits-cnn");
    for (memory, eviction) in MODES {
        let mut trainer = trainer(&case, options(2, memory, eviction, None), None);
        let moves = run(&case, &mut trainer, 2).1[1].unwrap();
        let input_bytes: u64 = trainer.inputs().iter().map(|info| info.shape.iter().product::<u64>() * 4).sum();
        // Units that hold inputs and labels are copied again; units have at least 64 KiB, so they hold more than these.
        assert_eq!(moves.evictions, 0, "{memory:?} {eviction:?}: {moves:?}");
        assert!(moves.bytes_to_device < input_bytes + (1 << 20), "{memory:?} {eviction:?}: {moves:?}");
    }
}

#[test]
fn a_loss_that_is_no_number_leaves_everything_as_before() {
    let case = Case::read("digits-cnn");
    for (memory, eviction) in MODES {
        let mut trainer = trainer(&case, options(2, memory, eviction, Some(3 << 19)), None);
        run(&case, &mut trainer, 1);
        let before = (trainer.parameters().unwrap(), trainer.state().unwrap());
        let (mut batch, labels) = case.batch(1);
        let poisoned: Vec<f32> = batch["x"].to_f32().unwrap().iter().map(|_| f32::NAN).collect();
        let shape = batch["x"].shape();
        batch.insert("x".to_string(), Tensor::from_f32(shape, &poisoned));
        let error = trainer.step(batch, labels).unwrap_err();
        assert!(matches!(error, Error::NanLoss { step: 2, .. }), "{memory:?}: {error}");
        assert!(before == (trainer.parameters().unwrap(), trainer.state().unwrap()), "{memory:?} {eviction:?}");
    }
}

#[test]
fn a_session_runs_in_every_mode() {
    let case = Case::read("resnet20");
    let run = |engine: EngineOptions| {
        let mut session = Session::builder(&case.model()).engine(engine).build().unwrap();
        let outputs = session.run(case.input()).unwrap();
        (outputs, session.statistics().unwrap().clone(), session.usage().heap_peak_bytes)
    };
    let (expected, ..) = run(host(2));
    let (_, statistics, _) = run(options(2, MemoryMode::Automatic, None, None));
    let budget = (statistics.in_core_peak_bytes * 3 / 5).max(statistics.minimum_budget_bytes);
    for (memory, eviction) in MODES {
        let (outputs, _, heap_bytes) = run(options(2, memory, eviction, Some(budget)));
        assert!(expected == outputs, "{memory:?} {eviction:?}");
        assert!(heap_bytes <= budget, "{memory:?} {eviction:?}: {heap_bytes}");
    }
}

#[test]
fn without_growth_all_memory_is_taken_at_the_start() {
    let case = Case::read("digits-cnn");
    let (expected, _) = run(&case, &mut trainer(&case, host(2), None), 2);
    let unlimited = trainer(&case, options(2, MemoryMode::Automatic, None, None), None);
    let budget = unlimited.statistics().in_core_peak_bytes * 3;
    for (memory, eviction) in MODES {
        let growing = options(2, memory, eviction, Some(budget));
        let mut fixed = trainer(&case, growing.clone().growth(false), None);
        let mut growing = trainer(&case, growing, None);
        let found = [&mut growing, &mut fixed].map(|trainer| run(&case, trainer, 2).0);
        assert!(found.iter().all(|found| *found == expected), "{memory:?} {eviction:?}");
        let grown_bytes = growing.usage().heap_peak_bytes;
        let DeviceUsage { heap_bytes, heap_peak_bytes, .. } = fixed.usage();
        let what = format!("{memory:?} {eviction:?}: {grown_bytes}, {heap_bytes}, {heap_peak_bytes} of {budget} bytes");
        assert!(heap_bytes == heap_peak_bytes && (budget / 10 * 9..=budget).contains(&heap_bytes), "{what}");
        assert!(grown_bytes < heap_bytes, "{what}");
    }
}

#[test]
fn what_exceeds_the_host_budget_goes_to_disk() {
    let case = Case::read("digits-cnn");
    let (expected, _) = run(&case, &mut trainer(&case, host(2), None), 2);
    let spilling = |memory, eviction, budget| {
        let spill_dir = Some(std::env::temp_dir());
        let mut options = options(2, memory, eviction, budget);
        options.memory.spill_dir = spill_dir;
        options
    };
    let unlimited = trainer(&case, spilling(MemoryMode::Automatic, None, None), None);
    let minimum = unlimited.statistics().minimum_budget_bytes;
    // The device's own memory, room for staging, and half a megabyte for data.
    let host_bytes = unlimited.usage().host_bytes + (1 << 20) + (512 << 10);
    for (memory, eviction) in MODES {
        let host_memory = Some(MemorySize::Bytes(host_bytes));
        let mut options = spilling(memory, eviction, Some(minimum));
        options.memory.host_memory = host_memory;
        let mut trainer = trainer(&case, options, None);
        let (found, moves) = run(&case, &mut trainer, 2);
        assert!(expected == found, "{memory:?} {eviction:?}");
        assert!(trainer.usage().host_peak_bytes <= host_bytes, "{memory:?} {eviction:?}: {:?}", trainer.usage());
        assert!(moves[1].unwrap().bytes_to_disk > 0, "{memory:?} {eviction:?}: {moves:?}");
    }
}

/// The first two of four rows of an input, and the last two of three rows of a weight that is too large to be folded.
#[test]
fn inputs_and_weights_can_be_used_in_part() {
    const COLUMNS: usize = 1 << 20;
    let columns = COLUMNS.to_string();
    let weights: Vec<f32> = (0..3 * COLUMNS).map(|i| (i / COLUMNS) as f32).collect();
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["4", "64"])
        .floats("w", &[3, COLUMNS], &weights)
        .integers("zero", &[1], &[0])
        .integers("one", &[1], &[1])
        .integers("two", &[1], &[2])
        .integers("three", &[1], &[3])
        .node("Slice", &["x", "zero", "two"], &["part"])
        .node("Relu", &["part"], &["y"])
        .node("Slice", &["w", "one", "three"], &["weights"])
        .node("Neg", &["weights"], &["z"])
        .output("y", FLOAT, &["2", "64"])
        .output("z", FLOAT, &["2", &columns]);
    let model = Model::from_bytes(&graph.build()).unwrap();
    let x = Tensor::from_f32(&[4, 64], &(0..256).map(|i| i as f32 - 9.0).collect::<Vec<_>>());
    let y: Vec<f32> = (0..128).map(|i| (i as f32 - 9.0).max(0.0)).collect();
    let z: Vec<f32> = weights[COLUMNS..].iter().map(|value| -value).collect();
    for (memory, eviction) in MODES {
        let mut session = Session::builder(&model).engine(options(1, memory, eviction, None)).build().unwrap();
        let outputs = session.run([("x".to_string(), x.clone())].into()).unwrap();
        assert_eq!(outputs["y"], Tensor::from_f32(&[2, 64], &y), "{memory:?} {eviction:?}");
        assert!(outputs["z"] == Tensor::from_f32(&[2, COLUMNS as u64], &z), "{memory:?} {eviction:?}");
    }
}

#[test]
fn what_cannot_be_says_so() {
    let case = Case::read("digits-cnn");
    let refused = |engine: EngineOptions| {
        Trainer::new(case.model(), trainer_options(recipe(&case), engine)).err().expect("refused").to_string()
    };
    let unlimited = trainer(&case, options(2, MemoryMode::Automatic, None, None), None);
    let (minimum, launch) = (unlimited.statistics().minimum_budget_bytes, &unlimited.statistics().minimum_launch);
    let error = refused(options(2, MemoryMode::Automatic, None, Some(minimum - 1)));
    assert!(error.contains(&minimum.to_string()) && error.contains(launch), "{error}");
    let error = refused(options(2, MemoryMode::Direct, Some(Policy::Touch), None));
    assert!(error.contains("--memory automatic"), "{error}");
    // Host memory runs out during the step or when parameters arrive; nothing has been lost by then.
    let mut short = options(2, MemoryMode::Automatic, None, Some(minimum));
    short.memory.host_memory = Some(MemorySize::Bytes(1 << 20));
    let (batch, labels) = case.batch(0);
    let error = trainer(&case, short, None).step(batch, labels).unwrap_err().to_string();
    assert!(error.contains("managed memory may keep 0 bytes on the host"), "{error}");
}
