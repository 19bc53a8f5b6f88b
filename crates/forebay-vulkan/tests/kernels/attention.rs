//! Attention and its gradients.

use forebay_base::kernel::AttentionOptions;
use forebay_base::{DataType, Kernel, TensorDesc};

use crate::compare::{Random, RandomTensors, Tensor, compare, packed};

/// Numbers between -1 and 1.
fn tensor(random: &mut Random, desc: &TensorDesc) -> Tensor {
    let (desc, mut values) = random.tensor(desc);
    values.iter_mut().for_each(|value| *value /= 2.0);
    (desc, values)
}

/// Several tiles of rows and keys, of which the last are shorter, with everything that can be done to scores.
#[test]
fn attention_and_its_gradients_agree_with_the_host() {
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let (batch, groups, shared) = (1 + random.below(2), 1 + random.below(2), 1 + random.below(3));
        let (rows, keys) = (1 + random.below(80), 1 + random.below(300));
        let sizes = [[8, 4], [64, 33], [65, 70], [100, 128], [130, 7], [256, 256]][random.below(6) as usize];
        let floats = |sizes: &[u64]| packed(DataType::Float32, sizes);
        let of_rows = |size: u64| floats(&[batch, groups * shared, rows, size]);
        let of_keys = |size: u64| floats(&[batch, groups, keys, size]);
        let causal = match random.below(3) {
            0 => None,
            // Every row sees a key.
            _ => Some(random.below(keys) as i64),
        };
        let softcap = [0.0, 1.5][random.below(2) as usize];
        let options = AttentionOptions { scale: 0.7 / (sizes[0] as f32).sqrt(), softcap, causal };
        let [q, k, v] =
            [of_rows(sizes[0]), of_keys(sizes[0]), of_keys(sizes[1])].map(|desc| tensor(&mut random, &desc));
        let mut pick = |size: u64| [1, size][random.below(2) as usize];
        let own = [pick(batch), pick(groups * shared), pick(rows), keys];
        let mask = match random.below(3) {
            0 => None,
            1 => {
                let mut mask = tensor(&mut random, &floats(&own));
                // Numbers that absorb all scores of a row.
                let rows = mask.1.chunks_mut(keys as usize).skip(6).step_by(7);
                rows.for_each(|row| row.fill(f64::from(f32::MIN)));
                Some(mask)
            }
            _ => {
                let mut mask = random.integers(&packed(DataType::Bool, &own), 0, 1);
                // Every seventh row sees nothing, and all others see the first key.
                for (row, seen) in mask.1.chunks_mut(keys as usize).enumerate() {
                    match row % 7 {
                        6 => seen.fill(0.0),
                        _ => seen[0] = 1.0,
                    }
                }
                Some(mask)
            }
        };
        let logarithms = floats(&[batch, groups * shared, rows, 2]);
        let reads: Vec<Tensor> = [q.clone(), k.clone(), v.clone()].into_iter().chain(mask.clone()).collect();
        compare(seed, &Kernel::Attention(options), &reads, &[of_rows(sizes[1]), logarithms.clone()], 1e-5);
        // The logarithm of more than all scores can sum to, so that probabilities stay below 1.
        let mut logarithm = tensor(&mut random, &logarithms);
        logarithm.1.iter_mut().for_each(|value| *value += 4.0 + (keys as f64).ln());
        let [dy, y] = [(); 2].map(|()| tensor(&mut random, &of_rows(sizes[1])));
        let reads: Vec<Tensor> = [dy, q, k, v, y, logarithm].into_iter().chain(mask).collect();
        let [dq, dk, dv] = [of_rows(sizes[0]), of_keys(sizes[0]), of_keys(sizes[1])];
        compare(seed, &Kernel::AttentionGradient(options), &reads, &[dq.clone(), dk.clone(), dv.clone()], 1e-5);
        compare(seed, &Kernel::AttentionQueryGradient(options), &reads, &[dq], 1e-5);
        // Rows before the first key of a part.
        let later = AttentionOptions { causal: causal.map(|last| last - 40), ..options };
        compare(seed, &Kernel::AttentionKeyGradient(later), &reads, &[dk, dv], 1e-5);
    }
}
