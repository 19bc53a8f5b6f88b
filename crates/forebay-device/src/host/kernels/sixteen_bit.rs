//! Products and convolutions of 16-bit numbers: their arithmetic is that of float32. Operands are widened block by block, and results are
//! rounded once.

use forebay_base::kernel::facts::ElementTypes;
use forebay_base::{DataType, Kernel, TensorDesc};

/// Refuses types that cannot be multiplied. All operands must have one type, except that the results of some kernels may stay float32.
///
/// # Errors
/// Returns an error that names the operand that does not fit.
pub(super) fn check_types<'a>(
    kernel: &Kernel,
    reads: impl Iterator<Item = &'a TensorDesc> + Clone,
    write: &TensorDesc,
) -> Result<(), String> {
    let Some(first) = reads.clone().next() else { return Err("it has no factors".to_string()) };
    let data_type = first.data_type();
    if data_type.computed_in() != DataType::Float32 {
        let reason = "sums of products support only float32 and the 16-bit floating-point types";
        return Err(format!("{reason}, not {data_type}"));
    }
    let stays_wide = kernel.facts().types == ElementTypes::WideningProducts;
    let is_read = |desc: &TensorDesc| desc.data_type() == data_type;
    let is_written = |desc: &TensorDesc| is_read(desc) || stays_wide && desc.data_type() == DataType::Float32;
    // The existing columns of a result are read in the type in which it is written.
    let continued = kernel.facts().continues;
    let misfit = reads.enumerate().find(|&(number, desc)| match continued == Some(number) {
        true => !is_written(desc),
        false => !is_read(desc),
    });
    match misfit.map(|(_, desc)| desc).or((!is_written(write)).then_some(write)) {
        Some(desc) => Err(format!("{desc} is not {data_type}, unlike {first}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::kernel::{Activation, ProductPart};

    use super::super::testing::{
        Random, Tensor, assert_bits_of_conversions, assert_close, desc, refusal, run, strided,
    };
    use super::*;

    const PRODUCT: Kernel = Kernel::MatMul {
        transpose_a: false,
        transpose_b: true,
        alpha: -0.75,
        beta: 0.5,
        activation: Activation::Relu,
        part: ProductPart::Whole,
    };

    /// Half a unit in the last place, relative to a number.
    fn rounding(data_type: DataType) -> f64 {
        if data_type == DataType::Float16 { 1.0 / 2048.0 } else { 1.0 / 256.0 }
    }

    #[test]
    fn products_are_rounded_once() {
        for seed in 0..30 {
            let mut random = Random::new(seed);
            let data_type = [DataType::Float16, DataType::BFloat16][seed as usize % 2];
            let [m, n, k] = [40, 40, 300].map(|limit| 1 + random.below(limit));
            let [a, b] = [[2, m, k], [1, n, k]].map(|sizes| {
                Tensor::new(&desc(data_type, &sizes), &random.values(sizes.iter().product::<u64>() as usize))
            });
            // A summand that is the same in every row; if k is small, the result may replace it.
            let c = strided(data_type, &[2, m, n], &[0, 0, 1]);
            let c = if seed % 3 == 0 { desc(data_type, &[2, m, n]) } else { c };
            let c = Tensor::new(&c, &random.values((c.total_size_bytes() / 2) as usize));
            let (av, bv, cv) = (a.values(), b.values(), c.values());
            let y = run(&PRODUCT, &[&a, &b, &c], &[desc(data_type, &[2, m, n])]).remove(0).values();
            for (i, (value, summand)) in y.into_iter().zip(cv).enumerate() {
                let (row, column) = (i / n as usize * k as usize, i % n as usize * k as usize);
                let terms = || (0..k as usize).map(|term| av[row + term] * bv[column + term]);
                let expected = (0.5 * summand - 0.75 * terms().sum::<f64>()).max(0.0);
                let magnitude = summand.abs() + terms().map(f64::abs).sum::<f64>();
                let error_max = rounding(data_type) * expected + 2e-6 * magnitude;
                assert!((value - expected).abs() <= error_max, "seed {seed}, {i}: {value}, expected {expected}");
            }
        }
    }

    /// For any transposition, summand and part; with 16-bit and float32 results.
    #[test]
    fn products_have_the_bits_of_conversions_around_products_in_float32() {
        for seed in 0..60 {
            let mut random = Random::new(100 + seed);
            let data_type = [DataType::Float16, DataType::BFloat16][seed as usize % 2];
            let [transpose_a, transpose_b, has_summand] = [1, 2, 4].map(|bit| seed & bit != 0);
            let rows_max = if seed % 5 == 0 { 5 } else { 150 };
            let [m, n, k] = [rows_max, 300, 700].map(|limit| 1 + random.below(limit));
            let mut tensor = |sizes: [u64; 2], is_transposed: bool| {
                let sizes = if is_transposed { [sizes[1], sizes[0]] } else { sizes };
                Tensor::new(&desc(data_type, &sizes), &random.values((sizes[0] * sizes[1]) as usize))
            };
            let mut reads = vec![tensor([m, k], transpose_a), tensor([k, n], transpose_b)];
            reads.extend(has_summand.then(|| tensor([m, n], false)));
            let kernel = Kernel::MatMul {
                transpose_a,
                transpose_b,
                alpha: 0.75,
                beta: 1.5,
                activation: if seed % 3 == 0 { Activation::Relu } else { Activation::None },
                part: ProductPart::Whole,
            };
            for result in [data_type, DataType::Float32] {
                assert_bits_of_conversions(&kernel, &reads, &[desc(result, &[m, n])]);
            }
        }
    }

    #[test]
    fn sums_are_wider_than_what_is_written() {
        // 2048 and 1: in float16, every second addition would be lost.
        let a = Tensor::new(&desc(DataType::Float16, &[1, 2049]), &[vec![2048.0], vec![1.0; 2048]].concat());
        let b = Tensor::new(&desc(DataType::Float16, &[1, 2049]), &[1.0; 2049]);
        let kernel = Kernel::product(false, true);
        let y = run(&kernel, &[&a, &b], &[desc(DataType::Float16, &[1, 1])]);
        assert_close(&y[0].values(), &[4096.0], 0.0, "a long sum");
    }

    #[test]
    fn operands_of_several_types_are_refused() {
        let tensor = |data_type| Tensor::new(&desc(data_type, &[2, 2]), &[1.0; 4]);
        let (half, brain, single) = (tensor(DataType::Float16), tensor(DataType::BFloat16), tensor(DataType::Float32));
        for (reads, write) in [([&half, &brain], &half), ([&half, &single], &half), ([&half, &half], &brain)] {
            let reason = refusal(&PRODUCT, &reads, std::slice::from_ref(&write.desc));
            assert!(reason.contains("float16") || reason.contains("bfloat16"), "{reason}");
        }
    }
}
