//! Both kernels against a reference in float64, and the gradient against differences of it.

use forebay_base::DataType::{Bool, Float32};
use forebay_base::Kernel;
use forebay_base::kernel::AttentionOptions;

use super::super::testing::{Random, Tensor, assert_close, desc, differences, dot, refusal, run};
use super::Sizes;
use super::backward::are_passes_separate;

/// Computes y and the logarithms directly from the definition.
fn reference(
    sizes: &Sizes,
    options: AttentionOptions,
    [q, k, v]: [&[f64]; 3],
    mask: &dyn Fn(usize, usize, usize, usize) -> f64,
) -> [Vec<f64>; 2] {
    let (mut result, mut logarithms) = (Vec::new(), Vec::new());
    for b in 0..sizes.batch {
        for h in 0..sizes.heads {
            let group = b * sizes.groups + h / (sizes.heads / sizes.groups);
            for i in 0..sizes.rows {
                let q = &q[((b * sizes.heads + h) * sizes.rows + i) * sizes.size..][..sizes.size];
                let score = |j: usize| {
                    let product = dot(q, &k[(group * sizes.keys + j) * sizes.size..][..sizes.size]);
                    let scaled = f64::from(options.scale) * product;
                    let cap = f64::from(options.softcap);
                    let capped = if cap == 0.0 { scaled } else { cap * (scaled / cap).tanh() };
                    let is_seen = options.causal.is_none_or(|more| j <= i + more as usize);
                    if is_seen { capped + mask(b, h, i, j) } else { f64::NEG_INFINITY }
                };
                let exponentials: Vec<f64> = (0..sizes.keys).map(|j| score(j).exp()).collect();
                let sum: f64 = exponentials.iter().sum();
                logarithms.push(sum.ln());
                let v = |j: usize, e: usize| v[(group * sizes.keys + j) * sizes.v_size + e];
                result.extend(
                    (0..sizes.v_size).map(|e| (0..sizes.keys).map(|j| exponentials[j] / sum * v(j, e)).sum::<f64>()),
                );
            }
        }
    }
    [result, logarithms]
}

/// Checks a launch with random operands and a mask of this type, if any, which is broadcast along the axes whose size is 1.
fn check(sizes: Sizes, options: AttentionOptions, mask: Option<(forebay_base::DataType, [usize; 3])>, seed: u64) {
    let mut random = Random::new(seed);
    let of = |heads: usize, rows: usize, size: usize| [sizes.batch, heads, rows, size].map(|size| size as u64);
    let (q_sizes, k_sizes) = (of(sizes.heads, sizes.rows, sizes.size), of(sizes.groups, sizes.keys, sizes.size));
    let (v_sizes, y_sizes) = (of(sizes.groups, sizes.keys, sizes.v_size), of(sizes.heads, sizes.rows, sizes.v_size));
    let mut tensor = |sizes: &[u64]| {
        let count = sizes.iter().product::<u64>() as usize;
        Tensor::new(&desc(Float32, sizes), &random.values(count))
    };
    let (q, k, v, dy) = (tensor(&q_sizes), tensor(&k_sizes), tensor(&v_sizes), tensor(&y_sizes));
    let mask_tensor = mask.map(|(data_type, first)| {
        let own = [first[0], first[1], first[2], sizes.keys].map(|size| size as u64);
        let count = own.iter().product::<u64>() as usize;
        let values: Vec<f64> = match data_type {
            // The first key is always seen.
            Bool => (0..count).map(|i| f64::from(i % sizes.keys == 0 || random.below(3) > 0)).collect(),
            _ => random.values(count),
        };
        Tensor::new(&desc(data_type, &own), &values)
    });
    let mask_values = mask_tensor.as_ref().map(Tensor::values);
    let mask_of = |b: usize, h: usize, i: usize, j: usize| {
        let (Some(values), Some((data_type, own))) = (&mask_values, mask) else { return 0.0 };
        let at = |index: usize, axis: usize| if own[axis] == 1 { 0 } else { index };
        let value = values[((at(b, 0) * own[1] + at(h, 1)) * own[2] + at(i, 2)) * sizes.keys + j];
        match data_type {
            Bool => {
                if value == 0.0 {
                    f64::NEG_INFINITY
                } else {
                    0.0
                }
            }
            _ => value,
        }
    };
    let mut reads = vec![&q, &k, &v];
    reads.extend(&mask_tensor);
    let logarithms_desc = desc(Float32, &[&y_sizes[..3], &[2]].concat());
    let outputs = run(&Kernel::Attention(options), &reads, &[desc(Float32, &y_sizes), logarithms_desc]);
    let name = format!("{options:?}");
    let values = [q.values(), k.values(), v.values()];
    let [expected, logarithms] = reference(&sizes, options, [&values[0], &values[1], &values[2]], &mask_of);
    assert_close(&outputs[0].values(), &expected, 1e-5, &name);
    let logarithms: Vec<f64> = logarithms.iter().flat_map(|&logarithm| [logarithm, 0.0]).collect();
    assert_close(&outputs[1].values(), &logarithms, 1e-5, &name);
    let mut reads = vec![&dy, &q, &k, &v, &outputs[0], &outputs[1]];
    reads.extend(&mask_tensor);
    let gradients = [&q_sizes, &k_sizes, &v_sizes].map(|sizes| desc(Float32, sizes));
    let gradients = run(&Kernel::AttentionGradient(options), &reads, &gradients);
    if values.iter().map(Vec::len).sum::<usize>() > 2000 {
        // The definition is too slow for differences of every element: q, k and v are each checked along one direction.
        for (i, gradient) in gradients.iter().enumerate() {
            let direction = random.values(values[i].len());
            let loss = |step: &[f64]| {
                let mut moved = values.clone();
                moved[i].iter_mut().zip(&direction).for_each(|(value, &d)| *value += step[0] * d);
                let [y, _] = reference(&sizes, options, [&moved[0], &moved[1], &moved[2]], &mask_of);
                dot(&y, &dy.values())
            };
            let expected = differences(&[0.0], loss);
            assert_close(&[dot(&gradient.values(), &direction)], &expected, 1e-3, &format!("{name} gradient {i}"));
        }
        return;
    }
    for (i, gradient) in gradients.iter().enumerate() {
        let loss = |x: &[f64]| {
            let mut moved = values.clone();
            moved[i] = x.to_vec();
            let [y, _] = reference(&sizes, options, [&moved[0], &moved[1], &moved[2]], &mask_of);
            dot(&y, &dy.values())
        };
        assert_close(&gradient.values(), &differences(&values[i], loss), 1e-4, &format!("{name} gradient {i}"));
    }
}

const OPTIONS: AttentionOptions = AttentionOptions { scale: 0.4, softcap: 0.0, causal: None };

#[test]
fn attention_and_its_gradient_are_the_definition() {
    let sizes = Sizes { batch: 2, heads: 2, groups: 2, rows: 5, keys: 7, size: 3, v_size: 4 };
    check(sizes, OPTIONS, None, 1);
    check(sizes, AttentionOptions { causal: Some(2), ..OPTIONS }, None, 2);
    check(sizes, AttentionOptions { causal: Some(0), softcap: 1.5, ..OPTIONS }, None, 3);
    check(sizes, OPTIONS, Some((Float32, [2, 2, 5])), 4);
    check(sizes, AttentionOptions { softcap: 0.7, ..OPTIONS }, Some((Float32, [1, 2, 1])), 5);
    check(sizes, OPTIONS, Some((Bool, [2, 1, 5])), 6);
    check(Sizes { heads: 6, ..sizes }, AttentionOptions { causal: Some(1), ..OPTIONS }, Some((Bool, [1, 1, 1])), 7);
    check(Sizes { rows: 1, batch: 1, ..sizes }, AttentionOptions { causal: Some(6), ..OPTIONS }, None, 8);
    check(Sizes { keys: 1, size: 1, v_size: 1, ..sizes }, OPTIONS, None, 9);
}

/// Several blocks of rows and keys, of which the last are shorter.
#[test]
fn blocks_go_on_from_each_other() {
    let sizes = Sizes { batch: 1, heads: 2, groups: 1, rows: 150, keys: 530, size: 8, v_size: 6 };
    check(sizes, OPTIONS, Some((Float32, [1, 1, 150])), 10);
    check(sizes, AttentionOptions { causal: Some(300), ..OPTIONS }, None, 11);
    check(sizes, AttentionOptions { causal: Some(0), softcap: 2.0, ..OPTIONS }, None, 12);
}

/// That both ways have the same bits is tested above: every kernel runs with 1, 2 and 3 threads.
#[test]
fn threads_without_a_group_of_heads_get_blocks_of_rows_or_keys() {
    let sizes = Sizes { batch: 1, heads: 2, groups: 1, rows: 150, keys: 530, size: 8, v_size: 6 };
    assert!(!are_passes_separate(&sizes, 1) && are_passes_separate(&sizes, 2));
    let many = Sizes { batch: 2, heads: 4, groups: 2, ..sizes };
    assert!(!are_passes_separate(&many, 7) && are_passes_separate(&many, 8));
    // A single block of keys, or a single block of rows of one head, is not divided.
    assert!(!are_passes_separate(&Sizes { keys: 256, ..sizes }, 8));
    assert!(!are_passes_separate(&Sizes { heads: 1, rows: 64, ..sizes }, 8));
}

/// Scores that grow from block to block, beyond the range of an exponential.
#[test]
fn large_scores_do_not_overflow() {
    let keys: Vec<f64> = (0..600).map(|key| f64::from(key) / 2.0).collect();
    let (q, k) =
        (Tensor::new(&desc(Float32, &[1, 1, 1, 1]), &[2.0]), Tensor::new(&desc(Float32, &[1, 1, 600, 1]), &keys));
    let options = AttentionOptions { scale: 1.0, ..OPTIONS };
    let writes = [desc(Float32, &[1, 1, 1, 1]), desc(Float32, &[1, 1, 1, 2])];
    let outputs = run(&Kernel::Attention(options), &[&q, &k, &k], &writes);
    let exponentials: Vec<f64> = keys.iter().map(|key| (2.0 * (key - 299.5)).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    assert_close(&outputs[0].values(), &[dot(&exponentials, &keys) / sum], 1e-6, "y");
    assert_close(&outputs[1].values(), &[599.0 + sum.ln(), 0.0], 1e-6, "logarithm");
}

#[test]
fn a_row_that_sees_nothing_is_zero_and_has_no_gradient() {
    let q = Tensor::new(&desc(Float32, &[1, 1, 2, 1]), &[1.0, 2.0]);
    let mask = Tensor::new(&desc(Bool, &[1, 1, 2, 2]), &[0.0, 0.0, 1.0, 0.0]);
    let writes = [desc(Float32, &[1, 1, 2, 1]), desc(Float32, &[1, 1, 2, 2])];
    let outputs = run(&Kernel::Attention(OPTIONS), &[&q, &q, &q, &mask], &writes);
    assert_eq!((outputs[0].values(), outputs[1].values()[0]), (vec![0.0, 1.0], 0.0));
    let gradient = Kernel::AttentionGradient(OPTIONS);
    let dy = Tensor::new(&desc(Float32, &[1, 1, 2, 1]), &[3.0, 5.0]);
    let reads = [&dy, &q, &q, &q, &outputs[0], &outputs[1], &mask];
    let of_q = desc(Float32, &[1, 1, 2, 1]);
    let gradients = run(&gradient, &reads, &[of_q.clone(), of_q.clone(), of_q]);
    assert_eq!(gradients[2].values(), [5.0, 0.0], "only what the second row sees has a gradient");
    assert!(gradients.iter().all(|gradient| gradient.values().iter().all(|value| value.is_finite())));
}

/// Large negative numbers in a mask absorb the scores: a row that sees nothing else weights all of its largest scores equally.
#[test]
fn the_gradient_of_a_row_under_large_negative_masks_has_its_probabilities() {
    for large in [f64::from(f32::MIN), -1e9, -20000.0] {
        let q = Tensor::new(&desc(Float32, &[1, 1, 1, 1]), &[1.0]);
        let k = Tensor::new(&desc(Float32, &[1, 1, 4, 1]), &[1e-5; 4]);
        let v = Tensor::new(&desc(Float32, &[1, 1, 4, 1]), &[1.0, 2.0, 3.0, 4.0]);
        let mask = Tensor::new(&desc(Float32, &[1, 1, 1, 4]), &[large, large, large, f64::NEG_INFINITY]);
        let writes = [desc(Float32, &[1, 1, 1, 1]), desc(Float32, &[1, 1, 1, 2])];
        let outputs = run(&Kernel::Attention(OPTIONS), &[&q, &k, &v, &mask], &writes);
        assert_close(&outputs[0].values(), &[2.0], 1e-5, "y");
        let dy = Tensor::new(&desc(Float32, &[1, 1, 1, 1]), &[3.0]);
        let reads = [&dy, &q, &k, &v, &outputs[0], &outputs[1], &mask];
        let of_keys = desc(Float32, &[1, 1, 4, 1]);
        let gradients =
            run(&Kernel::AttentionGradient(OPTIONS), &reads, &[writes[0].clone(), of_keys.clone(), of_keys]);
        assert_close(&gradients[1].values(), &[-0.4, 0.0, 0.4, 0.0], 1e-5, &format!("dk under {large}"));
        assert_close(&gradients[2].values(), &[1.0, 1.0, 1.0, 0.0], 1e-5, &format!("dv under {large}"));
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let of = |sizes: &[u64]| Tensor::unwritten(&desc(Float32, sizes));
    let (q, k, other) = (of(&[1, 3, 4, 2]), of(&[1, 2, 5, 2]), of(&[1, 1, 5, 2]));
    let writes = [desc(Float32, &[1, 3, 4, 2]), desc(Float32, &[1, 3, 4, 2])];
    let kernel = Kernel::Attention(OPTIONS);
    assert!(refusal(&kernel, &[&q, &k, &k], &writes).contains("do not match"), "heads do not divide");
    assert!(refusal(&kernel, &[&q, &other, &k], &writes).contains("do not match"));
    assert!(refusal(&kernel, &[&q, &other, &other, &of(&[1, 1, 4, 4])], &writes).contains("mask"));
    assert!(
        refusal(&kernel, &[&q, &other, &other], &[desc(Float32, &[1, 3, 4, 3]), desc(Float32, &[1, 3, 4, 2])])
            .contains("sizes")
    );
    let large = of(&[1, 1, 1, 257]);
    let writes = [desc(Float32, &[1, 1, 1, 257]), desc(Float32, &[1, 1, 1, 2])];
    assert!(refusal(&kernel, &[&large, &large, &large], &writes).contains("256"));
}
