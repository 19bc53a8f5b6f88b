//! Fuses the addition of a bias into a matrix product. Whole matrices are added by separate launches: a product that adds one cannot be cut
//! between its terms, as gradients of weights are cut between the samples of a batch.

use forebay_base::kernel::{Activation, BinaryOp, ProductPart};
use forebay_base::{Kernel, TensorDesc};
use forebay_model::program::{Operand, Program, ProgramLaunch};

use super::{Uses, touch, uses};

/// Removes launches that add biases to products.
pub(super) fn fuse_biases(program: &mut Program, removed: &mut [bool]) {
    let uses = uses(program, removed);
    for index in 0..program.launches.len() {
        let Some((addition, summand, output)) = joined(program, &uses, removed, index) else { continue };
        let launch = &mut program.launches[index];
        let Kernel::MatMul { beta, .. } = &mut launch.kernel else { unreachable!("only products are joined") };
        *beta = 1.0;
        launch.reads.push(summand);
        launch.writes[0] = output;
        removed[addition] = true;
    }
}

/// If the only use of a product that adds nothing yet is an addition, returns that launch, the summand and the sum as the product reads and
/// writes them.
fn joined(program: &Program, uses: &Uses, removed: &[bool], index: usize) -> Option<(usize, Operand, Operand)> {
    let launch = &program.launches[index];
    let Kernel::MatMul { part: ProductPart::Whole, activation: Activation::None, .. } = launch.kernel else {
        return None;
    };
    let ([first, _], [product]) = (launch.reads.as_slice(), launch.writes.as_slice()) else { return None };
    let reader = uses.only_reader(program, product)?;
    let addition = &program.launches[reader];
    if addition.kernel != (Kernel::Binary { op: BinaryOp::Add, activation: Activation::None }) {
        return None;
    }
    let [a, b] = addition.reads.as_slice() else { return None };
    let (sum, summand) = if a.buffer == product.buffer { (a, b) } else { (b, a) };
    let output = &addition.writes[0];
    let is_plain = |operand: &Operand| operand.desc.is_packed();
    let is_alike =
        [product, sum, summand, output].iter().all(|operand| operand.desc.data_type() == first.desc.data_type());
    let is_whole = sum.offset_bytes == 0 && output.desc.element_count() == product.desc.element_count();
    if !is_alike || !is_whole || ![product, sum, output].into_iter().all(is_plain) {
        return None;
    }
    // The summand is read earlier than before, and the sum is written earlier, so no launch in between may write either of them or read the
    // sum's bytes.
    let mut between = (index..reader).filter(|&other| !removed[other]).map(|other| &program.launches[other]);
    let changes = |launch: &ProgramLaunch| touch(&launch.writes, summand) || touch(&launch.writes, output);
    if index > reader || between.any(|launch| changes(launch) || touch(&launch.reads, output)) {
        return None;
    }
    let in_sizes = |desc: TensorDesc, operand: &Operand| Operand { desc, ..operand.clone() };
    let summand = in_sizes(in_other_sizes(&summand.desc, product.desc.sizes())?, summand);
    if !is_bias(program, &summand) {
        return None;
    }
    Some((reader, summand, in_sizes(product.desc.clone(), output)))
}

/// Returns whether what is added is the same for all rows; if there is only one row, whether nothing computes it.
fn is_bias(program: &Program, summand: &Operand) -> bool {
    let (sizes, strides) = (summand.desc.sizes(), summand.desc.effective_strides());
    let mut rows = sizes.iter().zip(strides).rev().skip(1).filter(|&(&size, _)| size > 1).peekable();
    match rows.peek() {
        Some(_) => rows.all(|(_, stride)| stride == 0),
        None => !program.buffer(summand.buffer).role.is_temporary(),
    }
}

/// Returns the same elements in the same order, with other sizes; `None` if dimensions that have to be merged are not contiguous in memory.
/// Like PyTorch's `Tensor.view`.
fn in_other_sizes(desc: &TensorDesc, sizes: &[u64]) -> Option<TensorDesc> {
    if desc.element_count() == 0 || desc.element_count() != sizes.iter().product::<u64>() {
        return None;
    }
    if desc.is_packed() {
        return TensorDesc::packed(desc.data_type(), sizes).ok();
    }
    let (from, strides) = (desc.sizes(), desc.effective_strides());
    let mut result = vec![0; sizes.len()];
    let (mut left, mut end) = (sizes.len(), from.len());
    while end > 0 {
        // Dimensions that are contiguous, or are broadcast together.
        let (mut start, mut count) = (end - 1, from[end - 1]);
        while start > 0 && (from[start - 1] == 1 || strides[start - 1] == count * strides[end - 1]) {
            start -= 1;
            count *= from[start];
        }
        let mut taken = 1;
        while left > 0 && (taken < count || sizes[left - 1] == 1) {
            left -= 1;
            result[left] = taken * strides[end - 1];
            taken *= sizes[left];
        }
        if taken != count {
            return None;
        }
        end = start;
    }
    TensorDesc::strided(desc.data_type(), sizes, &result).ok()
}

#[cfg(test)]
mod tests {
    use forebay_base::DataType;
    use forebay_base::kernel::UnaryOp;
    use forebay_model::program::{BufferId, Role};
    use forebay_testing::Random;

    use super::super::fuse;
    use super::*;
    use crate::testing::ProgramBuilder;

    const ADD: Kernel = Kernel::Binary { op: BinaryOp::Add, activation: Activation::None };

    fn strided(sizes: &[u64], strides: &[u64]) -> TensorDesc {
        TensorDesc::strided(DataType::Float32, sizes, strides).unwrap()
    }

    /// Returns the position of an element, counted in the order of the sizes.
    fn element(desc: &TensorDesc, mut number: u64) -> u64 {
        let axes = desc.sizes().iter().zip(desc.effective_strides()).rev();
        axes.fold(0, |at, (&size, stride)| {
            let index = number % size;
            number /= size;
            at + index * stride
        })
    }

    #[test]
    fn other_sizes_find_the_same_elements() {
        let mut random = Random::new(1);
        let (mut found, mut refused) = (0, 0);
        for _ in 0..2_000 {
            let sizes: Vec<u64> = (0..4).map(|_| 1 + random.below(3)).collect();
            let strides: Vec<u64> = match random.below(3) {
                // Broadcast over the first dimensions, or over any.
                0 => vec![0, 0, sizes[3], 1],
                1 => vec![0, 0, 0, random.below(2)],
                _ => (0..4).map(|_| random.below(7)).collect(),
            };
            let from = strided(&sizes, &strides);
            let count = from.element_count();
            let to = match random.below(3) {
                0 => vec![sizes[0] * sizes[1] * sizes[2], sizes[3]],
                1 => vec![sizes[0], sizes[1], 1, sizes[2] * sizes[3]],
                _ => vec![count],
            };
            match in_other_sizes(&from, &to) {
                Some(other) => {
                    found += 1;
                    assert!(
                        (0..count).all(|number| element(&from, number) == element(&other, number)),
                        "{from} {other}"
                    );
                }
                None => refused += 1,
            }
        }
        assert!(found > 500 && refused > 100, "{found} found, {refused} refused");
        assert_eq!(in_other_sizes(&strided(&[2, 3, 4], &[0, 0, 1]), &[6, 4]), Some(strided(&[6, 4], &[0, 1])));
        assert_eq!(in_other_sizes(&strided(&[2, 3, 4], &[0, 4, 1]), &[6, 4]), None, "rows that come twice");
    }

    /// Products of matrices with 6 rows, followed by what a test adds.
    #[derive(Default)]
    struct Products {
        buffers: ProgramBuilder,
        launches: Vec<ProgramLaunch>,
    }

    impl Products {
        fn of(&mut self, name: &str, role: Role, sizes: &[u64]) -> Operand {
            let desc = TensorDesc::packed(DataType::Float32, sizes).unwrap();
            Operand { buffer: self.buffers.buffer(name, desc.total_size_bytes(), role), offset_bytes: 0, desc }
        }

        fn launch(&mut self, kernel: Kernel, reads: &[&Operand], write: &Operand) {
            let reads = reads.iter().map(|&operand| operand.clone()).collect();
            self.launches.push(ProgramLaunch::new(String::new(), kernel, reads, vec![write.clone()]));
        }

        /// Adds a product of inputs, with 6 rows and 4 columns.
        fn product(&mut self, name: &str) -> Operand {
            let a = self.of(&format!("{name} a"), Role::Input, &[6, 8]);
            let b = self.of(&format!("{name} b"), Role::Input, &[8, 4]);
            let y = self.of(name, Role::Temporary, &[6, 4]);
            self.launch(Kernel::product(false, false), &[&a, &b], &y);
            y
        }

        fn fused(self, outputs: &[BufferId]) -> Vec<ProgramLaunch> {
            let mut program = self.buffers.finish(outputs);
            program.update_start = self.launches.len();
            program.launches = self.launches;
            fuse(program).launches
        }
    }

    fn as_cube(operand: &Operand) -> Operand {
        Operand { desc: TensorDesc::packed(DataType::Float32, &[2, 3, 4]).unwrap(), ..operand.clone() }
    }

    #[test]
    fn a_bias_and_what_limits_the_sum_join_the_product() {
        let mut of = Products::default();
        let (product, bias) = (of.product("product"), of.of("bias", Role::Input, &[4]));
        let bias = Operand { desc: strided(&[2, 3, 4], &[0, 0, 1]), ..bias };
        let (sum, y) = (of.of("sum", Role::Temporary, &[2, 3, 4]), of.of("y", Role::Temporary, &[2, 3, 4]));
        of.launch(ADD, &[&bias, &as_cube(&product)], &sum);
        of.launch(Kernel::Unary(UnaryOp::Relu), &[&sum], &y);
        let fused = of.fused(&[y.buffer]);
        let [launch] = fused.as_slice() else { panic!("{fused:?}") };
        let Kernel::MatMul { beta: 1.0, activation: Activation::Relu, .. } = launch.kernel else {
            panic!("{launch:?}")
        };
        assert_eq!(launch.reads[2], Operand { desc: strided(&[6, 4], &[0, 1]), ..bias });
        assert_eq!(launch.writes[0].buffer, y.buffer);
    }

    #[test]
    fn what_is_no_bias_is_there_later_or_is_used_twice_stays_apart() {
        for case in 0..4 {
            let mut of = Products::default();
            let (product, bias) = (of.product("product"), of.of("bias", Role::Temporary, &[4]));
            let (x, y) = (of.of("x", Role::Input, &[4]), of.of("y", Role::Temporary, &[6, 4]));
            let by_row = |bias: &Operand| Operand { desc: strided(&[6, 4], &[0, 1]), ..bias.clone() };
            let mut outputs = vec![y.buffer];
            match case {
                // Computed after the product.
                0 => {
                    of.launch(Kernel::Unary(UnaryOp::Tanh), &[&x], &bias);
                    of.launch(ADD, &[&product, &by_row(&bias)], &y);
                }
                1 => of.launch(ADD, &[&product, &product], &y),
                // A matrix.
                2 => {
                    let other = of.of("other", Role::Input, &[6, 4]);
                    of.launch(ADD, &[&product, &other], &y);
                }
                _ => {
                    of.launch(ADD, &[&product, &by_row(&x)], &y);
                    outputs.push(product.buffer);
                }
            }
            let fused = of.fused(&outputs);
            assert_eq!(fused.iter().filter(|launch| launch.kernel == ADD).count(), 1, "case {case}");
        }
    }
}
