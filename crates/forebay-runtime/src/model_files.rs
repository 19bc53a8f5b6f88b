//! Weights that stay in the files of their model: the memory of a plan that is read from these files.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::{ByteRange, Region};
use forebay_device::Readable;
use forebay_model::tensor::{Contents, Reader};
use forebay_plan::Plan;
use forebay_plan::plan::MemoryKind;

use crate::backing::check_contents;
use crate::error::RuntimeError;

/// The bytes of that memory: parts of tensors in ascending order, with padding between them.
#[derive(Debug)]
struct ModelFiles {
    size_bytes: u64,
    parts: Vec<Part>,
}

/// A part of a tensor.
#[derive(Debug)]
struct Part {
    /// Where its bytes are in the memory.
    range: ByteRange,
    /// The offset of its first byte in the tensor.
    offset_bytes: u64,
    tensor: Arc<Reader>,
}

/// What a plan reads from the model's files, or `None` if it reads nothing from them. `contents` has the tensors by name.
///
/// # Errors
/// Fails if a tensor was not given or has a different size.
pub(crate) fn model_files(
    plan: &Plan,
    contents: &BTreeMap<String, Contents>,
) -> Result<Option<Arc<dyn Readable>>, RuntimeError> {
    let is_there = |region: &Region| plan.memory(region.memory).kind == MemoryKind::ModelFiles;
    let Some(memory) = plan.memories.iter().find(|memory| memory.kind == MemoryKind::ModelFiles) else {
        return Ok(None);
    };
    let directly = exceeds_free_memory(plan);
    let mut parts = Vec::new();
    for backing in plan.persistent.iter().filter(|backing| backing.pieces.iter().any(|(_, region)| is_there(region))) {
        let unknown = || RuntimeError::UnknownTensor { kind: "weight", name: backing.name.clone() };
        let contents = contents.get(&backing.name).ok_or_else(unknown)?;
        check_contents(backing, contents)?;
        let tensor = contents.reader().map_err(RuntimeError::Operation)?;
        let tensor = Arc::new(if directly { tensor.directly() } else { tensor });
        let pieces = backing.pieces.iter().filter(|(_, region)| is_there(region));
        parts.extend(pieces.map(|(bytes, region)| Part {
            range: region.range,
            offset_bytes: bytes.start,
            tensor: tensor.clone(),
        }));
    }
    parts.sort_by_key(|part| part.range.start);
    Ok(Some(Arc::new(ModelFiles { size_bytes: memory.size_bytes, parts })))
}

/// Whether the system's page cache has no room for these files in addition to what the plan takes: what it holds would be evicted before it
/// is needed again.
fn exceeds_free_memory(plan: &Plan) -> bool {
    let statistics = &plan.statistics;
    let wanted = [statistics.device_peak_bytes, statistics.host_bytes, statistics.model_files_bytes];
    let wanted_bytes = wanted.into_iter().fold(0, u64::saturating_add);
    forebay_limits::available_bytes(forebay_limits::Use::Memory).is_some_and(|free_bytes| free_bytes < wanted_bytes)
}

impl Readable for ModelFiles {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), String> {
        let wanted = ByteRange::new(offset_bytes, offset_bytes + into.len() as u64);
        let first = self.parts.partition_point(|part| part.range.end <= wanted.start);
        for part in self.parts[first..].iter().take_while(|part| part.range.start < wanted.end) {
            let Some(range) = part.range.intersection(wanted) else { continue };
            let into = &mut into[(range.start - wanted.start) as usize..(range.end - wanted.start) as usize];
            let from = part.offset_bytes + (range.start - part.range.start);
            part.tensor.read(from, into).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::{DataType, MemoryId, Space};
    use forebay_model::Tensor;
    use forebay_plan::BackingLocation;
    use forebay_plan::plan::PlanMemory;

    use super::*;

    /// A plan whose only memory is the model's files, with two tensors: one in two parts, in reverse order, and one after them.
    fn plan() -> Plan {
        let memory = PlanMemory { kind: MemoryKind::ModelFiles, space: Space::Disk, size_bytes: 64 };
        let backing = |name: &str, pieces: &[(u64, u64, u64)]| BackingLocation {
            name: name.to_string(),
            shape: vec![pieces.iter().map(|(_, _, bytes)| bytes / 4).sum()],
            data_type: DataType::Float32,
            pieces: (pieces.iter())
                .map(|&(start, at, bytes)| (ByteRange::new(start, start + bytes), Region::new(MemoryId(0), at, bytes)))
                .collect(),
        };
        let persistent = vec![backing("a", &[(0, 16, 8), (8, 0, 12)]), backing("b", &[(0, 40, 8)])];
        Plan { memories: vec![memory], persistent, ..Plan::default() }
    }

    fn contents() -> BTreeMap<String, Contents> {
        let tensor = |values: &[f32]| Contents::from(Tensor::from_f32(&[values.len() as u64], values));
        [("a", tensor(&[1.0, 2.0, 3.0, 4.0, 5.0])), ("b", tensor(&[6.0, 7.0]))]
            .map(|(name, of)| (name.to_string(), of))
            .into()
    }

    #[test]
    fn every_byte_is_the_tensors_own_wherever_a_read_begins_and_ends() {
        let files = model_files(&plan(), &contents()).unwrap().unwrap();
        assert_eq!(files.size_bytes(), 64);
        let mut expected = [0u8; 64];
        for (at, value) in [(0, 3f32), (4, 4.0), (8, 5.0), (16, 1.0), (20, 2.0), (40, 6.0), (44, 7.0)] {
            expected[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        for start in 0..64 {
            for end in start..=64 {
                let mut found = vec![0; end - start];
                files.read(start as u64, &mut found).unwrap();
                assert_eq!(found, expected[start..end], "{start} to {end}");
            }
        }
    }

    #[test]
    fn tensors_that_are_missing_or_have_another_size_are_named() {
        let mut given = contents();
        given.insert("b".to_string(), given["a"].clone());
        let error = model_files(&plan(), &given).unwrap_err().to_string();
        assert!(error.contains("'b'") && error.contains('8') && error.contains("20"), "{error}");
        given.remove("b");
        let error = model_files(&plan(), &given).unwrap_err().to_string();
        assert!(error.contains("'b'"), "{error}");
        assert!(model_files(&Plan::default(), &given).unwrap().is_none());
    }
}
