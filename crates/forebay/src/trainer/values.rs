//! What a trainer has learned: parameters and state, and models and checkpoints that contain them.

use std::collections::BTreeMap;
use std::path::Path;

use forebay_model::program::Role;
use forebay_model::tensor::Contents;
use forebay_model::{Tensor, TensorType};
use serde_json::Value;

use super::Trainer;
use crate::checkpoint::{Checkpoint, CheckpointFolder, Position};
use crate::error::Error;
use crate::pieces::Take;

/// What to do about a checkpoint of another run.
const SAME_FLAGS: &str = "use the model, the optimizer and the adapters of the checkpoint (config.toml in the folder of a \
                          checkpoint of `forebay train` has its flags)";

impl Trainer {
    /// Collects the values that are sharded among several processes ([`Shard`](crate::Shard)) in process 0, which then has the whole values
    /// until the next step: parameters, state, models and checkpoints come from there.
    ///
    /// All processes must call this at once. The whole values go into a file without a name, in the folder for what exceeds memory or in
    /// the system's folder for temporary files. If nothing is sharded, this does nothing.
    ///
    /// # Errors
    /// Fails if the device or another process reports an error, or if a file cannot be written.
    pub fn collect_shards(&mut self) -> Result<(), Error> {
        let Trainer { shards, engine, .. } = self;
        let folder = engine.machine().options.memory.spill_dir.clone();
        shards.collect(folder.as_deref(), &mut |name, take| engine.give(name, take))
    }

    /// Returns the types of parameters and state; for a sharded value, the type of the whole.
    fn types(&self) -> BTreeMap<String, TensorType> {
        let whole =
            |(name, ty): (&String, &TensorType)| (name.clone(), self.shards.whole_type(name).unwrap_or(ty).clone());
        self.engine.types().iter().map(whole).collect()
    }

    /// Returns the newest value of a parameter or of state, in memory; `None` if there is none with this name.
    fn value(&self, name: &str) -> Result<Option<Tensor>, Error> {
        match self.shards.has(name) {
            true => Ok(Some(self.shards.whole(name)?.to_tensor()?)),
            false => self.engine.value(name),
        }
    }

    /// Passes the newest value of a parameter or of state to `take` in pieces.
    fn give(&self, name: &str, take: Take) -> Result<(), Error> {
        match self.shards.has(name) {
            true => self.shards.whole(name)?.give_in_pieces(take),
            false => self.engine.give(name, take),
        }
    }

    /// Returns the newest values as they are now.
    fn snapshot(&self) -> Result<BTreeMap<String, Contents>, Error> {
        let mut values = self.engine.snapshot()?;
        for (name, value) in &mut values {
            if self.shards.has(name) {
                *value = self.shards.whole(name)?.clone();
            }
        }
        Ok(values)
    }

    /// Returns all trained parameters, by the names of the model's initializers.
    ///
    /// All of them are in host memory at once; if that is too much, [`Trainer::parameter`] returns one of them, and
    /// [`Trainer::for_each_parameter`] visits one after the other.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    pub fn parameters(&self) -> Result<BTreeMap<String, Tensor>, Error> {
        self.values_with(|role| role == Role::Parameter)
    }

    /// Returns one trained parameter; `None` if the model has no parameter with this name.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    pub fn parameter(&self, name: &str) -> Result<Option<Tensor>, Error> {
        match self.main().compiled.changing.get(name) {
            Some((Role::Parameter, _)) => self.value(name),
            _ => Ok(None),
        }
    }

    /// Passes all trained parameters to `visit`, one after the other, in the order of their names. Only one of them is in host memory at a
    /// time.
    ///
    /// # Errors
    /// Fails if the device reports an error or `visit` returns one; `visit` is then not called again.
    pub fn for_each_parameter(&self, mut visit: impl FnMut(&str, Tensor) -> Result<(), Error>) -> Result<(), Error> {
        for (name, (role, _)) in &self.main().compiled.changing {
            if let (Role::Parameter, Some(tensor)) = (role, self.value(name)?) {
                visit(name, tensor)?;
            }
        }
        Ok(())
    }

    /// Returns everything else that steps change: running statistics, optimizer state, and the optimizer's own step counter. All of it is
    /// in host memory at once.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    pub fn state(&self) -> Result<BTreeMap<String, Tensor>, Error> {
        self.values_with(|role| role != Role::Parameter)
    }

    fn values_with(&self, wanted: impl Fn(Role) -> bool) -> Result<BTreeMap<String, Tensor>, Error> {
        let changing = self.main().compiled.changing.iter().filter(|(_, (role, _))| wanted(*role));
        let value = |(name, _): (&String, _)| Ok(self.value(name)?.map(|value| (name.clone(), value)));
        changing.map(value).filter_map(Result::transpose).collect()
    }

    /// Writes the trained model as ONNX: the model that was read, with the trained parameters and running statistics. The file is replaced
    /// as a whole or not at all. Parameters are copied in pieces from wherever they are.
    ///
    /// # Errors
    /// Fails if the device reports an error or a file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.write_model(path.as_ref(), &BTreeMap::new())
    }

    /// Like [`Trainer::save`], with the moving averages of the parameters in place of the parameters.
    ///
    /// # Errors
    /// Fails as [`Trainer::save`] does, and with [`Error::Option`] if no averages are kept.
    pub fn save_average(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        if self.options.average.is_none() {
            let reason = "no moving averages are kept; create a trainer with a decay of averages".to_string();
            return Err(Error::Option { reason });
        }
        self.write_model(path.as_ref(), &self.main().averages)
    }

    /// Writes the model, with the value of another name for each name in `instead`.
    fn write_model(&self, path: &Path, instead: &BTreeMap<String, String>) -> Result<(), Error> {
        let graph = self.model.graph();
        let mut types = self.types();
        types.retain(|name, _| graph.find(name).is_some_and(|value| graph.initializers.contains_key(&value)));
        self.model
            .write(path, &types, &mut |name, take| self.give(instead.get(name).map_or(name, String::as_str), take))
    }

    /// Returns everything that a later trainer needs to continue from here, as it is now; `position` is the caller's position in the data.
    ///
    /// The checkpoint is a copy in host memory or, if the options have a folder for what exceeds memory, in a file without a name in that
    /// folder. [`Trainer::save_checkpoint`] writes a checkpoint without this copy.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    pub fn checkpoint(&self, position: &Value) -> Result<Checkpoint, Error> {
        Ok(Checkpoint {
            step: self.step_count,
            seed: self.options.seed,
            position: position.clone(),
            progress: Some(self.progress),
            alpha: self.model.alpha(),
            contents: self.snapshot()?,
            source: Default::default(),
        })
    }

    /// Returns the number of elements in all parameters that train.
    pub fn parameter_count(&self) -> u64 {
        let changing = self.main().compiled.changing.iter();
        let parameters = changing.filter(|(_, (role, _))| *role == Role::Parameter);
        parameters.map(|(_, (_, info))| info.shape.iter().product::<u64>()).sum()
    }

    /// Returns the number of bytes of the tensors in a checkpoint: parameters, optimizer state and running statistics.
    pub fn checkpoint_bytes(&self) -> u64 {
        self.types().values().map(|ty| ty.checked_size_bytes().unwrap_or(u64::MAX)).fold(0, u64::saturating_add)
    }

    /// Writes a checkpoint into a directory. The previous checkpoint there stays complete until the new one is.
    ///
    /// # Errors
    /// Fails if the device reports an error or a file cannot be written.
    pub fn save_checkpoint(&self, directory: impl AsRef<Path>, position: &Value) -> Result<(), Error> {
        self.write_checkpoint(&CheckpointFolder::lock(directory)?, position)
    }

    /// Like [`Trainer::save_checkpoint`], into a directory that is already locked. Values are copied in pieces from wherever they are.
    ///
    /// # Errors
    /// Fails as [`Trainer::save_checkpoint`] does.
    pub fn write_checkpoint(&self, folder: &CheckpointFolder, position: &Value) -> Result<(), Error> {
        let run = Position {
            step: self.step_count,
            seed: self.options.seed,
            position,
            progress: Some(self.progress),
            alpha: self.model.alpha(),
        };
        folder.write_from(&run, &self.types(), &mut |name, take| self.give(name, take))
    }

    /// Replaces parameters and state by name, and leaves all others unchanged. If several processes keep slices, all of them call this with
    /// the whole values, and each takes its own part. `step_count` replaces the number of steps done, none of which then counts as skipped.
    ///
    /// # Errors
    /// Returns [`Error::Option`] if there is no value of a name or its type is different; all values then stay as before. Also fails if the
    /// device reports an error.
    ///
    /// ```
    /// use forebay::{Model, Tensor, Trainer};
    ///
    /// # fn main() -> Result<(), forebay::Error> {
    /// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
    /// let mut trainer = Trainer::builder(&model).build()?;
    /// let zeros = Tensor::from_f32(&[10], &[0.0; 10]);
    /// trainer.set_values([("fc.bias".to_string(), zeros.clone())].into(), None)?;
    /// assert_eq!(trainer.parameter("fc.bias")?, Some(zeros));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_values(&mut self, values: BTreeMap<String, Tensor>, step_count: Option<u64>) -> Result<(), Error> {
        let types = self.types();
        for (name, tensor) in &values {
            let reason = match types.get(name) {
                Some(ty) if *ty == tensor.ty() => continue,
                Some(ty) => format!("expected {ty} for '{name}', found {}", tensor.ty()),
                None => format!("no parameter or state is named '{name}'"),
            };
            return Err(Error::Option { reason });
        }
        let mut all = self.engine.snapshot()?;
        for (name, tensor) in values {
            let own = self.shards.own(&name, &Contents::from(tensor));
            all.insert(name, own);
        }
        self.shards.forget();
        self.engine.set_values(all);
        if let Some(step_count) = step_count {
            (self.step_count, self.progress.skipped) = (step_count, 0);
        }
        Ok(())
    }

    /// Continues from a checkpoint. The next step is what it would have been in the run that wrote it, bit for bit, whatever the budgets of
    /// either run. The checkpoint's seed replaces that of the options. The tensors of a checkpoint that was read from a directory are
    /// copied in pieces to their places at the next step.
    ///
    /// # Errors
    /// Returns [`Error::Checkpoint`] if the checkpoint is of another model or optimizer, or of adapters with another scale; the trainer then
    /// stays as before.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), Error> {
        let refuse = |reason| Err(Error::Checkpoint { path: checkpoint.source.clone(), reason });
        let differ = |reason: String| refuse(format!("{reason}; {SAME_FLAGS}"));
        let changing = &self.main().compiled.changing;
        for (name, (_, info)) in changing {
            match checkpoint.contents.get(name) {
                None => return differ(format!("this training run has a tensor '{name}', but the checkpoint does not")),
                Some(found) if found.data_type() != info.data_type || found.shape() != info.shape => {
                    let found = found.ty();
                    return differ(format!("'{name}' is {found} in the checkpoint, but '{info}' in this training run"));
                }
                Some(_) => {}
            }
        }
        if let Some(name) = checkpoint.contents.keys().find(|name| !changing.contains_key(*name)) {
            return differ(format!("the checkpoint has a tensor '{name}', but this training run does not"));
        }
        checkpoint.check_alpha(&self.model).or_else(refuse)?;
        self.options.seed = checkpoint.seed;
        let own = |(name, whole): (&String, &Contents)| (name.clone(), self.shards.own(name, whole));
        let values = checkpoint.contents.iter().map(own).collect();
        self.shards.forget();
        self.engine.set_values(values);
        self.step_count = checkpoint.step;
        self.progress = checkpoint.progress.unwrap_or(self.progress);
        // At most all steps were skipped, also if the checkpoint does not say how many.
        self.progress.skipped = self.progress.skipped.min(self.step_count);
        Ok(())
    }
}
