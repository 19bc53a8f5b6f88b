//! The Vulkan memory model, which shaders with cooperative matrices declare: an access is private to its invocation unless it is marked as
//! non-private, and a barrier orders only marked accesses, and only if it makes them available and visible. The compiler marks neither, so
//! a driver may let an invocation read the contents that shared memory had before a barrier.
//!
//! Source: SPIR-V specification, "Memory Model" and "Memory Operands".

use std::collections::{BTreeMap, BTreeSet};

use super::{HEADER_WORDS, instructions, opcode};

const MEMORY_MODEL: u32 = 14;
const VULKAN_MODEL: u32 = 3;
const TYPE_POINTER: u32 = 32;
const WORKGROUP: u32 = 4;
const CONSTANT: u32 = 43;
const FUNCTION: u32 = 54;
/// OpVariable, OpAccessChain, OpInBoundsAccessChain, OpPtrAccessChain: a type, then the result.
const POINTERS: [u32; 4] = [59, 65, 66, 67];
/// Instructions that access memory: the positions of their pointer and of their memory operands among their words. OpLoad, OpStore,
/// OpCooperativeMatrixLoadKHR, OpCooperativeMatrixStoreKHR.
const ACCESSES: [(u32, usize, usize); 4] = [(61, 3, 4), (62, 1, 3), (4457, 3, 6), (4458, 1, 5)];
const NON_PRIVATE: u32 = 0x20;
/// Barriers, and the position of their semantics. OpControlBarrier, OpMemoryBarrier.
const BARRIERS: [(u32, usize); 2] = [(224, 3), (225, 2)];
const MAKE_AVAILABLE_AND_VISIBLE: u32 = 0x6000;
/// The header's word with the bound of result numbers.
const BOUND: usize = 3;

/// Returns the module with accesses to shared memory marked as non-private and barriers that make them available and visible. A module that
/// does not declare the Vulkan memory model stays as it is: in the other models, all accesses correspond to non-private ones.
///
/// # Errors
/// Fails if the words are not SPIR-V.
pub fn shared_between_invocations(words: Vec<u32>) -> Result<Vec<u32>, String> {
    let (header, rest) = words.split_at(HEADER_WORDS);
    let all = instructions(rest)?;
    if !all.iter().any(|one| opcode(one) == MEMORY_MODEL && one.get(2) == Some(&VULKAN_MODEL)) {
        return Ok(words);
    }
    let shared = shared_pointers(&all);
    let mut bound = header[BOUND];
    let mut stronger = Semantics { constants: constants(&all), added: BTreeMap::new(), bound: &mut bound };
    let mut changed: Vec<Vec<u32>> = Vec::new();
    for one in &all {
        let mut one = one.to_vec();
        if let Some(&(_, pointer, operands)) = ACCESSES.iter().find(|(code, ..)| *code == opcode(&one)) {
            if one.get(pointer).is_some_and(|pointer| shared.contains(pointer)) {
                mark(&mut one, operands);
            }
        } else if let Some(&(_, place)) = BARRIERS.iter().find(|(code, _)| *code == opcode(&one)) {
            one[place] = stronger.of(one[place])?;
        }
        changed.push(one);
    }
    let added: Vec<u32> = stronger.added.into_values().flatten().collect();
    let functions = changed.iter().position(|one| opcode(one) == FUNCTION).unwrap_or(changed.len());
    let mut header = header.to_vec();
    header[BOUND] = bound;
    Ok([header, changed[..functions].concat(), added, changed[functions..].concat()].concat())
}

/// Adds the mark to an access whose memory operands, if any, begin at a given word.
fn mark(access: &mut Vec<u32>, operands: usize) {
    match access.get_mut(operands) {
        Some(mask) => *mask |= NON_PRIVATE,
        None => {
            access.push(NON_PRIVATE);
            access[0] += 1 << 16;
        }
    }
}

/// Returns the pointers to shared memory.
fn shared_pointers(all: &[&[u32]]) -> BTreeSet<u32> {
    let is_shared_type = |one: &&&[u32]| opcode(one) == TYPE_POINTER && one.get(2) == Some(&WORKGROUP);
    let types: BTreeSet<u32> = all.iter().filter(is_shared_type).filter_map(|one| one.get(1).copied()).collect();
    let pointers = all.iter().filter(|one| POINTERS.contains(&opcode(one)) && types.contains(&one[1]));
    pointers.filter_map(|one| one.get(2).copied()).collect()
}

/// Returns the constants of one word, by number: their types and values.
fn constants(all: &[&[u32]]) -> BTreeMap<u32, (u32, u32)> {
    let words = all.iter().filter(|one| opcode(one) == CONSTANT && one.len() == 4);
    words.map(|one| (one[2], (one[1], one[3]))).collect()
}

/// The semantics of barriers that make accesses available and visible.
struct Semantics<'a> {
    constants: BTreeMap<u32, (u32, u32)>,
    /// New constants, by the constant that they replace.
    added: BTreeMap<u32, [u32; 4]>,
    bound: &'a mut u32,
}

impl Semantics<'_> {
    /// Returns the number of the constant that replaces another one.
    fn of(&mut self, semantics: u32) -> Result<u32, String> {
        let &(data_type, value) = self.constants.get(&semantics).ok_or("a barrier's semantics are not a constant")?;
        let bound = &mut *self.bound;
        let added = self.added.entry(semantics).or_insert_with(|| {
            *bound += 1;
            [4 << 16 | CONSTANT, data_type, *bound - 1, value | MAKE_AVAILABLE_AND_VISIBLE]
        });
        Ok(added[2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a module that loads from a shared variable (10) and a private one (11), stores to the shared one, and has a barrier.
    fn module(model: u32, semantics: u32, load_operands: &[u32], bound: u32, added: &[u32]) -> Vec<u32> {
        let marked = load_operands.len() as u32;
        let mut words = vec![0x0723_0203, 0x0001_0500, 0, bound, 0];
        words.extend([3 << 16 | MEMORY_MODEL, 0, model]);
        words.extend([4 << 16 | TYPE_POINTER, 5, WORKGROUP, 1, 4 << 16 | TYPE_POINTER, 6, 7, 1]);
        words.extend([4 << 16 | CONSTANT, 1, 8, 0x108]);
        words.extend(added);
        words.extend([5 << 16 | FUNCTION, 2, 3, 0, 4, 4 << 16 | 59, 5, 10, WORKGROUP, 4 << 16 | 59, 6, 11, 7]);
        words.extend([(4 + marked) << 16 | 61, 1, 12, 10]);
        words.extend(load_operands);
        words.extend([4 << 16 | 61, 1, 13, 11]);
        words.extend([(3 + marked) << 16 | 62, 10, 13]);
        words.extend(load_operands);
        words.extend([4 << 16 | 224, 9, 9, semantics]);
        words
    }

    #[test]
    fn shared_accesses_are_marked_and_barriers_strengthened_under_the_vulkan_memory_model_alone() {
        let plain = module(1, 8, &[], 20, &[]);
        assert_eq!(shared_between_invocations(plain.clone()), Ok(plain));
        let marked = module(VULKAN_MODEL, 20, &[NON_PRIVATE], 21, &[4 << 16 | CONSTANT, 1, 20, 0x6108]);
        assert_eq!(shared_between_invocations(module(VULKAN_MODEL, 8, &[], 20, &[])), Ok(marked));
        assert!(shared_between_invocations(module(VULKAN_MODEL, 9, &[], 20, &[])).is_err(), "no such constant");
    }
}
