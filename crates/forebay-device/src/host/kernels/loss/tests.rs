//! Losses against naive models in double precision.

use forebay_base::{DataType, Kernel, TensorDesc};

use super::super::testing::{Random, Tensor, assert_close, desc, differences, run, strided};

/// Computes the mean loss over the positions that count.
fn naive(logits: &[f64], labels: &[f64], (outer, classes, inner): (usize, usize, usize), ignore: Option<i64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for o in 0..outer {
        for i in 0..inner {
            let label = labels[o * inner + i];
            if ignore == Some(label as i64) {
                continue;
            }
            let logit = |class: usize| logits[(o * classes + class) * inner + i];
            sum += (0..classes).map(|class| logit(class).exp()).sum::<f64>().ln() - logit(label as usize);
            count += 1.0;
        }
    }
    sum / count
}

#[test]
fn cross_entropy_and_gradient_along_any_axis() {
    let shapes: [(&[u64], usize); 7] = [
        (&[4, 5], 1),
        (&[6], 0),
        (&[3, 4, 7], 1),
        (&[2, 3, 5], 2),
        (&[2, 3, 2, 5], 0),
        (&[700, 3], 1),
        (&[2, 3, 40, 31], 1),
    ];
    let mut random = Random::new(2);
    for (sizes, axis) in shapes {
        for ignore_index in [None, Some(-100), Some(1)] {
            for (data_type, tolerance) in [(DataType::Float32, 3e-7), (DataType::Float64, 1e-12)] {
                let (outer, inner): (u64, u64) = (sizes[..axis].iter().product(), sizes[axis + 1..].iter().product());
                let (classes, positions) = (sizes[axis], outer * inner);
                let shape = desc(data_type, sizes);
                let count = shape.element_count() as usize;
                let logits = Tensor::new(&shape, &random.values(count).iter().map(|x| x * 3.0).collect::<Vec<_>>());
                let labels: Vec<f64> = (0..positions)
                    .map(|i| if i == 2 && ignore_index == Some(-100) { -100.0 } else { random.below(classes) as f64 })
                    .collect();
                let label_type = if axis == 1 { DataType::Int64 } else { DataType::Int32 };
                let label_tensor = Tensor::new(&desc(label_type, &[positions]), &labels);
                let what = format!("{shape} class axis {axis}, ignoring {ignore_index:?}");
                let split = (outer as usize, classes as usize, inner as usize);
                let expected = naive(&logits.values(), &labels, split, ignore_index);
                let scalar = desc(data_type, &[1]);
                let kernel = Kernel::SoftmaxCrossEntropy { axis, ignore_index };
                let loss = run(&kernel, &[&logits, &label_tensor], std::slice::from_ref(&scalar));
                assert_close(&loss[0].values(), &[expected], tolerance, &what);
                let dloss = Tensor::new(&scalar, &[1.5]);
                let kernel = Kernel::SoftmaxCrossEntropyGradient { axis, ignore_index };
                let dlogits = run(&kernel, &[&dloss, &logits, &label_tensor], std::slice::from_ref(&shape));
                if count < 200 && expected.is_finite() {
                    let expected = differences(&logits.values(), |x| 1.5 * naive(x, &labels, split, ignore_index));
                    assert_close(&dlogits[0].values(), &expected, 1e-6, &what);
                }
                if expected.is_finite() {
                    let total: f64 = dlogits[0].values().iter().sum();
                    assert!(total.abs() < 1e-5, "{what}: the gradients of a softmax add up to 0, not {total}");
                }
            }
        }
    }
}

/// Logits and their gradient can each be stored row by row, with all classes of a row together, whatever the other one is.
#[test]
fn the_gradient_of_logits_can_have_another_layout() {
    let (sizes, classes, row) = ([2, 3, 5, 16], 3, 16);
    let packed = desc(DataType::Float32, &sizes);
    let by_rows = strided(DataType::Float32, &sizes, &[5 * classes * row, row, classes * row, 1]);
    let mut random = Random::new(4);
    let logits = Tensor::new(&packed, &random.values(2 * 3 * 5 * 16));
    let labels: Vec<f64> = (0..2 * 5 * 16).map(|_| random.below(classes) as f64).collect();
    let labels = Tensor::new(&desc(DataType::Int64, &[2, 5, 16]), &labels);
    let dloss = Tensor::new(&desc(DataType::Float32, &[1]), &[1.5]);
    let moved = run(&Kernel::Copy, &[&logits], std::slice::from_ref(&by_rows)).remove(0);
    let kernel = Kernel::SoftmaxCrossEntropyGradient { axis: 1, ignore_index: None };
    let gradient = |logits: &Tensor, to: &TensorDesc| {
        run(&kernel, &[&dloss, logits, &labels], std::slice::from_ref(to)).remove(0).values()
    };
    let expected = gradient(&logits, &packed);
    for (logits, to) in [(&logits, &by_rows), (&moved, &packed), (&moved, &by_rows)] {
        assert_eq!(gradient(logits, to), expected, "{} to {to}", logits.desc);
    }
}

#[test]
fn labels_that_do_not_count_and_labels_that_are_no_class() {
    let scalar = desc(DataType::Float32, &[1]);
    for (sizes, axis) in [([2, 3, 1], 1), ([1, 3, 2], 1)] {
        let shape = desc(DataType::Float32, &sizes);
        let logits = Tensor::new(&shape, &[1.0, 2.0, 3.0, 4.0, 5.0, 7.0]);
        let dloss = Tensor::new(&scalar, &[1.0]);
        let apply = |labels: [f64; 2], ignore_index| {
            let labels = Tensor::new(&desc(DataType::Int64, &[2]), &labels);
            let loss = run(
                &Kernel::SoftmaxCrossEntropy { axis, ignore_index },
                &[&logits, &labels],
                std::slice::from_ref(&scalar),
            );
            let kernel = Kernel::SoftmaxCrossEntropyGradient { axis, ignore_index };
            let gradient = run(&kernel, &[&dloss, &logits, &labels], std::slice::from_ref(&shape));
            (loss[0].values()[0], gradient[0].values())
        };
        let (loss, gradient) = apply([2.0, 2.0], Some(2));
        assert!(loss.is_nan() && gradient.iter().all(|&x| x == 0.0), "all ignored");
        let (loss, gradient) = apply([0.0, 3.0], None);
        assert!(loss.is_nan() && gradient.iter().filter(|x| x.is_nan()).count() == 3, "no class");
    }
}

#[test]
fn mean_squared_error_and_gradient() {
    let mut random = Random::new(3);
    for sizes in [&[5][..], &[3, 7, 1000]] {
        let shape = desc(DataType::Float32, sizes);
        let count = shape.element_count() as usize;
        let prediction = Tensor::new(&shape, &random.values(count));
        let target = Tensor::new(&shape, &random.values(count));
        let differences: Vec<f64> = prediction.values().iter().zip(target.values()).map(|(p, t)| p - t).collect();
        let scalar = desc(DataType::Float32, &[1]);
        let loss = run(&Kernel::MeanSquaredError, &[&prediction, &target], std::slice::from_ref(&scalar));
        let expected = differences.iter().map(|d| d * d).sum::<f64>() / count as f64;
        assert_close(&loss[0].values(), &[expected], 1e-7, "loss");
        let dloss = Tensor::new(&scalar, &[0.5]);
        let gradient = run(&Kernel::MeanSquaredErrorGradient, &[&dloss, &prediction, &target], &[shape]);
        let expected: Vec<f64> = differences.iter().map(|d| d / count as f64).collect();
        assert_close(&gradient[0].values(), &expected, 1e-7, "gradient");
    }
}
