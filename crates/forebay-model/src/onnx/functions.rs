//! Inlines the functions that a model defines: each call is replaced by the function's nodes.
//!
//! Source: ONNX's `FunctionProto`. Names in a function are local to it, attributes of its nodes can refer to attributes of the call, and it
//! imports its own operator sets.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::malformed;
use super::message::{label, versions};
use super::proto::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto};
use crate::error::ModelError;

/// The deepest nesting of function calls; anything deeper is taken for recursion.
const DEPTH_MAX: usize = 64;
/// The most nodes that all calls of a model may expand to, calls included: functions without nodes can call each other, too.
const NODES_MAX: usize = 1 << 20;

/// Versions of operator sets, by domain.
pub(super) type Versions = Rc<BTreeMap<String, i64>>;

/// The functions of a model, by domain, name and overload.
#[derive(Debug, Default)]
pub(super) struct Functions {
    by_name: BTreeMap<(String, String, String), (FunctionProto, Versions)>,
    taken: RefCell<Names>,
    /// The number of nodes, calls included, that calls have expanded to so far.
    expanded: Cell<usize>,
}

/// The names that are in use anywhere in a model, each with the number to add to it the next time it is wanted.
#[derive(Debug, Default)]
struct Names(BTreeMap<String, usize>);

impl Names {
    /// Returns this name, or one like it that is not in use.
    fn free(&mut self, wanted: String) -> String {
        let Some(&first) = self.0.get(&wanted) else {
            self.0.insert(wanted.clone(), 2);
            return wanted;
        };
        let mut number = first;
        let mut numbered = || {
            number += 1;
            format!("{wanted}/{}", number - 1)
        };
        let mut name = numbered();
        while self.0.contains_key(&name) {
            name = numbered();
        }
        self.0.insert(name.clone(), 2);
        self.0.insert(wanted, number);
        name
    }
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
        let mut taken = BTreeSet::new();
        if let (Some(graph), false) = (&model.graph, by_name.is_empty()) {
            add_names(graph, &mut taken);
        }
        let taken = taken.into_iter().map(|name| (name.to_string(), 2)).collect();
        Ok(Functions { by_name, taken: RefCell::new(Names(taken)), expanded: Cell::new(0) })
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
        self.expanded.set(self.expanded.get().saturating_add(1 + function.node.len()));
        if self.expanded.get() > NODES_MAX {
            return Err(malformed(format!("the functions of the model expand to more than {NODES_MAX} nodes")));
        }
        let call = Call::new(node, function, &mut self.taken.borrow_mut());
        for body in &function.node {
            let proto = call.node(body);
            match self.called(&proto) {
                Some(inner) => self.call(&proto, inner, depth + 1, nodes)?,
                None => nodes.push(BodyNode { proto, versions: versions.clone() }),
            }
        }
        Ok(())
    }
}

/// What the names and attributes in a function refer to in one call.
struct Call<'a> {
    /// The caller's names of the function's inputs and outputs.
    names: BTreeMap<&'a str, String>,
    /// The new names of the other values, including those with which graphs inside the function hide its inputs and outputs.
    own: BTreeMap<&'a str, String>,
    attributes: BTreeMap<&'a str, &'a AttributeProto>,
    prefix: String,
}

impl<'a> Call<'a> {
    fn new(node: &'a NodeProto, function: &'a FunctionProto, taken: &mut Names) -> Call<'a> {
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
        let mut defined: BTreeSet<&str> = BTreeSet::new();
        for body in &function.node {
            defined.extend(outputs(body).filter(|name| !names.contains_key(name)));
            graphs(body).for_each(|graph| add_names(graph, &mut defined));
        }
        let prefix = label(node).to_string();
        let own = defined.into_iter().map(|name| (name, taken.free(format!("{prefix}/{name}")))).collect();
        let defaults = function.attribute_proto.iter().chain(&node.attribute);
        let attributes = defaults.map(|attribute| (attribute.name(), attribute)).collect();
        Call { names, own, attributes, prefix }
    }

    /// Returns the name outside the function that corresponds to a name inside it.
    fn name(&self, inside: &str) -> String {
        self.names.get(inside).cloned().unwrap_or_else(|| self.own_name(inside))
    }

    /// Returns the new name of a value that is neither an input nor an output of the function.
    fn own_name(&self, inside: &str) -> String {
        match self.own.get(inside) {
            Some(name) => name.clone(),
            None if inside.is_empty() => String::new(),
            // No node computes it.
            None => format!("{}/{inside}", self.prefix),
        }
    }

    /// Returns a node of the body as instantiated for this call.
    fn node(&self, body: &NodeProto) -> NodeProto {
        let mut node = body.clone();
        node.input.iter_mut().chain(&mut node.output).for_each(|name| *name = self.name(name));
        node.name = Some(format!("{}/{}", self.prefix, label(body)));
        for graph in graphs_mut(&mut node) {
            self.rename(graph, &BTreeSet::new());
        }
        // Graphs that the call passes use the caller's names.
        self.fill_attributes(&mut node.attribute);
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

    /// Renames the function's values that a nested graph uses, and the graph's own, which could otherwise hide values of the caller.
    fn rename(&self, graph: &mut GraphProto, outer_own: &BTreeSet<String>) {
        let mut own = outer_own.clone();
        own.extend(defined(graph).map(str::to_string));
        let renamed = |name: &str| if own.contains(name) { self.own_name(name) } else { self.name(name) };
        for info in graph.input.iter_mut().chain(&mut graph.output).chain(&mut graph.value_info) {
            info.name = Some(renamed(info.name()));
        }
        for initializer in &mut graph.initializer {
            initializer.name = Some(renamed(initializer.name()));
        }
        for node in &mut graph.node {
            node.input.iter_mut().chain(&mut node.output).for_each(|name| *name = renamed(name));
            for graph in graphs_mut(node) {
                self.rename(graph, &own);
            }
            self.fill_attributes(&mut node.attribute);
        }
    }
}

/// Returns the subgraphs of a node.
fn graphs(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute.iter().flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs))
}

/// Does the same, to change them.
fn graphs_mut(node: &mut NodeProto) -> impl Iterator<Item = &mut GraphProto> {
    node.attribute.iter_mut().flat_map(|attribute| attribute.g.iter_mut().chain(attribute.graphs.iter_mut()))
}

/// Returns the names of a node's outputs.
fn outputs(node: &NodeProto) -> impl Iterator<Item = &str> {
    node.output.iter().map(String::as_str).filter(|name| !name.is_empty())
}

/// Returns the names of a graph's own values.
fn defined(graph: &GraphProto) -> impl Iterator<Item = &str> {
    let inputs = graph.input.iter().map(ValueInfoProto::name);
    let initializers = graph.initializer.iter().map(TensorProto::name);
    let given = inputs.chain(initializers).filter(|name| !name.is_empty());
    given.chain(graph.node.iter().flat_map(outputs))
}

/// Adds the names of the values of a graph and of the graphs inside it.
fn add_names<'a>(graph: &'a GraphProto, names: &mut BTreeSet<&'a str>) {
    names.extend(defined(graph));
    graph.node.iter().flat_map(graphs).for_each(|graph| add_names(graph, names));
}

/// Returns the usual name of a domain.
fn domain(name: &str) -> String {
    if name == "ai.onnx" { "" } else { name }.to_string()
}
