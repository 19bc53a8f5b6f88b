//! Attention, and its gradients: `kernels/attention.slang`, `kernels/attention_gradient.slang`.

use forebay_base::kernel::{ATTENTION_KEYS, ATTENTION_ROWS, ATTENTION_SIZE_MAX, AttentionOptions};
use forebay_base::{DataType, Kernel, TensorDesc};

use super::operands::{bindings, require_packed};
use super::shaders::{
    ATTENTION_64, ATTENTION_128, ATTENTION_256, ATTENTION_KEY_GRADIENT_64, ATTENTION_KEY_GRADIENT_128,
    ATTENTION_KEY_GRADIENT_256, ATTENTION_QUERY_GRADIENT_64, ATTENTION_QUERY_GRADIENT_128,
    ATTENTION_QUERY_GRADIENT_256, Shader,
};
use super::{Dispatch, Lowered, Operand, Target, Unsupported, groups, unsupported};

/// The number of rows or keys per workgroup (`TILE` in the shaders). Parts begin at multiples of it.
const TILE: u64 = 32;
const _: () = assert!(ATTENTION_ROWS.is_multiple_of(TILE) && ATTENTION_KEYS.is_multiple_of(TILE));

/// Shaders for heads of at most 64, 128 and 256 elements.
type Builds = [&'static Shader; 3];
const FORWARD: Builds = [&ATTENTION_64, &ATTENTION_128, &ATTENTION_256];
const BY_QUERIES: Builds = [&ATTENTION_QUERY_GRADIENT_64, &ATTENTION_QUERY_GRADIENT_128, &ATTENTION_QUERY_GRADIENT_256];
const BY_KEYS: Builds = [&ATTENTION_KEY_GRADIENT_64, &ATTENTION_KEY_GRADIENT_128, &ATTENTION_KEY_GRADIENT_256];

/// Lowers a kernel of this family.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    let refuse = |reason: String| unsupported(kernel, reason);
    let results: &[&[usize]] = match kernel {
        Kernel::Attention(options) => return forward(options, reads, writes, gpu).map_err(refuse),
        Kernel::AttentionGradient(_) => &[&[0], &[1, 2]],
        Kernel::AttentionQueryGradient(_) => &[&[0], &[]],
        Kernel::AttentionKeyGradient(_) => &[&[], &[0, 1]],
        _ => return Err(unsupported(kernel, "not an attention kernel")),
    };
    let (Kernel::AttentionGradient(options)
    | Kernel::AttentionQueryGradient(options)
    | Kernel::AttentionKeyGradient(options)) = kernel
    else {
        return Err(unsupported(kernel, "not an attention gradient"));
    };
    gradient(options, reads, writes, [results[0], results[1]], gpu).map_err(refuse)
}

fn forward(
    options: &AttentionOptions,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, String> {
    let ([q, k, v, mask @ ..], [y, logarithms]) = (reads, writes) else {
        return Err(format!("attention does not have {} reads and {} writes", reads.len(), writes.len()));
    };
    let attending = Attending::new(options, [q, k, v], mask)?;
    attending.require(&[y], attending.heads, attending.rows, attending.v_size)?;
    attending.require(&[logarithms], attending.heads, attending.rows, 2)?;
    let mask = Operand::Read(if mask.is_empty() { 0 } else { 3 });
    let reads = [0, 1, 2].map(Operand::Read).into_iter().chain([mask]);
    let operands = reads.chain([0, 1].map(Operand::Write)).collect();
    Ok(attending.dispatch(&FORWARD, operands, attending.heads, attending.rows, gpu).into())
}

/// Returns the dispatches that compute the gradients with respect to the queries, and to the keys and values, if they are among the
/// results.
fn gradient(
    options: &AttentionOptions,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    [by_queries, by_keys]: [&[usize]; 2],
    gpu: &Target,
) -> Result<Lowered, String> {
    let [dy, q, k, v, y, logarithms, mask @ ..] = reads else {
        return Err(format!("a gradient of attention does not have {} reads", reads.len()));
    };
    if writes.len() != by_queries.len() + by_keys.len() {
        return Err(format!("the gradient does not have {} writes", writes.len()));
    }
    let own = Attending::new(options, [q, k, v], mask)?;
    own.require(&[dy, y], own.heads, own.rows, own.v_size)?;
    own.require(&[logarithms], own.heads, own.rows, 2)?;
    let mask = Operand::Read(if mask.is_empty() { 0 } else { 6 });
    let operands = |results: &[usize]| -> Vec<Operand> {
        let reads = (0..6).map(Operand::Read).chain([mask]);
        reads.chain(results.iter().map(|&result| Operand::Write(result))).collect()
    };
    let mut dispatches = Vec::new();
    if let &[dq] = by_queries {
        own.require(&[&writes[dq]], own.heads, own.rows, own.size)?;
        dispatches.push(own.dispatch(&BY_QUERIES, operands(by_queries), own.heads, own.rows, gpu));
    }
    if let &[dk, dv] = by_keys {
        own.require(&[&writes[dk]], own.groups, own.keys, own.size)?;
        own.require(&[&writes[dv]], own.groups, own.keys, own.v_size)?;
        dispatches.push(own.dispatch(&BY_KEYS, operands(by_keys), own.groups, own.keys, gpu));
    }
    Ok(Lowered::from(dispatches))
}

/// The sizes of queries, keys, values and mask that every launch needs.
struct Attending {
    options: AttentionOptions,
    batch: u64,
    heads: u64,
    groups: u64,
    rows: u64,
    keys: u64,
    size: u64,
    v_size: u64,
    /// The kind of the mask (`MASK` in the shaders), and its strides over batches, heads and rows.
    mask: (u32, [u64; 3]),
}

impl Attending {
    fn new(options: &AttentionOptions, of: [&TensorDesc; 3], mask: &[TensorDesc]) -> Result<Attending, String> {
        let [q, k, v] = of;
        let misfit = || format!("queries {q}, keys {k} and values {v} do not match");
        let (&[batch, heads, rows, size], &[_, groups, keys, _], &[_, _, _, v_size]) =
            (q.sizes(), k.sizes(), v.sizes())
        else {
            return Err(misfit());
        };
        if k.sizes() != [batch, groups, keys, size]
            || v.sizes() != [batch, groups, keys, v_size]
            || groups == 0
            || heads % groups != 0
        {
            return Err(misfit());
        }
        if size.max(v_size) > ATTENTION_SIZE_MAX {
            return Err(format!("heads of {size} and {v_size} elements are larger than {ATTENTION_SIZE_MAX}"));
        }
        // Shaders number rows and keys with signed integers.
        const PLACES_MAX: u64 = 1 << 30;
        if rows.max(keys) > PLACES_MAX {
            return Err(format!("{rows} rows or {keys} keys are more than the {PLACES_MAX} that shaders support"));
        }
        let mut attending =
            Attending { options: *options, batch, heads, groups, rows, keys, size, v_size, mask: (0, [0; 3]) };
        attending.require(&[q], heads, rows, size)?;
        attending.require(&[k], groups, keys, size)?;
        attending.require(&[v], groups, keys, v_size)?;
        if let [mask] = mask {
            attending.mask = attending.mask_of(mask)?;
        }
        Ok(attending)
    }

    /// # Errors
    /// If an operand is not packed float32 with this number of heads, rows and elements per row.
    fn require(&self, descs: &[&TensorDesc], heads: u64, rows: u64, size: u64) -> Result<(), String> {
        require_packed(descs, DataType::Float32, self.batch * heads * rows * size)
    }

    fn mask_of(&self, mask: &TensorDesc) -> Result<(u32, [u64; 3]), String> {
        let (sizes, strides) = (mask.sizes(), mask.effective_strides());
        let all = [self.batch, self.heads, self.rows];
        let fits = sizes.len() == 4
            && sizes[3] == self.keys
            && (strides[3] == 1 || self.keys == 1)
            && sizes.iter().zip(all).all(|(&own, all)| own == all || own == 1);
        let kind = match mask.data_type() {
            DataType::Float32 => 1,
            DataType::Bool => 2,
            other => return Err(format!("a mask must be float32 or bool, not {other}")),
        };
        if !fits {
            return Err(format!("the mask {mask} does not match scores {all:?} of {} keys", self.keys));
        }
        Ok((kind, std::array::from_fn(|axis| if sizes[axis] == 1 { 0 } else { strides[axis] })))
    }

    /// Returns a dispatch with a workgroup for each tile of the rows (or keys) of each head (or group) of each batch.
    fn dispatch(&self, builds: &Builds, operands: Vec<Operand>, heads: u64, rows: u64, gpu: &Target) -> Dispatch {
        let tiles = rows.div_ceil(TILE);
        let count = self.batch * heads * tiles;
        let groups = groups(count, gpu);
        let shader = match self.size.max(self.v_size) {
            0..=64 => builds[0],
            65..=128 => builds[1],
            _ => builds[2],
        };
        // Beyond these limits, rows attend to nothing or to everything.
        let causal = self.options.causal.map(|last| last.clamp(-(self.rows as i64), self.keys as i64) as i32);
        let (kind, strides) = self.mask;
        let mut parameters = vec![groups[0]];
        let sizes = [count, tiles, self.heads, self.groups, self.rows, self.keys, self.size, self.v_size]
            .map(|size| size as u32);
        parameters.extend(sizes);
        parameters.extend([self.options.scale.to_bits(), self.options.softcap.abs().to_bits()]);
        parameters.extend([u32::from(causal.is_some()), causal.unwrap_or(0) as u32, kind]);
        parameters.extend(strides.map(|stride| stride as u32));
        Dispatch { shader, constants: Vec::new(), bindings: bindings(operands), parameters, groups }
    }
}
