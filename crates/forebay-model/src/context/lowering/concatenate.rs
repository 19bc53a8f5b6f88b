//! Concatenation without a dedicated kernel.

use forebay_base::tensor::BASE_OFFSET_ALIGNMENT_BYTES;
use forebay_base::{Kernel, Tensor, TensorDesc};

use super::Lowering;
use crate::context::NodeView;
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::program::Operand;

/// The largest size of the axis of a concatenation that needs an index per slice.
const GATHERED_SIZE_MAX: u64 = 1 << 24;

/// A piece with its first index along the axis.
type Piece = (Operand, u64);

impl Lowering<'_> {
    /// Concatenates the node's inputs along `axis` into its output 0. A piece that was computed in place costs nothing; others are copied.
    ///
    /// # Errors
    /// Fails if an operand cannot be on a device, or if there are too many misaligned pieces.
    pub fn concatenate(&mut self, view: &NodeView, axis: usize) -> Result<(), ModelError> {
        let output = self.output(view, 0)?;
        let mut pieces = Vec::with_capacity(view.node.inputs.len());
        for i in 0..view.node.inputs.len() {
            if !view.input_type(i)?.shape.contains(&0) {
                pieces.push(self.input(view, i)?);
            }
        }
        self.join(view, pieces, &output, axis)
    }

    /// Concatenates packed operands along `axis`.
    ///
    /// # Errors
    /// Fails if there are too many misaligned pieces.
    pub(crate) fn join(
        &mut self,
        view: &NodeView,
        operands: Vec<Operand>,
        output: &Operand,
        axis: usize,
    ) -> Result<(), ModelError> {
        if output.desc.sizes().len() <= axis {
            return Err(view.error(format!("axis {axis} is out of range for {}", output.desc)));
        }
        let mut pieces = Vec::with_capacity(operands.len());
        let mut start = 0;
        for piece in operands {
            let size = piece.desc.sizes().get(axis).copied().unwrap_or(0);
            pieces.push((piece, start));
            start += size;
        }
        let stride_bytes = axis_stride_bytes(&output.desc, axis);
        if pieces.iter().all(|(_, start)| Self::can_view(start * stride_bytes)) {
            self.copy_pieces(view, &pieces, output, axis)
        } else {
            self.gather_pieces(view, &pieces, output, axis)
        }
    }

    fn copy_pieces(
        &mut self,
        view: &NodeView,
        pieces: &[Piece],
        output: &Operand,
        axis: usize,
    ) -> Result<(), ModelError> {
        let strides = output.desc.effective_strides();
        let stride_bytes = axis_stride_bytes(&output.desc, axis);
        for (piece, start) in pieces {
            let offset_bytes = output.offset_bytes + start * stride_bytes;
            if piece.buffer == output.buffer && piece.offset_bytes == offset_bytes {
                continue;
            }
            let desc = TensorDesc::strided(piece.desc.data_type(), piece.desc.sizes(), &strides);
            let desc = desc.map_err(|error| view.error(error.to_string()))?;
            let part = Operand { buffer: output.buffer, offset_bytes, desc };
            self.launch(view, Kernel::Copy, vec![piece.clone()], vec![part]);
        }
        Ok(())
    }

    /// Copies pieces whose bases would be misaligned in the output into a buffer with gaps, where they are aligned; a gather then removes
    /// the gaps.
    fn gather_pieces(
        &mut self,
        view: &NodeView,
        pieces: &[Piece],
        output: &Operand,
        axis: usize,
    ) -> Result<(), ModelError> {
        let axis_size = output.desc.sizes()[axis];
        if axis_size > GATHERED_SIZE_MAX {
            let reason =
                format!("{axis_size} slices at misaligned offsets are more than the maximum of {GATHERED_SIZE_MAX}");
            return Err(view.error(reason));
        }
        // The stride is a multiple of its largest power-of-two factor, so this many slices reach the next aligned base.
        let stride_bytes = axis_stride_bytes(&output.desc, axis);
        let step = (BASE_OFFSET_ALIGNMENT_BYTES >> stride_bytes.trailing_zeros().min(4)).max(1);
        let mut spread = Vec::with_capacity(pieces.len());
        let mut indices = Vec::with_capacity(axis_size as usize);
        let mut end = 0u64;
        for (piece, _) in pieces {
            let start = end.next_multiple_of(step);
            end = start + piece.desc.sizes()[axis];
            indices.extend((start..end).map(|index| index as i64));
            spread.push((piece.clone(), start));
        }
        let mut shape = output.desc.sizes().to_vec();
        shape[axis] = end;
        let name = view.node.label(view.graph);
        let data = self.temporary(&name, &TensorType { data_type: output.desc.data_type(), shape })?;
        // The gaps are read as part of the whole, so they must be initialized.
        self.launch(view, Kernel::Fill { value: 0.0 }, vec![], vec![data.clone()]);
        self.copy_pieces(view, &spread, &data, axis)?;
        let indices = self.constant(&name, Tensor::from_i64(&[indices.len() as u64], &indices))?;
        self.launch(view, Kernel::Gather { axis }, vec![data, indices], vec![output.clone()]);
        Ok(())
    }
}

/// Returns the distance in bytes between neighbors along an axis of a packed tensor.
fn axis_stride_bytes(desc: &TensorDesc, axis: usize) -> u64 {
    desc.effective_strides()[axis] * desc.data_type().size_bytes()
}
