//! A model as it was read: its inputs and outputs, and the graphs that are made from it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use forebay_base::DataType;
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
    /// Reads a model from a file, with external data files next to it.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is not a model that Forebay understands.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Model, Error> {
        Model::read_file(path.as_ref(), None)
    }

    /// Reads a model from memory. A model with external data files is refused; [`Model::builder`] takes their folder.
    ///
    /// # Errors
    /// Fails if the bytes are not a model that Forebay understands.
    pub fn from_bytes(bytes: &[u8]) -> Result<Model, Error> {
        Model::read_bytes(bytes, None)
    }

    /// Reads a model from a file, with external data files in the given folder, or next to the file if no folder is given.
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

    /// Returns the model without parameters in `Constant` nodes. Some exporters write all weights as such nodes, which train if no initializer
    /// is a weight; in files of other exporters they are numbers of formulas.
    ///
    /// ```
    /// use forebay::{Model, Trainer};
    ///
    /// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?.with_initializers_only();
    /// assert!(!Trainer::builder(&model).build()?.parameters()?.is_empty(), "its weights are initializers");
    /// # Ok::<(), forebay::Error>(())
    /// ```
    #[must_use]
    pub fn with_initializers_only(&self) -> Model {
        let mut model = onnx::Model::clone(&self.onnx);
        model.train_only_initializers();
        Model { onnx: Arc::new(model) }
    }

    /// Returns the model's inputs, as the model declares them.
    pub fn inputs(&self) -> Vec<ValueInfo> {
        ValueInfo::of(&self.onnx.graph, &self.onnx.graph.inputs)
    }

    /// Returns the inputs for which the model has a value, so that a run need not be given them: initializers that are also declared as
    /// inputs, as old exporters declare all weights.
    ///
    /// ```
    /// let model = forebay::Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
    /// assert!(model.inputs_with_defaults().is_empty(), "its initializers are not inputs");
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn inputs_with_defaults(&self) -> Vec<ValueInfo> {
        let info = |(name, declared): (&String, &(DataType, Vec<Dimension>))| {
            let (data_type, dimensions) = declared.clone();
            ValueInfo { name: name.clone(), data_type, dimensions, structure: None }
        };
        self.onnx.defaults.iter().map(info).collect()
    }

    /// Returns the model's outputs, as the model declares them.
    pub fn outputs(&self) -> Vec<ValueInfo> {
        ValueInfo::of(&self.onnx.graph, &self.onnx.graph.outputs)
    }

    /// Returns the names of floating-point initializers that training leaves unchanged: buffers and constants in formulas, which are not
    /// parameters (the guide explains how they are told apart), and those that affect outputs only through `QuantizeLinear` or
    /// `DynamicQuantizeLinear`.
    ///
    /// # Errors
    /// Fails if contents cannot be read.
    pub fn untrained_initializers(&self) -> Result<Vec<String>, Error> {
        Ok(self.onnx.untrained_initializers()?)
    }

    /// If the output of this name, or the only output, is a softmax or a sigmoid, returns its name and that of the logits that go into
    /// it. Losses of classes and decisions take logits, so [`TrainerBuilder::loss_output`](crate::TrainerBuilder::loss_output) should
    /// name those.
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

    /// Returns the names of the PyTorch module's parameters that do not train as they do in the module, because the exporter computed
    /// with them: the file has copies of them, or other numbers instead. With `optimize=False`, `torch.onnx.export(..., dynamo=True)`
    /// leaves them as they are.
    pub fn altered_parameters(&self) -> Vec<String> {
        self.onnx.altered_parameters().to_vec()
    }

    /// Returns the model with these values for sizes that it leaves open, named by symbol or as `input[dimension]`.
    ///
    /// # Errors
    /// Fails with [`Error::Option`] if the model has no size of a given name.
    pub(crate) fn with_sizes(self, sizes: &BTreeMap<String, u64>) -> Result<Model, Error> {
        if sizes.is_empty() {
            return Ok(self);
        }
        let mut onnx = (*self.onnx).clone();
        check_sizes(&onnx.graph, sizes)?;
        infer::declare_sizes(&mut onnx.graph, None, sizes)?;
        Ok(Model { onnx: Arc::new(onnx) })
    }

    /// Returns the model with low-rank adapters next to the weights that the options name. A trainer then trains the adapters and leaves
    /// the weights as they are. [`Trainer::save`](crate::Trainer::save) writes the model as it was read, with the adapters merged into
    /// its weights; [`Trainer::save_adapters`](crate::Trainer::save_adapters) writes only the adapters.
    ///
    /// # Errors
    /// Fails if no weight fits the options, or if one is also used in a place where it cannot have an adapter.
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

    /// Returns the model with another number of classes in a layer, for transfer learning. The layer is a Gemm, a MatMul or a convolution
    /// without groups, and is named by its node, its output or its weight. Its weight and bias are initialized with random numbers from
    /// the seed, within the bounds of PyTorch's layers. [`Trainer::save`](crate::Trainer::save) writes the model with this head.
    ///
    /// # Errors
    /// Fails if there is no such layer, if something else also uses its weights, or if there are no classes.
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

    /// Returns groups of parameters whose learning rates fall by this factor from layer to layer towards the inputs, for
    /// [`TrainingOptions::groups`](crate::training::TrainingOptions::groups), after any others. Layers are identified by the numbers in
    /// parameter names, such as `blocks.3.attn.weight`, and counted as in `timm`.
    ///
    /// # Errors
    /// Fails if the factor is not above 0 and at most 1, or if the names do not number any layers.
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

    /// Returns the numerator of the adapters' scale, or `None` without adapters.
    pub(crate) fn alpha(&self) -> Option<f32> {
        self.onnx.adapter_options().map(|options| options.alpha)
    }

    /// Returns the model as it was read.
    pub(crate) fn onnx(&self) -> &onnx::Model {
        &self.onnx
    }

    /// Returns the graph as it was read.
    pub(crate) fn graph(&self) -> &Graph {
        &self.onnx.graph
    }

    /// Returns the graph for training and for evaluation between steps, with all types. Weights stay open: nothing that depends on them
    /// is folded.
    ///
    /// # Errors
    /// Fails if a size is left open or operators refuse their inputs.
    pub(crate) fn open_graph(&self, sizes: &Sizes) -> Result<Graph, Error> {
        infer::refuse_unsupported(&self.onnx.graph)?;
        recognized(self.onnx.trainable_graph()?, sizes)
    }

    /// Returns the graph for inference, without types and with weights as constants. `batch_size` and `symbols` provide the sizes that
    /// the model leaves open. If the model states a batch size itself, it is replaced and also returned. Those of the
    /// [inputs with defaults](Model::inputs_with_defaults) that are `given` are inputs like the others.
    ///
    /// # Errors
    /// Fails if the batch size does not fit the model.
    pub(crate) fn inference_graph(
        &self,
        batch_size: Option<u64>,
        symbols: &BTreeMap<String, u64>,
        given: &BTreeSet<String>,
    ) -> Result<(Graph, Option<u64>), Error> {
        infer::refuse_unsupported(&self.onnx.graph)?;
        let mut graph = self.onnx.graph.clone();
        let mut given_inputs = Vec::new();
        for (name, declared) in self.onnx.defaults.iter().filter(|(name, _)| given.contains(*name)) {
            let Some(id) = graph.find(name) else { continue };
            graph.initializers.remove(&id);
            let value = graph.value_mut(id);
            (value.ty, value.declared) = (None, Some(declared.clone()));
            given_inputs.push(id);
        }
        graph.constants = graph.initializers.keys().copied().collect();
        let is_open = |id: ValueId| graph.value(id).declared.is_none() && graph.value(id).structure.is_none();
        if let Some(&id) = graph.inputs.iter().find(|&&id| is_open(id)) {
            let reason = format!("input '{}' does not declare a tensor type with a shape", graph.value(id).name);
            return Err(ModelError::Malformed { reason }.into());
        }
        check_batch_size(batch_size)?;
        check_sizes(&graph, symbols)?;
        recognize::normalizations(&mut graph);
        let stated = batch_size.and_then(|size| replace_batch_size(&mut graph, size));
        infer::declare_sizes(&mut graph, batch_size, symbols)?;
        // Their sizes are their own: a batch size says nothing about them.
        graph.inputs.extend(given_inputs);
        Ok((graph, stated))
    }

    /// Checks, before training, that the trained model can be written as ONNX.
    ///
    /// # Errors
    /// Fails if the file would be too large.
    ///
    /// ```
    /// let model = forebay::Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
    /// assert!(model.check_size().is_ok());
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn check_size(&self) -> Result<(), Error> {
        Ok(onnx::check_size(&self.onnx)?)
    }

    /// Writes the model as ONNX, with other contents for the initializers that `types` names. `give` provides them one after the other,
    /// in pieces. The file is replaced as a whole or not at all; it can be the one that the model was read from.
    ///
    /// # Errors
    /// Fails if contents do not fit or cannot be read, or if the file cannot be written.
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
                true => format!("the model has no size named '{name}'; all of its sizes are fixed"),
                false => {
                    let open: Vec<String> = open.into_iter().collect();
                    format!("the model has no size named '{name}'; its open sizes are {}", open.join(", "))
                }
            };
            Err(Error::Option { reason })
        }
    }
}

/// Infers the types of a graph for training with inputs of these sizes. Attention written as products becomes one kernel, as do group
/// normalization written as instance normalization and activations written as several operators; products read transposed matrices in
/// place.
fn recognized(mut graph: Graph, sizes: &Sizes) -> Result<Graph, Error> {
    graph.selects_branches = true;
    let mut graph = typed(graph, sizes)?;
    recognize::attention(&mut graph, false)?;
    recognize::group_normalizations(&mut graph)?;
    recognize::activations(&mut graph);
    recognize::products_of_transposed(&mut graph);
    Ok(graph)
}

fn check_batch_size(batch_size: Option<u64>) -> Result<(), Error> {
    match batch_size {
        Some(0) => Err(Error::Option { reason: "the batch size must be at least 1, but is 0".to_string() }),
        _ => Ok(()),
    }
}

/// Infers the types of a graph for inputs of these sizes. A batch size that the model states itself is replaced.
fn typed(mut graph: Graph, sizes: &Sizes) -> Result<Graph, Error> {
    let batch_size = sizes.batch_size;
    check_batch_size(batch_size)?;
    let stated = batch_size.and_then(|size| replace_batch_size(&mut graph, size));
    let is_known = |graph: &Graph, value: &str| graph.find(value).is_some_and(|id| graph.is_constant(id));
    let inferred = infer::infer_sizes(&mut graph, sizes).map_err(|error| match error {
        ModelError::NeedsValue { ref value, .. } if !is_known(&graph, value) => ModelError::Request {
            reason: format!(
                "{error}; all sizes, and how often loops run, must be known before a training step begins; make what is computed too \
                 late an input or a constant of the model"
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

/// Returns the error for a model that states a different batch size from the one it was given, and cannot take that one.
pub(crate) fn other_batch(size: u64, stated: u64, error: &dyn std::fmt::Display) -> Error {
    Error::Option {
        reason: format!(
            "a batch of {size} does not fit the model, which was exported for batches of {stated} ({error}); export it \
             with a symbolic batch dimension, or use only whole batches"
        ),
    }
}

/// Replaces the stated leading size of inputs and outputs, if all inputs state the same one. Returns what they stated.
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
