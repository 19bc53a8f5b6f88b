//! Schedules compared with `torch.optim.lr_scheduler` of PyTorch 2.15: the rates of twelve steps of an optimizer with `lr=0.1`, with
//! `scheduler.step()` after each.

use super::*;

/// The schedule, the expression that creates it in PyTorch, and PyTorch's rates.
fn cases() -> Vec<(Schedule, &'static str, [f32; 12])> {
    let schedule = Schedule::new;
    let step = || Curve::Step { every: 3, gamma: 0.5 };
    vec![
        (
            schedule(step()),
            "StepLR(o, 3, 0.5)",
            [0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025, 0.025, 0.0125, 0.0125, 0.0125],
        ),
        (
            schedule(Curve::MultiStep { milestones: vec![2, 5, 9], gamma: 0.1 }),
            "MultiStepLR(o, [2, 5, 9], 0.1)",
            [0.1, 0.1, 0.01, 0.01, 0.01, 0.001, 0.001, 0.001, 0.001, 1e-4, 1e-4, 1e-4],
        ),
        (
            schedule(Curve::Exponential { gamma: 0.9 }),
            "ExponentialLR(o, 0.9)",
            [
                0.1,
                0.09,
                0.081,
                0.0729,
                0.06561,
                0.059049,
                0.0531441,
                0.04782969,
                0.04304672,
                0.03874205,
                0.034867845,
                0.03138106,
            ],
        ),
        (
            schedule(Curve::Polynomial { steps: 10, power: 2.0, min_rate: 0.0 }),
            "PolynomialLR(o, 10, 2.0)",
            [0.1, 0.081, 0.064, 0.049, 0.036, 0.025, 0.016, 0.009, 0.004, 0.001, 0.0, 0.0],
        ),
        (
            schedule(Curve::Cosine { steps: 11, min_rate: 1e-3 }),
            "CosineAnnealingLR(o, 11, 1e-3)",
            [
                0.1,
                0.0979949,
                0.09214205,
                0.082915604,
                0.07106304,
                0.057544585,
                0.043455414,
                0.029936956,
                0.018084394,
                0.008857951,
                0.0030050979,
                0.001,
            ],
        ),
        (
            schedule(Curve::CosineRestarts { first_steps: 3, factor: 2, min_rate: 1e-3 }),
            "CosineAnnealingWarmRestarts(o, 3, 2, 1e-3)",
            [
                0.1,
                0.07525,
                0.02575,
                0.1,
                0.093368255,
                0.07525,
                0.0505,
                0.02575,
                0.0076317424,
                0.1,
                0.09831333,
                0.093368255,
            ],
        ),
        (
            schedule(Curve::OneCycle { steps: 12, rising: 0.3, start_divisor: 25.0, end_divisor: 1e4 }),
            "OneCycleLR(o, 0.1, total_steps=12)",
            [
                0.004,
                0.034978967,
                0.08792852,
                0.09944154,
                0.093301296,
                0.08117457,
                0.0647379,
                0.04626371,
                0.0283061,
                0.013347753,
                0.0034566987,
                0.0000004,
            ],
        ),
        (
            schedule(Curve::OneCycle { steps: 12, rising: 0.45, start_divisor: 10.0, end_divisor: 100.0 }),
            "OneCycleLR(o, 0.1, total_steps=12, pct_start=0.45, div_factor=10, final_div_factor=100)",
            [
                0.01,
                0.02099127,
                0.04859583,
                0.079328835,
                0.09817719,
                0.09797668,
                0.08620051,
                0.06638704,
                0.042941373,
                0.021076158,
                0.0056526694,
                0.0001,
            ],
        ),
        (
            schedule(Curve::OneCycle { steps: 12, rising: 0.05, start_divisor: 25.0, end_divisor: 1e4 }),
            "OneCycleLR(o, 0.1, total_steps=12, pct_start=0.05)",
            [
                0.09969653,
                0.09632472,
                0.089457068,
                0.079611844,
                0.06753201,
                0.05412915,
                0.040414707,
                0.027423622,
                0.016136257,
                0.0074044,
                0.0018869924,
                0.0000004,
            ],
        ),
        (
            schedule(Curve::Cosine { steps: 8, min_rate: 0.0 }).warmup(4, 0.25),
            "SequentialLR(o, [LinearLR(o, 0.25, 1.0, 4), CosineAnnealingLR(o, 8)], [4])",
            [
                0.025,
                0.04375,
                0.0625,
                0.08125,
                0.1,
                0.09619398,
                0.08535534,
                0.06913417,
                0.05,
                0.030865828,
                0.014644661,
                0.0038060234,
            ],
        ),
        (
            schedule(step()).warmup(4, 0.25),
            "SequentialLR(o, [LinearLR(o, 0.25, 1.0, 4), StepLR(o, 3, 0.5)], [4])",
            [0.025, 0.04375, 0.0625, 0.08125, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025],
        ),
    ]
}

#[test]
fn rates_are_those_of_pytorch() {
    for (schedule, expression, expected) in cases() {
        schedule.check().unwrap();
        for (step, expected) in (1..).zip(expected) {
            let rate = schedule.rate(0.1, step);
            assert!((rate - expected).abs() <= 1e-6 * expected + 1e-9, "{expression}: step {step}: {rate}, {expected}");
        }
    }
}

/// `ReduceLROnPlateau(o, factor=0.5, patience=1, threshold=0.01, cooldown=1, min_lr=0.02)`, with the rates after `scheduler.step(loss)` for
/// each loss.
#[test]
fn a_plateau_reduces_as_pytorch_does() {
    let plateau = Plateau { factor: 0.5, patience: 1, threshold: 0.01, cooldown: 1, min_rate: 0.02 };
    let schedule = Schedule::new(Curve::Plateau(plateau.clone()));
    let losses = [1.0, 0.9, 0.895, 0.894, 0.8, 0.81, 0.82, 0.83, 0.84, 0.85, 0.86, 0.87, f32::NAN, 0.5, 0.6, 0.7, 0.8];
    let expected =
        [0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025, 0.025, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02];
    let mut state = PlateauState::default();
    for (loss, expected) in losses.into_iter().zip(expected) {
        state.observe(&plateau, loss);
        assert_eq!(schedule.rate_after(0.1, 1, state.reductions), expected, "after {loss}: {state:?}");
    }
    let text = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<PlateauState>(&text).unwrap(), state);
}

/// The same for rates that PyTorch leaves as they are: a change of at most its `eps` of 1e-8, and a rate below `min_lr`.
#[test]
fn a_plateau_leaves_small_rates_alone() {
    let after = |base: f32, min_rate: f32| {
        let schedule = Schedule::new(Curve::Plateau(Plateau { min_rate, ..Plateau::default() }));
        [0, 1, 2, 3, 1000].map(|reductions| schedule.rate_after(base, 1, reductions))
    };
    assert_eq!(after(1e-6, 0.0), [1e-6, 1e-7, 1e-8, 1e-8, 1e-8]);
    assert_eq!(after(1e-3, 1e-2), [1e-3; 5]);
    assert_eq!(after(1e-1, 2e-2), [1e-1, 2e-2, 2e-2, 2e-2, 2e-2]);
}

#[test]
fn curves_end_where_they_end() {
    for curve in [
        Curve::Cosine { steps: 5, min_rate: 0.01 },
        Curve::Polynomial { steps: 5, power: 1.0, min_rate: 0.01 },
        Curve::OneCycle { steps: 5, rising: 0.3, start_divisor: 10.0, end_divisor: 1.0 },
        Curve::OneCycle { steps: 1, rising: 1.0, start_divisor: 10.0, end_divisor: 1.0 },
    ] {
        for step in [6, 7, 1000, u64::MAX] {
            assert_eq!(Schedule::new(curve.clone()).rate(0.1, step), 0.01, "{curve:?}");
        }
    }
    let cycle = Schedule::new(Curve::CosineRestarts { first_steps: 4, factor: 1, min_rate: 0.0 });
    assert_eq!(cycle.rate(0.1, 4 * (1 << 60) + 1), 0.1);
}

#[test]
fn tables_are_read_and_refused() {
    let table = Schedule::new(Curve::table_from_csv("step, rate\r\n2,0.5\r\n\r\n 4 , 1e-3\r\n").unwrap());
    assert_eq!([1, 2, 3, 4, 5].map(|step| table.rate(9.0, step)), [0.5, 0.5, 0.5, 1e-3, 1e-3]);
    for (text, word) in [
        ("", "at least one row"),
        ("step,rate\n", "at least one row"),
        ("1,0.1\nx,2\n", "line 2 is 'x,2'"),
        ("1\n", "line 1"),
        ("5,0.1\n5,0.2\n", "5 follows 5"),
        ("1,-1\n", "step 1 on must be a finite"),
        ("1,nan\n", "not NaN"),
    ] {
        let error = Curve::table_from_csv(text).unwrap_err();
        assert!(error.contains(word), "{text:?}: {error}");
    }
}

#[test]
fn numbers_without_a_meaning_are_refused() {
    let plateau = Plateau { factor: 2.0, ..Plateau::default() };
    for curve in [
        Curve::Step { every: 0, gamma: 0.5 },
        Curve::Step { every: 1, gamma: f32::NAN },
        Curve::MultiStep { milestones: vec![], gamma: 0.5 },
        Curve::Exponential { gamma: -1.0 },
        Curve::Polynomial { steps: 0, power: 1.0, min_rate: 0.0 },
        Curve::Cosine { steps: 3, min_rate: -1.0 },
        Curve::CosineRestarts { first_steps: 3, factor: 0, min_rate: 0.0 },
        Curve::OneCycle { steps: 3, rising: 1.5, start_divisor: 25.0, end_divisor: 1.0 },
        Curve::OneCycle { steps: 3, rising: 0.5, start_divisor: 0.0, end_divisor: 1.0 },
        Curve::Plateau(plateau),
        Curve::Table(vec![(3, 0.1), (2, 0.1)]),
    ] {
        assert!(Schedule::new(curve.clone()).check().is_err(), "{curve:?}");
    }
    assert!(Schedule::new(Curve::Constant).warmup(3, 1.5).check().is_err());
    for (first_steps, factor, words) in [(3, 0, "the factor of cycles must be at least 1"), (0, 2, "at least one step")]
    {
        let curve = Curve::CosineRestarts { first_steps, factor, min_rate: 0.0 };
        let error = Schedule::new(curve).check().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
