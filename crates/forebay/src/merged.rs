//! A model's weights with their trained adapters merged in.

use std::collections::BTreeMap;

use forebay_model::onnx;
use forebay_model::{Tensor, TensorType};

use crate::error::Error;
use crate::pieces::{Give, Take};

/// Contents for a model without adapters: the adapters that are given are merged into their weights.
pub(crate) struct Merged<'a> {
    model: &'a onnx::Model,
}

impl<'a> Merged<'a> {
    /// Merges the adapters of a model.
    pub fn of(model: &'a onnx::Model) -> Merged<'a> {
        Merged { model }
    }

    /// Returns the types of the tensors for which the model's file gets new contents.
    pub fn types(&self, given: &BTreeMap<String, TensorType>) -> BTreeMap<String, TensorType> {
        let mut types = given.clone();
        for adapter in self.model.adapters() {
            let is_given = types.remove(&adapter.left).is_some() && types.remove(&adapter.right).is_some();
            if let (Some(weight), true) = (self.model.contents().get(&adapter.weight), is_given) {
                types.insert(adapter.weight.clone(), weight.ty().clone());
            }
        }
        types
    }

    /// Passes one of these tensors to `take`; `give` provides what training changed.
    ///
    /// # Errors
    /// Fails if contents cannot be read, or if `give` or `take` fails.
    pub fn give(&self, name: &str, give: Give, take: Take) -> Result<(), Error> {
        let Some(adapter) = self.model.adapters().iter().find(|adapter| adapter.weight == name) else {
            return give(name, take);
        };
        let Some(contents) = self.model.contents().get(name) else { return give(name, take) };
        let (left, right) = (values(&adapter.left, give)?, values(&adapter.right, give)?);
        let mut weight = contents.to_tensor()?.to_f32().unwrap_or_default();
        // The left factor has one row for each row of the weight.
        let rank = left.len() / contents.shape()[0].max(1) as usize;
        adapter.merge(&mut weight, &left, &right, rank);
        take(Tensor::from_f32(contents.shape(), &weight).bytes())
    }
}

/// Returns the values of the named tensor, which `give` provides.
fn values(name: &str, give: Give) -> Result<Vec<f32>, Error> {
    let mut bytes = Vec::new();
    give(name, &mut |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect())
}
