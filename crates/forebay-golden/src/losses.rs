//! Losses compared with those of PyTorch and MONAI: values, and gradients with respect to the prediction (`testdata/training/losses.json`).

use std::collections::BTreeMap;

use forebay::training::{Ctc, Loss, Optimizer, Region, Shares, TrainingOptions};
use forebay::{EngineOptions, Model, Tensor};
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder};
use serde_json::Value;

/// A case of the table.
pub struct LossCase {
    /// The name of the case.
    pub name: String,
    row: Value,
}

/// Returns all cases.
pub fn cases() -> Vec<LossCase> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/training/losses.json");
    let table: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let case = |row: &Value| LossCase { name: row["name"].as_str().unwrap().to_string(), row: row.clone() };
    table["cases"].as_array().unwrap().iter().map(case).collect()
}

fn region(change: impl FnOnce(&mut Region)) -> Region {
    let mut region = Region::default();
    change(&mut region);
    region
}

fn sequences(change: impl FnOnce(&mut Ctc)) -> Ctc {
    let mut options = Ctc::new(4);
    change(&mut options);
    options
}

fn targets(region: &mut Region) {
    (region.shares, region.has_targets) = (Shares::Sigmoid, true);
}

/// Returns the loss of a case, as in the script that made the table.
fn loss(name: &str) -> Loss {
    let weights = || vec![1.0, 2.0, 0.5];
    let entropy = |class_weights, label_smoothing, ignore_index| Loss::WeightedCrossEntropy {
        class_axis: None,
        ignore_index,
        class_weights,
        label_smoothing,
    };
    let soft = |class_axis, class_weights, label_smoothing| Loss::SoftCrossEntropy {
        class_axis,
        class_weights,
        label_smoothing,
    };
    let focal =
        |gamma, class_weights, ignore_index| Loss::Focal { class_axis: None, ignore_index, class_weights, gamma };
    let binary = |positive_weights| Loss::BinaryCrossEntropy { class_axis: None, positive_weights };
    let divergence =
        |class_axis, log_targets, elementwise_mean| Loss::KlDivergence { class_axis, log_targets, elementwise_mean };
    let with_entropy = |region, dice_weight, cross_entropy_weight| Loss::DiceCrossEntropy {
        region,
        dice_weight,
        cross_entropy_weight,
    };
    match name {
        "cross_entropy_smoothing" => entropy(vec![], 0.1, None),
        "cross_entropy_weights" => entropy(weights(), 0.0, None),
        "cross_entropy_ignored" => entropy(vec![], 0.1, Some(-100)),
        "cross_entropy_all" => entropy(weights(), 0.2, Some(1)),
        "cross_entropy_weights_ignored" => entropy(weights(), 0.0, Some(255)),
        "cross_entropy_last_axis" => Loss::WeightedCrossEntropy {
            class_axis: Some(-1),
            ignore_index: None,
            class_weights: weights(),
            label_smoothing: 0.1,
        },
        "focal_2" => focal(2.0, vec![], None),
        "focal_weighted" => focal(1.5, weights(), Some(-1)),
        "focal_0" => focal(0.0, weights(), None),
        "soft_plain" => soft(None, vec![], 0.0),
        "soft_smoothing" => soft(None, vec![], 0.1),
        "soft_all" => soft(None, weights(), 0.2),
        "soft_last_axis" => soft(Some(-1), weights(), 0.0),
        "binary_focal_usual" => Loss::BinaryFocal { alpha: Some(0.25), gamma: 2.0 },
        "binary_focal_no_alpha" => Loss::BinaryFocal { alpha: None, gamma: 1.5 },
        "binary_focal_gamma_0" => Loss::BinaryFocal { alpha: Some(0.75), gamma: 0.0 },
        "l1" => Loss::MeanAbsoluteError,
        "huber" => Loss::Huber { delta: 1.0 },
        "huber_delta" => Loss::Huber { delta: 0.3 },
        "smooth_l1" => Loss::SmoothL1 { beta: 1.0 },
        "smooth_l1_beta" => Loss::SmoothL1 { beta: 2.5 },
        "smooth_l1_0" => Loss::SmoothL1 { beta: 0.0 },
        "bce" | "bce_soft" => binary(vec![]),
        "bce_one_weight" => binary(vec![3.0]),
        "bce_weights" => binary(weights()),
        "kl" => divergence(None, false, false),
        "kl_mean" => divergence(None, false, true),
        "kl_log_targets" => divergence(None, true, false),
        "kl_logits" => divergence(Some(1), false, false),
        "cosine" => Loss::CosineEmbedding { axis: None, margin: 0.0, other_output: None },
        "cosine_pairs" => Loss::CosineEmbedding { axis: None, margin: 0.2, other_output: Some("other".to_string()) },
        "dice" => Loss::Dice(Region::default()),
        "dice_3d" => Loss::Dice(region(|region| region.include_background = false)),
        "dice_sigmoid" => Loss::Dice(region(|region| region.shares = Shares::Sigmoid)),
        "dice_batch" => Loss::Dice(region(|region| region.batch = true)),
        "dice_squared" => Loss::Dice(region(|region| {
            (region.squared, region.smooth_numerator, region.smooth_denominator) = (true, 0.5, 0.25);
        })),
        "dice_weights" => Loss::Dice(region(|region| region.class_weights = weights())),
        "dice_weights_foreground" => Loss::Dice(region(|region| {
            (region.include_background, region.class_weights) = (false, weights());
        })),
        "dice_ce" => with_entropy(Region::default(), 1.0, 1.0),
        "dice_ce_3d" => with_entropy(region(|region| region.include_background = false), 0.5, 2.0),
        "dice_ce_weights" => with_entropy(region(|region| region.class_weights = weights()), 1.0, 1.0),
        "dice_targets" | "dice_one_channel" => Loss::Dice(region(targets)),
        "dice_ce_one_channel" => with_entropy(region(targets), 1.0, 1.0),
        "dice_given" => Loss::Dice(region(|region| (region.shares, region.has_targets) = (Shares::Given, true))),
        "tversky" => Loss::Tversky { region: Region::default(), alpha: 0.3, beta: 0.7 },
        "tversky_3d" => {
            Loss::Tversky { region: region(|region| region.include_background = false), alpha: 0.5, beta: 0.5 }
        }
        "tversky_batch" => Loss::Tversky {
            region: region(|region| (region.batch, region.shares) = (true, Shares::Sigmoid)),
            alpha: 0.8,
            beta: 0.1,
        },
        "tversky_targets" => Loss::Tversky { region: region(targets), alpha: 0.2, beta: 0.8 },
        "ctc" | "ctc_peaked" => Loss::Ctc(Ctc::new(4)),
        "ctc_lengths" => Loss::Ctc(sequences(|ctc| ctc.lengths = Some("lengths".to_string()))),
        "ctc_impossible" => Loss::Ctc(sequences(|ctc| ctc.zero_infinity = true)),
        "ctc_blank_last_time_first" => Loss::Ctc(sequences(|ctc| (ctc.blank, ctc.time_first) = (5, true))),
        other => panic!("no loss for case '{other}' of the table; add it here"),
    }
}

impl LossCase {
    fn numbers(&self, key: &str) -> Vec<f32> {
        self.row[key].as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
    }

    fn sizes(&self, key: &str) -> Vec<u64> {
        self.row[key].as_array().unwrap().iter().map(|size| size.as_u64().unwrap()).collect()
    }

    /// Returns a model whose prediction is a parameter to which the case's numbers are added.
    fn model(&self) -> Model {
        let shape = self.sizes("shape");
        let names: Vec<String> = shape.iter().map(u64::to_string).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let sizes: Vec<usize> = shape.iter().map(|&size| size as usize).collect();
        let zeros = vec![0.0; sizes.iter().product()];
        let mut graph = GraphBuilder::new()
            .input("x", FLOAT, &names)
            .floats("w", &sizes, &zeros)
            .node("Add", &["x", "w"], &["prediction"])
            .output("prediction", FLOAT, &names);
        if !self.row["other"].is_null() {
            graph = graph
                .floats("z", &sizes, &self.numbers("other"))
                .node("Identity", &["z"], &["other"])
                .output("other", FLOAT, &names);
        }
        Model::from_bytes(&graph.build()).unwrap()
    }

    fn labels(&self) -> Tensor {
        let shape = self.sizes("labels_shape");
        if self.row["has_targets"] == Value::Bool(true) {
            return Tensor::from_f32(&shape, &self.numbers("labels"));
        }
        let labels: Vec<i64> = self.row["labels"].as_array().unwrap().iter().map(|one| one.as_i64().unwrap()).collect();
        Tensor::from_i64(&shape, &labels)
    }

    /// Trains for one step of size 1 on this engine, so that the parameter becomes minus the gradient, and compares with the table.
    ///
    /// # Panics
    /// If the loss or its gradient differs.
    pub fn check(&self, engine: EngineOptions) {
        let mut options = TrainingOptions::new(loss(&self.name), Optimizer::sgd(1.0));
        options.loss_output = Some("prediction".to_string());
        let mut trainer = crate::trainer(self.model(), options, engine);
        let x = Tensor::from_f32(&self.sizes("shape"), &self.numbers("prediction"));
        let mut batch = BTreeMap::from([("x".to_string(), x)]);
        if let Some(lengths) = self.row.get("lengths").and_then(Value::as_array) {
            let lengths: Vec<i64> = lengths.iter().map(|length| length.as_i64().unwrap()).collect();
            batch.insert("lengths".to_string(), Tensor::from_i64(&[lengths.len() as u64], &lengths));
        }
        let evaluated = trainer.evaluate(batch.clone(), self.labels()).unwrap().loss;
        let found = trainer.step(batch, self.labels()).unwrap().loss;
        let expected = self.row["loss"].as_f64().unwrap() as f32;
        let is_near = |found: f32, expected: f32, scale: f32| (found - expected).abs() <= 2e-6 * scale.max(0.1);
        assert!(is_near(found, expected, expected.abs()), "{}: loss {found}, not {expected}", self.name);
        assert_eq!(found.to_bits(), evaluated.to_bits(), "{}: the loss of a step and of an evaluation", self.name);
        let moved = trainer.parameter("w").unwrap().unwrap().to_f32().unwrap();
        let expected = self.numbers("gradient");
        let largest = expected.iter().fold(0f32, |largest, d| largest.max(d.abs()));
        assert!(largest > 0.0 && moved.len() == expected.len(), "{}", self.name);
        for (i, (moved, expected)) in moved.iter().zip(expected).enumerate() {
            assert!(is_near(-moved, expected, largest), "{}: gradient[{i}] is {}, not {expected}", self.name, -moved);
        }
    }
}
