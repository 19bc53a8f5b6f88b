//! Hyperparameters and seeds are inputs of each step: a plan does not depend on their values.

use forebay::training::Optimizer;
use forebay::{Error, MemorySize};
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
