//! Reading and writing ONNX.
//!
//! [`read`] trusts nothing in the file: it checks every size against the bytes available before it allocates anything, and reports what it
//! cannot represent as an error that names the tensor or node. [`read_file`] leaves weights in their files until they are needed.
//! [`write()`] writes the model back with the contents of some tensors replaced; names, documentation, metadata and operator sets are
//! preserved.

mod altered;
mod export;
mod exporter;
mod external;
mod functions;
mod head;
mod import;
mod message;
mod order;
mod sharing;
mod skeleton;
mod statistics;
mod tensor;

/// ONNX's messages, generated from `proto/onnx.proto`; `tests/messages.rs` updates them when that file changes.
#[allow(missing_docs, clippy::all)]
mod proto {
    include!("../../proto/onnx.rs.in");
}

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use prost::Message;

use forebay_base::{DataType, Tensor};

use crate::adapters::{self, Adapter, LoraOptions};
use crate::error::ModelError;
use crate::graph::{Dimension, Graph, Node, ValueId};
use crate::tensor::Contents;
use crate::training::matches;
use external::Folder;
use skeleton::LeftOut;

pub use export::{Give, Take, check_size, write, write_to};

/// A model read from a file or from bytes: its graph, and everything needed to write it back.
#[derive(Clone, Debug)]
pub struct Model {
    /// The graph, with the declared types of its inputs and outputs.
    pub graph: Graph,
    /// The initializers that are also declared as inputs, with their declared types: a run can be given other values for them.
    pub defaults: BTreeMap<String, (DataType, Vec<Dimension>)>,
    /// The messages as they were read, without the raw data of initializers and `Constant` nodes.
    proto: proto::ModelProto,
    /// Contents of initializers and `Constant` nodes by name; shared with the graph.
    contents: BTreeMap<String, Contents>,
    /// The places of the initializers of subgraphs, with their names in the graph.
    nested: BTreeMap<NestedPlace, String>,
    /// For each initializer, whether PyTorch's exporter marks it as a parameter of the module; empty if the exporter marks none.
    parameters: BTreeMap<String, bool>,
    /// The module's parameters that PyTorch's exporter computed with.
    altered: Vec<String>,
    /// The adapters that train instead of the model's own parameters, if any.
    adaptation: Option<Adaptation>,
    /// Whether `Constant` nodes never train.
    only_initializers: bool,
}

/// Adapters of a model's weights.
#[derive(Clone, Debug)]
struct Adaptation {
    adapters: Vec<Adapter>,
    options: LoraOptions,
}

/// The place of a subgraph's initializer: the indices of the node and its attribute for each level of nesting, starting at the model's
/// graph, followed by the index of the initializer.
pub(crate) type NestedPlace = Vec<usize>;

impl Model {
    /// Lets no `Constant` node train, even if no initializer is a weight.
    pub fn train_only_initializers(&mut self) {
        self.only_initializers = true;
    }

    /// Returns the graph for training, in which initializers that do not train are constants.
    ///
    /// PyTorch's exporter marks the initializers that are parameters of the module or were computed from parameters. If it does, buffers do
    /// not train, and an unmarked initializer trains only if it is a weight of a product, a convolution or a recurrent network. Without
    /// such marks, a scalar trains only if it has the name of a module's attribute (at the top of the module, only in PyTorch's files);
    /// other scalars are constants of formulas that an optimizer stored as initializers, and so are exponents of one element. Tensors of
    /// several axes that contain infinities or the largest number, and are only added, are masks, which do not train. Some exporters write
    /// all weights as `Constant` nodes: if no initializer is a floating-point tensor of several elements, such constants train, except
    /// tables with infinities, the largest number, or at most two distinct elements, which are masks, too.
    ///
    /// # Errors
    /// Fails if contents cannot be read.
    pub fn trainable_graph(&self) -> Result<Graph, ModelError> {
        let mut graph = self.graph_without_adapters()?;
        if let Some(adaptation) = &self.adaptation {
            let (trained, statistics) = (adaptation.trained(), graph.running_statistics());
            let is_frozen = |id: &ValueId| !trained(&graph.value(*id).name) && !statistics.contains(id);
            let frozen: Vec<ValueId> = graph.initializers.keys().copied().filter(is_frozen).collect();
            graph.constants.extend(frozen);
            let factors = adaptation.factors();
            let values = &graph.values;
            graph.constants.retain(|id| !factors.contains(values[id.0 as usize].name.as_str()));
        }
        let carried = &graph.carried;
        graph.constants.retain(|id| !carried.contains_key(id));
        Ok(graph)
    }

    /// Like [`Model::trainable_graph`], but ignores adapters.
    fn graph_without_adapters(&self) -> Result<Graph, ModelError> {
        let mut graph = self.graph.clone();
        if self.parameters.values().any(|&is_parameter| is_parameter) {
            let (multiplied, statistics) = (multiplied(&graph), graph.running_statistics());
            let ids: Vec<ValueId> = graph.initializers.keys().copied().collect();
            graph.constants.extend(ids.into_iter().filter(|id| {
                let stated = self.parameters.get(&self.graph.value(*id).name);
                !stated.copied().unwrap_or_else(|| multiplied.contains(id)) && !statistics.contains(id)
            }));
            return Ok(graph);
        }
        let exponents = used_only(&graph, |node, i| i == 1 && node.operation.name() == "Pow");
        let is_number = |id: &ValueId| {
            let contents = &graph.initializers[id];
            let name = &graph.value(*id).name;
            let is_attribute =
                is_attribute(name) || (self.proto.producer_name() == "pytorch" && is_own_attribute(name));
            let is_exponent = contents.ty().count() == 1 && exponents.contains(id);
            contents.data_type().has_gradients() && (contents.shape().is_empty() || is_exponent) && !is_attribute
        };
        let numbers: Vec<ValueId> = graph.initializers.keys().copied().filter(is_number).collect();
        graph.constants.extend(numbers);
        let added = used_only(&graph, |node, _| ADDING.contains(&node.operation.name()));
        let is_mask = |(id, contents): &(&ValueId, &Contents)| added.contains(id) && hides_scores(contents);
        let masks: Vec<ValueId> = graph.initializers.iter().filter(is_mask).map(|(&id, _)| id).collect();
        graph.constants.extend(masks);
        let is_weight = |contents: &Contents| contents.data_type().has_gradients() && contents.ty().count() > 1;
        let mut weights =
            graph.initializers.iter().filter(|(id, contents)| !graph.constants.contains(id) && is_weight(contents));
        if weights.next().is_some() || self.only_initializers {
            return Ok(graph);
        }
        for (name, contents) in self.contents.iter().filter(|(_, contents)| is_weight(contents)) {
            let is_table = contents.shape().len() > 1;
            if contents.shape().is_empty() || is_table && (hides_scores(contents) || has_two_values(contents)?) {
                continue;
            }
            if let Some(id) = graph.find(name) {
                graph.constants.remove(&id);
            }
        }
        Ok(graph)
    }
}

impl Adaptation {
    /// Returns the names of the adapters' factors.
    fn factors(&self) -> BTreeSet<&str> {
        self.adapters.iter().flat_map(|adapter| [adapter.left.as_str(), adapter.right.as_str()]).collect()
    }

    /// Returns a predicate that tells whether the initializer of a name trains.
    fn trained(&self) -> impl Fn(&str) -> bool + '_ {
        let factors = self.factors();
        move |name| factors.contains(name) || self.options.also.iter().any(|pattern| matches(pattern, name))
    }
}

impl Model {
    /// Returns the model with adapters added to its weights. Only the adapters train, along with the parameters that the options name. When
    /// the model is written, its weights keep their old contents unless new ones are given.
    ///
    /// # Errors
    /// Fails if no weight matches the options, if a matching weight cannot have an adapter, or if the model already has adapters.
    pub fn with_adapters(&self, options: &LoraOptions) -> Result<Model, ModelError> {
        if self.adaptation.is_some() {
            return Err(ModelError::Request { reason: "the model already has adapters".to_string() });
        }
        let mut model = self.clone();
        let adapters = adapters::adapt(&mut model.graph, options)?;
        model.adaptation = Some(Adaptation { adapters, options: options.clone() });
        Ok(model)
    }

    /// Returns the adapters in the order of the weights; empty if the model has none.
    pub fn adapters(&self) -> &[Adapter] {
        self.adaptation.as_ref().map_or(&[], |adaptation| &adaptation.adapters)
    }

    /// Returns the options that the adapters were created with, or `None` if the model has no adapters.
    pub fn adapter_options(&self) -> Option<&LoraOptions> {
        self.adaptation.as_ref().map(|adaptation| &adaptation.options)
    }

    /// Returns the contents of all initializers and `Constant` nodes as they were read, by name.
    pub fn contents(&self) -> &BTreeMap<String, Contents> {
        &self.contents
    }

    /// Returns the names of the PyTorch module's parameters that do not train as they do in the module, because the exporter computed with
    /// them: the file contains copies of them, or other values instead.
    pub fn altered_parameters(&self) -> &[String] {
        &self.altered
    }

    /// Returns the names of the floating-point initializers that are constants in [`Model::trainable_graph`], and then of those that get
    /// no gradient because outputs depend on them only through rounded numbers: results of `QuantizeLinear`, or of
    /// `DynamicQuantizeLinear` except its scale.
    ///
    /// # Errors
    /// Fails if [`Model::trainable_graph`] does.
    pub fn untrained_initializers(&self) -> Result<Vec<String>, ModelError> {
        if self.adaptation.is_some() {
            // That is what adapters are for.
            return Ok(Vec::new());
        }
        let graph = self.trainable_graph()?;
        let is_float =
            |id: &ValueId| graph.initializers.get(id).is_some_and(|contents| contents.data_type().is_float());
        let constants = graph.constants.difference(&self.graph.constants).filter(|id| is_float(id));
        let is_exact = |node: &Node, output: usize| match node.operation.name() {
            "QuantizeLinear" => false,
            "DynamicQuantizeLinear" => output == 1,
            _ => true,
        };
        let (used, trained) = (reaching_outputs(&graph, |_, _| true), reaching_outputs(&graph, is_exact));
        let rounded = used.difference(&trained).filter(|id| is_float(id) && !graph.constants.contains(id));
        Ok(constants.chain(rounded).map(|&id| graph.value(id).name.clone()).collect())
    }
}

/// Returns whether a name is a path of attributes, such as `network.logit_scale`.
fn is_attribute(name: &str) -> bool {
    let is_word = |word: &str| word.chars().all(|letter| letter.is_alphanumeric() || letter == '_') && !word.is_empty();
    let begins_well =
        name.rsplit('.').next().is_some_and(|last| !last.starts_with(|first: char| first.is_ascii_digit()));
    begins_well && name.contains('.') && name.split('.').all(is_word)
}

/// Returns whether a name is that of a module's attribute, such as `logit_scale` or `scales.0`, in a file from PyTorch's older exporter.
/// Values that this exporter computes have other names, and those of the newer exporter end with numbers.
fn is_own_attribute(name: &str) -> bool {
    let is_word = |word: &str| word.chars().all(|letter| letter.is_alphanumeric() || letter == '_') && !word.is_empty();
    let is_numbered = name.rsplit('_').next().is_none_or(|last| last.chars().all(|letter| letter.is_ascii_digit()));
    // The elements of a list of parameters are numbered, as in `scales.0`.
    name.split('.').all(is_word)
        && (name.contains('.') || !is_numbered)
        && !name.starts_with(|first: char| first.is_ascii_digit())
}

/// Operators that multiply by their second input.
const PRODUCTS: [&str; 4] = ["MatMul", "Gemm", "Conv", "ConvTranspose"];
/// Operators that take their input weights, state weights and biases as these inputs.
const RECURRENT: [&str; 3] = ["LSTM", "GRU", "RNN"];
const RECURRENT_WEIGHTS: [usize; 4] = [1, 2, 3, 7];

/// Operators that add masks to scores, and those that choose parts of masks before that. Only what no other operator uses is looked at, so
/// that weights of products are not read.
const ADDING: [&str; 6] = ["Add", "Attention", "Expand", "Slice", "Unsqueeze", "Where"];

/// Returns the values that nodes only multiply by.
fn multiplied(graph: &Graph) -> BTreeSet<ValueId> {
    let is_product = |node: &Node, i: usize| {
        let name = node.operation.name();
        i == 1 && PRODUCTS.contains(&name) || RECURRENT_WEIGHTS.contains(&i) && RECURRENT.contains(&name)
    };
    used_only(graph, is_product)
}

/// Returns the values on which outputs depend through those outputs of nodes (by number) that a predicate accepts.
fn reaching_outputs(graph: &Graph, accepts: impl Fn(&Node, usize) -> bool) -> BTreeSet<ValueId> {
    let mut reaching: BTreeSet<ValueId> = graph.outputs.iter().flat_map(|&output| graph.tensors(output)).collect();
    for node in graph.nodes.iter().rev() {
        let mut outputs = node.outputs.iter().enumerate();
        if outputs.any(|(i, output)| output.is_some_and(|output| accepts(node, i) && reaching.contains(&output))) {
            reaching.extend(node.inputs.iter().flatten());
        }
    }
    reaching
}

/// Returns the values that nodes use, and only as inputs that a predicate accepts.
fn used_only(graph: &Graph, accepts: impl Fn(&Node, usize) -> bool) -> BTreeSet<ValueId> {
    let uses = || graph.nodes.iter().flat_map(|node| node.inputs.iter().enumerate().map(move |use_| (node, use_)));
    let wanted = |accepted: bool| {
        let chosen = uses().filter(|&(node, (i, _))| accepts(node, i) == accepted);
        chosen.filter_map(|(_, (_, &input))| input).collect::<BTreeSet<ValueId>>()
    };
    wanted(true).difference(&wanted(false)).copied().collect()
}

/// Returns whether a tensor with several axes is a mask that hides scores: its first elements include an infinity, or the largest number
/// instead.
fn hides_scores(contents: &Contents) -> bool {
    contents.shape().len() > 1 && contents.first_floats().into_iter().any(|element| element.abs() >= f32::MAX)
}

/// Returns whether the first elements have at most two distinct values.
fn has_two_values(contents: &Contents) -> Result<bool, ModelError> {
    let size = contents.data_type().size_bytes() as usize;
    let bytes = contents.first_bytes()?;
    let seen: BTreeSet<&[u8]> = bytes.chunks_exact(size).collect();
    Ok(seen.len() < 3 && bytes.len() > 2 * size)
}

/// Reads a model. `directory` contains the external data files; without it, a model that has such files is rejected.
///
/// # Errors
/// Fails if the bytes are not an ONNX model, the model violates ONNX's rules or uses data types or attributes that Forebay does not
/// support, or external data cannot be read.
pub fn read(bytes: &[u8], directory: Option<&Path>) -> Result<Model, ModelError> {
    decode(bytes, LeftOut::default(), directory.map(Folder::new).as_ref())
}

fn decode(bytes: &[u8], left_out: LeftOut, folder: Option<&Folder>) -> Result<Model, ModelError> {
    if bytes.is_empty() {
        return Err(malformed("it is empty"));
    }
    let proto = proto::ModelProto::decode(bytes).map_err(|error| malformed(error.to_string()))?;
    import::model(proto, left_out, folder)
}

/// Reads a model from a file. External data files are next to it or, if it is a link, next to the file that it points to. Weights are not
/// read: their contents are ranges of these files, which must not change while the model is used.
///
/// # Errors
/// Fails if [`read`] would, if the file cannot be read, or if there is not enough memory for it.
pub fn read_file(path: &Path) -> Result<Model, ModelError> {
    let folder = Folder::of_model(path);
    let model = match without_weights(path).map_err(|error| file_error(path, &error))? {
        Some((messages, left_out)) => decode(&messages, left_out, Some(&folder)),
        None => {
            // The messages are a copy of the file, and their contents stay in memory.
            let bytes = forebay_limits::read(path, u64::MAX, 2).map_err(|error| file_error(path, &error))?;
            decode(&bytes, LeftOut::default(), Some(&folder))
        }
    };
    model.map_err(|error| match error {
        ModelError::Malformed { reason } => malformed(format!("{}: {reason}", path.display())),
        other => other,
    })
}

/// Reads the messages of a regular file without its weights, and the locations of the weights.
fn without_weights(path: &Path) -> std::io::Result<Option<(Vec<u8>, LeftOut)>> {
    if !std::fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    let file = Arc::new(File::open(path)?);
    let metadata = file.metadata()?;
    // The system's special files report a size of 0.
    Ok(Some(metadata).filter(|metadata| metadata.len() > 0).and_then(|found| skeleton::read(path, &file, &found)))
}

/// Reads a single serialized tensor and its name, such as the reference data of ONNX's own tests.
///
/// # Errors
/// Fails if the bytes are not a tensor, or are one of a data type that Forebay does not support.
pub fn read_tensor(bytes: &[u8]) -> Result<(String, Tensor), ModelError> {
    let mut proto = proto::TensorProto::decode(bytes).map_err(|error| malformed(error.to_string()))?;
    let tensor = tensor::take(&mut proto, None, None)?.to_tensor()?;
    Ok((proto.name.unwrap_or_default(), tensor))
}

fn malformed(reason: impl Into<String>) -> ModelError {
    ModelError::Malformed { reason: reason.into() }
}

fn file_error(path: &Path, error: &std::io::Error) -> ModelError {
    ModelError::File { path: path.display().to_string(), reason: error.to_string() }
}

#[cfg(test)]
mod tests;
