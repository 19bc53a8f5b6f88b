//! Cropping, padding and normalizing volumes, so that volumes of any size fit a model's input.
//!
//! Volumes are read as streams, and only the elements in the model's box are kept, as stored in the file. A sample therefore takes only the
//! memory of what the model sees of it, however large the file is.

use std::io::Read;

use crate::error::DataError;
use crate::nifti::{Header, VoxelStream};

/// The most bytes of a file that are in memory at once while it is read, unless a plane is larger.
const SLAB_BYTES_MAX: usize = 4 << 20;
/// The most planes that are processed at once.
const SLAB_PLANES_MAX: usize = 16;
/// The number of axes of a box. Axes that a model does not have are of size 1.
const AXES: usize = 3;

/// Returns the position of a row of `n` in a row of `m`: (first source index, first target index, count).
fn fitted_axis(n: usize, m: usize) -> (usize, usize, usize) {
    if n >= m { ((n - m) / 2, 0, m) } else { (0, (m - n) / 2, n) }
}

/// The part of a volume that lies in a model's box. If the volume's size n along an axis is at least the box's size m, the box begins at (n
/// - m) div 2. If n is less, the volume is padded with zeros: (m - n) div 2 before and the rest after.
pub struct Boxed {
    header: Header,
    /// For each axis: the first source index, the first target index, and the count.
    axes: [(usize, usize, usize); AXES],
    /// The sizes of the box.
    to: [usize; AXES],
    /// The elements in the box, as stored in the file: by channel, then row-major.
    elements: Vec<u8>,
    /// The file.
    origin: String,
}

impl Boxed {
    /// Reads `channels` channels of a volume with the spatial sizes `from` into a box with the same number of axes. `look`, if given, is
    /// called for every voxel of the file, with its row-major index in its channel and its value.
    ///
    /// # Errors
    /// [`DataError`] that says what is wrong with the file or that there is no memory for the box, or an error of `look`.
    pub fn read<R: Read>(
        mut stream: VoxelStream<R>,
        from: &[u64],
        channels: usize,
        to: &[u64],
        look: Option<&dyn Fn(usize, f64) -> Result<(), DataError>>,
    ) -> Result<Boxed, DataError> {
        assert!(from.len() == to.len() && from.len() <= AXES, "the same number of axes");
        stream.check_size()?;
        let sizes = |sizes: &[u64]| std::array::from_fn(|axis| sizes.get(axis).map_or(1, |&size| size as usize));
        let (from, to): ([usize; AXES], [usize; AXES]) = (sizes(from), sizes(to));
        let header = stream.header().clone();
        let axes: [_; AXES] = std::array::from_fn(|axis| fitted_axis(from[axis], to[axis]));
        let element_bytes = header.data_type.size_bytes() as usize;
        let kept = axes.iter().map(|&(_, _, count)| count).product::<usize>() * channels * element_bytes;
        let zeros = |count: usize| {
            let buffer = forebay_limits::buffer(count as u64);
            let mut buffer = buffer.map_err(|error| DataError::malformed(stream.origin(), error.to_string()))?;
            buffer.resize(count, 0u8);
            Ok::<_, DataError>(buffer)
        };
        let elements = zeros(kept)?;
        let mut boxed = Boxed { header, axes, to, elements, origin: stream.origin().to_owned() };
        // A plane that is too large for a slab is read row by row.
        let (row_bytes, plane_bytes) = (from[0] * element_bytes, from[0] * from[1] * element_bytes);
        let (rows, planes) = match SLAB_BYTES_MAX / plane_bytes.max(1) {
            0 => (1, 1),
            planes => (from[1], planes.min(SLAB_PLANES_MAX)),
        };
        let mut slab = zeros(row_bytes * rows * planes)?;
        let (first, _, count) = axes[2];
        for channel in 0..channels {
            let mut plane = 0;
            while plane < from[2] {
                // Without `look`, planes outside the box are not needed, so they are skipped.
                let outside = if plane < first { first - plane } else { from[2] - plane };
                if look.is_none() && !(first..first + count).contains(&plane) {
                    stream.skip((outside * plane_bytes) as u64)?;
                    plane += outside;
                    continue;
                }
                let depth = planes.min(from[2] - plane);
                for row in (0..from[1]).step_by(rows) {
                    let slab = &mut slab[..row_bytes * rows * depth];
                    stream.fill(slab)?;
                    let part = Part { plane, depth, row, rows };
                    if let Some(look) = look {
                        boxed.show(slab, &part, from, look)?;
                    }
                    boxed.keep(slab, &part, from, channel);
                }
                plane += depth;
            }
        }
        Ok(boxed)
    }

    /// Calls `look` for every voxel of a slab.
    fn show(
        &self,
        slab: &[u8],
        part: &Part,
        from: [usize; AXES],
        look: &dyn Fn(usize, f64) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let row_bytes = from[0] * self.header.data_type.size_bytes() as usize;
        let mut values = Vec::with_capacity(from[0]);
        for (number, bytes) in slab.chunks_exact(row_bytes.max(1)).enumerate() {
            let (plane, row) = (part.plane + number / part.rows, part.row + number % part.rows);
            values.clear();
            self.header.push_values(bytes, &mut values);
            for (i, &value) in values.iter().enumerate() {
                look((i * from[1] + row) * from[2] + plane, value)?;
            }
        }
        Ok(())
    }

    /// Keeps the elements in the box.
    fn keep(&mut self, slab: &[u8], part: &Part, from: [usize; AXES], channel: usize) {
        match self.header.data_type.size_bytes() {
            1 => self.keep_elements::<1>(slab, part, from, channel),
            2 => self.keep_elements::<2>(slab, part, from, channel),
            4 => self.keep_elements::<4>(slab, part, from, channel),
            _ => self.keep_elements::<8>(slab, part, from, channel),
        }
    }

    fn keep_elements<const SIZE: usize>(&mut self, slab: &[u8], part: &Part, from: [usize; AXES], channel: usize) {
        let [(first_i, _, count_i), (first_j, _, count_j), (first_k, _, count_k)] = self.axes;
        let channel_bytes = count_i * count_j * count_k * SIZE;
        let kept = &mut self.elements[channel * channel_bytes..][..channel_bytes];
        let (low_k, high_k) = (part.plane.max(first_k), (part.plane + part.depth).min(first_k + count_k));
        if low_k >= high_k {
            return;
        }
        for j in part.row.max(first_j)..(part.row + part.rows).min(first_j + count_j) {
            for i in 0..count_i {
                // Along the last axis, the box is contiguous, and voxels of the slab are a plane apart.
                let at = ((i * count_j + j - first_j) * count_k + low_k - first_k) * SIZE;
                let target = &mut kept[at..][..(high_k - low_k) * SIZE];
                let place = |k: usize| (((k - part.plane) * part.rows + j - part.row) * from[0] + first_i + i) * SIZE;
                for (k, target) in (low_k..high_k).zip(target.chunks_exact_mut(SIZE)) {
                    target.copy_from_slice(&slab[place(k)..][..SIZE]);
                }
            }
        }
    }

    /// Calls `work` with the values of the box, row by row along its last axis.
    pub fn for_each_row(&self, channel: usize, mut work: impl FnMut(&[f64])) {
        let [(_, to_i, count_i), (_, to_j, count_j), (_, to_k, count_k)] = self.axes;
        let row_bytes = count_k * self.header.data_type.size_bytes() as usize;
        let mut values = Vec::with_capacity(self.to[2]);
        for i in 0..self.to[0] {
            for j in 0..self.to[1] {
                values.clear();
                if (to_i..to_i + count_i).contains(&i) && (to_j..to_j + count_j).contains(&j) {
                    let row = (channel * count_i + i - to_i) * count_j + j - to_j;
                    values.resize(to_k, 0.0);
                    self.header.push_values(&self.elements[row * row_bytes..][..row_bytes], &mut values);
                }
                values.resize(self.to[2], 0.0);
                work(&values);
            }
        }
    }

    /// Appends a channel as float32 with mean 0 and deviation 1: (x - mean) / standard deviation over all values of the box, computed in
    /// float64 and rounded. The result is all zeros if all values are the same.
    ///
    /// # Errors
    /// [`DataError`] naming the file and a voxel that is infinite or not a number: it would make every other voxel so.
    pub fn push_normalized(&self, channel: usize, bytes: &mut Vec<u8>) -> Result<(), DataError> {
        let count = self.to.iter().product::<usize>() as f64;
        let (mut sum, mut squares) = (0f64, 0f64);
        self.for_each_row(channel, |row| row.iter().for_each(|value| sum += value));
        // A sum of finite numbers can also be infinite.
        if !sum.is_finite()
            && let Some((place, value)) = self.not_finite(channel)
        {
            let reason = format!(
                "voxel {place:?} of channel {channel} is {value}, and only finite numbers can be normalized (numpy.nan_to_num replaces \
                 others)"
            );
            return Err(DataError::malformed(&self.origin, reason));
        }
        let mean = sum / count;
        self.for_each_row(channel, |row| row.iter().for_each(|value| squares += (value - mean) * (value - mean)));
        let deviation = (squares / count).sqrt();
        let normalized = |value: f64| if deviation == 0.0 { 0.0 } else { ((value - mean) / deviation) as f32 };
        self.for_each_row(channel, |row| {
            bytes.extend(row.iter().flat_map(|&value| normalized(value).to_le_bytes()));
        });
        Ok(())
    }

    /// Returns the position in the file of the first voxel of the box that is infinite or not a number, and its value.
    fn not_finite(&self, channel: usize) -> Option<([usize; AXES], f64)> {
        let (mut row, mut found) = (0, None);
        self.for_each_row(channel, |values| {
            if let Some(k) = values.iter().position(|value| !value.is_finite()).filter(|_| found.is_none()) {
                let at = [row / self.to[1], row % self.to[1], k];
                let place = std::array::from_fn(|axis| {
                    let (first, before, _) = self.axes[axis];
                    first + at[axis] - before
                });
                found = Some((place, values[k]));
            }
            row += 1;
        });
        found
    }
}

/// The part of a channel that is in memory.
struct Part {
    /// Its first plane.
    plane: usize,
    /// The number of planes.
    depth: usize,
    /// Its first row in each plane.
    row: usize,
    /// The number of rows in each plane.
    rows: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nifti::{self, samples};

    fn stream(path: &std::path::Path, from: &[u64], bytes: &[u8]) -> VoxelStream<Box<dyn Read>> {
        let shape: Vec<i16> = from.iter().map(|&size| size as i16).collect();
        std::fs::write(path, samples::file(2, &shape, bytes, 0.0, 0.0)).unwrap();
        nifti::open(path).unwrap()
    }

    /// The values 1, 2, 3 .. in row-major order, fitted.
    fn fitted(from: &[u64], to: &[u64]) -> Vec<f64> {
        let folder = tempfile::tempdir().unwrap();
        let value = |index: &[u64]| index.iter().zip(from).fold(0, |number, (&at, &size)| number * size + at);
        let mut elements = vec![0u8; from.iter().product::<u64>() as usize];
        for (number, element) in elements.iter_mut().enumerate() {
            // In the file, the first axis is the fastest.
            let mut rest = number as u64;
            let index: Vec<u64> = from
                .iter()
                .map(|&size| {
                    let at = rest % size;
                    rest /= size;
                    at
                })
                .collect();
            *element = value(&index) as u8 + 1;
        }
        let boxed = Boxed::read(stream(&folder.path().join("v.nii"), from, &elements), from, 1, to, None).unwrap();
        let mut values = Vec::new();
        boxed.for_each_row(0, |row| values.extend_from_slice(row));
        values
    }

    #[test]
    fn one_axis_by_hand() {
        assert_eq!(fitted(&[5], &[2]), [2.0, 3.0]);
        assert_eq!(fitted(&[2], &[5]), [0.0, 1.0, 2.0, 0.0, 0.0]);
        assert_eq!(fitted(&[3], &[3]), [1.0, 2.0, 3.0]);
    }

    #[test]
    fn several_axes_match_a_naive_model() {
        for (from, to) in
            [([3, 4, 5], [5, 2, 5]), ([1, 6, 2], [4, 6, 3]), ([7, 1, 4], [2, 2, 2]), ([2, 2, 40], [2, 3, 21])]
        {
            let mut expected = Vec::new();
            for i in 0..to[0] {
                for j in 0..to[1] {
                    for k in 0..to[2] {
                        let source = |axis: usize, index: u64| {
                            let (n, m) = (from[axis] as i64, to[axis] as i64);
                            let shift = if n >= m { (n - m) / 2 } else { -((m - n) / 2) };
                            let index = index as i64 + shift;
                            (0..n).contains(&index).then_some(index as u64)
                        };
                        let at = source(0, i).zip(source(1, j)).zip(source(2, k));
                        expected.push(at.map_or(0, |((i, j), k)| (i * from[1] + j) * from[2] + k + 1) as f64);
                    }
                }
            }
            assert_eq!(fitted(&from, &to), expected, "{from:?} to {to:?}");
        }
    }

    /// A plane that is larger than a slab is read row by row, and every voxel is visited once, whether the box keeps it or not.
    #[test]
    fn large_planes_are_read_row_by_row() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = ([3000, 1500, 2], [2, 2, 2]);
        let mut elements = vec![0u8; 9_000_000];
        // Voxel (1499, 750, 1) is in the last row of the box.
        elements[(1500 + 750) * 3000 + 1499] = 7;
        let seen = std::cell::Cell::new((0usize, 0usize));
        let look = |index: usize, value: f64| {
            let (count, place) = seen.get();
            seen.set((count + 1, if value > 0.0 { index } else { place }));
            Ok(())
        };
        let stream = stream(&folder.path().join("v.nii"), &from, &elements);
        let boxed = Boxed::read(stream, &from, 1, &to, Some(&look)).unwrap();
        assert_eq!(seen.get(), (9_000_000, (1499 * 1500 + 750) * 2 + 1));
        let mut values = Vec::new();
        boxed.for_each_row(0, |row| values.extend_from_slice(row));
        assert_eq!(values, [0.0, 0.0, 0.0, 7.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn files_too_small_for_their_voxels_are_named_before_memory_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let from = [32767; 3];
        let stream = stream(&folder.path().join("v.nii"), &from, &[0; 16]);
        let error = Boxed::read(stream, &from, 1, &from, None).err().unwrap().to_string();
        assert!(error.contains("v.nii: truncated: 368 bytes cannot hold 35181150961663 bytes of voxels"), "{error}");
    }

    #[test]
    fn a_voxel_that_is_no_number_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.nii");
        // The first axis is the fastest: the fifth of the voxels is at 1, 1, 0.
        let voxels = |value: f32| (0..12).flat_map(|at| (if at == 4 { value } else { 1.0 }).to_le_bytes()).collect();
        for (value, words) in [(f32::NAN, "is NaN"), (f32::NEG_INFINITY, "is -inf"), (2.0, "")] {
            let voxels: Vec<u8> = voxels(value);
            std::fs::write(&path, samples::file(16, &[3, 2, 2], &voxels, 0.0, 0.0)).unwrap();
            for to in [[3, 2, 2], [1, 4, 4]] {
                let boxed = Boxed::read(nifti::open(&path).unwrap(), &[3, 2, 2], 1, &to, None).unwrap();
                match boxed.push_normalized(0, &mut Vec::new()).map_err(|error| error.to_string()) {
                    Ok(()) => assert_eq!(words, ""),
                    Err(error) => {
                        assert!(
                            error.contains(&format!("v.nii: voxel [1, 1, 0] of channel 0 {words}, and")),
                            "{error}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn normalizing_gives_mean_zero_and_deviation_one() {
        let folder = tempfile::tempdir().unwrap();
        for (elements, expected) in [([1, 3], [-1.0f32, 1.0]), ([5, 5], [0.0, 0.0])] {
            let stream = stream(&folder.path().join("v.nii"), &[2], &elements);
            let mut bytes = Vec::new();
            Boxed::read(stream, &[2], 1, &[2], None).unwrap().push_normalized(0, &mut bytes).unwrap();
            assert_eq!(bytes, expected.map(f32::to_le_bytes).concat());
        }
    }
}
