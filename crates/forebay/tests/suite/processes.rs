//! Several processes compute a batch together, with the bits of one process: here they are threads, each with its own device.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay::training::TrainingOptions;
use forebay::{Model, ProcessGroup, Session, SessionOptions, Tensor, Trainer};
use forebay_device::Communicator;
use forebay_device_testing::local_communicator::{local_communicators, slow_communicators};
use forebay_golden::{Case, chaos, everything, host, recipe, trainer_options};
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder, Value as Attribute};

/// The results of a run: the losses of steps, the loss and the output of an evaluation, and all parameters and state.
type Outcome = (Vec<u32>, u32, Tensor, BTreeMap<String, Tensor>);

fn run(case: &Case, mut trainer: Trainer, steps: usize) -> Outcome {
    let losses = forebay_golden::steps(case, &mut trainer, 0..steps);
    let (batch, labels) = case.batch(0);
    let evaluation = trainer.evaluate(batch, labels).unwrap();
    (losses, evaluation.loss.to_bits(), evaluation.logits, everything(&trainer))
}

/// A trainer of one of several processes, each on another kind of device: an ordinary one, one with half of the memory, and one that
/// reorders commands that may run concurrently.
fn trainer(case: &Case, training: TrainingOptions, communicator: Arc<dyn Communicator>) -> Trainer {
    let rank = communicator.rank();
    let engine = host(1).processes(ProcessGroup::new(communicator));
    let limited = engine.clone().simulate_device("50%".parse().unwrap());
    let options = trainer_options(training, if rank % 3 == 1 { limited } else { engine });
    match rank % 3 {
        2 => Trainer::with_device(case.model(), options, chaos(1, rank as u64)).unwrap(),
        _ => Trainer::new(case.model(), options).unwrap(),
    }
}

/// Runs the same steps with this many processes.
fn run_together(case: &Case, training: &TrainingOptions, processes: usize, steps: usize) {
    run_connected(case, training, local_communicators(processes), steps);
}

/// Runs the same steps with processes that are connected by these communicators.
fn run_connected(case: &Case, training: &TrainingOptions, communicators: Vec<Arc<dyn Communicator>>, steps: usize) {
    let processes = communicators.len();
    let alone = Trainer::new(case.model(), trainer_options(training.clone(), host(2))).unwrap();
    let expected = run(case, alone, steps);
    let threads: Vec<_> = communicators
        .into_iter()
        .map(|communicator| {
            let (training, name) = (training.clone(), case.name);
            std::thread::spawn(move || {
                let case = Case::read(name);
                run(&case, trainer(&case, training, communicator), steps)
            })
        })
        .collect();
    for (rank, thread) in threads.into_iter().enumerate() {
        let found = thread.join().unwrap();
        assert_eq!(found.0, expected.0, "losses of process {rank} of {processes}");
        assert_eq!(found.1, expected.1, "evaluation of process {rank} of {processes}");
        assert!(found.2 == expected.2, "output of process {rank} of {processes}");
        for (name, value) in &expected.3 {
            assert!(found.3.get(name) == Some(value), "'{name}' of process {rank} of {processes}");
        }
    }
}

#[test]
fn any_number_of_processes_gives_the_bits_of_one() {
    for (name, processes, steps) in
        [("digits-cnn", 2, 3), ("digits-cnn", 3, 2), ("digits-cnn", 8, 2), ("tiny-gpt", 2, 2), ("tiny-gpt", 4, 2)]
    {
        let case = Case::read(name);
        run_together(&case, &recipe(&case), processes, steps);
    }
}

/// Of more than 16 processes, each checks the parts of a few instead of all.
#[test]
fn many_processes_give_the_bits_of_one() {
    let case = Case::read("digits-cnn");
    for processes in [17, 24, 32] {
        run_together(&case, &recipe(&case), processes, 1);
    }
}

#[test]
fn parts_of_a_batch_are_shared_out() {
    for (name, parts, processes) in [("digits-cnn", 2, 2), ("tiny-gpt", 2, 2), ("tiny-gpt", 4, 3)] {
        let case = Case::read(name);
        let mut training = recipe(&case);
        training.accumulate = parts;
        run_together(&case, &training, processes, 2);
    }
}

#[test]
fn messages_may_take_any_time() {
    for (name, processes, seed) in
        [("digits-cnn", 2, 1), ("digits-cnn", 3, 2), ("digits-cnn", 3, 3), ("tiny-gpt", 2, 4)]
    {
        let case = Case::read(name);
        run_connected(&case, &recipe(&case), slow_communicators(processes, seed), 2);
    }
}

#[test]
fn batch_normalization_crosses_processes() {
    let case = Case::read("resnet20");
    run_together(&case, &recipe(&case), 3, 2);
}

#[test]
fn nearly_all_launches_are_shared_out() {
    for (name, whole, exchanges) in [("digits-cnn", 4, 12), ("resnet20", 2, 70), ("tiny-gpt", 3, 45)] {
        let case = Case::read(name);
        let engine = host(1).processes(ProcessGroup::new(local_communicators(2).remove(0)));
        let trainer = Trainer::new(case.model(), trainer_options(recipe(&case), engine)).unwrap();
        let work = trainer.shared_work().unwrap();
        assert!(work.whole_launches.len() <= whole && work.exchanges <= exchanges, "{name}: {work:?}");
        assert!(work.shared_launches >= 5 * work.whole_launches.len(), "{name}: {work:?}");
    }
    // One volume has no images to share out: each process computes all of it.
    let case = Case::read("unet3d");
    let engine = host(1).processes(ProcessGroup::new(local_communicators(2).remove(0)));
    let trainer = Trainer::new(case.model(), trainer_options(recipe(&case), engine)).unwrap();
    assert_eq!(trainer.shared_work(), None);
}

/// Spoils the rows that a process does not read: those that only other processes read from their files.
fn spoil_others(session: &mut Session, mut inputs: BTreeMap<String, Tensor>) -> BTreeMap<String, Tensor> {
    session.prepare(&inputs).unwrap();
    for (name, tensor) in &mut inputs {
        let Some(own) = session.own_rows(name) else { continue };
        let row_bytes = tensor.bytes().len() / tensor.shape()[0] as usize;
        let byte = if tensor.data_type().is_float() { 0x7f } else { 0 };
        let mut bytes = vec![byte; tensor.bytes().len()];
        let places = own.start as usize * row_bytes..own.end as usize * row_bytes;
        bytes[places.clone()].copy_from_slice(&tensor.bytes()[places]);
        *tensor = Tensor::new(tensor.data_type(), tensor.shape(), bytes).unwrap();
    }
    inputs
}

/// Runs a model with one process and with several, some of them with this part of the memory; returns whether the last run was shared out.
fn run_session_together(model: &Model, runs: &[BTreeMap<String, Tensor>], processes: usize, part: &str) -> bool {
    let run = |mut session: Session| {
        let mut outputs = Vec::new();
        for inputs in runs {
            let inputs = spoil_others(&mut session, inputs.clone());
            outputs.push(session.run(inputs).unwrap());
        }
        (outputs, session.shared_work().is_some())
    };
    let mut options = SessionOptions::default();
    options.engine = host(2);
    let (expected, _) = run(Session::new(model, &options).unwrap());
    let found: Vec<_> = std::thread::scope(|scope| {
        let threads = local_communicators(processes).into_iter().map(|communicator| {
            scope.spawn(|| {
                let rank = communicator.rank();
                let mut options = SessionOptions::default();
                options.engine = host(1).processes(ProcessGroup::new(communicator));
                if rank % 3 == 1 {
                    options.engine = options.engine.simulate_device(part.parse().unwrap());
                }
                run(match rank % 3 {
                    2 => Session::with_device(model, &options, chaos(1, rank as u64)).unwrap(),
                    _ => Session::new(model, &options).unwrap(),
                })
            })
        });
        threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (rank, (outputs, _)) in found.iter().enumerate() {
        assert!(*outputs == expected, "outputs of process {rank} of {processes}");
    }
    found[0].1
}

#[test]
fn sessions_give_the_outputs_of_one_process() {
    for (name, processes) in [("digits-cnn", 2), ("digits-cnn", 3), ("resnet20", 4), ("tiny-gpt", 2), ("unet3d", 2)] {
        let case = Case::read(name);
        let is_shared = run_session_together(&case.model(), &[case.input()], processes, "60%");
        // One volume has no images to share out.
        assert_eq!(is_shared, name != "unet3d", "{name}");
    }
}

/// The contents of a batch decide the sizes of later stages; batches differ in size, and one has fewer samples than there are processes.
#[test]
fn stages_are_the_same_in_all_processes() {
    let weights: Vec<f32> = (0..32).map(|i| (i * 7 % 11) as f32 / 4.0 - 1.0).collect();
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["N", "4"])
        .floats("w", &[4, 8], &weights)
        .node("MatMul", &["x", "w"], &["product"])
        .node("Relu", &["product"], &["positive"])
        .node("NonZero", &["positive"], &["places"])
        .node_with("Cast", &["places"], &["numbers"], vec![("to", Attribute::Int(FLOAT))])
        .node("Neg", &["numbers"], &["negative"])
        .output("positive", FLOAT, &["N", "8"])
        .output("negative", FLOAT, &["2", "M"]);
    let model = Model::from_bytes(&graph.build()).unwrap();
    let batch = |size: u64| {
        let values: Vec<f32> = (0..size * 4).map(|i| (i * 13 % 17) as f32 / 8.0 - 1.0).collect();
        BTreeMap::from([("x".to_string(), Tensor::from_f32(&[size, 4], &values))])
    };
    for processes in [2, 3] {
        run_session_together(&model, &[batch(64), batch(7), batch(1), batch(64)], processes, "100%");
    }
}
