//! Shaders with their specialization constants written into them, because wgpu passes SPIR-V on unchanged, without constants.

use std::collections::BTreeMap;

use forebay_vulkan::kernels::Shader;

/// The number of words before the first instruction.
const HEADER_WORDS: usize = 5;
/// Instructions and a decoration, by their numbers in the specification.
const OP_SPEC_CONSTANT_TRUE: u32 = 48;
const OP_SPEC_CONSTANT_FALSE: u32 = 49;
const OP_SPEC_CONSTANT: u32 = 50;
const OP_DECORATE: u32 = 71;
const SPEC_ID: u32 = 1;

/// Returns a shader's code with these values as the defaults of its first specialization constants.
pub fn specialized(shader: &Shader, constants: &[u32]) -> Vec<u32> {
    let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let mut words: Vec<u32> = shader.code.chunks_exact(4).map(word).collect();
    let mut values: BTreeMap<u32, u32> = BTreeMap::new();
    let mut at = HEADER_WORDS;
    while at < words.len() {
        let (length, opcode) = ((words[at] >> 16) as usize, words[at] & 0xffff);
        match opcode {
            OP_DECORATE if words[at + 2] == SPEC_ID => {
                values.extend(constants.get(words[at + 3] as usize).map(|&value| (words[at + 1], value)));
            }
            OP_SPEC_CONSTANT_TRUE | OP_SPEC_CONSTANT_FALSE => {
                if let Some(&value) = values.get(&words[at + 2]) {
                    let opcode = if value == 0 { OP_SPEC_CONSTANT_FALSE } else { OP_SPEC_CONSTANT_TRUE };
                    words[at] = words[at] & !0xffff | opcode;
                }
            }
            OP_SPEC_CONSTANT => {
                if let Some(&value) = values.get(&words[at + 2]) {
                    words[at + 3] = value;
                }
            }
            _ => {}
        }
        at += length.max(1);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_of_named_constants_are_replaced_and_no_others() {
        // Ids 1 to 3 are constants 1, 0 and 2; id 4 has no number.
        let decorate = |id, number| [4 << 16 | OP_DECORATE, id, SPEC_ID, number];
        let mut words = vec![0x0723_0203, 0, 0, 10, 0];
        words.extend([decorate(1, 1), decorate(2, 0), decorate(3, 2)].concat());
        words.extend([4 << 16 | OP_SPEC_CONSTANT, 9, 1, 100, 3 << 16 | OP_SPEC_CONSTANT_TRUE, 9, 2]);
        words.extend([4 << 16 | OP_SPEC_CONSTANT, 9, 3, 300, 4 << 16 | OP_SPEC_CONSTANT, 9, 4, 400]);
        let code: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
        let shader = Shader { name: "test", code: Box::leak(code.into_boxed_slice()), far: None };
        assert_eq!(specialized(&shader, &[]), words);
        let (mut expected, constants) = (words, HEADER_WORDS + 12);
        (expected[constants + 3], expected[constants + 4]) = (7, 3 << 16 | OP_SPEC_CONSTANT_FALSE);
        assert_eq!(specialized(&shader, &[0, 7]), expected, "the third constant keeps its default");
    }
}
