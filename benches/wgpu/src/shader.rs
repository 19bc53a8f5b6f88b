//! Shaders with their specialization constants written into them: wgpu hands SPIR-V on as it is, without constants.

use std::collections::BTreeMap;

use forebay::vulkan::kernels::Shader;

/// Words before the first instruction.
const HEADER_WORDS: usize = 5;
/// Instructions and a decoration, by their numbers in the specification.
const OP_SPEC_CONSTANT_TRUE: u32 = 48;
const OP_SPEC_CONSTANT_FALSE: u32 = 49;
const OP_SPEC_CONSTANT: u32 = 50;
const OP_DECORATE: u32 = 71;
const SPEC_ID: u32 = 1;

/// A shader's code in which the defaults of its first specialization constants are these.
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
