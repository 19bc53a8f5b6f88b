//! Builds a graph from ONNX's messages.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use forebay_base::{DataType, Tensor};

use super::external::Folder;
use super::functions::{BodyNode, Functions, Versions};
use super::message::{label, versions};
use super::proto::attribute_proto::AttributeType;
use super::proto::tensor_shape_proto::dimension::Value as DimensionValue;
use super::proto::type_proto::Value as TypeValue;
use super::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto};
use super::skeleton::{Data, LeftOut};
use super::{Model, NestedPlace, altered, exporter, malformed, order, sharing, statistics, tensor};
use crate::error::ModelError;
use crate::graph::{Attribute, Dimension, FOREBAY, Graph, MICROSOFT, Node, Operation, Structure, Subgraph, ValueId};
use crate::operators::classical::CLASSICAL;
use crate::tensor::Contents;

/// The oldest supported version of the file format: the first with operator sets.
const OLDEST_IR_VERSION: i64 = 3;
/// The deepest nesting of graphs in nodes. Files cannot nest them as deep, but functions can.
const GRAPHS_MAX: usize = 64;

/// Builds the graph and keeps what is needed to write the model back. `left_out` locates the data that was left out of the messages.
pub(super) fn model(
    mut proto: ModelProto,
    mut left_out: LeftOut,
    folder: Option<&Folder>,
) -> Result<Model, ModelError> {
    if proto.graph.is_none() {
        return Err(malformed("it contains no graph"));
    }
    if proto.ir_version() < OLDEST_IR_VERSION {
        let reason = format!(
            "IR version {} is too old; the oldest supported version is {OLDEST_IR_VERSION}",
            proto.ir_version()
        );
        return Err(malformed(reason));
    }
    sharing::share_again(&mut proto, &mut left_out, folder);
    let mut altered = altered::altered_parameters(&proto);
    exporter::restore_parameters(&mut proto, &mut left_out);
    altered.extend(altered::missing_parameters(&proto));
    altered.sort_unstable();
    altered.dedup();
    let versions = Rc::new(versions(&proto.opset_import)?);
    let functions = Functions::of(&proto)?;
    let Some(graph_proto) = &mut proto.graph else { return Err(malformed("it contains no graph")) };
    let source = Source { folder, left_out: &left_out, functions: &functions };
    let mut reader = Reader::new(&source, versions, None, Some(Vec::new()));
    reader.graph.name = graph_proto.name().to_string();
    reader.initializers(graph_proto)?;
    reader.inputs(graph_proto)?;
    reader.nodes(graph_proto)?;
    reader.outputs(graph_proto)?;
    reader.graph.carried = carried(&reader.graph)?;
    let (graph, mut contents, parameters) = (reader.graph, reader.contents, exporter::parameters(&proto));
    let mut nested = BTreeMap::new();
    for (id, place) in reader.nested {
        let name = graph.value(id).name.clone();
        contents.extend(graph.initializers.get(&id).map(|given| (name.clone(), given.clone())));
        nested.insert(place, name);
    }
    let defaults = reader.defaults;
    let mut model = Model {
        graph,
        defaults,
        contents,
        nested,
        parameters,
        altered,
        proto,
        adaptation: None,
        only_initializers: false,
    };
    statistics::separate(&mut model);
    Ok(model)
}

/// The data that all graphs of a model are read from.
struct Source<'a> {
    folder: Option<&'a Folder>,
    left_out: &'a LeftOut,
    functions: &'a Functions,
}

/// Reads one graph: the model's, or a subgraph.
struct Reader<'a> {
    source: &'a Source<'a>,
    versions: Versions,
    graph: Graph,
    contents: BTreeMap<String, Contents>,
    /// The initializers of the model's graph that are also declared as inputs.
    defaults: BTreeMap<String, (DataType, Vec<Dimension>)>,
    /// The reader of the enclosing graph.
    outer: Option<&'a Reader<'a>>,
    /// The names of the values that this graph uses from the enclosing graphs.
    captured: Vec<String>,
    /// The place of the graph: the nodes and attributes that lead to it; `None` within the body of a function, which has several places.
    place: Option<NestedPlace>,
    /// The initializers taken over from subgraphs, with their places.
    nested: BTreeMap<ValueId, NestedPlace>,
}

/// A node to be read.
enum NodeSource {
    /// A node from the graph's list.
    Listed(usize),
    /// A node from a function's body.
    Body(Box<BodyNode>),
}

impl<'a> Reader<'a> {
    fn new(
        source: &'a Source<'a>,
        versions: Versions,
        outer: Option<&'a Reader<'a>>,
        place: Option<NestedPlace>,
    ) -> Reader<'a> {
        Reader {
            source,
            versions,
            graph: Graph::default(),
            contents: BTreeMap::new(),
            defaults: BTreeMap::new(),
            outer,
            captured: Vec::new(),
            place,
            nested: BTreeMap::new(),
        }
    }

    /// Returns whether this graph or an enclosing one has a value of this name.
    fn knows(&self, name: &str) -> bool {
        self.graph.find(name).is_some() || self.outer.is_some_and(|outer| outer.knows(name))
    }

    /// Returns the value of this name. A value of an enclosing graph becomes an input.
    fn find(&mut self, name: &str) -> Option<ValueId> {
        if let Some(id) = self.graph.find(name) {
            return Some(id);
        }
        self.outer.filter(|outer| outer.knows(name))?;
        let id = self.graph.add_value(name, None);
        self.graph.inputs.push(id);
        self.captured.push(name.to_string());
        Some(id)
    }

    /// Reads a subgraph of a node; the values that it uses from this graph are added to the node's inputs.
    fn subgraph(
        &mut self,
        proto: &mut GraphProto,
        inputs: &mut Vec<Option<ValueId>>,
        place: Option<NestedPlace>,
    ) -> Result<Subgraph, ModelError> {
        if std::iter::successors(self.outer, |reader| reader.outer).count() >= GRAPHS_MAX {
            let reason = format!("graphs are nested more than {GRAPHS_MAX} deep, as if a function called itself");
            return Err(malformed(reason));
        }
        let (graph, captured, mut nested) = {
            let nested = LeftOut::default();
            let source = Source { left_out: &nested, ..*self.source };
            let mut reader = Reader::new(&source, self.versions.clone(), Some(self), place);
            reader.initializers(proto)?;
            reader.inputs(proto)?;
            reader.nodes(proto)?;
            for output in &proto.output {
                let undefined = || malformed(format!("no node computes the output '{}' of a subgraph", output.name()));
                let id = reader.find(output.name()).ok_or_else(undefined)?;
                let declared = declared_type(output)?;
                let value = reader.graph.value_mut(id);
                value.declared = value.declared.take().or(declared);
                reader.graph.outputs.push(id);
            }
            (reader.graph, reader.captured, reader.nested)
        };
        let mut subgraph = Subgraph { graph, captured: Vec::new() };
        let mut capture = |id: ValueId| {
            let place = inputs.iter().position(|&input| input == Some(id));
            subgraph.captured.push(place.unwrap_or_else(|| {
                inputs.push(Some(id));
                inputs.len() - 1
            }));
        };
        for name in captured {
            let undefined = || malformed(format!("a subgraph uses the value '{name}', which is not defined"));
            capture(self.find(&name).ok_or_else(undefined)?);
        }
        // The subgraph's weights and constants become values of this graph, so that they exist once however often the subgraph runs.
        for (inside, contents) in std::mem::take(&mut subgraph.graph.initializers) {
            subgraph.graph.inputs.push(inside);
            let name = &subgraph.graph.value(inside).name;
            let id = self.graph.add_initializer(name, contents);
            match nested.remove(&inside) {
                Some(place) => {
                    self.nested.insert(id, place);
                }
                None => {
                    self.graph.constants.insert(id);
                }
            }
            capture(id);
        }
        subgraph.graph.constants.clear();
        Ok(subgraph)
    }

    /// Adds a value under a name that must not be in use.
    fn define(&mut self, name: &str) -> Result<ValueId, ModelError> {
        if name.is_empty() {
            return Err(malformed("a value has no name"));
        }
        if self.graph.find(name).is_some() {
            return Err(malformed(format!("the value '{name}' is defined twice")));
        }
        Ok(self.graph.add_value(name, None))
    }

    fn define_contents(&mut self, name: &str, contents: Contents) -> Result<ValueId, ModelError> {
        let id = self.define(name)?;
        self.graph.value_mut(id).ty = Some(contents.ty().clone());
        self.contents.insert(name.to_string(), contents.clone());
        self.graph.initializers.insert(id, contents);
        Ok(id)
    }

    fn initializers(&mut self, proto: &mut GraphProto) -> Result<(), ModelError> {
        if let Some(sparse) = proto.sparse_initializer.first() {
            let name = sparse.values.as_ref().map(|values| values.name()).unwrap_or_default();
            return Err(malformed(format!("the initializer '{name}' is sparse, which is not supported")));
        }
        for (i, initializer) in proto.initializer.iter_mut().enumerate() {
            let data = self.source.left_out.initializers.get(&i);
            let contents = tensor::take(initializer, data, self.source.folder)?;
            if self.outer.is_some() {
                // Only the contents of the model's own graph are kept separate from the messages.
                tensor::give_back(initializer, &contents.to_tensor()?);
            }
            let id = self.define_contents(initializer.name.as_deref().unwrap_or_default(), contents)?;
            if let (Some(place), true) = (&self.place, self.outer.is_some()) {
                self.nested.insert(id, place.iter().copied().chain([i]).collect());
            }
        }
        Ok(())
    }

    /// Reads the graph inputs. Those that are also initializers (IR version 3 requires it of every initializer) have a value unless a run
    /// is given another one.
    fn inputs(&mut self, proto: &GraphProto) -> Result<(), ModelError> {
        let mut names = BTreeSet::new();
        for input in &proto.input {
            if !names.insert(input.name()) {
                return Err(malformed(format!("the input '{}' is declared twice", input.name())));
            }
            if let Some(contents) = self.contents.get(input.name()) {
                let own = || (contents.data_type(), contents.shape().iter().copied().map(Dimension::Known).collect());
                let declared = declared_type(input).ok().flatten().unwrap_or_else(own);
                if self.outer.is_none() && declared.0 == contents.data_type() {
                    self.defaults.insert(input.name().to_string(), declared);
                }
                continue;
            }
            let (declared, structure) = (declared_type(input)?, declared_structure(input)?);
            let id = self.define(input.name())?;
            let value = self.graph.value_mut(id);
            (value.declared, value.structure) = (declared, structure);
            self.graph.inputs.push(id);
        }
        Ok(())
    }

    fn outputs(&mut self, proto: &GraphProto) -> Result<(), ModelError> {
        let mut declared_outputs = BTreeSet::new();
        for output in &proto.output {
            let name = output.name();
            let id = self.graph.find(name).ok_or_else(|| malformed(format!("no node computes the output '{name}'")))?;
            // Exporters list a result as often as the network returns it. It is one value with one name.
            if !declared_outputs.insert(id) {
                continue;
            }
            // What a ZipMap node makes of scores is declared as a sequence of maps; here, it is a tensor.
            let is_tensor = self.graph.nodes.iter().any(|node| is_zip_map(node) && node.outputs.contains(&Some(id)));
            let structure = if is_tensor { None } else { declared_structure(output)? };
            let declared = declared_type(output)?;
            let value = self.graph.value_mut(id);
            value.declared = value.declared.take().or(declared);
            value.structure = value.structure.or(structure);
            self.graph.outputs.push(id);
        }
        if self.graph.outputs.is_empty() {
            return Err(malformed("the graph has no outputs"));
        }
        Ok(())
    }

    /// Reads all nodes: `Constant` nodes become initializers, function calls are replaced by the function's nodes, and the others are put
    /// in topological order.
    fn nodes(&mut self, proto: &mut GraphProto) -> Result<(), ModelError> {
        let mut sources = Vec::new();
        for (i, node) in proto.node.iter().enumerate() {
            match self.source.functions.body(node)? {
                None => sources.push(NodeSource::Listed(i)),
                Some(body) => sources.extend(body.into_iter().map(|node| NodeSource::Body(Box::new(node)))),
            }
        }
        let mut computed: Vec<(NodeSource, Vec<Option<ValueId>>)> = Vec::new();
        let mut producer_of: BTreeMap<ValueId, usize> = BTreeMap::new();
        for mut source in sources {
            let is_listed = matches!(source, NodeSource::Listed(_));
            let (node, data) = match &mut source {
                NodeSource::Listed(i) => (&mut proto.node[*i], self.source.left_out.attributes.get(&(*i, 0))),
                NodeSource::Body(node) => (&mut node.proto, None),
            };
            if is_constant(node) {
                let contents = constant(node, data, self.source.folder)?;
                if let (true, [AttributeProto { t: Some(value), .. }]) =
                    (self.outer.is_some(), node.attribute.as_mut_slice())
                {
                    tensor::give_back(value, &contents.to_tensor()?);
                }
                let name = node.output.first().map(String::as_str).unwrap_or_default();
                let id = self.define(name)?;
                self.graph.value_mut(id).ty = Some(contents.ty().clone());
                if is_listed {
                    self.contents.insert(name.to_string(), contents.clone());
                }
                self.graph.initializers.insert(id, contents);
                self.graph.constants.insert(id);
                continue;
            }
            let mut outputs = Vec::with_capacity(node.output.len());
            for name in &node.output {
                let id = if name.is_empty() { None } else { Some(self.define(name)?) };
                producer_of.extend(id.map(|id| (id, computed.len())));
                outputs.push(id);
            }
            computed.push((source, outputs));
        }
        let mut nodes = Vec::with_capacity(computed.len());
        let mut producers = Vec::with_capacity(computed.len());
        let own = self.versions.clone();
        for (source, outputs) in computed {
            let node = match source {
                NodeSource::Listed(i) => self.node(Some(i), &mut proto.node[i], outputs, &own)?,
                NodeSource::Body(mut node) => self.node(None, &mut node.proto, outputs, &node.versions)?,
            };
            producers.push(node.inputs.iter().flatten().filter_map(|input| producer_of.get(input).copied()).collect());
            nodes.push(Some(node));
        }
        let order = order::topological(&producers).map_err(|node| {
            let label = nodes[node].as_ref().map(|node| node.label(&self.graph)).unwrap_or_default();
            malformed(format!("the nodes form a cycle at or before '{label}'"))
        })?;
        self.graph.nodes = order.into_iter().filter_map(|i| nodes[i].take()).collect();
        Ok(())
    }

    /// Reads a node; `number` is its index in the graph's list, if it is in that list.
    fn node(
        &mut self,
        number: Option<usize>,
        proto: &mut NodeProto,
        outputs: Vec<Option<ValueId>>,
        versions: &Versions,
    ) -> Result<Node, ModelError> {
        let name = label(proto).to_string();
        let mut inputs = Vec::with_capacity(proto.input.len());
        for input in &proto.input {
            if input.is_empty() {
                inputs.push(None);
                continue;
            }
            let undefined = || malformed(format!("node '{name}' uses the value '{input}', which is not defined"));
            inputs.push(Some(self.find(input).ok_or_else(undefined)?));
        }
        let domain = if proto.domain() == "ai.onnx" { "" } else { proto.domain() };
        // ONNX Runtime's optimizer may leave out the import of its own operators, which have one version.
        let own = (domain == MICROSOFT).then_some(1);
        let version = versions.get(domain).copied().or(own).ok_or_else(|| {
            malformed(format!("node '{name}' uses the operator set '{domain}', which the model does not import"))
        })?;
        let (domain, op_type) = (domain.to_string(), proto.op_type().to_string());
        let mut attributes = BTreeMap::new();
        for (i, attribute) in proto.attribute.iter_mut().enumerate() {
            let value = match (attribute_type(attribute), &mut attribute.g) {
                (AttributeType::Graph, Some(graph)) => {
                    if op_type == "Loop" && inputs.len() < graph.input.len() {
                        // The values that the body captures follow all inputs of the loop, including omitted ones.
                        inputs.resize(graph.input.len(), None);
                    }
                    // The body of a function imports its own operator sets.
                    let outside = std::mem::replace(&mut self.versions, versions.clone());
                    let place = self.place.clone().zip(number).map(|(mut place, number)| {
                        place.extend([number, i]);
                        place
                    });
                    let read = self.subgraph(graph, &mut inputs, place);
                    self.versions = outside;
                    Attribute::Graph(Arc::new(read?))
                }
                _ => {
                    let data = number.and_then(|number| self.source.left_out.attributes.get(&(number, i)));
                    let Some(value) = self::attribute(attribute, &name, data, self.source.folder)? else {
                        return Err(ModelError::UnsupportedOperator { domain, op_type, version, node: name });
                    };
                    value
                }
            };
            // Only the contents of initializers and constants are kept separate from the messages.
            if let (Attribute::Tensor(tensor), Some(proto)) = (&value, &mut attribute.t) {
                tensor::give_back(proto, tensor);
            }
            if attributes.insert(attribute.name().to_string(), value).is_some() {
                return Err(malformed(format!("node '{name}' has the attribute '{}' twice", attribute.name())));
            }
        }
        let operation = Operation::Onnx { domain, op_type, version, attributes };
        Ok(Node { name: proto.name().to_string(), operation, inputs, outputs })
    }
}

/// Returns the initializers that the graph itself changes in a training step, each with its next value.
fn carried(graph: &Graph) -> Result<BTreeMap<ValueId, ValueId>, ModelError> {
    let is_next = |node: &&Node| match &node.operation {
        Operation::Onnx { domain, op_type, .. } => domain == FOREBAY && op_type == "Next",
        Operation::Kernel(_) => false,
    };
    let mut found = BTreeMap::new();
    for node in graph.nodes.iter().filter(is_next) {
        let (state, next) = (node.inputs.get(1).copied().flatten(), node.outputs.first().copied().flatten());
        let state = state.filter(|state| graph.initializers.contains_key(state));
        let next = next.filter(|next| graph.outputs.contains(next));
        let (Some(state), Some(next)) = (state, next) else {
            let reason =
                "its second input must be an initializer, and its output one of the graph's outputs".to_string();
            return Err(ModelError::Operator { op_type: "Next".to_string(), node: node.label(graph), reason });
        };
        if found.insert(state, next).is_some() {
            let reason = format!("'{}' has another next value already", graph.value(state).name);
            return Err(ModelError::Operator { op_type: "Next".to_string(), node: node.label(graph), reason });
        }
    }
    Ok(found)
}

/// Returns whether a node is a `Constant` of the default domain.
pub(super) fn is_constant(node: &NodeProto) -> bool {
    matches!(node.domain(), "" | "ai.onnx") && node.op_type() == "Constant"
}

/// Returns the value of a `Constant` node, whichever attribute holds it.
fn constant(node: &mut NodeProto, data: Option<&Data>, folder: Option<&Folder>) -> Result<Contents, ModelError> {
    let name = label(node).to_string();
    let error = |reason: &str| ModelError::Operator {
        op_type: "Constant".to_string(),
        node: name.clone(),
        reason: reason.to_string(),
    };
    let [proto] = node.attribute.as_mut_slice() else {
        return Err(error("it must have exactly one attribute"));
    };
    let attribute_name = proto.name().to_string();
    if attribute_name == "value" && attribute_type(proto) == AttributeType::Tensor {
        return tensor_attribute(proto, &name, data, folder);
    }
    let value = attribute(proto, &name, data, folder)?;
    let length = |count: usize| count as u64;
    let tensor = match (attribute_name.as_str(), value) {
        ("value_float", Some(Attribute::Float(value))) => Tensor::from_f32(&[], &[value]),
        ("value_floats", Some(Attribute::Floats(values))) => Tensor::from_f32(&[length(values.len())], &values),
        ("value_int", Some(Attribute::Int(value))) => Tensor::from_i64(&[], &[value]),
        ("value_ints", Some(Attribute::Ints(values))) => Tensor::from_i64(&[length(values.len())], &values),
        (other, _) => return Err(error(&format!("its attribute '{other}' is not supported"))),
    };
    Ok(tensor.into())
}

/// Rejects an attribute whose value is given elsewhere.
fn check_given(proto: &AttributeProto, node: &str) -> Result<(), ModelError> {
    if proto.ref_attr_name().is_empty() {
        return Ok(());
    }
    let reason = format!("attribute '{}' of node '{node}' refers to an attribute outside a function", proto.name());
    Err(malformed(reason))
}

/// Returns the value of a tensor attribute.
fn tensor_attribute(
    proto: &mut AttributeProto,
    node: &str,
    data: Option<&Data>,
    folder: Option<&Folder>,
) -> Result<Contents, ModelError> {
    check_given(proto, node)?;
    let missing = || malformed(format!("the tensor attribute of node '{node}' is empty"));
    tensor::take(proto.t.as_mut().ok_or_else(missing)?, data, folder)
}

/// Returns the value of an attribute, or `None` for a subgraph.
fn attribute(
    proto: &mut AttributeProto,
    node: &str,
    data: Option<&Data>,
    folder: Option<&Folder>,
) -> Result<Option<Attribute>, ModelError> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    check_given(proto, node)?;
    Ok(Some(match attribute_type(proto) {
        AttributeType::Float => Attribute::Float(proto.f()),
        AttributeType::Int => Attribute::Int(proto.i()),
        AttributeType::String => Attribute::String(text(proto.s())),
        AttributeType::Floats => Attribute::Floats(proto.floats.clone()),
        AttributeType::Ints => Attribute::Ints(proto.ints.clone()),
        AttributeType::Strings => Attribute::Strings(proto.strings.iter().map(|bytes| text(bytes)).collect()),
        AttributeType::Tensor => Attribute::Tensor(tensor_attribute(proto, node, data, folder)?.to_tensor()?),
        AttributeType::Graph | AttributeType::Graphs => return Ok(None),
        AttributeType::TypeProto => Attribute::Type,
        other => {
            let kind = other.as_str_name().to_lowercase();
            let reason = format!("attribute '{}' of node '{node}' has the unsupported type {kind}", proto.name());
            return Err(malformed(reason));
        }
    }))
}

/// Returns the type of an attribute. Old files do not state it; it then follows from the field that is set.
fn attribute_type(proto: &AttributeProto) -> AttributeType {
    match proto.r#type() {
        AttributeType::Undefined => {}
        stated => return stated,
    }
    let held = [
        (proto.f.is_some(), AttributeType::Float),
        (proto.i.is_some(), AttributeType::Int),
        (proto.s.is_some(), AttributeType::String),
        (proto.t.is_some(), AttributeType::Tensor),
        (proto.g.is_some(), AttributeType::Graph),
        (!proto.floats.is_empty(), AttributeType::Floats),
        (!proto.ints.is_empty(), AttributeType::Ints),
        (!proto.strings.is_empty(), AttributeType::Strings),
        (!proto.graphs.is_empty(), AttributeType::Graphs),
    ];
    held.into_iter().find(|(held, _)| *held).map_or(AttributeType::Undefined, |(_, ty)| ty)
}

/// Returns whether a node makes a sequence of maps from the scores of a classifier.
fn is_zip_map(node: &Node) -> bool {
    matches!(&node.operation, Operation::Onnx { domain, op_type, .. } if domain == CLASSICAL && op_type == "ZipMap")
}

/// Returns the declared structure of an input or output that is not a tensor.
fn declared_structure(info: &ValueInfoProto) -> Result<Option<Structure>, ModelError> {
    let what = format!("'{}'", info.name());
    let refused = |kind: &str| malformed(format!("{what} is {kind}, which is not supported"));
    let inner = |ty: &Option<Box<TypeProto>>| ty.as_ref().and_then(|ty| ty.value.clone());
    let sequence = |inside: Option<TypeValue>| match inside {
        Some(TypeValue::TensorType(ty)) => tensor::data_type(ty.elem_type(), &what),
        _ => Err(refused("a sequence whose elements are not tensors")),
    };
    match info.r#type.as_ref().and_then(|ty| ty.value.as_ref()) {
        None | Some(TypeValue::TensorType(_)) => Ok(None),
        Some(TypeValue::SequenceType(ty)) => Ok(Some(Structure::Sequence(sequence(inner(&ty.elem_type))?))),
        Some(TypeValue::OptionalType(ty)) => Ok(Some(match inner(&ty.elem_type) {
            Some(TypeValue::TensorType(ty)) => Structure::Optional(tensor::data_type(ty.elem_type(), &what)?),
            Some(TypeValue::SequenceType(ty)) => Structure::OptionalSequence(sequence(inner(&ty.elem_type))?),
            _ => return Err(refused("an optional value that is neither a tensor nor a sequence of tensors")),
        })),
        Some(TypeValue::MapType(_)) => Err(refused("a map")),
        Some(TypeValue::SparseTensorType(_)) => Err(refused("a sparse tensor")),
        Some(TypeValue::OpaqueType(_)) => Err(refused("an opaque value")),
    }
}

/// Returns the declared type of an input or output, or `None` if it has no type or no shape.
fn declared_type(info: &ValueInfoProto) -> Result<Option<(DataType, Vec<Dimension>)>, ModelError> {
    let Some(value) = info.r#type.as_ref().and_then(|ty| ty.value.as_ref()) else { return Ok(None) };
    let TypeValue::TensorType(ty) = value else { return Ok(None) };
    let Some(shape) = &ty.shape else { return Ok(None) };
    let data_type = tensor::data_type(ty.elem_type(), &format!("'{}'", info.name()))?;
    let dimension = |value: &Option<DimensionValue>| match value {
        // Some old exporters write -1 for a size that they do not know.
        Some(DimensionValue::DimValue(size)) => {
            u64::try_from(*size).map_or(Dimension::Symbol(String::new()), Dimension::Known)
        }
        Some(DimensionValue::DimParam(symbol)) => Dimension::Symbol(symbol.clone()),
        None => Dimension::Symbol(String::new()),
    };
    Ok(Some((data_type, shape.dim.iter().map(|dim| dimension(&dim.value)).collect())))
}
