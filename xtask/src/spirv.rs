//! Processing of compiled shaders before they are committed: debug instructions are removed, since they contain paths and instructions that
//! older validators do not know, precise shaders are marked as such, and memory that the invocations of a workgroup share is marked as
//! shared.

mod memory_model;

const HEADER_WORDS: usize = 5;
const MAGIC: u32 = 0x0723_0203;
const DECORATE: u32 = 71;
const MEMBER_DECORATE: u32 = 72;
const NO_CONTRACTION: u32 = 42;
/// OpSourceContinued, OpSource, OpSourceExtension, OpName, OpMemberName, OpString, OpLine, OpNoLine, OpModuleProcessed.
const DEBUG: [u32; 9] = [2, 3, 4, 5, 6, 7, 8, 317, 330];
/// OpFNegate, OpFAdd, OpFSub, OpFMul, OpFDiv, OpVectorTimesScalar, OpDot.
const ARITHMETIC: [u32; 7] = [127, 129, 131, 133, 136, 142, 148];

/// Returns the SPIR-V without debug instructions. If it is `precise`, every floating-point operation is decorated so that it is not fused
/// or replaced.
///
/// # Errors
/// Fails if the code is not SPIR-V.
pub fn finished(code: &[u8], precise: bool) -> Result<Vec<u8>, String> {
    let words: Vec<u32> =
        code.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect();
    if words.len() < HEADER_WORDS || words[0] != MAGIC || !code.len().is_multiple_of(4) {
        return Err("the compiler's output is not SPIR-V".to_owned());
    }
    let (header, rest) = words.split_at(HEADER_WORDS);
    let mut kept = instructions(rest)?;
    kept.retain(|instruction| !DEBUG.contains(&opcode(instruction)));
    let is_decoration = |instruction: &&[u32]| [DECORATE, MEMBER_DECORATE].contains(&opcode(instruction));
    let place = kept.iter().position(is_decoration).unwrap_or(kept.len());
    // The words of an arithmetic instruction are the instruction, its type and its result.
    let results = kept.iter().filter(|instruction| precise && ARITHMETIC.contains(&opcode(instruction)));
    let marks: Vec<u32> = results
        .filter_map(|instruction| instruction.get(2))
        .flat_map(|&result| [3 << 16 | DECORATE, result, NO_CONTRACTION])
        .collect();
    let (before, after) = kept.split_at(place);
    let words = [header.to_vec(), before.concat(), marks, after.concat()].concat();
    let words = memory_model::shared_between_invocations(words)?;
    Ok(words.into_iter().flat_map(u32::to_le_bytes).collect())
}

fn opcode(instruction: &[u32]) -> u32 {
    instruction[0] & 0xffff
}

/// Returns the instructions, each with at least its first word.
fn instructions(mut words: &[u32]) -> Result<Vec<&[u32]>, String> {
    let mut instructions = Vec::new();
    while let Some(&first) = words.first() {
        let length = (first >> 16) as usize;
        if length == 0 || length > words.len() {
            return Err(format!("an instruction has {length} words, but only {} are left", words.len()));
        }
        let (instruction, rest) = words.split_at(length);
        instructions.push(instruction);
        words = rest;
    }
    Ok(instructions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(words: &[u32]) -> Vec<u8> {
        let header = [MAGIC, 0x0001_0500, 0, 9, 0];
        header.iter().chain(words).flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn debug_instructions_are_stripped_and_no_others() {
        // OpCapability, OpName with two more words, OpNoLine, OpReturn.
        let all = code(&[0x0002_0011, 1, 0x0003_0005, 4, 0, 0x0001_013d, 0x0001_00fd]);
        assert_eq!(finished(&all, true), Ok(code(&[0x0002_0011, 1, 0x0001_00fd])));
        assert!(finished(&all[..all.len() - 4], false).is_ok(), "whole instructions");
        assert!(finished(&all[..all.len() - 12], false).is_err(), "half an instruction");
        assert!(finished(&all[1..], false).is_err() && finished(&[], false).is_err());
    }

    #[test]
    fn precise_arithmetic_is_marked_where_decorations_stand() {
        let (decoration, addition) = ([0x0003_0047, 7, 2], [0x0005_0081, 1, 8, 7, 7]);
        let mark = [0x0003_0047, 8, NO_CONTRACTION];
        let plain = code(&[decoration.as_slice(), &addition].concat());
        assert_eq!(finished(&plain, false), Ok(plain.clone()));
        assert_eq!(finished(&plain, true), Ok(code(&[mark.as_slice(), &decoration, &addition].concat())));
    }
}
