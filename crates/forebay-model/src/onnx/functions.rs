//! Inlines the functions that a model defines: each call is replaced by the function's nodes.
//!
//! Source: ONNX's `FunctionProto`. Names in a function are local to it, attributes of its nodes can refer to attributes of the call, and it
//! imports its own operator sets.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::malformed;
use super::message::{label, versions};
use super::proto::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto};
use crate::error::ModelError;

/// The deepest nesting of function calls; anything deeper is taken for recursion.
const DEPTH_MAX: usize = 64;
/// The most nodes that all calls of a model may expand to.
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
    /// Returns the functions that a model defines.
    ///
    /// # Errors
    /// Fails if a function imports operator sets that Forebay does not know.
    pub fn of(model: &ModelProto) -> Result<Functions, ModelError> {
        let mut by_name = BTreeMap::new();
        for function in &model.functions {
            let key = (domain(function.domain()), function.name().to_string(), function.overload().to_string());
            by_name.insert(key, (function.clone(), Rc::new(versions(&function.opset_import)?)));
        }
        Ok(Functions { by_name })
    }

    /// Returns the function that a node calls, or `None` if the node is an operator.
    fn called(&self, node: &NodeProto) -> Option<&(FunctionProto, Versions)> {
        if self.by_name.is_empty() {
            return None;
        }
        let key = (domain(node.domain()), node.op_type().to_string(), node.overload().to_string());
        self.by_name.get(&key)
    }

    /// Returns the nodes that replace a call, or `None` if the node is an operator.
    ///
    /// # Errors
    /// Fails if functions call themselves or calls expand to too many nodes.
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
                "node '{}' has {} inputs and {} outputs, but the function '{}' has {} and {}",
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
                return Err(malformed(format!("the functions of the model expand to more than {NODES_MAX} nodes")));
            }
        }
        Ok(())
    }
}

/// What the names and attributes in a function refer to in one call.
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
            // An output that the call omits is computed under a new name.
            let outside = given(&node.output, i);
            if !outside.is_empty() && !names.contains_key(name.as_str()) {
                names.insert(name, outside);
            }
        }
        let defaults = function.attribute_proto.iter().chain(&node.attribute);
        let attributes = defaults.map(|attribute| (attribute.name(), attribute)).collect();
        Call { names, attributes, prefix: label(node).to_string() }
    }

    /// Returns the name outside the function that corresponds to a name inside it.
    fn name(&self, inside: &str) -> String {
        match self.names.get(inside) {
            Some(outside) => outside.clone(),
            None if inside.is_empty() => String::new(),
            None => format!("{}/{inside}", self.prefix),
        }
    }

    /// Returns a node of the body as instantiated for this call.
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

    /// Replaces references to the call's attributes by their values, and removes references to attributes that the call omits.
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

    /// Renames the function's values that a nested graph uses, and leaves the graph's own names unchanged.
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

/// Returns the subgraphs of a node.
fn graphs(node: &mut NodeProto) -> impl Iterator<Item = &mut GraphProto> {
    node.attribute.iter_mut().flat_map(|attribute| attribute.g.iter_mut().chain(attribute.graphs.iter_mut()))
}

/// Returns the usual name of a domain.
fn domain(name: &str) -> String {
    if name == "ai.onnx" { "" } else { name }.to_string()
}
