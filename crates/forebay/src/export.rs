//! Exports a checkpoint as a model.

use std::collections::BTreeMap;
use std::path::Path;

use forebay_model::training::state_of;
use forebay_model::{Graph, TensorType};

use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::model::Model;

impl Checkpoint {
    /// Writes the trained model as ONNX: `model` with the parameters and running statistics of this checkpoint, as
    /// [`Trainer::save`](crate::Trainer::save) writes it. Initializers that were not trained stay as they are.
    ///
    /// # Errors
    /// Fails with [`Error::Checkpoint`] if the checkpoint is of another model, or of adapters with another scale. Also fails if the file
    /// cannot be written.
    pub fn export(&self, model: &Model, path: impl AsRef<Path>) -> Result<(), Error> {
        let refused = |reason| Error::Checkpoint { path: self.source.clone(), reason };
        let types = self.types_of(model.graph()).map_err(refused)?;
        self.check_alpha(model).map_err(refused)?;
        self.check_adapters(model).map_err(refused)?;
        model.write(path.as_ref(), &types, &mut |name, take| self.contents[name].give_in_pieces(take))
    }

    /// Checks that the checkpoint has the adapters of the model, which are merged into their weights.
    fn check_adapters(&self, model: &Model) -> Result<(), String> {
        let mut adapters = model.onnx().adapters().iter();
        let is_missing = |factor: &String| !self.contents.contains_key(factor);
        match adapters.find(|adapter| is_missing(&adapter.left) || is_missing(&adapter.right)) {
            Some(adapter) => Err(format!(
                "the model has adapters of '{}', but the checkpoint does not; use the adapters of the run that wrote it",
                adapter.weight
            )),
            None => Ok(()),
        }
    }

    /// Returns the types of the graph's initializers that the checkpoint holds. Everything in the checkpoint must belong to the graph.
    fn types_of(&self, graph: &Graph) -> Result<BTreeMap<String, TensorType>, String> {
        let initializer = |name: &str| graph.initializers.get(&graph.find(name)?);
        let mut types = BTreeMap::new();
        for (name, contents) in &self.contents {
            let ty = contents.ty();
            match initializer(name) {
                Some(old) if old.ty() == ty => {
                    types.insert(name.clone(), ty.clone());
                }
                Some(old) => return Err(format!("'{name}' is {ty} in the checkpoint, but {} in the model", old.ty())),
                None if state_of(name).is_some_and(|parameter| self.contents.contains_key(parameter)) => {}
                None => return Err(format!("the checkpoint has a tensor '{name}', but the model does not")),
            }
        }
        if types.is_empty() {
            return Err("the checkpoint has no tensor of the model".to_owned());
        }
        let statistics =
            graph.nodes.iter().filter(|node| node.operation.name() == "BatchNormalization").flat_map(|node| {
                let statistics = node.inputs.iter().skip(3).flatten();
                statistics.filter(|value| graph.initializers.contains_key(value))
            });
        for &value in statistics {
            let name = &graph.value(value).name;
            if !types.contains_key(name) {
                return Err(format!("the model has running statistics '{name}', but the checkpoint does not"));
            }
        }
        Ok(types)
    }
}
