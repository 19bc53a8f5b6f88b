//! Transformers with sequences so long that one attention does not fit in the budget: it is computed in parts, with the same bits.

use std::collections::BTreeMap;

use forebay::training::{Loss, Optimizer, TrainingOptions};
use forebay::{MemorySize, Model, Tensor, Trainer};
use forebay_base::Command;
use forebay_golden::{Run, assert_same, host, onnx, trainer};
use forebay_testing::Random;

/// Batches, positions and features.
const SIZES: [usize; 3] = [2, 2048, 16];
const HEADS: usize = 2;

/// An attention and two more layers; both blocks have residual connections.
fn model() -> Model {
    let mut random = Random::new(3);
    let [_, _, features] = SIZES;
    let heads: &[(&str, &[i64], bool)] = &[
        ("q_num_heads", &[HEADS as i64], false),
        ("kv_num_heads", &[HEADS as i64], false),
        ("is_causal", &[1], false),
    ];
    let nodes = [
        onnx::node("MatMul", &["x", "wq"], "q", &[]),
        onnx::node("MatMul", &["x", "wk"], "k", &[]),
        onnx::node("MatMul", &["x", "wv"], "v", &[]),
        onnx::node("Attention", &["q", "k", "v"], "attended", heads),
        onnx::node("Add", &["x", "attended"], "h", &[]),
        onnx::node("MatMul", &["h", "w1"], "inner", &[]),
        onnx::node("Relu", &["inner"], "active", &[]),
        onnx::node("MatMul", &["active", "w2"], "outer", &[]),
        onnx::node("Add", &["h", "outer"], "y", &[]),
    ];
    let weights: [(&str, [usize; 2]); 5] = [
        ("wq", [features, features]),
        ("wk", [features, features]),
        ("wv", [features, features]),
        ("w1", [features, 2 * features]),
        ("w2", [2 * features, features]),
    ];
    let mut initializer = |(name, sizes): (&str, [usize; 2])| {
        let values = random.values(sizes[0] * sizes[1]).into_iter().map(|value| value * 0.3).collect::<Vec<f64>>();
        onnx::floats(name, &sizes, &values)
    };
    let initializers = weights.map(&mut initializer);
    Model::from_bytes(&onnx::model(&nodes, &initializers, ("x", &SIZES), ("y", &SIZES))).unwrap()
}

fn trainer_within(budget_bytes: Option<u64>, threads: usize) -> Trainer {
    let mut options = host(threads);
    options.planning.check = true;
    options.memory.simulate_device = budget_bytes.map(MemorySize::Bytes);
    trainer(model(), TrainingOptions::new(Loss::MeanSquaredError, Optimizer::sgd(0.1)), options)
}

fn run(trainer: &mut Trainer) -> Run {
    let mut random = Random::new(5);
    let mut tensor = || {
        let values: Vec<f32> = random.values(SIZES.iter().product()).into_iter().map(|value| value as f32).collect();
        Tensor::from_f32(&SIZES.map(|size| size as u64), &values)
    };
    let steps = [(tensor(), tensor()), (tensor(), tensor())];
    let losses = steps.map(|(x, y)| trainer.step([("x".to_string(), x)].into(), y).unwrap().loss.to_bits()).to_vec();
    Run { losses, values: trainer.parameters().unwrap() }
}

/// Counts the launches of each attention kernel in a step.
fn launches(trainer: &Trainer) -> BTreeMap<&'static str, usize> {
    let mut found = BTreeMap::new();
    for command in &trainer.plan().commands {
        if let Command::Launch { launch, .. } = command {
            let name = launch.kernel.name();
            if name.starts_with("Attention") {
                *found.entry(name).or_insert(0) += 1;
            }
        }
    }
    found
}

#[test]
fn attention_is_cut_into_parts_of_the_same_bits() {
    let mut unlimited = trainer_within(None, 2);
    let (peak, minimum) = (unlimited.statistics().in_core_peak_bytes, unlimited.statistics().minimum_budget_bytes);
    assert_eq!(launches(&unlimited), BTreeMap::from([("Attention", 1), ("AttentionGradient", 1)]));
    let expected = run(&mut unlimited);
    // The operands of an attention for one head: queries and results, keys and values, and the logarithms of the row sums.
    let head_bytes = (SIZES[1] * (4 * SIZES[2] / HEADS + 2) * 4) as u64;
    assert!(minimum < head_bytes, "the minimum is {minimum} bytes, and a head has {head_bytes}");
    for budget in [peak / 2, (peak / 8).max(minimum), minimum] {
        for threads in [1, 2] {
            let mut limited = trainer_within(Some(budget), threads);
            let what = format!("within {budget} of {peak} bytes, {threads} threads, {:?}", launches(&limited));
            assert_same(&expected, &run(&mut limited), &what);
            assert!(limited.usage().heap_peak_bytes <= budget, "{what}");
            if budget == minimum {
                let parts = launches(&limited);
                let count = |name: &str| parts.get(name).copied().unwrap_or(0);
                // More than one launch per head and batch.
                assert!(count("Attention") > SIZES[0] * HEADS, "{parts:?}");
                assert!(count("AttentionQueryGradient") > SIZES[0] * HEADS, "{parts:?}");
                assert!(count("AttentionKeyGradient") > SIZES[0] * HEADS, "{parts:?}");
            }
        }
    }
}
