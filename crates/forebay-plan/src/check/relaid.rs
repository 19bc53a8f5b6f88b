//! Relaid: buffers that parts access row by row, and where the program's own operands are in them.

use std::collections::BTreeMap;

use forebay_base::TensorDesc;
use forebay_model::program::{BufferId, Operand, Program};

/// The layout of a buffer of channels x rows x places.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Image {
    channels: u64,
    rows: u64,
    places: u64,
}

/// The buffers that are stored row by row: all channels of the first row, then all of the second.
#[derive(Debug, Default)]
pub(super) struct Relaid {
    images: BTreeMap<BufferId, Image>,
}

impl Image {
    /// Returns how a packed operand with one image sees its buffer, given its first axes: one image, channels, rows.
    fn of(program: &Program, operand: &Operand) -> Option<Image> {
        let desc = &operand.desc;
        let &[1, _, rows, ref rest @ ..] = desc.sizes() else { return None };
        let places: u64 = rest.iter().product();
        let channel_bytes = places.checked_mul(rows)?.checked_mul(desc.data_type().size_bytes())?;
        let size_bytes = program.buffer(operand.buffer).size_bytes;
        let is_whole = size_bytes.is_multiple_of(channel_bytes) && operand.offset_bytes.is_multiple_of(channel_bytes);
        (desc.is_packed() && is_whole).then(|| Image { channels: size_bytes / channel_bytes, rows, places })
    }

    /// Returns the number of elements from one row to the next.
    fn row(self) -> u64 {
        self.channels * self.places
    }
}

impl Relaid {
    /// Finds the buffers that parts access row by row.
    ///
    /// # Errors
    /// Names a buffer that not all operands see as channels and rows, or whose bytes are not only accessed by launches.
    pub fn of(program: &Program, parts: &Program) -> Result<Relaid, String> {
        // The layout of each buffer according to the program's own operands; `None` if they disagree.
        let mut known: BTreeMap<BufferId, Option<Image>> = BTreeMap::new();
        for operand in program.launches.iter().flat_map(|launch| launch.reads.iter().chain(&launch.writes)) {
            let image = Image::of(program, operand);
            let one = known.entry(operand.buffer).or_insert(image);
            if *one != image {
                *one = None;
            }
        }
        let mut relaid = Relaid::default();
        for operand in parts.launches.iter().flat_map(|launch| launch.reads.iter().chain(&launch.writes)) {
            let (sizes, strides) = (operand.desc.sizes(), operand.desc.strides());
            let (Some(Some(image)), Some(strides)) = (known.get(&operand.buffer), strides) else { continue };
            if image.channels > 1 && sizes.len() > 2 && strides[2] == image.row() && strides[2] != image.places {
                relaid.images.insert(operand.buffer, *image);
            }
        }
        let named = program.inputs.iter().chain(&program.outputs).chain(&program.persistent);
        for buffer in named.map(|named| named.operand.buffer) {
            if relaid.images.contains_key(&buffer) {
                return Err(format!(
                    "'{}' is stored row by row, but its bytes are visible outside the program",
                    program.buffer(buffer).name
                ));
            }
        }
        let is_lasting = |&&buffer: &&BufferId| !program.buffer(buffer).role.is_temporary();
        match relaid.images.keys().find(is_lasting) {
            Some(&buffer) => {
                Err(format!("'{}' is not temporary, but is stored row by row", program.buffer(buffer).name))
            }
            None => Ok(relaid),
        }
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    /// Returns where an operand of the program is.
    pub fn operand(&self, operand: &Operand) -> Operand {
        let moved = || {
            let image = self.images.get(&operand.buffer)?;
            let desc = &operand.desc;
            let mut strides = desc.effective_strides();
            let element_bytes = desc.data_type().size_bytes();
            let first = operand.offset_bytes / (image.rows * image.places * element_bytes);
            strides[0] = image.row() * image.rows;
            strides[1] = image.places;
            strides[2] = image.row();
            let desc = TensorDesc::strided(desc.data_type(), desc.sizes(), &strides).ok()?;
            Some(Operand { buffer: operand.buffer, offset_bytes: first * image.places * element_bytes, desc })
        };
        moved().unwrap_or_else(|| operand.clone())
    }
}
