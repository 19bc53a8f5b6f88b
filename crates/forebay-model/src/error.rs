//! What can be wrong with a model.

use std::fmt;

/// Why a model cannot be read, typed, differentiated or lowered. Messages name the node and the numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelError {
    /// A file could not be read or written.
    File {
        /// Its path.
        path: String,
        /// The system's words.
        reason: String,
    },
    /// The bytes are no ONNX model, or break its rules.
    Malformed {
        /// What is wrong.
        reason: String,
    },
    /// The table has no row for an operator.
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
    /// An operator cannot say what it computes before an input is known: sizes or branches depend on it.
    NeedsValue {
        /// Operator type.
        op_type: String,
        /// The node.
        node: String,
        /// The value that has to be known.
        value: String,
        /// Why.
        reason: String,
    },
    /// An operator on the way to a trained parameter has no gradient.
    NoGradient {
        /// Operator type.
        op_type: String,
        /// The node.
        node: String,
    },
    /// What the caller asked for does not fit the model.
    Request {
        /// Why, and what would.
        reason: String,
    },
    /// Several things are wrong, all of which are worth knowing at once.
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
