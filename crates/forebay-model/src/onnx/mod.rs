//! Reading and writing ONNX.
//!
//! [`read`] believes nothing: every size is checked against the bytes that are there before anything is allocated, and
//! what it cannot represent is an error that names the tensor or node. [`read_file`] leaves weights in their files until somebody
//! needs them. [`write()`] gives back the model that was read, with the contents of some tensors replaced: names,
//! documentation, metadata and operator sets stay.

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
mod tensor;

/// ONNX's messages, generated from `proto/onnx.proto`; `tests/messages.rs` updates them when that changes.
#[allow(missing_docs, clippy::all)]
mod proto {
    include!("../../proto/onnx.rs.in");
}

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use prost::Message;

use forebay_base::Tensor;

use crate::adapters::{self, Adapter, LoraOptions};
use crate::error::ModelError;
use crate::graph::{Graph, Node, ValueId};
use crate::tensor::Contents;
use crate::training::matches;
use external::Folder;
use skeleton::LeftOut;

pub use export::{Give, Take, write, write_to};

/// A model that was read: its graph, and what is needed to write it back.
#[derive(Clone, Debug)]
pub struct Model {
    /// The graph, with the declared types of its inputs and outputs.
    pub graph: Graph,
    /// The messages as they were read, without the raw data of initializers and `Constant` nodes.
    proto: proto::ModelProto,
    /// Contents of initializers and `Constant` nodes by name; shared with the graph.
    contents: BTreeMap<String, Contents>,
    /// By name in the graph: where initializers of graphs inside nodes stand.
    nested: BTreeMap<NestedPlace, String>,
    /// By initializer: whether PyTorch's exporter says that it is a parameter of the module; empty where it says nothing.
    parameters: BTreeMap<String, bool>,
    /// Parameters of the module that PyTorch's exporter computed with.
    altered: Vec<String>,
    /// What trains instead of the model's own parameters, where it has adapters.
    adaptation: Option<Adaptation>,
}

/// Adapters of a model's weights.
#[derive(Clone, Debug)]
struct Adaptation {
    adapters: Vec<Adapter>,
    options: LoraOptions,
}

/// Where an initializer of a graph inside a node stands: from the model's graph on, the node's place and that of its attribute, again for
/// each graph on the way; then the initializer's place.
pub(crate) type NestedPlace = Vec<usize>;

/// Elements that are looked at to tell a weight from a mask.
const SEEN_ELEMENTS: usize = 4096;

impl Model {
    /// The graph for training, in which initializers that do not train are constants.
    ///
    /// PyTorch's exporter says which initializers are parameters of the module, or were computed from some. Where it does, buffers do not
    /// train, and of what it says nothing of, only what is a weight of a product, a convolution or a recurrent network does. Where it does not, a scalar trains only if
    /// it has the name of a module's attribute (at the top of the module only in PyTorch's files): others are numbers of formulas that an optimizer wrote as initializers. Some exporters
    /// write all weights as `Constant` nodes: where no initializer is a floating-point tensor of several elements, such constants train,
    /// but for tables with two different elements at most, which are masks.
    ///
    /// # Errors
    /// Contents that cannot be read.
    pub fn trainable_graph(&self) -> Result<Graph, ModelError> {
        let mut graph = self.graph_without_adapters()?;
        if let Some(adaptation) = &self.adaptation {
            let (trained, statistics) = (adaptation.trained(), statistics(&graph));
            let is_frozen = |id: &ValueId| !trained(&graph.value(*id).name) && !statistics.contains(id);
            let frozen: Vec<ValueId> = graph.initializers.keys().copied().filter(is_frozen).collect();
            graph.constants.extend(frozen);
            let factors = adaptation.factors();
            let values = &graph.values;
            graph.constants.retain(|id| !factors.contains(values[id.0 as usize].name.as_str()));
        }
        Ok(graph)
    }

    /// The same, whether there are adapters or not.
    fn graph_without_adapters(&self) -> Result<Graph, ModelError> {
        let mut graph = self.graph.clone();
        if self.parameters.values().any(|&is_parameter| is_parameter) {
            let (multiplied, statistics) = (multiplied(&graph), statistics(&graph));
            let ids: Vec<ValueId> = graph.initializers.keys().copied().collect();
            graph.constants.extend(ids.into_iter().filter(|id| {
                let stated = self.parameters.get(&self.graph.value(*id).name);
                !stated.copied().unwrap_or_else(|| multiplied.contains(id)) && !statistics.contains(id)
            }));
            return Ok(graph);
        }
        let is_number = |id: &ValueId| {
            let contents = &graph.initializers[id];
            let name = &graph.value(*id).name;
            let is_attribute =
                is_attribute(name) || (self.proto.producer_name() == "pytorch" && is_own_attribute(name));
            contents.data_type().has_gradients() && contents.shape().is_empty() && !is_attribute
        };
        let numbers: Vec<ValueId> = graph.initializers.keys().copied().filter(is_number).collect();
        graph.constants.extend(numbers);
        let is_weight = |contents: &Contents| contents.data_type().has_gradients() && contents.ty().count() > 1;
        let mut weights =
            graph.initializers.iter().filter(|(id, contents)| !graph.constants.contains(id) && is_weight(contents));
        if weights.next().is_some() {
            return Ok(graph);
        }
        for (name, contents) in self.contents.iter().filter(|(_, contents)| is_weight(contents)) {
            if contents.shape().is_empty() || (contents.shape().len() > 1 && is_mask(contents)?) {
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
    /// The names of the adapters' factors.
    fn factors(&self) -> BTreeSet<&str> {
        self.adapters.iter().flat_map(|adapter| [adapter.left.as_str(), adapter.right.as_str()]).collect()
    }

    /// Whether an initializer of a name trains.
    fn trained(&self) -> impl Fn(&str) -> bool + '_ {
        let factors = self.factors();
        move |name| factors.contains(name) || self.options.also.iter().any(|pattern| matches(pattern, name))
    }
}

impl Model {
    /// The model with adapters next to its weights. Only they train, and what the options name next to them; the model is written with
    /// its weights as they were, unless they are given.
    ///
    /// # Errors
    /// No weight that fits the options, or one that cannot have an adapter; a model that has adapters.
    pub fn with_adapters(&self, options: &LoraOptions) -> Result<Model, ModelError> {
        if self.adaptation.is_some() {
            return Err(ModelError::Request { reason: "the model has adapters already".to_string() });
        }
        let mut model = self.clone();
        let adapters = adapters::adapt(&mut model.graph, options)?;
        model.adaptation = Some(Adaptation { adapters, options: options.clone() });
        Ok(model)
    }

    /// The adapters, in the order of the weights; none where the model has none.
    pub fn adapters(&self) -> &[Adapter] {
        self.adaptation.as_ref().map_or(&[], |adaptation| &adaptation.adapters)
    }

    /// What the adapters were made with; none where the model has none.
    pub fn adapter_options(&self) -> Option<&LoraOptions> {
        self.adaptation.as_ref().map(|adaptation| &adaptation.options)
    }

    /// The contents of all initializers and `Constant` nodes as they were read, by name.
    pub fn contents(&self) -> &BTreeMap<String, Contents> {
        &self.contents
    }

    /// Names of parameters of the PyTorch module that do not train as they do in the module, because the exporter computed with them: the file
    /// has copies of them, or other numbers instead.
    pub fn altered_parameters(&self) -> &[String] {
        &self.altered
    }

    /// Names of floating-point initializers that are constants of [`Model::trainable_graph`].
    ///
    /// # Errors
    /// As there.
    pub fn untrained_initializers(&self) -> Result<Vec<String>, ModelError> {
        if self.adaptation.is_some() {
            // That is what adapters are for.
            return Ok(Vec::new());
        }
        let graph = self.trainable_graph()?;
        let is_float =
            |id: &ValueId| graph.initializers.get(id).is_some_and(|contents| contents.data_type().is_float());
        let untrained = graph.constants.difference(&self.graph.constants).filter(|id| is_float(id));
        Ok(untrained.map(|&id| graph.value(id).name.clone()).collect())
    }
}

/// Whether a name is a path of attributes, as `network.logit_scale`.
fn is_attribute(name: &str) -> bool {
    let is_word = |word: &str| word.chars().all(|letter| letter.is_alphanumeric() || letter == '_') && !word.is_empty();
    let begins_well =
        name.rsplit('.').next().is_some_and(|last| !last.starts_with(|first: char| first.is_ascii_digit()));
    begins_well && name.contains('.') && name.split('.').all(is_word)
}

/// Whether a name is that of an attribute of a module, as `logit_scale` or `scales.0`, in a file of PyTorch's older exporter: what that computes
/// itself has other names, and the newer one's values end with numbers.
fn is_own_attribute(name: &str) -> bool {
    let is_word = |word: &str| word.chars().all(|letter| letter.is_alphanumeric() || letter == '_') && !word.is_empty();
    let is_numbered = name.rsplit('_').next().is_none_or(|last| last.chars().all(|letter| letter.is_ascii_digit()));
    // Elements of a list of parameters are numbered: `scales.0`.
    name.split('.').all(is_word)
        && (name.contains('.') || !is_numbered)
        && !name.starts_with(|first: char| first.is_ascii_digit())
}

/// Operators that multiply by their second input.
const PRODUCTS: [&str; 4] = ["MatMul", "Gemm", "Conv", "ConvTranspose"];
/// Operators whose weights, of inputs and of states, and biases are these inputs.
const RECURRENT: [&str; 3] = ["LSTM", "GRU", "RNN"];
const RECURRENT_WEIGHTS: [usize; 4] = [1, 2, 3, 7];

/// Values that nodes only multiply by.
fn multiplied(graph: &Graph) -> BTreeSet<ValueId> {
    let is_product = |node: &Node, i: usize| {
        let name = node.operation.name();
        i == 1 && PRODUCTS.contains(&name) || RECURRENT_WEIGHTS.contains(&i) && RECURRENT.contains(&name)
    };
    let uses = || graph.nodes.iter().flat_map(|node| node.inputs.iter().enumerate().map(move |use_| (node, use_)));
    let wanted = |product: bool| {
        let chosen = uses().filter(move |&(node, (i, _))| is_product(node, i) == product);
        chosen.filter_map(|(_, (_, &input))| input).collect::<BTreeSet<ValueId>>()
    };
    wanted(true).difference(&wanted(false)).copied().collect()
}

/// Running statistics: training changes them, though they are no parameters.
fn statistics(graph: &Graph) -> BTreeSet<ValueId> {
    let nodes = graph.nodes.iter().filter(|node| node.operation.name() == "BatchNormalization");
    nodes.flat_map(|node| node.inputs.iter().skip(3).flatten().copied()).collect()
}

/// Whether the first elements have two different values at most.
fn is_mask(contents: &Contents) -> Result<bool, ModelError> {
    let size = contents.data_type().size_bytes() as usize;
    let (mut seen, mut looked_at) = (BTreeSet::new(), 0);
    contents.give_in_pieces(&mut |piece: &[u8]| -> Result<(), ModelError> {
        for element in piece.chunks_exact(size).take(SEEN_ELEMENTS.saturating_sub(looked_at)) {
            looked_at += 1;
            seen.insert(element.to_vec());
        }
        Ok(())
    })?;
    Ok(seen.len() < 3 && looked_at > 2)
}

/// Reads a model. `directory` is where external data files lie; without it, a model that has some is refused.
///
/// # Errors
/// Bytes that are no ONNX model, a model that breaks ONNX's rules, data types or attributes that Forebay does not have, or
/// external data that cannot be read.
pub fn read(bytes: &[u8], directory: Option<&Path>) -> Result<Model, ModelError> {
    decode(bytes, LeftOut::default(), directory.map(Folder::new).as_ref())
}

fn decode(bytes: &[u8], left_out: LeftOut, folder: Option<&Folder>) -> Result<Model, ModelError> {
    if bytes.is_empty() {
        return Err(malformed("there are no bytes"));
    }
    let proto = proto::ModelProto::decode(bytes).map_err(|error| malformed(error.to_string()))?;
    import::model(proto, left_out, folder)
}

/// Reads a model from a file; external data files lie next to it, or next to the file that it is a link to. Weights are not read:
/// their contents are ranges of those files, which must stay as they are while the model is used.
///
/// # Errors
/// As [`read`], and where the file cannot be read, or the memory that it takes is not there.
pub fn read_file(path: &Path) -> Result<Model, ModelError> {
    let folder = Folder::of_model(path);
    let model = match without_weights(path).map_err(|error| file_error(path, &error))? {
        Some((messages, left_out)) => decode(&messages, left_out, Some(&folder)),
        None => {
            // The messages are a copy of the file, and their contents are kept.
            let bytes = forebay_limits::read(path, u64::MAX, 2).map_err(|error| file_error(path, &error))?;
            decode(&bytes, LeftOut::default(), Some(&folder))
        }
    };
    model.map_err(|error| match error {
        ModelError::Malformed { reason } => malformed(format!("{}: {reason}", path.display())),
        other => other,
    })
}

/// The messages of a regular file without its weights, and where those lie.
fn without_weights(path: &Path) -> std::io::Result<Option<(Vec<u8>, LeftOut)>> {
    if !std::fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    let file = Arc::new(File::open(path)?);
    let metadata = file.metadata()?;
    // Files of the system do not know their size.
    Ok(Some(metadata).filter(|metadata| metadata.len() > 0).and_then(|found| skeleton::read(path, &file, &found)))
}

/// Reads a single serialised tensor, such as the reference data of ONNX's own tests, with its name.
///
/// # Errors
/// Bytes that are no tensor, or one of a data type that Forebay does not have.
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
