//! Training that is interrupted and resumed matches uninterrupted training bit for bit, even within another budget.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay::training::Optimizer;
use forebay::{Checkpoint, CheckpointFolder, Error, MemorySize, OnNan, Tensor, Trainer};
use forebay_golden::{Case, everything, host, recipe, steps, trainer_on, trainer_options};
use serde_json::{Value, json};

fn directory(test: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("forebay-resume-{test}-{}", std::process::id()));
    // Leftovers of an earlier run with the same process id do not matter.
    let _ = std::fs::remove_dir_all(&path);
    path
}

fn trainer_within(case: &Case, budget: Option<MemorySize>) -> Trainer {
    let mut options = host(2);
    options.memory.simulate_device = budget;
    trainer_on(case.model(), recipe(case), options, None)
}

#[test]
fn a_resumed_run_is_the_same_run_within_another_budget() {
    for name in ["digits-cnn", "tiny-gpt"] {
        let case = Case::read(name);
        let directory = directory(name);
        let mut whole = trainer_within(&case, None);
        let mut losses = steps(&case, &mut whole, 0..2);
        whole.save_checkpoint(&directory, &json!({ "step": 2 })).unwrap();
        losses = [losses, steps(&case, &mut whole, 2..4)].concat();

        let mut resumed = trainer_within(&case, Some(MemorySize::Percent(60.0)));
        let checkpoint = Checkpoint::read(&directory).unwrap();
        assert_eq!(checkpoint.position, json!({ "step": 2 }));
        resumed.restore(&checkpoint).unwrap();
        assert_eq!(resumed.step_count(), 2);
        assert_eq!(steps(&case, &mut resumed, 2..4), losses[2..], "{name}");
        assert!(everything(&resumed) == everything(&whole), "{name}");
        std::fs::remove_dir_all(directory).unwrap();
    }
}

#[test]
fn a_checkpoint_of_another_model_is_refused_with_its_file() {
    let directory = directory("mismatch");
    let digits = Case::read("digits-cnn");
    trainer_within(&digits, None).save_checkpoint(&directory, &json!(null)).unwrap();
    let resnet = Case::read("resnet20");
    let mut trainer = trainer_within(&resnet, None);
    let before = everything(&trainer);
    let error = trainer.restore(&Checkpoint::read(&directory).unwrap()).unwrap_err();
    assert!(matches!(error, Error::Checkpoint { .. }), "{error}");
    assert!(error.to_string().contains("checkpoint.json"), "{error}");
    assert!(everything(&trainer) == before, "the trainer is as before");
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn another_batch_size_and_evaluation_do_not_disturb_training() {
    let case = Case::read("digits-cnn");
    let model = || forebay::Model::from_file(case.path("model_dynamic.onnx")).unwrap();
    let trainer = |budget| {
        let mut options = trainer_options(recipe(&case), host(2));
        (options.engine.memory.simulate_device, options.batch_size) = (budget, Some(50));
        Trainer::new(model(), options).unwrap()
    };
    let mut plain = trainer(None);
    let mut disturbed = trainer(Some(MemorySize::Percent(75.0)));
    for step in 0..3 {
        let (batch, labels) = case.batch(step);
        let (part, part_labels) = (first_rows(&batch["x"], 7), first_rows(&labels, 7));
        let part = BTreeMap::from([("x".to_string(), part)]);
        let expected = plain.step(batch.clone(), labels.clone()).unwrap().loss.to_bits();
        assert_eq!(disturbed.step(batch.clone(), labels.clone()).unwrap().loss.to_bits(), expected, "step {step}");
        let evaluation = disturbed.evaluate(batch, labels).unwrap();
        assert!(evaluation.loss.is_finite());
        assert_eq!(evaluation.logits.shape(), [50, 10]);
        // A smaller batch counts as a step as well, so both runs compute it.
        let expected = plain.step(part.clone(), part_labels.clone()).unwrap().loss.to_bits();
        assert_eq!(disturbed.step(part, part_labels).unwrap().loss.to_bits(), expected, "part of step {step}");
    }
    assert!(everything(&plain) == everything(&disturbed));
    let budget = disturbed.statistics().device_budget_bytes.unwrap();
    assert!(disturbed.usage().heap_peak_bytes <= budget);
}

fn first_rows(tensor: &Tensor, rows: u64) -> Tensor {
    let row_bytes = tensor.bytes().len() / tensor.shape()[0] as usize;
    let mut shape = tensor.shape().to_vec();
    shape[0] = rows;
    Tensor::new(tensor.data_type(), &shape, &tensor.bytes()[..row_bytes * rows as usize]).unwrap()
}

#[test]
fn a_new_beginning_after_skipped_steps_has_none_of_them() {
    let case = Case::read("digits-cnn");
    let trainer = |skipped: usize| {
        let mut training = recipe(&case);
        training.optimizer = Optimizer::adam(0.01);
        let mut options = trainer_options(training, host(2));
        options.on_nan = OnNan::Skip;
        let mut trainer = Trainer::new(case.model(), options).unwrap();
        let (mut batch, labels) = case.batch(0);
        let x = &batch["x"];
        let nan = Tensor::from_f32(x.shape(), &vec![f32::NAN; x.count() as usize]);
        batch.insert("x".to_string(), nan);
        for _ in 0..skipped {
            assert!(trainer.step(batch.clone(), labels.clone()).unwrap().skipped);
        }
        trainer
    };
    let (mut fresh, mut restored, mut set) = (trainer(0), trainer(2), trainer(1));
    // A checkpoint that does not say how many steps were skipped.
    let tensors = restored.checkpoint(&Value::Null).unwrap().tensors().unwrap();
    restored.restore(&Checkpoint::new(tensors)).unwrap();
    set.set_values(BTreeMap::new(), Some(0)).unwrap();
    steps(&case, &mut fresh, 0..1);
    for mut trainer in [restored, set] {
        assert_eq!((trainer.step_count(), trainer.skipped_count()), (0, 0));
        steps(&case, &mut trainer, 0..1);
        assert_eq!(trainer.step_count(), 1);
        assert!(everything(&trainer) == everything(&fresh));
    }
}

#[test]
fn an_exported_checkpoint_is_the_saved_model() {
    for name in ["digits-cnn", "resnet20", "tiny-gpt"] {
        let case = Case::read(name);
        let directory = directory("export");
        std::fs::create_dir_all(&directory).unwrap();
        let mut trainer = trainer_within(&case, None);
        steps(&case, &mut trainer, 0..1);
        let (saved, exported) = (directory.join("saved.onnx"), directory.join("exported.onnx"));
        trainer.save(&saved).unwrap();
        let checkpoint = trainer.checkpoint(&json!(null)).unwrap();
        checkpoint.export(&case.model(), &exported).unwrap();
        assert!(std::fs::read(&saved).unwrap() == std::fs::read(&exported).unwrap(), "{name}");
        std::fs::remove_dir_all(directory).unwrap();
    }
}

#[test]
fn a_checkpoint_that_does_not_fit_the_model_is_not_exported() {
    let case = Case::read("resnet20");
    let trainer = trainer_within(&case, None);
    let good = trainer.checkpoint(&json!(null)).unwrap();
    let path = directory("no-export");
    let refusal = |change: &dyn Fn(&mut BTreeMap<String, Tensor>)| {
        let mut tensors = good.tensors().unwrap();
        change(&mut tensors);
        let error = Checkpoint::new(tensors).export(&case.model(), &path).unwrap_err();
        assert!(matches!(error, Error::Checkpoint { .. }) && !path.exists(), "{error}");
        error.to_string()
    };
    let statistic = trainer.state().unwrap().into_keys().find(|name| name.contains("running_mean")).unwrap();
    let parameter = trainer.parameters().unwrap().into_keys().next().unwrap();
    let error = refusal(&|tensors| drop(tensors.remove(&statistic)));
    assert!(error.contains(&statistic) && error.contains("running statistics"), "{error}");
    let error = refusal(&|tensors| drop(tensors.insert(parameter.clone(), Tensor::from_f32(&[1], &[0.0]))));
    assert!(error.contains(&parameter) && error.contains("float32[1]"), "{error}");
    let error = refusal(&|tensors| drop(tensors.insert("stranger".into(), Tensor::from_f32(&[1], &[0.0]))));
    assert!(error.contains("'stranger'"), "{error}");
    let error = refusal(&|tensors| tensors.clear());
    assert!(error.contains("no tensor of the model"), "{error}");
}

#[test]
fn costs_that_were_given_survive_a_checkpoint_with_another_seed() {
    let case = Case::read("digits-cnn");
    let trainer = |seed, costs| {
        let mut options = trainer_options(recipe(&case), host(2));
        (options.training.seed, options.engine.planning.costs) = (seed, costs);
        Trainer::new(case.model(), options).unwrap()
    };
    let mut measured = trainer(7, None);
    forebay_golden::run(&case, &mut measured, 1);
    let (checkpoint, costs) = (measured.checkpoint(&Value::Null).unwrap(), measured.measured_costs());
    let mut given = trainer(0, Some(costs.clone()));
    assert_eq!(given.costs(), costs);
    given.restore(&checkpoint).unwrap();
    assert_eq!(given.costs(), costs, "a seed changes no duration");
}

#[test]
fn the_last_checkpoints_stay_whole() {
    let directory = directory("last");
    let folder = CheckpointFolder::lock(&directory).unwrap();
    assert!(folder.keep_last(2).is_err(), "there is none yet");
    let write = |step: u64| {
        let weight = Tensor::from_f32(&[2], &[step as f32, 1.0]);
        let mut checkpoint = Checkpoint::new([("w".to_string(), weight)].into());
        checkpoint.step = step;
        folder.write(&checkpoint).unwrap();
        folder.keep_last(2).unwrap();
        checkpoint
    };
    // Someone else's folder stays, and the order of writing counts, not that of the numbers.
    std::fs::create_dir(directory.join("step-notes")).unwrap();
    let written: Vec<Checkpoint> = [10, 5, 20].map(write).into();
    let steps = || {
        let names =
            std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("step-")).collect();
        names.sort();
        names
    };
    assert_eq!(steps(), ["step-00000005", "step-00000020", "step-notes"]);
    for checkpoint in &written[1..] {
        let kept = Checkpoint::read(directory.join(format!("step-{:08}", checkpoint.step))).unwrap();
        let weight = |checkpoint: &Checkpoint| checkpoint.tensors().unwrap()["w"].clone();
        assert_eq!((kept.step, weight(&kept)), (checkpoint.step, weight(checkpoint)));
    }
    assert_eq!(Checkpoint::read(&directory).unwrap().step, 20);
    write(20);
    assert_eq!(steps(), ["step-00000005", "step-00000020", "step-notes"], "the same step once more");
    drop(folder);
    std::fs::remove_dir_all(directory).unwrap();
}
