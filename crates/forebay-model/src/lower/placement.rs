//! Decides which values are computed inside a concatenation, so that it needs no copies.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::tensor::BASE_OFFSET_ALIGNMENT_BYTES;

use crate::context::lowering::PieceLocation;
use crate::graph::{Attribute, Graph, Node, Operation, ValueId};

/// Places each piece of a contiguous concatenation if possible: a node must compute it, and it must not be a graph output, a piece of an
/// earlier concatenation, or a repeated piece. A value is in one place only; the other pieces are copied.
pub(super) fn place(graph: &Graph) -> BTreeMap<ValueId, PieceLocation> {
    let mut fixed: BTreeSet<ValueId> = graph.inputs.iter().chain(&graph.outputs).copied().collect();
    fixed.extend(graph.initializers.keys().copied());
    fixed.extend(graph.updates.iter().map(|update| update.value));
    let mut locations: BTreeMap<ValueId, PieceLocation> = BTreeMap::new();
    for node in &graph.nodes {
        let Some((concatenation, pieces)) = contiguous_pieces(graph, node) else { continue };
        for (piece, offset_bytes) in pieces {
            if !fixed.contains(&piece) {
                locations.entry(piece).or_insert(PieceLocation { concatenation, offset_bytes });
            }
        }
    }
    locations
}

/// Returns the pieces of a `Concat` with their offsets in bytes, if each of them is one aligned run of bytes.
fn contiguous_pieces(graph: &Graph, node: &Node) -> Option<(ValueId, Vec<(ValueId, u64)>)> {
    let Operation::Onnx { domain, op_type, attributes, .. } = &node.operation else { return None };
    if !domain.is_empty() || op_type != "Concat" || node.inputs.len() < 2 {
        return None;
    }
    let output = node.outputs.first().copied().flatten()?;
    let ty = graph.ty(output)?;
    let Some(Attribute::Int(axis)) = attributes.get("axis") else { return None };
    let rank = ty.shape.len();
    let axis = usize::try_from(if *axis < 0 { axis.checked_add(rank as i64)? } else { *axis }).ok()?;
    if axis >= rank || ty.shape[..axis].iter().any(|&size| size != 1) {
        return None;
    }
    let mut offset_bytes = 0u64;
    let mut pieces = Vec::with_capacity(node.inputs.len());
    for input in &node.inputs {
        // A piece that starts misaligned would also be written into by its predecessor, whose total size is rounded up.
        if !offset_bytes.is_multiple_of(BASE_OFFSET_ALIGNMENT_BYTES) {
            return None;
        }
        let input = (*input)?;
        let piece = graph.ty(input)?;
        pieces.push((input, offset_bytes));
        let count = piece.shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size))?;
        offset_bytes = offset_bytes.checked_add(count.checked_mul(piece.data_type.size_bytes())?)?;
    }
    Some((output, pieces))
}
