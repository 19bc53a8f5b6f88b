//! The layout of x\[n, c, spatial], always with three spatial dimensions.

use forebay_base::TensorDesc;

/// Returns spatial values as three, with the missing ones first.
pub(super) fn spatial3(values: &[usize], filler: usize) -> [usize; 3] {
    let mut three = [filler; 3];
    let missing = 3 - values.len().min(3);
    three[missing..].copy_from_slice(&values[..3 - missing]);
    three
}

/// Strides in elements. The elements of a row of the last dimension are contiguous.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spatial {
    pub image: usize,
    pub channel: usize,
    pub plane: usize,
    pub row: usize,
    /// The number of elements from the first of a channel to the end of its last.
    pub span: usize,
}

impl Spatial {
    /// # Errors
    /// Returns an error if there are not one to three spatial dimensions, or if elements of a row are not contiguous.
    pub fn of(desc: &TensorDesc) -> Result<Spatial, String> {
        let sizes: Vec<usize> = desc.sizes().iter().map(|&size| size as usize).collect();
        let strides: Vec<usize> = desc.effective_strides().iter().map(|&stride| stride as usize).collect();
        if !(3..=5).contains(&sizes.len()) {
            return Err(format!("{desc} does not have one to three spatial dimensions"));
        }
        let [depth, height, width] = spatial3(&sizes[2..], 1);
        let [plane, row, column] = spatial3(&strides[2..], 0);
        if width > 1 && column != 1 {
            return Err(format!("the elements of a row of {desc} are not contiguous"));
        }
        let span = (depth - 1) * plane + (height - 1) * row + width;
        Ok(Spatial { image: strides[0], channel: strides[1], plane, row, span })
    }

    /// Whether the elements of a channel with these sizes are contiguous.
    pub fn is_dense(&self, [planes, rows, columns]: [usize; 3]) -> bool {
        (rows == 1 || self.row == columns) && (planes == 1 || self.plane == rows * columns)
    }
}
