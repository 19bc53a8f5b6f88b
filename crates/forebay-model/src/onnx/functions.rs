//! Functions that a model defines itself: a call is replaced by the function's nodes.
//!
//! Source: ONNX's `FunctionProto`: names inside are the function's own, attributes of its nodes may refer to the call's, and it imports
//! operator sets itself.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::malformed;
use super::message::{label, versions};
use super::proto::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto};
use crate::error::ModelError;

/// Functions may call functions this deep; deeper, they call themselves.
const DEPTH_MAX: usize = 64;
/// Nodes that all calls of a model become at most.
const NODES_MAX: usize = 1 << 20;

/// Versions of operator sets, by domain.
pub(super) type Versions = Rc<BTreeMap<String, i64>>;

/// The functions of a model, by domain, name and overload.
#[derive(Debug, Default)]
pub(super) struct Functions {
    by_name: BTreeMap<(String, String, String), (FunctionProto, Versions)>,
}

/// A node of a function's body, with the operator sets that the function imports.
pub(super) struct BodyNode {
    pub proto: NodeProto,
    pub versions: Versions,
}

impl Functions {
    /// The functions that a model defines.
    ///
    /// # Errors
    /// Operator sets that Forebay does not know.
    pub fn of(model: &ModelProto) -> Result<Functions, ModelError> {
        let mut by_name = BTreeMap::new();
        for function in &model.functions {
            let key = (domain(function.domain()), function.name().to_string(), function.overload().to_string());
            by_name.insert(key, (function.clone(), Rc::new(versions(&function.opset_import)?)));
        }
        Ok(Functions { by_name })
    }

    /// The function that a node calls; none where it is an operator.
    fn called(&self, node: &NodeProto) -> Option<&(FunctionProto, Versions)> {
        if self.by_name.is_empty() {
            return None;
        }
        let key = (domain(node.domain()), node.op_type().to_string(), node.overload().to_string());
        self.by_name.get(&key)
    }

    /// The nodes that a call becomes; none where the node is an operator.
    ///
    /// # Errors
    /// Functions that call themselves, or calls that become too many nodes.
    pub fn body(&self, node: &NodeProto) -> Result<Option<Vec<BodyNode>>, ModelError> {
        let Some(called) = self.called(node) else { return Ok(None) };
        let mut nodes = Vec::new();
        self.call(node, called, 0, &mut nodes)?;
        Ok(Some(nodes))
    }

    fn call(
        &self,
        node: &NodeProto,
        (function, versions): &(FunctionProto, Versions),
        depth: usize,
        nodes: &mut Vec<BodyNode>,
    ) -> Result<(), ModelError> {
        if depth > DEPTH_MAX {
            return Err(malformed(format!("the function '{}' calls itself", function.name())));
        }
        if node.input.len() > function.input.len() || node.output.len() > function.output.len() {
            return Err(malformed(format!(
                "node '{}' gives {} inputs and {} outputs to the function '{}', which has {} and {}",
                label(node),
                node.input.len(),
                node.output.len(),
                function.name(),
                function.input.len(),
                function.output.len()
            )));
        }
        let call = Call::new(node, function);
        for body in &function.node {
            let proto = call.node(body);
            match self.called(&proto) {
                Some(inner) => self.call(&proto, inner, depth + 1, nodes)?,
                None => nodes.push(BodyNode { proto, versions: versions.clone() }),
            }
            if nodes.len() > NODES_MAX {
                return Err(malformed(format!("the functions of the model are more than {NODES_MAX} nodes")));
            }
        }
        Ok(())
    }
}

/// What names and attributes inside a function stand for in one call.
struct Call<'a> {
    names: BTreeMap<&'a str, String>,
    attributes: BTreeMap<&'a str, &'a AttributeProto>,
    prefix: String,
}

impl<'a> Call<'a> {
    fn new(node: &'a NodeProto, function: &'a FunctionProto) -> Call<'a> {
        let given = |names: &'a [String], i: usize| names.get(i).cloned().unwrap_or_default();
        let mut names = BTreeMap::new();
        for (i, name) in function.input.iter().enumerate() {
            names.insert(name.as_str(), given(&node.input, i));
        }
        for (i, name) in function.output.iter().enumerate() {
            // An output that the call leaves out is computed under a name of its own.
            let outside = given(&node.output, i);
            if !outside.is_empty() && !names.contains_key(name.as_str()) {
                names.insert(name, outside);
            }
        }
        let defaults = function.attribute_proto.iter().chain(&node.attribute);
        let attributes = defaults.map(|attribute| (attribute.name(), attribute)).collect();
        Call { names, attributes, prefix: label(node).to_string() }
    }

    /// What a name inside the function is outside.
    fn name(&self, inside: &str) -> String {
        match self.names.get(inside) {
            Some(outside) => outside.clone(),
            None if inside.is_empty() => String::new(),
            None => format!("{}/{inside}", self.prefix),
        }
    }

    /// A node of the body as this call has it.
    fn node(&self, body: &NodeProto) -> NodeProto {
        let mut node = body.clone();
        node.input.iter_mut().chain(&mut node.output).for_each(|name| *name = self.name(name));
        node.name = Some(format!("{}/{}", self.prefix, label(body)));
        self.fill_attributes(&mut node.attribute);
        for graph in graphs(&mut node) {
            self.rename_outer(graph, &BTreeSet::new());
        }
        node
    }

    /// Puts the call's attributes where nodes refer to them; those that are not given are left out.
    fn fill_attributes(&self, attributes: &mut Vec<AttributeProto>) {
        attributes.retain_mut(|attribute| {
            if attribute.ref_attr_name().is_empty() {
                return true;
            }
            let Some(given) = self.attributes.get(attribute.ref_attr_name()) else { return false };
            let name = attribute.name.take();
            *attribute = AttributeProto { name, ..(*given).clone() };
            true
        });
    }

    /// Renames what a nested graph uses of the function's values, and leaves its own names as they are.
    fn rename_outer(&self, graph: &mut GraphProto, outer_own: &BTreeSet<String>) {
        let mut own = outer_own.clone();
        own.extend(graph.input.iter().map(|input| input.name().to_string()));
        own.extend(graph.initializer.iter().map(|initializer| initializer.name().to_string()));
        own.extend(graph.node.iter().flat_map(|node| node.output.iter().cloned()));
        for node in &mut graph.node {
            for name in node.input.iter_mut().filter(|name| !own.contains(*name)) {
                *name = self.name(name);
            }
            self.fill_attributes(&mut node.attribute);
            for graph in graphs(node) {
                self.rename_outer(graph, &own);
            }
        }
        for output in graph.output.iter_mut().filter(|output| !own.contains(output.name())) {
            output.name = Some(self.name(output.name()));
        }
    }
}

/// The graphs in a node.
fn graphs(node: &mut NodeProto) -> impl Iterator<Item = &mut GraphProto> {
    node.attribute.iter_mut().flat_map(|attribute| attribute.g.iter_mut().chain(attribute.graphs.iter_mut()))
}

/// A domain by its usual name.
fn domain(name: &str) -> String {
    if name == "ai.onnx" { "" } else { name }.to_string()
}
