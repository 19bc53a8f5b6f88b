//! A model as it was read: what it takes and gives, and the graphs that are made of it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use forebay_model::adapters::LoraOptions;
use forebay_model::graph::Dimension;
use forebay_model::infer::Sizes;
use forebay_model::training::{ParameterGroup, layer_groups, logits_behind};
use forebay_model::{Graph, ModelError, TensorType, ValueId, infer, onnx, recognize};

use crate::error::Error;
use crate::files::{self, Pending};
use crate::merged::Merged;
use crate::pieces::{Give, Take};
use crate::tensor_info::ValueInfo;

/// An ONNX model. Cheap to clone: the weights are shared.
///
/// ```
/// use forebay::Model;
///
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// assert_eq!(model.inputs()[0].to_string(), "x: float32[50, 1, 8, 8]");
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Model {
    onnx: Arc<onnx::Model>,
}

impl Model {
    /// Reads a model from a file; external data files lie next to it.
    ///
    /// # Errors
    /// A file that cannot be read or is no model that Forebay knows.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Model, Error> {
        Model::read_file(path.as_ref(), None)
    }

    /// Reads a model from memory. One with external data files is refused: [`Model::builder`] takes their folder.
    ///
    /// # Errors
    /// Bytes that are no model that Forebay knows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Model, Error> {
        Model::read_bytes(bytes, None)
    }

    /// Reads a model from a file; external data files lie in the folder, or next to it where none is given.
    pub(crate) fn read_file(path: &Path, external_data: Option<&Path>) -> Result<Model, Error> {
        let Some(folder) = external_data else {
            return Ok(Model { onnx: Arc::new(onnx::read_file(path)?) });
        };
        let refused =
            |error: std::io::Error| Error::File { path: path.to_path_buf(), action: "read", reason: error.to_string() };
        // The messages are a copy of the file, and their contents are kept.
        Model::read_bytes(&forebay_limits::read(path, u64::MAX, 2).map_err(refused)?, Some(folder))
    }

    /// Reads a model from memory, with external data files in the folder.
    pub(crate) fn read_bytes(bytes: &[u8], external_data: Option<&Path>) -> Result<Model, Error> {
        Ok(Model { onnx: Arc::new(onnx::read(bytes, external_data)?) })
    }

    /// What the model takes, as it declares it.
    pub fn inputs(&self) -> Vec<ValueInfo> {
        ValueInfo::of(&self.onnx.graph, &self.onnx.graph.inputs)
    }

    /// What the model gives, as it declares it.
    pub fn outputs(&self) -> Vec<ValueInfo> {
        ValueInfo::of(&self.onnx.graph, &self.onnx.graph.outputs)
    }

    /// Names of floating-point initializers that training leaves as they are because they are no parameters: buffers, and numbers of
    /// formulas. The guide says how they are told apart.
    ///
    /// # Errors
    /// Contents that cannot be read.
    pub fn untrained_initializers(&self) -> Result<Vec<String>, Error> {
        Ok(self.onnx.untrained_initializers()?)
    }

    /// Where the output of this name, or the only one, is a softmax or a sigmoid: its name, and that of the logits that go into it. Losses of classes
    /// and decisions take logits, so those are what [`TrainerBuilder::loss_output`](crate::TrainerBuilder::loss_output) should name.
    ///
    /// ```
    /// let model = forebay::Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
    /// assert_eq!(model.logits_behind(None), None, "its output is logits already");
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn logits_behind(&self, output: Option<&str>) -> Option<(String, String)> {
        let graph = &self.onnx.graph;
        let output = match (output, graph.outputs.as_slice()) {
            (Some(name), _) => graph.find(name)?,
            (None, &[only]) => only,
            (None, _) => return None,
        };
        let logits = logits_behind(graph, output)?;
        Some((graph.value(output).name.clone(), graph.value(logits).name.clone()))
    }

    /// Names of parameters of the PyTorch module that do not train as they do in the module, because the exporter computed with them: the file
    /// has copies of them, or other numbers instead. With `optimize=False`, `torch.onnx.export(..., dynamo=True)` leaves them as they are.
    pub fn altered_parameters(&self) -> Vec<String> {
        self.onnx.altered_parameters().to_vec()
    }

    /// The model with these sizes where it leaves them open, by symbol or as `input[dimension]`.
    ///
    /// # Errors
    /// [`Error::Option`] for a name that the model does not have.
    pub(crate) fn with_sizes(self, sizes: &BTreeMap<String, u64>) -> Result<Model, Error> {
        if sizes.is_empty() {
            return Ok(self);
        }
        let mut onnx = (*self.onnx).clone();
        check_sizes(&onnx.graph, sizes)?;
        infer::declare_sizes(&mut onnx.graph, None, sizes)?;
        Ok(Model { onnx: Arc::new(onnx) })
    }

    /// The model with low-rank adapters next to the weights that the options name: a trainer then trains them, and leaves the weights
    /// as they are. [`Trainer::save`](crate::Trainer::save) writes the model as it was read, with the adapters merged into its weights,
    /// and [`Trainer::save_adapters`](crate::Trainer::save_adapters) the adapters alone.
    ///
    /// # Errors
    /// No weight that fits the options, or one that is also used where it cannot have an adapter.
    ///
    /// ```
    /// use forebay::training::LoraOptions;
    /// use forebay::{Model, Trainer};
    ///
    /// let model = Model::from_file("../../testdata/golden/tiny-gpt/model.onnx")?;
    /// let trainer = Trainer::builder(&model.with_adapters(&LoraOptions::new("*"))?).build()?;
    /// assert!(trainer.parameters()?.keys().all(|name| name.contains(".lora_")));
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn with_adapters(&self, options: &LoraOptions) -> Result<Model, Error> {
        Ok(Model { onnx: Arc::new(self.onnx.with_adapters(options)?) })
    }

    /// The model with another number of classes in a layer, for transfer learning: a Gemm, a MatMul or a convolution without groups, which is
    /// named by its node, its output or its weight. Its weight and bias begin with random numbers of the seed, within the bounds of PyTorch's
    /// layers; [`Trainer::save`](crate::Trainer::save) writes the model with this head.
    ///
    /// # Errors
    /// No such layer, one whose weights something else uses, too, or no classes.
    ///
    /// ```
    /// use forebay::{Model, Trainer};
    ///
    /// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
    /// let trainer = Trainer::builder(&model.with_head("fc.weight", 3, 0)?).build()?;
    /// assert_eq!(trainer.parameters()?["fc.weight"].shape()[0], 3);
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn with_head(&self, layer: &str, classes: u64, seed: u64) -> Result<Model, Error> {
        Ok(Model { onnx: Arc::new(self.onnx.with_head(layer, classes, seed)?) })
    }

    /// Groups of parameters whose learning rates fall from layer to layer, by this factor, towards the inputs; for
    /// [`TrainingOptions::groups`](crate::training::TrainingOptions::groups), behind others. Layers are what the names of the parameters number,
    /// such as `blocks.3.attn.weight`; they are counted as `timm` does it.
    ///
    /// # Errors
    /// A factor that is not above 0 and at most 1; names that number no layers.
    ///
    /// ```
    /// let model = forebay::Model::from_file("../../testdata/golden/tiny-gpt/model.onnx")?;
    /// let groups = model.layer_groups(0.5)?;
    /// assert_eq!(groups.last().map(|group| group.rate_factor), Some(1.0));
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn layer_groups(&self, decay: f32) -> Result<Vec<ParameterGroup>, Error> {
        Ok(layer_groups(&self.onnx.trainable_graph()?, decay)?)
    }

    /// The model as it was read.
    pub(crate) fn onnx(&self) -> &onnx::Model {
        &self.onnx
    }

    /// The graph as read.
    pub(crate) fn graph(&self) -> &Graph {
        &self.onnx.graph
    }

    /// The graph for training and for evaluation between steps, with all types. Weights stay open: nothing that depends
    /// on them is folded.
    ///
    /// # Errors
    /// A size that is left open, or operators that refuse their inputs.
    pub(crate) fn open_graph(&self, sizes: &Sizes) -> Result<Graph, Error> {
        infer::refuse_unsupported(&self.onnx.graph)?;
        recognized(self.onnx.trainable_graph()?, sizes)
    }

    /// The graph for inference, without types: weights are constants. Sizes that `batch_size` and `symbols` give take the place of those
    /// that the model leaves open; a batch size that the model states itself is replaced, and given back.
    ///
    /// # Errors
    /// A batch size that does not fit the model.
    pub(crate) fn inference_graph(
        &self,
        batch_size: Option<u64>,
        symbols: &BTreeMap<String, u64>,
    ) -> Result<(Graph, Option<u64>), Error> {
        infer::refuse_unsupported(&self.onnx.graph)?;
        let mut graph = self.onnx.graph.clone();
        graph.constants = graph.initializers.keys().copied().collect();
        let is_open = |id: ValueId| graph.value(id).declared.is_none() && graph.value(id).structure.is_none();
        if let Some(&id) = graph.inputs.iter().find(|&&id| is_open(id)) {
            let reason = format!("input '{}' declares no tensor type with a shape", graph.value(id).name);
            return Err(ModelError::Malformed { reason }.into());
        }
        check_batch_size(batch_size)?;
        check_sizes(&graph, symbols)?;
        recognize::normalizations(&mut graph);
        let stated = batch_size.and_then(|size| replace_batch_size(&mut graph, size));
        infer::declare_sizes(&mut graph, batch_size, symbols)?;
        Ok((graph, stated))
    }

    /// Writes the model as ONNX, with other contents for the initializers that `types` names: `give` gives them, one after the
    /// other and in pieces. The file is replaced as a whole or not at all; it may be the one that the model was read from.
    ///
    /// # Errors
    /// Contents that do not fit or cannot be read, or a file that cannot be written.
    pub(crate) fn write(&self, path: &Path, types: &BTreeMap<String, TensorType>, give: Give) -> Result<(), Error> {
        let (merged, mut failure) = (Merged::of(&self.onnx), None);
        let types = merged.types(types);
        let wrong = |error: io::Error| files::write_error(path, forebay_files::explained(error));
        let pending = Pending::new(path, |file| {
            let mut to = |bytes: &[u8]| file.write_all(bytes).map_err(wrong);
            let mut give = |name: &str, take: Take| merged.give(name, give, take);
            onnx::write_to(&self.onnx, &types, &mut give, &mut to).map_err(|error| {
                failure = Some(error);
                io::Error::other("the model cannot be written")
            })
        });
        match failure {
            Some(error) => Err(error),
            None => pending.and_then(Pending::commit).map_err(|error| files::write_error(path, error)),
        }
    }
}

/// Refuses sizes of dimensions that the model does not leave open.
fn check_sizes(graph: &Graph, sizes: &BTreeMap<String, u64>) -> Result<(), Error> {
    let open = infer::open_sizes(graph);
    let known = |name: &String| open.iter().any(|(symbol, place)| symbol == name || place == name);
    match sizes.keys().find(|name| !known(name)) {
        None => Ok(()),
        Some(name) => {
            let name_of = |(symbol, place): &(String, String)| if symbol.is_empty() { place } else { symbol }.clone();
            let open: BTreeSet<String> = open.iter().map(name_of).collect();
            let reason = match open.is_empty() {
                true => format!("the model has no size '{name}': all of its sizes are fixed"),
                false => {
                    let open: Vec<String> = open.into_iter().collect();
                    format!("the model has no size '{name}'; it leaves open: {}", open.join(", "))
                }
            };
            Err(Error::Option { reason })
        }
    }
}

/// Types a graph for training with inputs of these sizes. Attention that is written as products becomes one kernel,
/// as group normalization does that is written as instance normalization, and activations that are written as several operators.
fn recognized(mut graph: Graph, sizes: &Sizes) -> Result<Graph, Error> {
    graph.selects_branches = true;
    let mut graph = typed(graph, sizes)?;
    recognize::attention(&mut graph, false)?;
    recognize::group_normalizations(&mut graph)?;
    recognize::activations(&mut graph);
    Ok(graph)
}

fn check_batch_size(batch_size: Option<u64>) -> Result<(), Error> {
    match batch_size {
        Some(0) => Err(Error::Option { reason: "a batch holds at least one sample".to_string() }),
        _ => Ok(()),
    }
}

/// Types a graph for inputs of these sizes. A batch size that the model states itself is replaced.
fn typed(mut graph: Graph, sizes: &Sizes) -> Result<Graph, Error> {
    let batch_size = sizes.batch_size;
    check_batch_size(batch_size)?;
    let stated = batch_size.and_then(|size| replace_batch_size(&mut graph, size));
    let inferred = infer::infer_sizes(&mut graph, sizes).map_err(|error| match error {
        error @ ModelError::NeedsValue { .. } => ModelError::Request {
            reason: format!(
                "{error}; a training step has to know all sizes, and how often loops run, before it begins: let the model take what is \
                 computed so late as an input, or as a constant"
            ),
        },
        error => error,
    });
    match (inferred, batch_size, stated) {
        (Ok(()), _, _) => Ok(graph),
        (Err(error), Some(size), Some(stated)) if size != stated => Err(other_batch(size, stated, &error)),
        (Err(error), _, _) => Err(error.into()),
    }
}

/// The error of a model that states another batch size than it was given, and cannot take it.
pub(crate) fn other_batch(size: u64, stated: u64, error: &dyn std::fmt::Display) -> Error {
    Error::Option {
        reason: format!(
            "a batch of {size} does not fit the model, which was exported for batches of {stated} ({error}); export it \
             with a symbolic batch dimension, or give it whole batches"
        ),
    }
}

/// Makes the stated leading size of inputs and outputs another one, where all inputs state the same; gives what they
/// stated.
fn replace_batch_size(graph: &mut Graph, batch_size: u64) -> Option<u64> {
    fn leading(graph: &mut Graph, id: ValueId) -> Option<&mut u64> {
        let (_, dimensions) = graph.value_mut(id).declared.as_mut()?;
        match dimensions.first_mut()? {
            Dimension::Known(size) => Some(size),
            Dimension::Symbol(_) => None,
        }
    }
    let inputs = graph.inputs.clone();
    let stated = *leading(graph, *inputs.first()?)?;
    if inputs.iter().any(|&id| leading(graph, id).copied() != Some(stated)) {
        return None;
    }
    for id in inputs.into_iter().chain(graph.outputs.clone()) {
        if let Some(size) = leading(graph, id).filter(|size| **size == stated) {
            *size = batch_size;
        }
    }
    Some(stated)
}
