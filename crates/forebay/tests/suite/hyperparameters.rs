//! Hyperparameters and seeds are inputs of each step: a plan does not depend on their values.

use std::collections::BTreeMap;

use forebay::training::{Optimizer, ParameterGroup};
use forebay::{Error, MemorySize, Trainer, TrainerOptions};
use forebay_golden::{Case, everything, host, recipe, steps, trainer, with_learning_rate};

/// Returns the optimizer with all numbers changed that can change between steps.
fn changed(optimizer: &Optimizer) -> Optimizer {
    match optimizer.clone() {
        Optimizer::Sgd { learning_rate, momentum, nesterov, weight_decay } => Optimizer::Sgd {
            learning_rate: learning_rate * 0.5,
            momentum: momentum * 0.75,
            nesterov,
            weight_decay: weight_decay * 2.0 + 0.01,
        },
        Optimizer::Adam { learning_rate, beta1, beta2, epsilon, weight_decay, decoupled } => Optimizer::Adam {
            learning_rate: learning_rate * 0.5,
            beta1: beta1 * 0.75,
            beta2: beta2 * 0.875,
            epsilon: epsilon * 4.0,
            weight_decay: weight_decay * 2.0 + 0.01,
            decoupled,
        },
        other => panic!("{other:?} is new: say what may change of it"),
    }
}

#[test]
fn other_numbers_between_steps_keep_the_plan() {
    for (name, budget) in [("digits-cnn", None), ("digits-cnn", Some(60.0)), ("tiny-gpt", Some(60.0))] {
        let case = Case::read(name);
        let mut engine = host(2);
        engine.memory.simulate_device = budget.map(MemorySize::Percent);
        let first = recipe(&case);
        let mut second = first.clone();
        second.optimizer = changed(&first.optimizer);
        let mut scheduled = trainer(case.model(), first, engine.clone());
        let plan = scheduled.plan().clone();
        steps(&case, &mut scheduled, 0..2);
        let checkpoint = scheduled.checkpoint(&serde_json::json!(null)).unwrap();
        // Measured durations may have replaced the first plan.
        let current = scheduled.plan().clone();
        scheduled.set_optimizer(second.optimizer.clone()).unwrap();
        assert!(*scheduled.plan() == current, "{name}: the plan is the same");
        let losses = steps(&case, &mut scheduled, 2..4);

        let mut begun_again = trainer(case.model(), second, engine);
        assert!(*begun_again.plan() == plan, "{name}: no plan depends on hyperparameters");
        begun_again.restore(&checkpoint).unwrap();
        assert_eq!(steps(&case, &mut begun_again, 2..4), losses, "{name}");
        assert!(everything(&begun_again) == everything(&scheduled), "{name}");

        let mut constant = trainer(case.model(), recipe(&case), host(2));
        steps(&case, &mut constant, 0..4);
        assert!(everything(&constant) != everything(&scheduled), "{name}: the numbers have an effect");
    }
}

/// A group whose optimizer has the numbers of the first one is no change. With others, only its parameters change.
#[test]
fn groups_have_numbers_of_their_own() {
    for name in ["digits-cnn", "tiny-gpt"] {
        let case = Case::read(name);
        let plain = recipe(&case);
        let first = trainer(case.model(), plain.clone(), host(1)).parameters().unwrap();
        let pattern = first.keys().next().unwrap().clone();
        let grouped = |optimizer: &Optimizer, updates_before| {
            let mut training = plain.clone();
            let mut group = ParameterGroup::new(pattern.clone());
            (group.optimizer, group.updates_before) = (Some(optimizer.clone()), updates_before);
            training.groups.push(group);
            training
        };
        let after = |training| {
            let mut trained = trainer(case.model(), training, host(1));
            steps(&case, &mut trained, 0..1);
            trained.parameters().unwrap()
        };
        let (same, other) = (grouped(&plain.optimizer, 0), grouped(&changed(&plain.optimizer), 0));
        let expected = after(plain.clone());
        assert!(after(same.clone()) == expected, "{name}");
        let found = after(other);
        let differing: Vec<&String> = found.keys().filter(|&key| found[key] != expected[key]).collect();
        assert_eq!(differing, [&pattern], "{name}");

        // The numbers change between steps.
        let mut trained = trainer(case.model(), same, host(1));
        trained.set_group_optimizer(0, changed(&plain.optimizer)).unwrap();
        steps(&case, &mut trained, 0..1);
        assert!(trained.parameters().unwrap() == found, "{name}");
        let error = trained.set_group_optimizer(1, plain.optimizer.clone()).unwrap_err().to_string();
        assert!(error.contains("there is no parameter group 1: there are 1 groups"), "{error}");
        let error = trained.set_group_optimizer(0, Optimizer::lion(0.1)).unwrap_err().to_string();
        assert!(error.contains("needs different state"), "{error}");
        let refused = Trainer::new(case.model(), TrainerOptions::new(grouped(&Optimizer::lion(0.1), 0)));
        let error = refused.err().unwrap().to_string();
        assert!(error.contains("which needs other state than"), "{error}");
    }
}

/// A parameter that begins to train with the third update is as one of a trainer that begins then.
#[test]
fn groups_begin_to_train_later() {
    let case = Case::read("digits-cnn");
    let first = trainer(case.model(), recipe(&case), host(1)).parameters().unwrap();
    let pattern = first.keys().next().unwrap().clone();
    for optimizer in [Optimizer::adam(0.01), Optimizer::ams_grad(0.01), Optimizer::adamw_8_bit(0.01)] {
        let run = |updates_before: u64| {
            let mut training = recipe(&case);
            training.optimizer = optimizer.clone();
            let mut group = ParameterGroup::new(pattern.clone());
            group.updates_before = updates_before;
            training.groups.push(group);
            let mut trained = trainer(case.model(), training, host(1));
            trained.set_values(BTreeMap::new(), Some(updates_before)).unwrap();
            steps(&case, &mut trained, 0..1);
            trained.parameters().unwrap()
        };
        let (now, later) = (run(0), run(2));
        assert!(now[&pattern] == later[&pattern], "{optimizer:?}");
        assert!(now != later, "{optimizer:?}: other parameters have made three updates");
    }
}

#[test]
fn steps_can_raise_the_loss() {
    let case = Case::read("digits-cnn");
    let [lower, raise] = [false, true].map(|maximize| {
        let mut training = with_learning_rate(&case, 0.01);
        training.maximize = maximize;
        steps(&case, &mut trainer(case.model(), training, host(1)), 0..2)
    });
    assert_eq!(lower[0], raise[0]);
    assert!(lower[1] < raise[1], "{lower:?} {raise:?}");
}

#[test]
fn plans_do_not_depend_on_the_seed() {
    let case = Case::read("digits-cnn");
    let [one, other] = [1, 2].map(|seed| {
        let mut training = recipe(&case);
        training.seed = seed;
        trainer(case.model(), training, host(1)).plan().clone()
    });
    assert!(one == other);
}

#[test]
fn an_optimizer_with_other_state_is_refused() {
    let case = Case::read("digits-cnn");
    let mut plain = trainer(case.model(), with_learning_rate(&case, 0.1), host(1));
    let sgd = |momentum| Optimizer::Sgd { learning_rate: 0.1, momentum, nesterov: false, weight_decay: 0.0 };
    for refused in [sgd(0.9), Optimizer::adam(0.1)] {
        let error = plain.set_optimizer(refused).unwrap_err();
        assert!(matches!(&error, Error::Option { reason } if reason.contains("different state")), "{error}");
    }
    plain.set_optimizer(sgd(0.0)).unwrap();
    steps(&case, &mut plain, 0..1);
}
