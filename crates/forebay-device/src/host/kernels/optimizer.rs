//! Kernels: optimizers, which update parameters and their state in place.

mod quantized;

use forebay_base::kernel::{AdamHyperparameters, SgdHyperparameters};
use forebay_base::{DataType, Kernel};

use super::buffer::BLOCK;
use super::element::{Float, for_type};
use super::parallel::{CHUNK, Pointer, for_chunks, require_packed, wide};
use super::{View, unsupported};
use crate::device::DeviceError;

/// Runs one kernel of this family.
///
/// # Safety
/// As [`super::run`].
pub(super) unsafe fn run(kernel: &Kernel, reads: &[View], writes: &[View]) -> Result<(), DeviceError> {
    // SAFETY: the caller's promises, and the types are those of the views.
    let result = unsafe { for_type!(reads[0].desc.data_type(), floats, T => update::<T>(kernel, reads, writes)) };
    result.map_err(|reason| unsupported(kernel, reason))
}

/// # Safety
/// As [`super::run`], and all views but a step and hyperparameters must be of type `T`.
unsafe fn update<T: Float>(kernel: &Kernel, reads: &[View], writes: &[View]) -> Result<(), String> {
    let number = |value: f32| T::from_f64(value as f64);
    // SAFETY: the caller's promises.
    unsafe {
        match *kernel {
            Kernel::Sgd { nesterov, decays } => {
                let numbers = SgdHyperparameters::from_elements(&hyperparameters(reads)?);
                let (rate, momentum) = (number(numbers.learning_rate), number(numbers.momentum));
                let decay = number(if decays { numbers.weight_decay } else { 0.0 });
                if writes.len() == 1 {
                    return for_blocks(
                        [&reads[0], &reads[1]],
                        [(&writes[0], 0)],
                        #[inline(always)]
                        move |[p, g]: &mut [[T; BLOCK]; 2]| {
                            for (p, &mut g) in p.iter_mut().zip(g) {
                                *p = *p - rate * decayed(g, decay, *p);
                            }
                        },
                    );
                }
                for_blocks(
                    [&reads[0], &reads[1], &reads[2]],
                    [(&writes[0], 0), (&writes[1], 2)],
                    #[inline(always)]
                    move |[p, g, v]: &mut [[T; BLOCK]; 3]| {
                        for ((p, &mut g), v) in p.iter_mut().zip(g).zip(v) {
                            let g = decayed(g, decay, *p);
                            *v = momentum * *v + g;
                            *p = *p - rate * (if nesterov { g + momentum * *v } else { *v });
                        }
                    },
                )
            }
            Kernel::Adam { decoupled, decays } => {
                let numbers = AdamNumbers::<T>::of(reads, decoupled, decays)?;
                for_blocks(
                    [&reads[0], &reads[1], &reads[2], &reads[3]],
                    [(&writes[0], 0), (&writes[1], 2), (&writes[2], 3)],
                    #[inline(always)]
                    move |[p, g, m, v]: &mut [[T; BLOCK]; 4]| {
                        for (((p, &mut g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
                            numbers.update(p, g, m, v);
                        }
                    },
                )
            }
            Kernel::Adam8Bit { decoupled, decays } => {
                quantized::update(AdamNumbers::of(reads, decoupled, decays)?, reads, writes)
            }
            _ => Err("not an optimizer".into()),
        }
    }
}

/// The numbers with which Adam computes a step.
#[derive(Clone, Copy)]
struct AdamNumbers<T> {
    step_size: T,
    root_correction: T,
    /// beta1 and 1 - beta1.
    first: [T; 2],
    /// beta2 and 1 - beta2.
    second: [T; 2],
    epsilon: T,
    /// Decay acts either on the gradient or on the parameter; the other factor has no effect.
    decay: T,
    kept: T,
}

impl<T: Float> AdamNumbers<T> {
    /// Reads the numbers from the last two operands: step and hyperparameters.
    ///
    /// # Safety
    /// As [`super::run`].
    unsafe fn of(reads: &[View], decoupled: bool, decays: bool) -> Result<AdamNumbers<T>, String> {
        let [.., step, _] = reads else { return Err("it has no operand for the step".into()) };
        // SAFETY: the caller's promises.
        let (numbers, step) = unsafe { (hyperparameters(reads)?, *Pointer::<i64>::of(step).at(0)) };
        let AdamHyperparameters { learning_rate, beta1, beta2, epsilon, weight_decay } =
            AdamHyperparameters::from_elements(&numbers);
        let [rate, beta1, beta2, epsilon, decay] =
            [learning_rate, beta1, beta2, epsilon, if decays { weight_decay } else { 0.0 }].map(f64::from);
        // Bias corrections in double precision: 1 - beta^t loses most digits in single precision.
        let numbers = [
            rate / (1.0 - libm::pow(beta1, step as f64)),
            (1.0 - libm::pow(beta2, step as f64)).sqrt(),
            beta1,
            1.0 - beta1,
            beta2,
            1.0 - beta2,
            epsilon,
            if decoupled { 0.0 } else { decay },
            if decoupled { 1.0 - rate * decay } else { 1.0 },
        ];
        let [step_size, root_correction, beta1, rest1, beta2, rest2, epsilon, decay, kept] = numbers.map(T::from_f64);
        let (first, second) = ([beta1, rest1], [beta2, rest2]);
        Ok(AdamNumbers { step_size, root_correction, first, second, epsilon, decay, kept })
    }

    /// Updates an element, given its gradient.
    #[inline(always)]
    fn update(&self, p: &mut T, g: T, m: &mut T, v: &mut T) {
        let ([beta1, rest1], [beta2, rest2]) = (self.first, self.second);
        let g = decayed(g, self.decay, *p);
        *m = beta1 * *m + rest1 * g;
        *v = beta2 * *v + rest2 * (g * g);
        *p = *p * self.kept - self.step_size * *m / (v.square_root() / self.root_correction + self.epsilon);
    }
}

/// Adds decay to a gradient. Without decay, a parameter adds nothing, even if it is infinite, as in a mask.
#[inline(always)]
fn decayed<T: Float>(gradient: T, decay: T, parameter: T) -> T {
    if decay == T::ZERO { gradient } else { gradient + decay * parameter }
}

/// Reads the elements of the hyperparameters, which are the last operand.
///
/// # Safety
/// As [`super::run`].
unsafe fn hyperparameters<const N: usize>(reads: &[View]) -> Result<[f32; N], String> {
    let view = reads.last().ok_or("it has no operands")?;
    if view.desc.data_type() != DataType::Float32 || view.count() != N || !view.desc.is_packed() {
        return Err(format!("its last operand must be {N} packed float32 hyperparameters, not {}", view.desc));
    }
    let pointer = Pointer::<f32>::of(view);
    // SAFETY: the operand has N elements, and is live by the caller's promise.
    Ok(std::array::from_fn(|i| unsafe { *pointer.at(i as isize) }))
}

/// Updates packed operands of one size block by block: `f` updates copies of a block of every input, and some of them (given by number)
/// become outputs. So outputs can be the same bytes as inputs.
///
/// # Safety
/// As [`super::run`], and the views must be of type `T`.
#[inline(always)]
unsafe fn for_blocks<T: Float, const R: usize, const W: usize>(
    inputs: [&View; R],
    outputs: [(&View, usize); W],
    f: impl Fn(&mut [[T; BLOCK]; R]) + Sync,
) -> Result<(), String> {
    let count = inputs[0].count();
    for view in inputs.iter().chain(outputs.iter().map(|(view, _)| view)) {
        require_packed(&[**view])?;
        if view.count() != count {
            return Err(format!("{} and {} differ in size", inputs[0].desc, view.desc));
        }
    }
    let inputs = inputs.map(Pointer::<T>::of);
    let outputs = outputs.map(|(view, input)| (Pointer::<T>::of(view), input));
    for_chunks(count, CHUNK, |range| {
        wide(
            #[inline(always)]
            || {
                let mut blocks = [[T::ZERO; BLOCK]; R];
                for start in range.clone().step_by(BLOCK) {
                    let length = BLOCK.min(range.end - start);
                    for (block, input) in blocks.iter_mut().zip(&inputs) {
                        // SAFETY: the block lies in the operand, and this task alone writes it, below.
                        unsafe { std::ptr::copy_nonoverlapping(input.at(start as isize), block.as_mut_ptr(), length) };
                    }
                    f(&mut blocks);
                    for &(output, input) in &outputs {
                        let block = blocks[input].as_ptr();
                        // SAFETY: as above.
                        unsafe { std::ptr::copy_nonoverlapping(block, output.at(start as isize), length) };
                    }
                }
            },
        );
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use forebay_base::kernel::{AdamHyperparameters, SgdHyperparameters};
    use forebay_base::{DataType, Kernel, TensorDesc};

    use super::super::testing::{Random, Tensor, assert_close, desc, run};

    fn operands(random: &mut Random, shape: &TensorDesc, count: usize) -> Vec<Tensor> {
        (0..count).map(|_| Tensor::new(shape, &random.values(shape.element_count() as usize))).collect()
    }

    fn given(elements: &[f32]) -> Tensor {
        let shape = desc(DataType::Float32, &[elements.len() as u64]);
        Tensor::new(&shape, &elements.iter().copied().map(f64::from).collect::<Vec<_>>())
    }

    /// A mask that is trained along with other parameters, without decay.
    #[test]
    fn infinite_parameters_stay_as_they_are() {
        let (p, g, zero) = (given(&[f32::NEG_INFINITY, 2.0]), given(&[0.0, 1.0]), given(&[0.0, 0.0]));
        let shape = desc(DataType::Float32, &[2]);
        let sgd = SgdHyperparameters { learning_rate: 0.5, momentum: 0.9, weight_decay: 0.0 };
        for decays in [false, true] {
            let kernel = Kernel::Sgd { nesterov: false, decays };
            let found = run(&kernel, &[&p, &g, &zero, &given(&sgd.elements())], &vec![shape.clone(); 2]);
            assert_eq!(found[0].values(), [f64::NEG_INFINITY, 1.5]);
            assert_eq!(found[1].values(), [0.0, 1.0]);
            let alone = run(&kernel, &[&p, &g, &given(&sgd.elements())], std::slice::from_ref(&shape));
            assert_eq!(alone[0].values(), [f64::NEG_INFINITY, 1.5]);
        }
        let adam =
            AdamHyperparameters { learning_rate: 0.5, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.0 };
        let step = Tensor::new(&desc(DataType::Int64, &[2]), &[1.0, 0.0]);
        let reads = [&p, &g, &zero, &zero, &step, &given(&adam.elements())];
        let found = run(&Kernel::Adam { decoupled: false, decays: true }, &reads, &vec![shape; 3]);
        assert_eq!(found[0].values()[0], f64::NEG_INFINITY);
        assert!((found[0].values()[1] - 1.5).abs() < 1e-6 && found[1].values()[0] == 0.0);
    }

    #[test]
    fn sgd_follows_its_formula() {
        let mut random = Random::new(1);
        let shape = desc(DataType::Float32, &[3, 17, 401]);
        let tensors = operands(&mut random, &shape, 3);
        let [p, g, v] = [0, 1, 2].map(|i: usize| tensors[i].values());
        for (momentum, nesterov) in [(0.0, false), (0.9f32, false), (0.9, true)] {
            let numbers = SgdHyperparameters { learning_rate: 0.1, momentum, weight_decay: 0.01 };
            let numbers = given(&numbers.elements());
            let kernel = Kernel::Sgd { nesterov, decays: true };
            let with_velocity = momentum > 0.0;
            let count = if with_velocity { 2 } else { 1 };
            let reads: Vec<&Tensor> = tensors.iter().take(count + 1).chain([&numbers]).collect();
            let outputs = run(&kernel, &reads, &vec![shape.clone(); count]);
            let (mut new_p, mut new_v) = (vec![], vec![]);
            for i in 0..p.len() {
                let gradient = g[i] + 0.01f32 as f64 * p[i];
                let velocity = momentum as f64 * v[i] + gradient;
                new_v.push(velocity);
                let direction = if nesterov { gradient + momentum as f64 * velocity } else { velocity };
                new_p.push(p[i] - 0.1f32 as f64 * if with_velocity { direction } else { gradient });
            }
            assert_close(&outputs[0].values(), &new_p, 3e-7, "parameter");
            if with_velocity {
                assert_close(&outputs[1].values(), &new_v, 3e-7, "velocity");
            }
        }
    }

    #[test]
    fn adam_follows_its_formula() {
        let mut random = Random::new(2);
        let shape = desc(DataType::Float32, &[513]);
        let mut tensors = operands(&mut random, &shape, 4);
        tensors[3] = Tensor::new(&shape, &tensors[3].values().iter().map(|v| v.abs()).collect::<Vec<_>>());
        let [p, g, m, v] = [0, 1, 2, 3].map(|i: usize| tensors[i].values());
        let (rate, beta1, beta2, epsilon, decay) = (3e-3f32, 0.9f32, 0.95f32, 1e-8f32, 0.1f32);
        for (step, decoupled) in [(1, true), (7, false), (1000, true)] {
            let kernel = Kernel::Adam { decoupled, decays: true };
            let numbers =
                AdamHyperparameters { learning_rate: rate, beta1, beta2, epsilon, weight_decay: decay }.elements();
            let numbers = given(&numbers);
            let step_tensor = Tensor::new(&desc(DataType::Int64, &[2]), &[step as f64, 0.0]);
            let reads = [&tensors[0], &tensors[1], &tensors[2], &tensors[3], &step_tensor, &numbers];
            let outputs = run(&kernel, &reads, &vec![shape.clone(); 3]);
            let [rate, beta1, beta2, epsilon, decay] = [rate, beta1, beta2, epsilon, decay].map(f64::from);
            for i in 0..p.len() {
                let start = if decoupled { p[i] * (1.0 - rate * decay) } else { p[i] };
                let gradient = if decoupled { g[i] } else { g[i] + decay * p[i] };
                let first = beta1 * m[i] + (1.0 - beta1) * gradient;
                let second = beta2 * v[i] + (1.0 - beta2) * gradient * gradient;
                let root = second.sqrt() / (1.0 - beta2.powi(step)).sqrt();
                let expected = [start - rate / (1.0 - beta1.powi(step)) * first / (root + epsilon), first, second];
                let got = [0, 1, 2].map(|output: usize| outputs[output].values()[i]);
                assert_close(&got, &expected, 5e-7, "Adam");
            }
        }
    }
}
