//! Device memory shared by several plans: loaded once, and given back with the last of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_device::Device;
use forebay_model::TensorType;
use forebay_model::tensor::Contents;
use forebay_plan::shared::block;

use crate::error::RuntimeError;
use crate::executor::Executor;

/// Creates a block of `size_bytes` of device memory with tensors at the given offsets, for [`Executor::sharing`]. The block is a plan
/// without steps; the tensors are its persistent tensors.
///
/// # Errors
/// Fails if the device reports an error, or if contents cannot be read.
pub fn shared_memory<'a>(
    device: Arc<dyn Device>,
    size_bytes: u64,
    tensors: impl IntoIterator<Item = (&'a str, &'a Contents, u64)>,
) -> Result<Executor, RuntimeError> {
    let mut contents = BTreeMap::new();
    let described = tensors.into_iter().map(|(name, tensor, offset_bytes)| {
        contents.insert(name.to_string(), tensor.clone());
        (name.to_string(), tensor.ty().clone(), offset_bytes)
    });
    let described: Vec<(String, TensorType, u64)> = described.collect();
    let plan = block(size_bytes, described, device.limits());
    let plan = plan.map_err(|error| RuntimeError::Plan { reason: error.to_string() })?;
    let mut executor = Executor::new(device, plan, &contents)?;
    executor.end_loading();
    Ok(executor)
}
