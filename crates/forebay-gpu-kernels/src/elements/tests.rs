//! Dispatches, evaluated in the same way as in the shader.

use std::collections::BTreeMap;

use super::super::shaders;
use super::*;
use forebay_testing::Random;

/// Returns what `elements.slang` does for a dispatch: for each position in the whole output, the positions that are read, and each word of
/// the output that is written as a whole.
fn gone_through(dispatch: &Dispatch, layouts: &[Layout]) -> (BTreeMap<u64, Vec<u64>>, Vec<u64>) {
    let operands = layouts.len();
    let parameters = &dispatch.parameters;
    let (first, rows) = (5, 5 + operands);
    let mut places = BTreeMap::new();
    for element in 0..parameters[1] {
        let mut at = parameters[first..rows].to_vec();
        let mut left = element;
        for row in parameters[rows..].chunks_exact(3 + operands).take(parameters[2] as usize) {
            for (at, stride) in at.iter_mut().zip(&row[3..]) {
                *at = at.wrapping_add((left % row[0]).wrapping_mul(*stride));
            }
            left /= row[0];
        }
        let absolute = at.iter().zip(layouts).zip(&dispatch.bindings).map(|((&at, layout), bound)| {
            let end = (u64::from(at) + 1) * layout.element_bytes;
            assert!(bound.size_bytes.is_none_or(|size| end <= size), "{end} beyond {bound:?}");
            assert_eq!(bound.offset_bytes % BINDING_ALIGNMENT_BYTES, 0);
            u64::from(at) + bound.offset_bytes / layout.element_bytes
        });
        let mut absolute: Vec<u64> = absolute.collect();
        if dispatch.constants[0] & 2 != 0 {
            let bit = |operand: usize| dispatch.constants[0] >> (2 + operand) & 1;
            assert_eq!(at, (0..operands).map(|operand| bit(operand) * element).collect::<Vec<_>>());
        }
        let output = absolute.pop().unwrap();
        assert_eq!(places.insert(output, absolute), None, "{output} is written twice");
    }
    let is_dense = dispatch.constants[0] != 0;
    let element_bytes = layouts[operands - 1].element_bytes;
    let words = places.keys().map(|place| place * element_bytes / 4).filter(|_| is_dense && element_bytes < 4);
    let mut words: Vec<u64> = words.collect();
    words.dedup();
    (places, words)
}

#[test]
fn parts_cover_every_element_once_within_bindings() {
    let types = [DataType::Float32, DataType::UInt8, DataType::Float16, DataType::Float64];
    for seed in 1u64..200 {
        let mut random = Random::new(seed);
        let sizes: Vec<u64> = (0..1 + random.below(4)).map(|_| 1 + random.below(12)).collect();
        let desc = |random: &mut Random, broadcast: bool| {
            let data_type = types[random.below(4) as usize];
            let mut stride = 1;
            let mut strides = vec![0; sizes.len()];
            for dimension in (0..sizes.len()).rev() {
                strides[dimension] = if broadcast && random.below(4) == 0 { 0 } else { stride };
                stride *= sizes[dimension];
                stride += if random.below(3) == 0 { 1 } else { 0 };
            }
            TensorDesc::strided(data_type, &sizes, &strides).unwrap()
        };
        let (a, b, y) = (desc(&mut random, true), desc(&mut random, true), desc(&mut random, false));
        let elements = Elements::of(&[a, b], &y).unwrap();
        let layouts = elements.layouts.clone();
        let binding_bytes_max = 512 + random.below(40) * 256;
        let gpu = Target { binding_bytes_max, ..Target::LEAST };
        let task = Task { shader: &shaders::MOVEMENT_COPY, constants: Vec::new(), arguments: Vec::new() };
        let (mut all, mut owners) = (BTreeMap::new(), BTreeMap::new());
        let dispatches = elements.dispatches(&task, &gpu).unwrap();
        let bounds = || dispatches.iter().flat_map(|dispatch| &dispatch.bindings);
        let fits = bounds().all(|bound| bound.size_bytes.is_none_or(|bytes| bytes <= binding_bytes_max));
        assert!(if fits { dispatches.len() <= PARTS_MAX } else { dispatches.len() == 1 }, "seed {seed}");
        for (number, dispatch) in dispatches.iter().enumerate() {
            let (places, words) = gone_through(dispatch, &layouts);
            for &place in places.keys() {
                let word = place * layouts[2].element_bytes / 4;
                let (owner, is_whole) = (number, words.contains(&word));
                let (other, other_whole) = *owners.entry(word).or_insert((owner, is_whole));
                assert!(other == owner || !(is_whole || other_whole), "seed {seed}: word {word} is two parts'");
            }
            let count = all.len() + places.len();
            all.extend(places);
            assert_eq!(all.len(), count, "seed {seed}: parts overlap");
        }
        let mut expected = BTreeMap::new();
        for element in 0..sizes.iter().product::<u64>() {
            let mut left = element;
            let mut at = [0; 3];
            for (dimension, size) in sizes.iter().enumerate().rev() {
                for (at, layout) in at.iter_mut().zip(&layouts) {
                    *at += left % size * layout.strides[dimension] as u64;
                }
                left /= size;
            }
            expected.insert(at[2], at[..2].to_vec());
        }
        assert_eq!(all, expected, "seed {seed}: {sizes:?}");
    }
}

#[test]
fn divisors_divide() {
    let mut random = Random::new(5);
    for _ in 0..20_000 {
        let bits = random.below(31);
        let number = (random.below(1 << 31) as u32 >> bits).max(1);
        let [_, factor, shift] = divisor(number);
        let near = (random.below(1 << 31) as u32 / number).saturating_mul(number);
        for dividend in [random.below(1 << 31) as u32, near, near.saturating_sub(1), (1 << 31) - 1, 0] {
            let high = ((u64::from(dividend) * u64::from(factor)) >> 32) as u32;
            let quotient = if factor == 0 { dividend } else { high >> shift };
            assert_eq!(quotient, dividend / number, "{dividend} / {number}");
        }
    }
}

#[test]
fn packed_operands_are_one_dimension() {
    let desc = TensorDesc::packed(DataType::Float32, &[3, 1, 4, 5]).unwrap();
    let merged = Elements::of(&[desc.clone(), desc.clone()], &desc).unwrap().merged();
    assert_eq!((merged.sizes, merged.layouts[1].strides.clone()), (vec![60], vec![1]));
    let bias = TensorDesc::packed(DataType::Float32, &[4, 1]).unwrap();
    assert_eq!(Elements::of(&[desc.clone(), bias], &desc).unwrap().merged().sizes, [3, 4, 5]);
}

#[test]
fn elements_become_words_where_they_can() {
    let (small, wide) = (DataType::UInt8, DataType::Float64);
    let elements = |data_type, sizes: &[u64], strides: &[u64]| {
        let [x, y] = [TensorDesc::strided(data_type, sizes, strides), TensorDesc::packed(data_type, sizes)];
        Elements::of(&[x.unwrap()], &y.unwrap()).unwrap().in_words().in_whole_words()
    };
    let words = elements(small, &[6, 8], &[12, 1]);
    assert_eq!((words.sizes, words.layouts[0].strides.clone()), (vec![6, 2], vec![3, 1]));
    assert_eq!(elements(small, &[6, 8], &[13, 1]).layouts[0].element_bytes, 1);
    assert_eq!(elements(small, &[6, 7], &[8, 1]).layouts[0].element_bytes, 1);
    let words = elements(wide, &[6, 7], &[1, 6]);
    assert_eq!((words.sizes, words.layouts[0].strides.clone()), (vec![6, 7, 2], vec![2, 12, 1]));
}
