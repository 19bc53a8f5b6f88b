//! The ways in which a model can be wrong.

use std::fmt;

/// The reason why a model cannot be read, typed, differentiated or lowered. Messages name the node and the numbers involved.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelError {
    /// A file could not be read or written.
    File {
        /// Its path.
        path: String,
        /// The operating system's message.
        reason: String,
    },
    /// The bytes are not an ONNX model, or violate the format's rules.
    Malformed {
        /// What is wrong.
        reason: String,
    },
    /// The table of operators has no row for an operator.
    UnsupportedOperator {
        /// Domain, empty for the default one.
        domain: String,
        /// Operator type.
        op_type: String,
        /// Version of the operator set.
        version: i64,
        /// The node.
        node: String,
    },
    /// An operator cannot work with its inputs or attributes.
    Operator {
        /// Operator type.
        op_type: String,
        /// The node.
        node: String,
        /// Why.
        reason: String,
    },
    /// The output types of an operator depend on an input's value that is not yet known: sizes or branches depend on it.
    NeedsValue {
        /// Operator type.
        op_type: String,
        /// The node.
        node: String,
        /// The value that must be known first.
        value: String,
        /// Why.
        reason: String,
    },
    /// An operator between a trained parameter and the loss has no gradient.
    NoGradient {
        /// Operator type.
        op_type: String,
        /// The node.
        node: String,
    },
    /// The caller's request does not fit the model.
    Request {
        /// Why it does not fit, and what would.
        reason: String,
    },
    /// Several errors that are worth reporting together.
    Several(Vec<ModelError>),
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelError::File { path, reason } => write!(f, "{path}: {reason}"),
            ModelError::Malformed { reason } => write!(f, "not a valid ONNX model: {reason}"),
            ModelError::UnsupportedOperator { domain, op_type, version, node } => {
                let dot = if domain.is_empty() { "" } else { "." };
                write!(f, "operator {domain}{dot}{op_type} (opset {version}) of node '{node}' is not supported")
            }
            ModelError::Operator { op_type, node, reason } | ModelError::NeedsValue { op_type, node, reason, .. } => {
                write!(f, "{op_type} '{node}': {reason}")
            }
            ModelError::NoGradient { op_type, node } => write!(
                f,
                "{op_type} '{node}' has no gradient, but lies between a trained parameter and the loss (freeze the \
                 parameters before it with --freeze, or leave it out of the loss)"
            ),
            ModelError::Request { reason } => f.write_str(reason),
            ModelError::Several(errors) => {
                for (i, error) in errors.iter().enumerate() {
                    write!(f, "{}{error}", if i == 0 { "" } else { "\n" })?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for ModelError {}
