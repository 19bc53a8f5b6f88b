//! Gradients read exactly the operands that the kernel facts declare.

use std::collections::BTreeSet;

use forebay_base::TensorDesc;
use forebay_base::kernel::facts::GradientReads;
use forebay_base::kernel::{Activation, samples};

use super::*;
use crate::graph::{Graph, TensorType, ValueId};

#[test]
fn gradients_read_what_the_facts_of_kernels_say() {
    for sample in samples::all() {
        let mut kernel = sample.kernel.clone();
        // Gradients are those of the original program, before fusion.
        if let Some(activation) = kernel.activation_mut() {
            *activation = Activation::None;
        }
        let mut graph = Graph::default();
        let mut value = |desc: &TensorDesc| {
            let ty = TensorType::new(desc.data_type(), desc.sizes());
            graph.add_value("operand", Some(ty))
        };
        let inputs: Vec<ValueId> = sample.reads.iter().map(&mut value).collect();
        let outputs: Vec<ValueId> = sample.writes.iter().map(&mut value).collect();
        let dy = value(&sample.writes[0]);
        // Statistics given as inputs are not trained.
        let is_trained = |(at, desc): (usize, &TensorDesc)| desc.data_type().is_float() && at < 3;
        let needs: Vec<bool> = sample.reads.iter().enumerate().map(is_trained).collect();
        let mut d_outputs = vec![None; outputs.len()];
        d_outputs[0] = Some(dy);
        let action = Action::Kernel(kernel.clone());
        let application =
            Application { action: &action, inputs: &inputs, outputs: &outputs, gradients: &d_outputs, needs: &needs };
        let mut builder = GradientBuilder::without_gradients(&mut graph, infer_node, "gradient");
        let found = application.gradients(&mut builder);
        let read: BTreeSet<ValueId> =
            graph.nodes.iter().flat_map(|node| node.inputs.iter().flatten().copied()).collect();
        let of =
            |values: &[ValueId]| -> Vec<usize> { (0..values.len()).filter(|&at| read.contains(&values[at])).collect() };
        let facts = kernel.facts();
        let name = sample.name();
        match (facts.gradient, found) {
            (GradientReads::None, found) => assert!(found.is_none(), "{name} has a gradient"),
            (GradientReads::Zero, found) => {
                let is_zero = found.is_some_and(|all| all.iter().all(Option::is_none)) || inputs.is_empty();
                assert!(is_zero, "{name} has a gradient that is not zero");
            }
            (GradientReads::Some { reads, writes }, found) => {
                assert!(found.is_some_and(|all| needs.contains(&true) && !all.is_empty()), "{name} has no gradient");
                assert_eq!((of(&inputs), of(&outputs)), (reads.to_vec(), writes.to_vec()), "{name}");
            }
        }
    }
}
