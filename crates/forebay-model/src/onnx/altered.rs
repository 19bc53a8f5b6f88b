//! Detects parameters of a PyTorch module that the newer exporter's optimizer has computed with. When such a file trains, it trains other
//! values than the module does. This cannot be undone, because the computed values do not reveal their origin, but it can be reported.

use std::collections::{BTreeMap, BTreeSet};

use super::exporter::{FOLDED_FROM, Signature, entry};
use super::proto::{GraphProto, ModelProto, ValueInfoProto};

/// Calls that only rearrange elements.
const MOVES: [&str; 8] = ["permute", "transpose", "t", "view", "reshape", "unsqueeze", "squeeze", "detach"];
/// Operators whose weights and biases are reordered and concatenated, with these inputs.
const RECURRENT: [&str; 3] = ["LSTM", "GRU", "RNN"];
const RECURRENT_WEIGHTS: std::ops::RangeInclusive<usize> = 1..=3;

/// The occurrences of a parameter in a file.
#[derive(Default)]
struct Places {
    /// The number of initializers that hold its elements, in any order.
    moved: usize,
    /// The number of initializers that hold values computed from it.
    computed: usize,
    /// The number of initializers that are weights of recurrent operators.
    recurrent: usize,
}

/// Returns the names of the module's parameters that occur nowhere in the file, not even in computed values: the optimizer removed them
/// because of their values, such as an addition of 0, or no output of the module depends on them.
pub(super) fn missing_parameters(proto: &ModelProto) -> Vec<String> {
    let Some(graph) = &proto.graph else { return Vec::new() };
    let folded = graph.value_info.iter().filter_map(|info| entry(&info.metadata_props, FOLDED_FROM));
    let folded: BTreeSet<&str> = folded.flat_map(|list| list.split(['\'', '"'])).collect();
    let inputs = graph.node.iter().flat_map(|node| &node.input).map(String::as_str);
    let read: BTreeSet<&str> = inputs.collect();
    let is_there = |name: &&String| folded.contains(name.as_str()) || read.contains(name.as_str());
    Signature::of(graph).parameters.iter().filter(|name| !is_there(name)).cloned().collect()
}

/// Returns the names of the module's parameters that do not train in the file as they do in the module, because the file has several copies
/// of them, or values computed from them, instead.
pub(super) fn altered_parameters(proto: &ModelProto) -> Vec<String> {
    let Some(graph) = &proto.graph else { return Vec::new() };
    let signature = Signature::of(graph);
    let (buffers, uses) = (signature.buffers(), uses(graph));
    let mut places: BTreeMap<&str, Places> = BTreeMap::new();
    for info in &graph.value_info {
        let (Some(list), Some(uses)) = (entry(&info.metadata_props, FOLDED_FROM), uses.get(info.name())) else {
            continue;
        };
        let names = names_in(list);
        let of_module = |name: &&&str| signature.parameters.contains(**name);
        let is_recurrent =
            uses.iter().all(|(operator, input)| RECURRENT.contains(operator) && RECURRENT_WEIGHTS.contains(input));
        let parameters: Vec<&str> = names.iter().filter(of_module).copied().collect();
        let is_moved = moved_from(info, &signature, &buffers).is_some();
        for parameter in parameters {
            let places = places.entry(parameter).or_default();
            match (is_recurrent, is_moved) {
                (true, _) => places.recurrent += 1,
                (false, true) => places.moved += 1,
                (false, false) => places.computed += 1,
            }
        }
    }
    let is_there = |name: &str| uses.contains_key(name);
    let gone_statistics: BTreeSet<&str> =
        buffers.iter().filter(|name| !is_there(name)).filter_map(|name| name.strip_suffix(".running_var")).collect();
    let is_altered = |parameter: &&String| {
        let nothing = Places::default();
        let places = places.get(&***parameter).unwrap_or(&nothing);
        let moved = places.moved + usize::from(is_there(parameter));
        // A normalization that was merged into the preceding layer.
        let is_folded = moved + places.recurrent == 0
            && parameter.rsplit_once('.').is_some_and(|(module, _)| gone_statistics.contains(module));
        places.computed > 0 || moved > 1 || is_folded
    };
    signature.parameters.iter().filter(is_altered).cloned().collect()
}

/// Returns the names in a list of quoted names.
fn names_in(list: &str) -> BTreeSet<&str> {
    list.split(['\'', '"']).skip(1).step_by(2).collect()
}

/// Returns the parameter that the exporter transposed or reshaped into this value, or `None` if the exporter did more or used several
/// parameters. `buffers` are the module's buffers.
pub(super) fn moved_from<'a>(
    info: &'a ValueInfoProto,
    signature: &Signature,
    buffers: &BTreeSet<&str>,
) -> Option<&'a str> {
    let names = names_in(entry(&info.metadata_props, FOLDED_FROM)?);
    let (parameters, other): (Vec<&str>, Vec<&str>) =
        names.into_iter().partition(|name| signature.parameters.contains(*name));
    let is_moved = other.iter().chain([&info.name()]).all(|name| !buffers.contains(name) && moves(name));
    match *parameters {
        [parameter] if is_moved => Some(parameter),
        _ => None,
    }
}

/// Returns, for each initializer, the operators that read it and the input that each reads it as.
fn uses(graph: &GraphProto) -> BTreeMap<&str, Vec<(&str, usize)>> {
    let mut uses: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    let initializers: BTreeSet<&str> = graph.initializer.iter().map(|initializer| initializer.name()).collect();
    for node in &graph.node {
        for (k, input) in node.input.iter().enumerate().filter(|(_, input)| initializers.contains(&***input)) {
            uses.entry(input).or_default().push((node.op_type(), k));
        }
    }
    uses
}

/// Returns whether the name of a value in the exported program denotes a parameter with rearranged elements: `permute_1`, or `val_7`, which
/// is not a call of the program.
fn moves(name: &str) -> bool {
    let call = match name.rsplit_once('_') {
        Some((call, number)) if number.parse::<u32>().is_ok() => call,
        _ => name,
    };
    call == "val" || MOVES.contains(&call)
}
