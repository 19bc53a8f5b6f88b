//! Merges copies of parameters. PyTorch's newer exporter transposes a parameter once for each use and stores each result; these copies
//! become one tensor again, so that a layer that a module uses twice trains as in the module.
//!
//! The exporter records what a tensor was made from, and the elements are compared as well.

use std::collections::{BTreeMap, BTreeSet};

use super::altered::moved_from;
use super::exporter::{CALL, Signature};
use super::external::Folder;
use super::proto::attribute_proto::AttributeType;
use super::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, StringStringEntryProto};
use super::skeleton::LeftOut;
use super::tensor;
use crate::tensor::Contents;

/// The approximate number of elements of a copy that are compared with the original.
const COMPARED_MAX: u64 = 4096;

/// How a matrix is derived from another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copied {
    Same,
    Transposed,
}

/// Makes nodes that read several copies of a matrix parameter read a single tensor.
pub(super) fn share_again(proto: &mut ModelProto, left_out: &mut LeftOut, folder: Option<&Folder>) {
    let Some(graph) = &mut proto.graph else { return };
    let copies = copies(graph, left_out, folder);
    if copies.is_empty() {
        return;
    }
    let mut transposes = Vec::new();
    for (copy, (parameter, argument, copied)) in &copies {
        match copied {
            Copied::Same => {
                let inputs = graph.node.iter_mut().flat_map(|node| &mut node.input);
                inputs.filter(|input| *input == copy).for_each(|input| input.clone_from(parameter));
            }
            Copied::Transposed => transposes.push(transpose(parameter, copy, argument)),
        }
    }
    let gone = |name: &str| copies.contains_key(name);
    let places = graph.initializer.iter().enumerate().filter(|(_, initializer)| !gone(initializer.name()));
    let places: BTreeMap<usize, usize> = places.enumerate().map(|(new, (old, _))| (old, new)).collect();
    let initializers = std::mem::take(&mut left_out.initializers).into_iter();
    left_out.initializers = initializers.filter_map(|(old, data)| Some((*places.get(&old)?, data))).collect();
    graph.initializer.retain(|initializer| !gone(initializer.name()));
    graph.value_info.retain(|info| !gone(info.name()));
    let attributes = std::mem::take(&mut left_out.attributes).into_iter();
    let added = transposes.len();
    left_out.attributes = attributes.map(|((node, attribute), data)| ((node + added, attribute), data)).collect();
    graph.node.splice(..0, transposes);
}

/// Returns, for each copy, the tensor that it was copied from, the argument of the exported program that this tensor is, and how it was
/// copied.
fn copies(
    graph: &GraphProto,
    left_out: &LeftOut,
    folder: Option<&Folder>,
) -> BTreeMap<String, (String, String, Copied)> {
    // Nodes of subgraphs can read any of them.
    let has_graphs = |node: &NodeProto| node.attribute.iter().any(|attribute| attribute.g.is_some());
    if graph.node.iter().any(has_graphs) {
        return BTreeMap::new();
    }
    let signature = Signature::of(graph);
    let buffers = signature.buffers();
    let matrices = graph.initializer.iter().enumerate().filter(|(_, initializer)| initializer.dims.len() == 2);
    let matrices: BTreeMap<&str, usize> = matrices.map(|(place, initializer)| (initializer.name(), place)).collect();
    let outputs: BTreeSet<&str> = graph.output.iter().map(|output| output.name()).collect();
    let mut families: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for info in graph.value_info.iter().filter(|info| matrices.contains_key(info.name())) {
        if let Some(parameter) = moved_from(info, &signature, &buffers).filter(|_| !outputs.contains(info.name())) {
            families.entry(parameter).or_default().push(info.name());
        }
    }
    let contents = |name: &str| {
        let place = *matrices.get(name)?;
        tensor::take(&mut graph.initializer[place].clone(), left_out.initializers.get(&place), folder).ok()
    };
    let mut copies = BTreeMap::new();
    for (parameter, mut family) in families {
        if matrices.contains_key(parameter) {
            family.insert(0, parameter);
        }
        let (Some((first, rest)), Some(argument)) = (family.split_first(), signature.argument(parameter)) else {
            continue;
        };
        let Some(given) = (!rest.is_empty()).then(|| contents(first)).flatten() else { continue };
        for copy in rest {
            if let Some(copied) = contents(copy).and_then(|copy| compare(&given, &copy)) {
                copies.insert((*copy).to_string(), ((*first).to_string(), argument.to_string(), copied));
            }
        }
    }
    copies
}

/// Returns how a matrix is derived from another, judging by its elements.
fn compare(given: &Contents, copy: &Contents) -> Option<Copied> {
    let &[rows, columns] = given.shape() else { return None };
    if given.data_type() != copy.data_type() {
        return None;
    }
    let element_bytes = given.data_type().size_bytes();
    let (from, to) = (given.reader().ok()?, copy.reader().ok()?);
    let count = given.ty().count();
    let are_equal = |place: &dyn Fn(u64) -> u64| {
        let step = (count / COMPARED_MAX).max(1) as usize;
        (0..count).step_by(step).all(|i| {
            let read = |reader: &crate::tensor::Reader, element: u64| {
                let mut bytes = [0; 8];
                let bytes = &mut bytes[..element_bytes as usize];
                reader.read(element * element_bytes, bytes).ok()?;
                Some(bytes.to_vec())
            };
            read(&from, i).is_some_and(|element| read(&to, place(i)) == Some(element))
        })
    };
    if copy.shape() == [rows, columns] && are_equal(&|i| i) {
        return Some(Copied::Same);
    }
    let transposed = |i: u64| i % columns * rows + i / columns;
    (copy.shape() == [columns, rows] && are_equal(&transposed)).then_some(Copied::Transposed)
}

/// Returns a node that transposes a parameter, marked as made from a call with that argument.
fn transpose(parameter: &str, output: &str, argument: &str) -> NodeProto {
    let permutation = AttributeProto {
        name: Some("perm".to_string()),
        r#type: Some(AttributeType::Ints as i32),
        ints: vec![1, 0],
        ..AttributeProto::default()
    };
    let call = StringStringEntryProto { key: Some(CALL.to_string()), value: Some(format!("%{argument}")) };
    NodeProto {
        op_type: Some("Transpose".to_string()),
        name: Some(format!("{output}.shared")),
        input: vec![parameter.to_string()],
        output: vec![output.to_string()],
        attribute: vec![permutation],
        metadata_props: vec![call],
        ..NodeProto::default()
    }
}
