//! Layer-wise learning rate decay: layers nearer to the inputs of a pretrained model change less.
//!
//! "BEiT: BERT Pre-Training of Image Transformers", Bao and others, 2022; as `timm` counts layers.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::DataType;

use super::groups::ParameterGroup;
use crate::error::ModelError;
use crate::graph::{Graph, ValueId};

/// Returns a group for each layer, whose rate is `decay` times that of the next layer; parameters after the last layer train at the full
/// rate.
///
/// Layers are identified by the numbers in parameter names, after the prefix for which the most parameters have a number
/// (`encoder.layer.7.output.weight`, `layer2.0.conv1`, `conv3.bias`). Other parameters belong to the layer before their first use, or come
/// before or after all layers.
///
/// # Errors
/// Fails if the decay is not above 0 and at most 1, or if the names do not number layers.
pub fn layer_groups(graph: &Graph, decay: f32) -> Result<Vec<ParameterGroup>, ModelError> {
    let refuse = |reason: String| Err(ModelError::Request { reason });
    if !(decay > 0.0 && decay <= 1.0) {
        return refuse(format!("the decay from layer to layer must be above 0 and at most 1, not {decay}"));
    }
    let mut first_uses: BTreeMap<ValueId, usize> = BTreeMap::new();
    for (place, node) in graph.nodes.iter().enumerate() {
        node.inputs.iter().flatten().for_each(|&input| {
            first_uses.entry(input).or_insert(place);
        });
    }
    let is_weight = |id: &ValueId| {
        graph.initializers[id].data_type() == DataType::Float32
            && !graph.constants.contains(id)
            && first_uses.contains_key(id)
    };
    let mut weights: Vec<(usize, &str)> = graph
        .initializers
        .keys()
        .filter(|id| is_weight(id))
        .map(|id| (first_uses[id], graph.value(*id).name.as_str()))
        .collect();
    weights.sort_unstable();
    let Some(prefix) = prefix(weights.iter().map(|&(_, name)| name)) else {
        return refuse(
            "the names of the parameters do not number the layers as 'blocks.0.weight' does; define groups with their own \
             rates (--group)"
                .to_string(),
        );
    };
    let number = |name: &str| numbers(name).find(|&(found, _)| found == prefix).map(|(_, number)| number);
    let all: BTreeSet<u64> = weights.iter().filter_map(|&(_, name)| number(name)).collect();
    let rank: BTreeMap<u64, usize> = all.iter().enumerate().map(|(rank, &number)| (number, rank + 1)).collect();
    let behind = all.len() + 1;
    let last_use = weights.iter().rfind(|&&(_, name)| number(name).is_some()).map_or(0, |&(place, _)| place);
    let mut layers: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let mut current = 0;
    for (place, name) in weights {
        let depth = match number(name) {
            Some(number) => {
                current = rank[&number];
                current
            }
            None if place > last_use => behind,
            None => current,
        };
        layers.entry(depth).or_default().push(name.to_string());
    }
    let group = |(depth, names): (usize, Vec<String>)| {
        let (first, more) = names.split_first()?;
        let mut group = ParameterGroup::new(first);
        group.more_patterns = more.to_vec();
        group.rate_factor = f64::from(decay).powi((behind - depth) as i32) as f32;
        Some(group)
    };
    Ok(layers.into_iter().filter_map(group).collect())
}

/// Returns the prefix for which the most parameters have a number, among those with several numbers; the shortest if there are several.
fn prefix<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut found: BTreeMap<&str, (usize, BTreeSet<u64>)> = BTreeMap::new();
    for name in names {
        for (prefix, number) in numbers(name) {
            let entry = found.entry(prefix).or_default();
            entry.0 += 1;
            entry.1.insert(number);
        }
    }
    let several = found.into_iter().filter(|(_, (_, numbers))| numbers.len() > 1);
    several.max_by_key(|(prefix, (count, _))| (*count, std::cmp::Reverse(prefix.len()))).map(|(prefix, _)| prefix)
}

/// Returns the numbers at the ends of the parts of a name, each with the text before it: those of `layer2.0.conv1.weight` are 2, 0 and 1.
fn numbers(name: &str) -> impl Iterator<Item = (&str, u64)> {
    let ends = name.char_indices().filter(|&(_, letter)| letter == '.' || letter == '/').map(|(place, _)| place);
    ends.filter_map(|end| {
        let part = &name[..end];
        let prefix = part.trim_end_matches(|letter: char| letter.is_ascii_digit());
        Some((prefix, part[prefix.len()..].parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use forebay_base::Tensor;

    use super::*;
    use crate::graph::{Node, Operation};

    fn graph(names: &[&str]) -> Graph {
        let mut graph = Graph::default();
        for name in names {
            let id = graph.add_initializer(name, Tensor::from_f32(&[1], &[0.0]));
            graph.nodes.push(Node {
                name: (*name).to_string(),
                operation: Operation::onnx("Identity", &[]),
                inputs: vec![Some(id)],
                outputs: vec![],
            });
        }
        graph
    }

    fn factors(names: &[&str], decay: f32) -> Vec<(String, f32)> {
        let groups = layer_groups(&graph(names), decay).unwrap();
        let of = |name: &&str| groups.iter().find(|group| group.matches(name)).unwrap().rate_factor;
        names.iter().map(|name| ((*name).to_string(), of(name))).collect()
    }

    /// The factors of `timm.optim.param_groups_layer_decay` with 0.5 for a vision transformer with two blocks: 0.125 before the blocks,
    /// then 0.25, 0.5 and 1.
    #[test]
    fn layers_are_counted_as_timm_counts_them() {
        let names = [
            "pos_embed",
            "patch_embed.proj.weight",
            "blocks.0.attn.weight",
            "val_7",
            "blocks.1.attn.weight",
            "norm.weight",
            "head.bias",
        ];
        let found = factors(&names, 0.5);
        let expected = [0.125, 0.125, 0.25, 0.25, 0.5, 1.0, 1.0];
        assert_eq!(found.iter().map(|(_, factor)| *factor).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_numbers_that_most_parameters_have_count_layers() {
        let names =
            ["conv1.weight", "layer1.0.conv1.weight", "layer1.1.conv1.weight", "layer4.0.conv1.weight", "fc.weight"];
        let found: Vec<f32> = factors(&names, 0.5).into_iter().map(|(_, factor)| factor).collect();
        assert_eq!(found, [0.125, 0.25, 0.25, 0.5, 1.0]);
        for (names, decay, words) in
            [(&["a.weight", "b.weight"][..], 0.5, "do not number the layers"), (&names, 0.0, "above 0")]
        {
            let error = layer_groups(&graph(names), decay).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
