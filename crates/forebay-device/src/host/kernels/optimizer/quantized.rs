//! Kernels: Adam with 8-bit moments, block by block.

use forebay_base::DataType;
use forebay_base::kernel::quantization::{QUANTIZATION_BLOCK, QuantizationMap, SIGNED, UNSIGNED};

use super::super::View;
use super::super::parallel::{CHUNK, Pointer, for_chunks, require_packed, wide};
use super::AdamNumbers;

/// Elements of a block.
const BLOCK: usize = QUANTIZATION_BLOCK as usize;

// Tasks have whole blocks.
const _: () = assert!(CHUNK.is_multiple_of(BLOCK));

/// The operands of a moment that are read and written.
struct Moment {
    codes: [Pointer<u8>; 2],
    scales: [Pointer<f32>; 2],
    map: &'static QuantizationMap,
}

impl Moment {
    /// Creates a moment from the reads and writes that begin with its codes, followed by its scales.
    fn of(reads: &[View], writes: &[View], map: &'static QuantizationMap) -> Moment {
        Moment {
            codes: [Pointer::of(&reads[0]), Pointer::of(&writes[0])],
            scales: [Pointer::of(&reads[1]), Pointer::of(&writes[1])],
            map,
        }
    }

    /// Reads the numbers of a block.
    ///
    /// # Safety
    /// The block must lie in the operands, which are live, and no one may write it.
    #[inline(always)]
    unsafe fn read(&self, start: usize, numbers: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe {
            let scale = *self.scales[0].at((start / BLOCK) as isize);
            for (i, number) in numbers.iter_mut().enumerate() {
                *number = self.map.decode(*self.codes[0].at((start + i) as isize), scale);
            }
        }
    }

    /// Writes numbers as the codes and the scale of a block.
    ///
    /// # Safety
    /// The block must lie in the operands, which are live, and no one else may read or write it.
    #[inline(always)]
    unsafe fn write(&self, start: usize, numbers: &[f32]) {
        // NaN stays NaN.
        let larger = |scale: f32, number: &f32| {
            if number.abs() > scale || number.is_nan() { number.abs() } else { scale }
        };
        let scale = numbers.iter().fold(0.0, larger);
        // SAFETY: the caller's promise.
        unsafe {
            *self.scales[1].at((start / BLOCK) as isize) = scale;
            for (i, &number) in numbers.iter().enumerate() {
                *self.codes[1].at((start + i) as isize) = self.map.encode(number, scale);
            }
        }
    }
}

/// Checks that operands match the kernel's row.
fn check(reads: &[View], writes: &[View]) -> Result<(), String> {
    let count = reads[0].count();
    let scale = |at: usize| matches!(at, 3 | 5);
    let own = reads[..6].iter().enumerate();
    // A write is described like the read that it replaces.
    let own = own.chain(writes.iter().enumerate().map(|(at, view)| (if at == 0 { 0 } else { at + 1 }, view)));
    for (at, view) in own {
        require_packed(&[*view])?;
        let data_type = if matches!(at, 2 | 4) { DataType::UInt8 } else { DataType::Float32 };
        let size = if scale(at) { count.div_ceil(BLOCK) } else { count };
        if view.desc.data_type() != data_type || view.count() != size {
            return Err(format!("{} must be {size} elements of {data_type}, because {count} are updated", view.desc));
        }
    }
    Ok(())
}

/// Updates a parameter and its moments block by block. A block is read before any of it is written, so outputs can be the same bytes as
/// inputs.
///
/// # Safety
/// As [`super::super::run`].
pub(super) unsafe fn update(numbers: AdamNumbers<f32>, reads: &[View], writes: &[View]) -> Result<(), String> {
    if (reads.len(), writes.len()) != (8, 5) {
        return Err(format!("expected 8 reads and 5 writes, found {} and {}", reads.len(), writes.len()));
    }
    check(reads, writes)?;
    let (first, second) =
        (Moment::of(&reads[2..], &writes[1..], &SIGNED), Moment::of(&reads[4..], &writes[3..], &UNSIGNED));
    let (parameter, gradient, result) =
        (Pointer::<f32>::of(&reads[0]), Pointer::<f32>::of(&reads[1]), Pointer::<f32>::of(&writes[0]));
    for_chunks(reads[0].count(), CHUNK, |range| {
        wide(
            #[inline(always)]
            || {
                let [mut p, mut g, mut m, mut v] = [[0f32; BLOCK]; 4];
                for start in range.clone().step_by(BLOCK) {
                    let length = BLOCK.min(range.end - start);
                    let [p, g, m, v] = [&mut p[..length], &mut g[..length], &mut m[..length], &mut v[..length]];
                    // SAFETY: the block lies in the operands, and this task alone reads and writes it.
                    unsafe {
                        std::ptr::copy_nonoverlapping(parameter.at(start as isize), p.as_mut_ptr(), length);
                        std::ptr::copy_nonoverlapping(gradient.at(start as isize), g.as_mut_ptr(), length);
                        first.read(start, m);
                        second.read(start, v);
                    }
                    for (((p, &mut g), m), v) in p.iter_mut().zip(g).zip(&mut *m).zip(&mut *v) {
                        numbers.update(p, g, m, v);
                    }
                    // SAFETY: as above.
                    unsafe {
                        std::ptr::copy_nonoverlapping(p.as_ptr(), result.at(start as isize), length);
                        first.write(start, m);
                        second.write(start, v);
                    }
                }
            },
        );
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use forebay_base::kernel::AdamHyperparameters;
    use forebay_base::kernel::quantization::{SIGNED, UNSIGNED};
    use forebay_base::{DataType, Kernel};

    use super::super::super::testing::{Random, Tensor, assert_close, desc, run};
    use super::BLOCK;

    /// Moments as the map represents them, in float64: the codes and the scales of blocks.
    fn quantized(numbers: &[f64], map: &[f32; 256]) -> (Vec<f64>, Vec<f64>) {
        let scales: Vec<f64> = numbers
            .chunks(BLOCK)
            .map(|block| block.iter().fold(0f64, |scale, number| scale.max(number.abs())))
            .collect();
        let code = |(i, number): (usize, &f64)| {
            let scale = scales[i / BLOCK];
            let distance = |code: &usize| (f64::from(map[*code]) * scale - number).abs();
            (0..256).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap() as f64
        };
        (numbers.iter().enumerate().map(code).collect(), scales)
    }

    fn numbers(codes: &[f64], scales: &[f64], map: &[f32; 256]) -> Vec<f64> {
        codes.iter().enumerate().map(|(i, &code)| f64::from(map[code as usize]) * scales[i / BLOCK]).collect()
    }

    /// Several steps from zero, with blocks whose numbers have very different sizes, one block of zeros, and a partial block.
    #[test]
    fn adam_of_8_bits_follows_its_formula() {
        let mut random = Random::new(7);
        let count = 19 * BLOCK + 77;
        let (shape, codes, scales) = (
            desc(DataType::Float32, &[count as u64]),
            desc(DataType::UInt8, &[count as u64]),
            desc(DataType::Float32, &[20]),
        );
        let (rate, beta1, beta2, epsilon, weight_decay) = (3e-3f32, 0.9f32, 0.95f32, 1e-8f32, 0.1f32);
        for decoupled in [true, false] {
            let elements =
                AdamHyperparameters { learning_rate: rate, beta1, beta2, epsilon, weight_decay }.elements().to_vec();
            let given: Vec<f64> = elements.iter().copied().map(f64::from).collect();
            let given = Tensor::new(&desc(DataType::Float32, &[10]), &given);
            let mut state = vec![Tensor::new(&shape, &random.values(count))];
            for _ in 0..2 {
                state.push(Tensor::new(&codes, &vec![0.0; count]));
                state.push(Tensor::new(&scales, &[0.0; 20]));
            }
            let (mut ties, kernel) = (0, Kernel::Adam8Bit { decoupled, decays: decoupled });
            for step in 1..=6 {
                let size = |i: usize| if i / BLOCK == 3 { 0.0 } else { 10f64.powi((i / BLOCK) as i32 - 9) };
                let gradient: Vec<f64> =
                    random.values(count).iter().enumerate().map(|(i, g)| g.powi(3) * size(i)).collect();
                let gradient = Tensor::new(&shape, &gradient);
                let step_tensor = Tensor::new(&desc(DataType::Int64, &[2]), &[f64::from(step), 0.0]);
                let reads = [&state[0], &gradient, &state[1], &state[2], &state[3], &state[4], &step_tensor, &given];
                let after = run(
                    &kernel,
                    &reads,
                    &[shape.clone(), codes.clone(), scales.clone(), codes.clone(), scales.clone()],
                );
                let [rate, beta1, beta2, epsilon, decay] = [rate, beta1, beta2, epsilon, weight_decay].map(f64::from);
                let (p, g) = (state[0].values(), gradient.values());
                let old = |at: usize, map| numbers(&state[at].values(), &state[at + 1].values(), map);
                let (m, v) = (old(1, &SIGNED.numbers), old(3, &UNSIGNED.numbers));
                let m: Vec<f64> = m.iter().zip(&g).map(|(m, g)| beta1 * m + (1.0 - beta1) * g).collect();
                let v: Vec<f64> = v.iter().zip(&g).map(|(v, g)| beta2 * v + (1.0 - beta2) * g * g).collect();
                let expected: Vec<f64> = (0..count)
                    .map(|i| {
                        let start = if decoupled { p[i] * (1.0 - rate * decay) } else { p[i] };
                        let root = v[i].sqrt() / (1.0 - beta2.powi(step)).sqrt();
                        start - rate / (1.0 - beta1.powi(step)) * m[i] / (root + epsilon)
                    })
                    .collect();
                assert_close(&after[0].values(), &expected, 2e-6, "parameter");
                for (at, moment, map) in [(1, &m, &SIGNED), (3, &v, &UNSIGNED)] {
                    let (codes, scales) = quantized(moment, &map.numbers);
                    assert_close(&after[at + 1].values(), &scales, 1e-6, "scales");
                    let found = after[at].values();
                    for (i, (is, should)) in found.iter().zip(&codes).enumerate() {
                        if is != should && scales[i / BLOCK] != 0.0 {
                            let middle = f64::from(map.middles[is.min(*should) as usize]) * scales[i / BLOCK];
                            let is_tie =
                                (is - should).abs() == 1.0 && (moment[i] - middle).abs() <= middle.abs() * 1e-6;
                            assert!(is_tie, "step {step}, element {i}: {is} instead of {should}");
                            ties += 1;
                        }
                    }
                }
                state = after;
            }
            assert!(ties < 20, "{ties} codes differ");
        }
    }

    /// NaN does not become a number.
    #[test]
    fn gradients_that_are_no_numbers_show() {
        let (shape, codes, scales) =
            (desc(DataType::Float32, &[300]), desc(DataType::UInt8, &[300]), desc(DataType::Float32, &[2]));
        let zeros = |desc: &forebay_base::TensorDesc| Tensor::new(desc, &vec![0.0; desc.element_count() as usize]);
        let mut gradient = vec![1.0; 300];
        gradient[280] = f64::NAN;
        let hyperparameters: Vec<f64> =
            AdamHyperparameters { learning_rate: 0.1, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 }
                .elements()
                .map(f64::from)
                .to_vec();
        let step = Tensor::new(&desc(DataType::Int64, &[2]), &[1.0, 0.0]);
        let reads = [
            &zeros(&shape),
            &Tensor::new(&shape, &gradient),
            &zeros(&codes),
            &zeros(&scales),
            &zeros(&codes),
            &zeros(&scales),
            &step,
            &Tensor::new(&desc(DataType::Float32, &[10]), &hyperparameters),
        ];
        let writes = [shape.clone(), codes.clone(), scales.clone(), codes.clone(), scales.clone()];
        let after = run(&Kernel::Adam8Bit { decoupled: true, decays: true }, &reads, &writes);
        for at in [2, 4] {
            let scales = after[at].values();
            assert!(scales[0].is_finite() && scales[1].is_nan(), "{scales:?}");
        }
    }
}
