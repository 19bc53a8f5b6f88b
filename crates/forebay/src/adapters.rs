//! Saves the low-rank adapters of a trained model as files that PEFT reads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use forebay_base::DataType;
use forebay_model::Tensor;
use forebay_model::adapters::{Adapter, Layer};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

use crate::error::Error;
use crate::files;
use crate::trainer::Trainer;

/// The adapter files, as PEFT names them.
const TENSORS: &str = "adapter_model.safetensors";
const SETTINGS: &str = "adapter_config.json";
/// The prefix that PEFT gives to every module name.
const PREFIX: &str = "base_model.model.";

impl Trainer {
    /// Writes the model's adapters, and any parameters that are trained in full next to them, into a folder: `adapter_model.safetensors`,
    /// with PEFT's names and shapes, and `adapter_config.json`. PEFT's modules are derived from the names of weights: `encoder.0.weight`
    /// belongs to `encoder.0`.
    ///
    /// # Errors
    /// Fails with [`Error::Option`] if the model has no adapters. Also fails if the device reports an error or the files cannot be
    /// written.
    pub fn save_adapters(&self, folder: impl AsRef<Path>) -> Result<(), Error> {
        let folder = folder.as_ref();
        let onnx = self.model().onnx();
        let Some(options) = onnx.adapter_options() else {
            let reason = "the model has no adapters; add them before creating the trainer".to_string();
            return Err(Error::Option { reason });
        };
        let mut tensors = BTreeMap::new();
        let mut parameters = self.parameters()?;
        for adapter in onnx.adapters() {
            if let (Some(left), Some(right)) = (parameters.remove(&adapter.left), parameters.remove(&adapter.right)) {
                tensors.extend(as_in_peft(adapter, left, right));
            }
        }
        let is_adapted = |module: &str| onnx.adapters().iter().any(|adapter| module_of(&adapter.weight) == module);
        let (mut has_bias, mut whole) = (false, BTreeSet::new());
        for (name, parameter) in parameters {
            let (module, leaf) = name.rsplit_once('.').unwrap_or((&name, "weight"));
            match is_adapted(module) {
                true => {
                    has_bias = true;
                    tensors.insert(format!("{PREFIX}{module}.base_layer.{leaf}"), parameter);
                }
                false => {
                    whole.insert(module.to_owned());
                    tensors.insert(format!("{PREFIX}{name}"), parameter);
                }
            }
        }
        // PEFT takes whole modules, including their running statistics and the parts of them that do not train.
        let mut state = if whole.is_empty() { BTreeMap::new() } else { self.state()? };
        for (name, contents) in onnx.contents() {
            let of_module = name.rsplit_once('.').is_some_and(|(module, _)| whole.contains(module));
            let key = format!("{PREFIX}{name}");
            if of_module && contents.data_type() == DataType::Float32 && !tensors.contains_key(&key) {
                let tensor = state.remove(name).map_or_else(|| contents.to_tensor(), Ok)?;
                tensors.insert(key, tensor);
            }
        }
        let modules: Vec<&str> = onnx.adapters().iter().map(|adapter| module_of(&adapter.weight)).collect();
        let settings = json!({
            "peft_type": "LORA",
            "task_type": null,
            "base_model_name_or_path": null,
            "inference_mode": true,
            "r": options.rank,
            "lora_alpha": options.alpha,
            "lora_dropout": 0.0,
            "bias": if has_bias { "lora_only" } else { "none" },
            "fan_in_fan_out": false,
            "init_lora_weights": true,
            "target_modules": modules,
            "modules_to_save": if whole.is_empty() { serde_json::Value::Null } else { json!(whole) },
        });
        let wrong = |error: std::io::Error| files::write_error(folder, error);
        std::fs::create_dir_all(folder).map_err(wrong)?;
        let views: Result<Vec<(&String, TensorView)>, _> = tensors
            .iter()
            .map(|(name, tensor)| {
                let shape = tensor.shape().iter().map(|&size| size as usize).collect();
                TensorView::new(Dtype::F32, shape, tensor.bytes()).map(|view| (name, view))
            })
            .collect();
        let failed = |error: safetensors::SafeTensorError| files::write_error(&folder.join(TENSORS), error);
        let bytes = safetensors::serialize(views.map_err(failed)?, None).map_err(failed)?;
        files::replace(&folder.join(TENSORS), &bytes)?;
        let settings =
            serde_json::to_vec_pretty(&settings).map_err(|error| files::write_error(&folder.join(SETTINGS), error))?;
        files::replace(&folder.join(SETTINGS), &settings)
    }
}

/// Returns the module that a weight belongs to.
fn module_of(weight: &str) -> &str {
    weight.strip_suffix(".weight").unwrap_or(weight)
}

/// Returns the two factors with PEFT's names and shapes: A, \[rank, inputs], is applied to the input, and B, \[outputs, rank], produces
/// the output.
fn as_in_peft(adapter: &Adapter, left: Tensor, right: Tensor) -> [(String, Tensor); 2] {
    let module = module_of(&adapter.weight);
    let (a, b) = match adapter.layer.is_right_first() {
        true => (right, left),
        false => (turned(&left), turned(&right)),
    };
    let names = match adapter.layer {
        Layer::Embedding => ["lora_embedding_A", "lora_embedding_B"],
        _ => ["lora_A.weight", "lora_B.weight"],
    };
    let [name_a, name_b] = names.map(|name| format!("{PREFIX}{module}.{name}"));
    [(name_a, a), (name_b, b)]
}

/// Transposes a matrix.
fn turned(matrix: &Tensor) -> Tensor {
    let (rows, columns) = (matrix.shape()[0] as usize, matrix.shape()[1] as usize);
    let values = matrix.to_f32().unwrap_or_default();
    let turned: Vec<f32> = (0..columns)
        .flat_map(|column| (0..rows).map(move |row| (row, column)))
        .map(|(row, column)| values[row * columns + column])
        .collect();
    Tensor::from_f32(&[columns as u64, rows as u64], &turned)
}
