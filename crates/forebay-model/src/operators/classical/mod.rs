//! Operators of the domain `ai.onnx.ml`: classical machine learning, as scikit-learn, LightGBM, XGBoost and CatBoost are converted to it.
//!
//! Labels and categories must be integers, because there are no tensors of strings.

mod features;
mod forest;
mod linear;
mod scores;
mod support_vectors;
mod trees;

use forebay_base::DataType;

use super::decomposition::{Composer, Decomposition, Part, composed};
use crate::error::ModelError;
use crate::graph::Attribute;
use crate::operator::{Gradient, NodeView, Operator};

/// The domain.
pub const CLASSICAL: &str = "ai.onnx.ml";

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!(CLASSICAL, "ArrayFeatureExtractor", features::extracted),
    Operator { gradient: Gradient::Zero, ..composed!(CLASSICAL, "Binarizer", features::binarized) },
    composed!(CLASSICAL, "FeatureVectorizer", features::joined),
    composed!(CLASSICAL, "Imputer", features::imputed),
    Operator { gradient: Gradient::Zero, ..composed!(CLASSICAL, "LabelEncoder", features::looked_up) },
    composed!(CLASSICAL, "LinearClassifier", linear::classified),
    composed!(CLASSICAL, "LinearRegressor", linear::predicted),
    composed!(CLASSICAL, "Normalizer", features::normalized),
    Operator { gradient: Gradient::Zero, ..composed!(CLASSICAL, "OneHotEncoder", features::one_hot) },
    composed!(CLASSICAL, "SVMClassifier", support_vectors::classified),
    composed!(CLASSICAL, "SVMRegressor", support_vectors::predicted),
    composed!(CLASSICAL, "Scaler", features::scaled),
    Operator { gradient: Gradient::Zero, ..composed!(CLASSICAL, "TreeEnsemble", trees::predicted_by_leaves) },
    Operator { gradient: Gradient::Zero, ..composed!(CLASSICAL, "TreeEnsembleClassifier", trees::classified) },
    Operator { gradient: Gradient::Zero, ..composed!(CLASSICAL, "TreeEnsembleRegressor", trees::predicted) },
    composed!(CLASSICAL, "ZipMap", unzipped),
];

/// The scores of all classes, in the order of the labels. ONNX's result is a list of maps from labels to scores; there are no maps here.
fn unzipped(view: NodeView) -> Result<Decomposition, ModelError> {
    let c = Composer::new(view);
    let scores = c.input(0)?;
    c.finish(scores)
}

/// The numbers of a list attribute, or of the tensor `NAME_as_tensor` that may replace it; empty if there is neither.
fn numbers(view: &NodeView, name: &str) -> Result<Vec<f64>, ModelError> {
    let as_tensor = format!("{name}_as_tensor");
    let wrong = |name: &str| view.error(format!("attribute {name} must be a list of numbers"));
    match (view.attribute(name), view.attribute(&as_tensor)) {
        (None, None) => Ok(Vec::new()),
        (None, Some(Attribute::Tensor(tensor))) => tensor.to_f64().ok_or_else(|| wrong(&as_tensor)),
        (Some(Attribute::Floats(values)), None) => Ok(values.iter().map(|&value| f64::from(value)).collect()),
        (Some(Attribute::Ints(values)), None) => Ok(values.iter().map(|&value| value as f64).collect()),
        (Some(Attribute::Tensor(tensor)), None) => tensor.to_f64().ok_or_else(|| wrong(name)),
        (Some(_), Some(_)) => Err(view.error(format!("attributes {name} and {as_tensor} are both given"))),
        _ => Err(wrong(name)),
    }
}

/// The integers of a list attribute, which is empty if it is missing.
fn integers<'a>(view: &NodeView<'a>, name: &str) -> Result<&'a [i64], ModelError> {
    Ok(view.ints(name)?.unwrap_or_default())
}

/// The labels of a classifier's classes.
fn labels<'a>(view: &NodeView<'a>, name: &str) -> Result<&'a [i64], ModelError> {
    no_strings(view, "classlabels_strings", "labels")?;
    match integers(view, name)? {
        [] => Err(view.error(format!("attribute {name} is missing"))),
        labels => Ok(labels),
    }
}

/// Refuses an attribute that is a list of strings.
fn no_strings(view: &NodeView, name: &str, what: &str) -> Result<(), ModelError> {
    match view.attribute(name) {
        None => Ok(()),
        Some(Attribute::Strings(strings)) if strings.is_empty() => Ok(()),
        Some(_) => {
            Err(view.error(format!("{what} that are strings (attribute {name}) are not supported; use integers")))
        }
    }
}

/// Input 0 as rows of features, one per example: float64 if it is and an operator computes with that, else float32.
fn rows(c: &mut Composer, keeps_double: bool) -> Result<Part, ModelError> {
    let x = c.input(0)?;
    let x = match *x.ty.shape {
        [features] => c.reshape(&x, &[1, features])?,
        [_, _] => x,
        _ => return Err(c.view.error(format!("expected one or two dimensions, found {}", x.ty))),
    };
    real(c, &x, keeps_double)
}

/// A part as real numbers: float64 if it is and an operator computes with that, else float32.
fn real(c: &mut Composer, x: &Part, keeps_double: bool) -> Result<Part, ModelError> {
    match x.ty.data_type {
        DataType::Float64 if keeps_double => Ok(x.clone()),
        DataType::Bool => Err(c.view.error(format!("expected numbers, found {}", x.ty))),
        _ => Ok(c.cast(x, DataType::Float32)),
    }
}

/// Constant numbers of a part's type, one for each element of its last axis or one for all.
fn per_feature(c: &mut Composer, x: &Part, name: &str, values: &[f64]) -> Result<Part, ModelError> {
    let features = x.ty.shape.last().copied().unwrap_or(1);
    if values.len() != 1 && values.len() as u64 != features {
        let reason = format!("attribute {name} has {} numbers for {features} features", values.len());
        return Err(c.view.error(reason));
    }
    c.floats(x.ty.data_type, &[values.len() as u64], values)
}

/// A scalar of a part's type.
fn scalar_like(c: &mut Composer, x: &Part, value: f64) -> Result<Part, ModelError> {
    c.scalar(x.ty.data_type, value)
}
