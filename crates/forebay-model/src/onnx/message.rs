//! Reads nodes and operator sets from messages.

use std::collections::BTreeMap;

use super::malformed;
use super::proto::{NodeProto, OperatorSetIdProto};
use crate::error::ModelError;
use crate::operators::NEWEST_OPSET;

/// Returns the version of every imported operator set, by domain.
pub(super) fn versions(imports: &[OperatorSetIdProto]) -> Result<BTreeMap<String, i64>, ModelError> {
    let mut versions = BTreeMap::new();
    for import in imports {
        let domain = if import.domain() == "ai.onnx" { "" } else { import.domain() };
        versions.insert(domain.to_string(), import.version());
        if import.version() < 1 {
            let set = if domain.is_empty() { "ONNX" } else { domain };
            return Err(malformed(format!(
                "operator set {} of {set} does not exist; the first one is 1",
                import.version()
            )));
        }
        if domain.is_empty() && import.version() > NEWEST_OPSET {
            let reason = format!(
                "the model uses operator set {} of ONNX; the newest that Forebay supports is {NEWEST_OPSET} (convert the \
                 model with onnx.version_converter)",
                import.version()
            );
            return Err(ModelError::Request { reason });
        }
    }
    Ok(versions)
}

/// Returns what error messages call a node: its name or, if it has none, the name of its first output.
pub(super) fn label(node: &NodeProto) -> &str {
    let outputs = || node.output.iter().find(|output| !output.is_empty()).map(String::as_str);
    Some(node.name()).filter(|name| !name.is_empty()).or_else(outputs).unwrap_or("")
}
