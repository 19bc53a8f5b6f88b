//! Gradients of kernels.
//!
//! If a kernel has several gradients, the weight gradient is emitted before the data gradient: the weight gradient is the last use of the
//! forward pass's activation, whose memory the data gradient can then reuse.

mod attention;
mod recurrence;
mod scatter;

use forebay_base::Kernel;
use forebay_base::kernel::{
    Activation, BinaryOp, Convolution, PadMode, PoolOp, ProductPart, ReduceOp, ScanOp, UnaryOp,
};

use crate::action::Action;
use crate::context::GradientBuilder;
use crate::graph::{TensorType, ValueId};
use crate::precision::widened;

/// Largest size of a padded axis for which padding with elements of the input has a gradient, which needs an index per element.
const PADDED_SIZE_MAX: u64 = 1 << 24;

/// One application of an action in the forward pass, with the gradients of its outputs.
pub(crate) struct Application<'a> {
    /// The action.
    pub action: &'a Action,
    /// Its inputs.
    pub inputs: &'a [ValueId],
    /// Its outputs.
    pub outputs: &'a [ValueId],
    /// Gradients of the outputs; `None` for zero.
    pub gradients: &'a [Option<ValueId>],
    /// For each input, whether its gradient is wanted.
    pub needs: &'a [bool],
}

/// Gradients of the inputs; `None` for zero or not wanted.
type Gradients = Vec<Option<ValueId>>;

impl Application<'_> {
    /// Returns the gradients of the inputs, or `None` if there is no gradient kernel for one that is wanted.
    pub fn gradients(&self, builder: &mut GradientBuilder) -> Option<Gradients> {
        let zero = vec![None; self.inputs.len()];
        if let Action::Kernel(Kernel::Recurrent(recurrence)) = self.action {
            if recurrence.quantizes_state && self.needs.contains(&true) {
                return None;
            }
            return Some(self.recurrent(builder, recurrence));
        }
        if let Action::Kernel(Kernel::LayerNormalization { axis, .. }) = self.action
            && self.needs.contains(&true)
        {
            return Some(self.layer_normalization(builder, *axis));
        }
        // Only the first output of any other kernel carries a gradient; the others are statistics.
        let Some(dy) = self.gradients.first().copied().flatten() else { return Some(zero) };
        if !self.needs.contains(&true) {
            return Some(zero);
        }
        let kernel = match self.action {
            Action::Kernel(kernel) => kernel,
            Action::Expand => return Some(vec![Some(builder.sum_to(dy, &self.shape(builder, 0)))]),
            Action::Concatenate(axis) => {
                let sizes: Vec<u64> = (0..self.inputs.len()).map(|i| self.shape(builder, i)[*axis]).collect();
                return Some(builder.split(dy, *axis, &sizes, self.needs));
            }
            Action::Transpose(permutation) => {
                let mut inverse = vec![0; permutation.len()];
                for (i, &axis) in permutation.iter().enumerate() {
                    inverse[axis] = i;
                }
                return Some(vec![Some(builder.transpose(dy, &inverse))]);
            }
        };
        match kernel {
            Kernel::Unary(op) => Some(vec![self.unary(builder, *op, dy)]),
            Kernel::Binary { op, activation: Activation::None } => Some(self.binary(builder, *op, dy)),
            Kernel::Select => Some(self.select(builder, dy)),
            Kernel::Pad { begins, mode: mode @ (PadMode::Reflect | PadMode::Edge) } => {
                self.repeating_pad(builder, begins, *mode, dy).map(|d| vec![Some(d)])
            }
            Kernel::Attention(options) => Some(self.attention(builder, *options, dy)),
            Kernel::Reduce { op, axes } => self.reduce(builder, *op, axes, dy),
            Kernel::MatMul {
                transpose_a,
                transpose_b,
                alpha,
                beta,
                activation: Activation::None,
                part: ProductPart::Whole,
            } => Some(self.matmul(builder, (*transpose_a, *transpose_b), *alpha, *beta, dy)),
            Kernel::Convolution { convolution, activation: Activation::None } => {
                Some(self.convolution(builder, convolution, dy))
            }
            Kernel::ConvolutionDataGradient { convolution, activation: Activation::None } => {
                Some(self.transposed_convolution(builder, convolution, dy))
            }
            Kernel::BatchNormalization { epsilon, activation: Activation::None }
                if !self.needs[3] && !self.needs[4] =>
            {
                Some(self.batch_normalization(builder, *epsilon, dy))
            }
            Kernel::Scatter { op } => self.scatter(builder, *op, dy),
            Kernel::Scan { axis, op, exclusive, reverse } => {
                self.scan(builder, *axis, *op, (*exclusive, *reverse), dy).map(|d| vec![Some(d)])
            }
            // Indices and integers.
            Kernel::TopK { .. }
            | Kernel::PoolIndices { .. }
            | Kernel::IntegerProduct { .. }
            | Kernel::IntegerConvolution { .. } => Some(zero),
            _ => self.single(builder, kernel, dy),
        }
    }

    /// Kernels whose gradient is one kernel.
    fn single(&self, builder: &mut GradientBuilder, kernel: &Kernel, dy: ValueId) -> Option<Gradients> {
        let input = |i: usize| self.inputs[i];
        let x = builder.ty(*self.inputs.first()?);
        let (gradient, reads): (Kernel, Vec<ValueId>) = match kernel {
            // Rounding to narrow types is a step function, as is conversion to integers.
            Kernel::Cast(_) if [x.data_type, builder.ty(dy).data_type].iter().any(|ty| !ty.has_gradients()) => {
                return Some(vec![None]);
            }
            // A sum in float32 for a float32 parameter is not rounded in between.
            Kernel::Cast(_) if builder.is_of_parameters(input(0)) => {
                let wide = builder.converted_from(dy).filter(|&wide| builder.ty(wide) == x);
                return Some(vec![Some(wide.unwrap_or_else(|| builder.cast(dy, &x)))]);
            }
            Kernel::Cast(_) => (Kernel::cast(), vec![dy]),
            Kernel::Slice { starts, steps } => {
                (Kernel::SliceGradient { starts: starts.clone(), steps: steps.clone() }, vec![dy])
            }
            Kernel::Pad { begins, mode: PadMode::Constant(_) } => {
                (Kernel::Slice { starts: begins.clone(), steps: vec![1; begins.len()] }, vec![dy])
            }
            Kernel::Softmax { axis } => (Kernel::SoftmaxGradient { axis: *axis }, vec![dy, self.outputs[0]]),
            Kernel::LogSoftmax { axis } => (Kernel::LogSoftmaxGradient { axis: *axis }, vec![dy, self.outputs[0]]),
            Kernel::SoftmaxCrossEntropy { axis, ignore_index } => {
                let (axis, ignore_index) = (*axis, *ignore_index);
                (Kernel::SoftmaxCrossEntropyGradient { axis, ignore_index }, vec![dy, input(0), input(1)])
            }
            Kernel::MeanSquaredError => (Kernel::MeanSquaredErrorGradient, vec![dy, input(0), input(1)]),
            Kernel::Pool { op, window } => {
                let reads = if *op == PoolOp::Max { vec![dy, input(0)] } else { vec![dy] };
                (Kernel::PoolGradient { op: *op, window: window.clone() }, reads)
            }
            Kernel::LocalResponseNormalization { size, alpha, beta, bias } => {
                let (size, alpha, beta, bias) = (*size, *alpha, *beta, *bias);
                (Kernel::LocalResponseNormalizationGradient { size, alpha, beta, bias }, vec![dy, input(0)])
            }
            Kernel::Gather { axis } => (Kernel::GatherGradient { axis: *axis }, vec![dy, input(1)]),
            Kernel::GatherGradient { axis } => (Kernel::Gather { axis: *axis }, vec![dy, input(1)]),
            Kernel::Dropout { .. } => (kernel.clone(), vec![dy, input(1)]),
            &Kernel::BatchNormalizationTraining { epsilon, activation, group_size } => {
                let gradient = Kernel::BatchNormalizationGradient { epsilon, activation, group_size };
                let reads = [dy, input(0), input(1), input(2), self.outputs[1], self.outputs[2]];
                return Some(self.normalization(builder, gradient, &reads));
            }
            _ => return None,
        };
        let mut gradients = vec![None; self.inputs.len()];
        gradients[0] = self.needs[0].then(|| builder.one(gradient, &reads, x));
        // The target's gradient is the prediction's gradient, negated.
        if matches!(kernel, Kernel::MeanSquaredError) && self.needs[1] {
            let prediction = gradients[0].unwrap_or_else(|| {
                let ty = builder.ty(input(0));
                builder.one(Kernel::MeanSquaredErrorGradient, &[dy, input(0), input(1)], ty)
            });
            gradients[1] = Some(builder.scaled(prediction, -1.0));
        }
        Some(gradients)
    }

    fn shape(&self, builder: &GradientBuilder, i: usize) -> Vec<u64> {
        builder.ty(self.inputs[i]).shape
    }

    fn unary(&self, builder: &mut GradientBuilder, op: UnaryOp, dy: ValueId) -> Option<ValueId> {
        match op {
            UnaryOp::Sign | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Not => None,
            UnaryOp::Affine { scale, .. } => {
                let dy = builder.sum_to(dy, &self.shape(builder, 0));
                Some(builder.scaled(dy, scale))
            }
            _ => {
                let value = if op.gradient_uses_output() { self.outputs[0] } else { self.inputs[0] };
                let ty = builder.ty(value);
                Some(builder.one(Kernel::UnaryGradient(op), &[dy, value], ty))
            }
        }
    }

    fn binary(&self, builder: &mut GradientBuilder, op: BinaryOp, dy: ValueId) -> Gradients {
        let (a, b, y) = (self.inputs[0], self.inputs[1], self.outputs[0]);
        let mut gradients = vec![None, None];
        for i in [1, 0] {
            if !self.needs[i] {
                continue;
            }
            let d = match (op, i) {
                (BinaryOp::Add, _) | (BinaryOp::Subtract, 0) => dy,
                (BinaryOp::Subtract, _) => {
                    let sum = builder.sum_to(dy, &self.shape(builder, i));
                    builder.scaled(sum, -1.0)
                }
                (BinaryOp::Multiply, 0) => builder.binary(BinaryOp::Multiply, dy, b),
                (BinaryOp::Multiply, _) => builder.binary(BinaryOp::Multiply, dy, a),
                (BinaryOp::Divide, 0) => builder.binary(BinaryOp::Divide, dy, b),
                (BinaryOp::Divide, _) => {
                    // d(a / b) / db = -y / b.
                    let product = builder.binary(BinaryOp::Multiply, dy, y);
                    let quotient = builder.binary(BinaryOp::Divide, product, b);
                    let sum = builder.sum_to(quotient, &self.shape(builder, i));
                    builder.scaled(sum, -1.0)
                }
                (BinaryOp::Modulo | BinaryOp::Remainder, 0) => dy,
                (BinaryOp::Modulo | BinaryOp::Remainder, _) => {
                    // y = a - n b, where n is an integer.
                    let multiple = builder.binary(BinaryOp::Subtract, y, a);
                    let times = builder.binary(BinaryOp::Divide, multiple, b);
                    let times = builder.unary(UnaryOp::Round, times);
                    builder.binary(BinaryOp::Multiply, dy, times)
                }
                (BinaryOp::Power, _) => self.power(builder, i, dy),
                (BinaryOp::Minimum | BinaryOp::Maximum, _) => {
                    // Of equal operands, the first gets the whole gradient.
                    let compare =
                        if op == BinaryOp::Minimum { BinaryOp::LessOrEqual } else { BinaryOp::GreaterOrEqual };
                    let first = builder.binary(compare, a, b);
                    let zero = builder.zero(dy);
                    let (taken, left) = if i == 0 { (dy, zero) } else { (zero, dy) };
                    builder.select(first, taken, left)
                }
                // Comparisons and logic are constant almost everywhere.
                _ => continue,
            };
            gradients[i] = Some(builder.sum_to(d, &self.shape(builder, i)));
        }
        gradients
    }

    fn power(&self, builder: &mut GradientBuilder, i: usize, dy: ValueId) -> ValueId {
        let (a, b, y) = (self.inputs[0], self.inputs[1], self.outputs[0]);
        let factor = if i == 0 {
            let exponent = builder.unary(UnaryOp::Affine { scale: 1.0, shift: -1.0 }, b);
            let power = builder.binary(BinaryOp::Power, a, exponent);
            let product = builder.binary(BinaryOp::Multiply, power, b);
            if builder.has_no_zero(b) {
                product
            } else {
                // x^0 is 1 for all x, also for 0, whose power -1 is infinite.
                let zero = builder.zero(b);
                let is_flat = builder.binary(BinaryOp::Equal, b, zero);
                let zero = builder.zero(product);
                builder.select(is_flat, zero, product)
            }
        } else {
            // 0^b is 0 for all b > 0. A negative base has real powers for some exponents only, so it has no gradient by the exponent.
            let logarithm = builder.unary(UnaryOp::Log, a);
            let product = builder.binary(BinaryOp::Multiply, y, logarithm);
            let zero = builder.zero(a);
            let is_positive = builder.binary(BinaryOp::Greater, a, zero);
            let zero = builder.zero(product);
            builder.select(is_positive, product, zero)
        };
        builder.binary(BinaryOp::Multiply, dy, factor)
    }

    fn select(&self, builder: &mut GradientBuilder, dy: ValueId) -> Gradients {
        let condition = self.inputs[0];
        let mut gradients = vec![None; 3];
        for i in [2, 1] {
            if self.needs[i] {
                let zero = builder.zero(dy);
                let (a, b) = if i == 1 { (dy, zero) } else { (zero, dy) };
                let d = builder.select(condition, a, b);
                gradients[i] = Some(builder.sum_to(d, &self.shape(builder, i)));
            }
        }
        gradients
    }

    /// Padding with elements of x gathers them by index, axis by axis, so the gradient is that of gathers.
    fn repeating_pad(
        &self,
        builder: &mut GradientBuilder,
        begins: &[u64],
        mode: PadMode,
        dy: ValueId,
    ) -> Option<ValueId> {
        let x = builder.ty(self.inputs[0]);
        let mut d = dy;
        for (axis, &begin) in begins.iter().enumerate() {
            let mut ty = builder.ty(d);
            let (size, padded) = (x.shape[axis], ty.shape[axis]);
            if size == padded {
                continue;
            }
            if padded > PADDED_SIZE_MAX {
                return None;
            }
            let last = size as i64 - 1;
            let index = |i: u64| {
                let position = i as i64 - begin as i64;
                match mode {
                    PadMode::Reflect => last - (last - position.abs()).abs(),
                    _ => position.clamp(0, last),
                }
            };
            let indices: Vec<i64> = (0..padded).map(index).collect();
            let indices = builder.ints(&indices);
            ty.shape[axis] = size;
            d = builder.one(Kernel::GatherGradient { axis }, &[d, indices], ty);
        }
        Some(d)
    }

    fn reduce(&self, builder: &mut GradientBuilder, op: ReduceOp, axes: &[usize], dy: ValueId) -> Option<Gradients> {
        let (x, y) = (self.inputs[0], self.outputs[0]);
        let shape = self.shape(builder, 0);
        let count = axes.iter().fold(1f64, |product, &axis| product * shape[axis] as f64);
        let d = match op {
            ReduceOp::Sum => builder.expand_scaled(dy, &shape, 1.0),
            ReduceOp::Mean => builder.expand_scaled(dy, &shape, (1.0 / count) as f32),
            ReduceOp::SumSquare => {
                let product = builder.binary(BinaryOp::Multiply, x, dy);
                builder.scaled(product, 2.0)
            }
            ReduceOp::L1 => {
                let sign = builder.unary(UnaryOp::Sign, x);
                builder.binary(BinaryOp::Multiply, sign, dy)
            }
            ReduceOp::L2 => {
                // x / |x|, or 0 if all elements are 0.
                let zero = builder.zero(dy);
                let is_zero = builder.binary(BinaryOp::Equal, y, zero);
                let quotient = builder.binary(BinaryOp::Divide, dy, y);
                let quotient = builder.select(is_zero, zero, quotient);
                builder.binary(BinaryOp::Multiply, x, quotient)
            }
            ReduceOp::Max | ReduceOp::Min => {
                // Equal extremes share the gradient equally.
                let is_extreme = builder.binary(BinaryOp::Equal, x, y);
                let ty = builder.ty(x);
                let ones = builder.one(Kernel::cast(), &[is_extreme], ty);
                let extremes = builder.sum(ones, axes);
                let share = builder.binary(BinaryOp::Divide, dy, extremes);
                let zero = builder.zero(dy);
                builder.select(is_extreme, share, zero)
            }
            ReduceOp::Product => {
                let others = Self::product_of_others(builder, x, axes);
                builder.binary(BinaryOp::Multiply, others, dy)
            }
        };
        Some(vec![Some(d)])
    }

    /// Returns, for each element, the product of all others along the axes: the product of those before it times that of those after it, so
    /// that nothing is divided.
    fn product_of_others(builder: &mut GradientBuilder, x: ValueId, axes: &[usize]) -> ValueId {
        let shape = builder.ty(x).shape;
        let kept = (0..shape.len()).filter(|axis| !axes.contains(axis));
        let order: Vec<usize> = kept.chain(axes.iter().copied()).collect();
        let turned: Vec<u64> = order.iter().map(|&axis| shape[axis]).collect();
        let row: u64 = turned[shape.len() - axes.len()..].iter().product();
        let rows: u64 = turned[..shape.len() - axes.len()].iter().product();
        let x = builder.transpose(x, &order);
        let x = builder.reshape(x, &[rows, row]);
        let ty = builder.ty(x);
        let mut exclusive = |reverse| {
            let scan = Kernel::Scan { axis: 1, op: ScanOp::Product, exclusive: true, reverse };
            builder.one(scan, &[x], ty.clone())
        };
        let (before, behind) = (exclusive(false), exclusive(true));
        let others = builder.binary(BinaryOp::Multiply, before, behind);
        let others = builder.reshape(others, &turned);
        let back: Vec<usize> =
            (0..shape.len()).map(|axis| order.iter().position(|&from| from == axis).unwrap_or(axis)).collect();
        builder.transpose(others, &back)
    }

    /// Gradients of y = alpha op(a) op(b) + beta c, where op optionally transposes.
    fn matmul(
        &self,
        builder: &mut GradientBuilder,
        (transpose_a, transpose_b): (bool, bool),
        alpha: f32,
        beta: f32,
        dy: ValueId,
    ) -> Gradients {
        let (a, b) = (self.inputs[0], self.inputs[1]);
        let product = |builder: &mut GradientBuilder, i: usize, (left, transpose_left), (right, transpose_right)| {
            let own = builder.ty(self.inputs[i]);
            // A weight gradient is a sum over the batch, as in `weight_gradient`.
            let ty = if builder.is_of_parameters(self.inputs[i]) { widened(&own) } else { own.clone() };
            let rank = ty.shape.len();
            let mut shape = builder.ty(dy).shape;
            let batch = shape.len() - 2;
            shape.truncate(batch);
            shape.extend(&ty.shape[rank - 2..]);
            let kernel = Kernel::MatMul {
                transpose_a: transpose_left,
                transpose_b: transpose_right,
                alpha,
                beta: 0.0,
                activation: Activation::None,
                part: ProductPart::Whole,
            };
            let d = builder.one(kernel, &[left, right], TensorType::new(ty.data_type, &shape));
            let sum = builder.sum_to(d, &ty.shape);
            builder.cast(sum, &own)
        };
        let mut gradients = vec![None; self.inputs.len()];
        if self.needs[1] {
            gradients[1] = Some(if transpose_b {
                product(builder, 1, (dy, true), (a, transpose_a))
            } else {
                product(builder, 1, (a, !transpose_a), (dy, false))
            });
        }
        if self.needs.get(2) == Some(&true) {
            let sum = builder.sum_to(dy, &self.shape(builder, 2));
            gradients[2] = Some(builder.scaled(sum, beta));
        }
        if self.needs[0] {
            gradients[0] = Some(if transpose_a {
                product(builder, 0, (b, transpose_b), (dy, true))
            } else {
                product(builder, 0, (dy, false), (b, !transpose_b))
            });
        }
        gradients
    }

    fn convolution(&self, builder: &mut GradientBuilder, convolution: &Convolution, dy: ValueId) -> Gradients {
        let (x, w) = (self.inputs[0], self.inputs[1]);
        let mut gradients = vec![None; self.inputs.len()];
        if self.needs[1] {
            gradients[1] = Some(weight_gradient(builder, convolution, x, dy, w));
        }
        if self.needs.get(2) == Some(&true) {
            gradients[2] = Some(channel_sum(builder, dy));
        }
        if self.needs[0] {
            let (convolution, activation) = (convolution.clone(), Activation::None);
            let ty = builder.ty(x);
            let kernel = Kernel::ConvolutionDataGradient { convolution, activation };
            gradients[0] = Some(builder.one(kernel, &[dy, w], ty));
        }
        gradients
    }

    /// A transposed convolution is the data gradient of a convolution from its output to its input, so the roles of data and gradient are
    /// swapped.
    fn transposed_convolution(
        &self,
        builder: &mut GradientBuilder,
        convolution: &Convolution,
        dy: ValueId,
    ) -> Gradients {
        let (x, w) = (self.inputs[0], self.inputs[1]);
        let mut gradients = vec![None; self.inputs.len()];
        if self.needs[1] {
            gradients[1] = Some(weight_gradient(builder, convolution, dy, x, w));
        }
        if self.needs.get(2) == Some(&true) {
            gradients[2] = Some(channel_sum(builder, dy));
        }
        if self.needs[0] {
            let (convolution, activation) = (convolution.clone(), Activation::None);
            let ty = builder.ty(x);
            gradients[0] = Some(builder.one(Kernel::Convolution { convolution, activation }, &[dy, w], ty));
        }
        gradients
    }

    /// Gradients of normalizations, computed by one kernel with three results. All are written; those that are not wanted remain unused.
    fn normalization(&self, builder: &mut GradientBuilder, kernel: Kernel, reads: &[ValueId]) -> Gradients {
        let scale = builder.ty(self.inputs[1]);
        let types = [builder.ty(self.inputs[0]), scale.clone(), scale];
        let outputs = builder.kernel(kernel.name(), kernel.clone(), reads, &types);
        outputs.into_iter().zip(self.needs).map(|(output, &needed)| needed.then_some(output)).collect()
    }

    /// Gradients of layer normalization, whose means and inverse deviations can have gradients as well:
    /// d mean / dx = 1 / n, and d inverse / dx = -inverse^3 (x - mean) / n.
    fn layer_normalization(&self, builder: &mut GradientBuilder, axis: usize) -> Gradients {
        let (x, mean, inverse) = (self.inputs[0], self.outputs[1], self.outputs[2]);
        let mut gradients = vec![None; self.inputs.len()];
        if let Some(dy) = self.gradients[0] {
            let reads = [dy, x, self.inputs[1], mean, inverse];
            gradients = self.normalization(builder, Kernel::LayerNormalizationGradient { axis }, &reads);
        }
        if !self.needs[0] {
            return gradients;
        }
        let ty = builder.ty(x);
        let mut column = ty.shape.clone();
        column[axis..].fill(1);
        let share = 1.0 / ty.shape[axis..].iter().product::<u64>() as f32;
        let mut add = |builder: &mut GradientBuilder, d: ValueId| {
            let d = builder.cast(d, &ty);
            gradients[0] = Some(builder.accumulate(gradients[0], d));
        };
        if let Some(d) = self.gradients[1] {
            let d = builder.reshape(d, &column);
            let d = builder.expand_scaled(d, &ty.shape, share);
            add(builder, d);
        }
        if let Some(d) = self.gradients[2] {
            let square = builder.binary(BinaryOp::Multiply, inverse, inverse);
            let cube = builder.binary(BinaryOp::Multiply, square, inverse);
            let product = builder.binary(BinaryOp::Multiply, d, cube);
            let factor = builder.scaled(product, -share);
            let (factor, mean) = (builder.reshape(factor, &column), builder.reshape(mean, &column));
            let wide = builder.cast(x, &TensorType::new(builder.ty(mean).data_type, &ty.shape));
            let centered = builder.binary(BinaryOp::Subtract, wide, mean);
            let d = builder.binary(BinaryOp::Multiply, centered, factor);
            add(builder, d);
        }
        gradients
    }

    /// Gradients of batch normalization with given statistics: y = scale (x - mean) / deviation + bias is linear in x.
    fn batch_normalization(&self, builder: &mut GradientBuilder, epsilon: f32, dy: ValueId) -> Gradients {
        let (x, scale, mean, variance) = (self.inputs[0], self.inputs[1], self.inputs[3], self.inputs[4]);
        let rank = builder.ty(x).shape.len();
        let along_channels = |builder: &mut GradientBuilder, value: ValueId| {
            let mut shape = vec![1; rank.saturating_sub(1)];
            shape[0] = builder.ty(value).shape[0];
            builder.reshape(value, &shape)
        };
        let shifted = builder.unary(UnaryOp::Affine { scale: 1.0, shift: epsilon }, variance);
        let deviation = builder.unary(UnaryOp::Sqrt, shifted);
        let mut gradients = vec![None; 5];
        if self.needs[1] {
            let mean = along_channels(builder, mean);
            let centered = builder.binary(BinaryOp::Subtract, x, mean);
            let product = builder.binary(BinaryOp::Multiply, dy, centered);
            let sum = channel_sum(builder, product);
            gradients[1] = Some(builder.binary(BinaryOp::Divide, sum, deviation));
        }
        if self.needs[2] {
            gradients[2] = Some(channel_sum(builder, dy));
        }
        if self.needs[0] {
            let factor = builder.binary(BinaryOp::Divide, scale, deviation);
            let factor = along_channels(builder, factor);
            gradients[0] = Some(builder.binary(BinaryOp::Multiply, dy, factor));
        }
        gradients
    }
}

/// The weight gradient, a sum over the batch. It is computed in float32, so that sums over parts of the batch are added before they are
/// rounded.
fn weight_gradient(
    builder: &mut GradientBuilder,
    convolution: &Convolution,
    x: ValueId,
    dy: ValueId,
    w: ValueId,
) -> ValueId {
    let kernel = Kernel::ConvolutionWeightGradient { convolution: convolution.clone() };
    let ty = builder.ty(w);
    let sums = builder.one(kernel, &[x, dy], widened(&ty));
    builder.cast(sums, &ty)
}

/// The sum over everything but the channels (axis 1): the gradient of a bias.
fn channel_sum(builder: &mut GradientBuilder, dy: ValueId) -> ValueId {
    let shape = builder.ty(dy).shape;
    let axes: Vec<usize> = (0..shape.len()).filter(|&axis| axis != 1).collect();
    let sum = builder.sum(dy, &axes);
    builder.reshape(sum, &shape[1..2])
}
