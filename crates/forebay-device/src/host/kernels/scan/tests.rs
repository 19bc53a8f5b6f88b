//! Scans compared with loops in float64.

use forebay_base::kernel::ScanOp;
use forebay_base::{DataType, Kernel};

use super::super::testing::{Random, Tensor, assert_close, desc, refusal, run};

/// One row according to the definition.
fn scanned(op: ScanOp, exclusive: bool, x: &[f64], factors: &[f64]) -> Vec<f64> {
    let term = |t: usize| -> f64 {
        let end = if exclusive { t } else { t + 1 };
        match op {
            ScanOp::Sum => x[..end].iter().sum(),
            ScanOp::Product => x[..end].iter().product(),
            ScanOp::Recurrence => (0..end)
                .map(|from| x[from] * factors[if exclusive { from + 1..t } else { from..t }].iter().product::<f64>())
                .sum(),
        }
    };
    (0..x.len()).map(term).collect()
}

#[test]
fn scans_go_both_ways_along_any_axis() {
    for seed in 0..120 {
        let mut random = Random::new(seed);
        let op = [ScanOp::Sum, ScanOp::Product, ScanOp::Recurrence][seed as usize % 3];
        let [outer, size, inner] = [1 + random.below(3), 1 + random.below(12), 1 + random.below(150)];
        let [exclusive, reverse] = [0, 1].map(|_| random.below(2) == 0);
        let types = [DataType::Float32, DataType::Float64, DataType::Int32, DataType::UInt64];
        let data_type = types[random.below(4) as usize];
        let mut operand = || {
            let whole = |random: &mut Random| random.below(3) as f64;
            let count = (outer * size * inner) as usize;
            let values: Vec<f64> = match data_type.is_float() {
                true => random.values(count),
                false => (0..count).map(|_| whole(&mut random)).collect(),
            };
            Tensor::new(&desc(data_type, &[outer, size, inner]), &values)
        };
        let (x, factors) = (operand(), operand());
        let kernel = Kernel::Scan { axis: 1, op, exclusive, reverse };
        let reads: &[&Tensor] = if op == ScanOp::Recurrence { &[&x, &factors] } else { &[&x] };
        let y = run(&kernel, reads, std::slice::from_ref(&x.desc));
        let (values, factors) = (x.values(), factors.values());
        let mut expected = vec![0.0; values.len()];
        for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
            let at = |step: u64| ((o * size + if reverse { size - 1 - step } else { step }) * inner + i) as usize;
            let row = |of: &[f64]| (0..size).map(|step| of[at(step)]).collect::<Vec<f64>>();
            for (step, value) in (0..).zip(scanned(op, exclusive, &row(&values), &row(&factors))) {
                expected[at(step)] = value;
            }
        }
        assert_close(&y[0].values(), &expected, 1e-5, &format!("seed {seed}: {kernel} of {}", x.desc));
    }
}

#[test]
fn a_recurrence_without_factors_is_an_error() {
    let x = Tensor::new(&desc(DataType::Float32, &[3]), &[1.0; 3]);
    let kernel = Kernel::Scan { axis: 0, op: ScanOp::Recurrence, exclusive: false, reverse: false };
    assert!(refusal(&kernel, &[&x], std::slice::from_ref(&x.desc)).contains("1 operands do not result in"));
}
