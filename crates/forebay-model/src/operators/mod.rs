//! The table of operators: one row per operator, one file per family.

use crate::operator::Operator;

/// The newest version of the default operator set that the table follows.
pub const NEWEST_OPSET: i64 = 27;

/// The families, each a list of rows.
pub const FAMILIES: &[&[Operator]] = &[];

/// The row of an operator; `ai.onnx` is the default domain's other name.
pub fn find(domain: &str, op_type: &str) -> Option<&'static Operator> {
    let domain = if domain == "ai.onnx" { "" } else { domain };
    FAMILIES.iter().flat_map(|family| family.iter()).find(|row| row.domain == domain && row.op_type == op_type)
}
