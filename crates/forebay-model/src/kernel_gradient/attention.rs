//! The gradient of attention.

use forebay_base::kernel::{Activation, AttentionOptions, BinaryOp, ProductPart, UnaryOp};
use forebay_base::{DataType, Kernel, Tensor};

use super::{Application, Gradients};
use crate::context::GradientBuilder;
use crate::graph::{TensorType, ValueId};

impl Application<'_> {
    /// Builds the gradients of attention. One kernel computes the gradients with respect to queries, keys and values. The gradient with
    /// respect to a numeric mask has the sizes of the scores, so the scores are computed as a matrix for it.
    pub(super) fn attention(&self, builder: &mut GradientBuilder, options: AttentionOptions, dy: ValueId) -> Gradients {
        let mut gradients = vec![None; self.inputs.len()];
        let mask = self.inputs.get(3).copied();
        if let (Some(mask), Some(true)) = (mask, self.needs.get(3)) {
            let shape = builder.ty(mask).shape;
            let d = self.gradient_by_scores(builder, options, dy, mask);
            gradients[3] = Some(builder.sum_to(d, &shape));
        }
        if self.needs[..3].contains(&true) {
            let kernel = Kernel::AttentionGradient(options);
            let mut reads = vec![dy];
            reads.extend(&self.inputs[..3]);
            reads.extend(&self.outputs[..2]);
            reads.extend(mask);
            let types: Vec<TensorType> = self.inputs[..3].iter().map(|&input| builder.ty(input)).collect();
            let outputs = builder.kernel(kernel.name(), kernel.clone(), &reads, &types);
            for (i, output) in outputs.into_iter().enumerate() {
                gradients[i] = self.needs[i].then_some(output);
            }
        }
        gradients
    }

    /// p (dp - sum(dy y)), where p are the probabilities and dp = dy v^T: [batch, heads, rows, keys].
    fn gradient_by_scores(
        &self,
        builder: &mut GradientBuilder,
        options: AttentionOptions,
        dy: ValueId,
        mask: ValueId,
    ) -> ValueId {
        let (queries, keys) = (builder.ty(self.inputs[0]).shape, builder.ty(self.inputs[1]).shape);
        let (batch, heads, rows, groups, count) = (queries[0], queries[1], queries[2], keys[1], keys[2]);
        let scores = [batch, heads, rows, count];
        // The heads of a group are the rows of one matrix.
        let by_groups = |builder: &mut GradientBuilder, a: ValueId, b: ValueId, alpha: f32| {
            let ty = builder.ty(a);
            let group_rows = heads / groups * rows;
            let a = builder.reshape(a, &[batch, groups, group_rows, ty.shape[3]]);
            let kernel = Kernel::MatMul {
                transpose_a: false,
                transpose_b: true,
                alpha,
                beta: 0.0,
                activation: Activation::None,
                part: ProductPart::Whole,
            };
            let y = TensorType::new(ty.data_type, &[batch, groups, group_rows, count]);
            let y = builder.one(kernel, &[a, b], y);
            builder.reshape(y, &scores)
        };
        let mut s = by_groups(builder, self.inputs[0], self.inputs[1], options.scale);
        if options.softcap != 0.0 {
            let capped = builder.scaled(s, 1.0 / options.softcap);
            let capped = builder.unary(UnaryOp::Tanh, capped);
            s = builder.scaled(capped, options.softcap);
        }
        s = builder.binary(BinaryOp::Add, s, mask);
        // The logarithms and what rounding left of them.
        let mut above = s;
        for part in 0..2 {
            let kernel = Kernel::Slice { starts: vec![0, 0, 0, part], steps: vec![1; 4] };
            let ty = TensorType::new(DataType::Float32, &[batch, heads, rows, 1]);
            let logarithms = builder.one(kernel, &[self.outputs[1]], ty);
            above = builder.binary(BinaryOp::Subtract, above, logarithms);
        }
        let mut p = builder.unary(UnaryOp::Exp, above);
        if let Some(more) = options.causal {
            let numbers = |builder: &mut GradientBuilder, start: i64, count: u64, shape: [u64; 4]| {
                let values: Vec<i64> = (0..count).map(|number| start.saturating_add(number as i64)).collect();
                builder.constant(Tensor::from_i64(&shape, &values))
            };
            let last = numbers(builder, more, rows, [1, 1, rows, 1]);
            let key = numbers(builder, 0, count, [1, 1, 1, count]);
            let seen = TensorType::new(DataType::Bool, &[1, 1, rows, count]);
            let kernel = Kernel::Binary { op: BinaryOp::GreaterOrEqual, activation: Activation::None };
            let seen = builder.one(kernel, &[last, key], seen);
            let zero = builder.zero(p);
            p = builder.select(seen, p, zero);
        }
        let dp = by_groups(builder, dy, self.inputs[2], 1.0);
        let products = builder.binary(BinaryOp::Multiply, dy, self.outputs[0]);
        let mean = builder.sum(products, &[3]);
        let above = builder.binary(BinaryOp::Subtract, dp, mean);
        builder.binary(BinaryOp::Multiply, p, above)
    }
}
