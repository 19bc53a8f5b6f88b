//! Exponential moving averages of parameters: state that every step moves towards the parameter it has just updated.

use forebay_base::Kernel;

use crate::error::ModelError;
use crate::graph::{Graph, Node, Operation, Update, ValueId};

/// The suffix that turns a parameter's name into the name of its average.
pub const AVERAGE: &str = "average";

/// Returns the name of a parameter's average.
pub fn average_of(parameter: &str) -> String {
    format!("{parameter}.{AVERAGE}")
}

/// Adds the averages of parameters whose updates are in the graph: average = decay average + (1 - decay) updated parameter. Each starts
/// with the parameter's initial value. Returns the averages with their parameters.
pub(super) fn append_averages(
    graph: &mut Graph,
    trained: &[(ValueId, ValueId)],
    decay: Option<f32>,
) -> Result<Vec<(ValueId, ValueId)>, ModelError> {
    let Some(decay) = decay else { return Ok(Vec::new()) };
    if !(0.0..1.0).contains(&decay) {
        let reason = format!("the decay of a moving average must be at least 0 and below 1, but is {decay}");
        return Err(ModelError::Request { reason });
    }
    let mut averages = Vec::with_capacity(trained.len());
    for &(parameter, _) in trained {
        let updated = graph.updates.iter().find(|update| update.state == parameter).map(|update| update.value);
        let (Some(updated), Some(contents)) = (updated, graph.initializers.get(&parameter).cloned()) else { continue };
        let ty = contents.ty().clone();
        let average = graph.add_initializer(&average_of(&graph.value(parameter).name.clone()), contents);
        let name = graph.value(average).name.clone();
        let next = graph.add_value(&format!("{name}.next"), Some(ty));
        graph.nodes.push(Node {
            name,
            operation: Operation::Kernel(Kernel::RunningStatistics { momentum: decay, correction: 1.0 }),
            inputs: vec![Some(average), Some(updated)],
            outputs: vec![Some(next)],
        });
        graph.updates.push(Update { state: average, value: next });
        averages.push((average, parameter));
    }
    Ok(averages)
}
