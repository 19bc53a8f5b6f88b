//! How attention kernels transform scores.

/// The largest head size that attention kernels support, in elements.
pub const ATTENTION_SIZE_MAX: u64 = 256;

/// Rows in a block of scores: the rows of a head are cut at multiples of this.
pub const ATTENTION_ROWS: u64 = 64;

/// Keys in a block of scores: the keys of a head are cut at multiples of this.
pub const ATTENTION_KEYS: u64 = 256;

/// The size from which on the logarithm of a row's sum is stored with what rounding left of it. Smaller ones are precise enough on their own.
pub const ATTENTION_LOGARITHM_LARGE: f32 = 16384.0;

/// The operations on the scores of queries q\[n, h, m, d] and keys k\[n, g, l, d] before the softmax along the keys.
///
/// h is a multiple of g: h / g consecutive heads share keys and values. A mask \[n, h, m, l], whose first three sizes may also be 1, is
/// added to the scores if it is `float32`; if it is bool, keys whose entry is false are not attended to. A row that attends to no key gives
/// 0, and has no gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOptions {
    /// Factor by which the products are multiplied.
    pub scale: f32,
    /// If not 0, scaled products s become softcap tanh(s / softcap).
    pub softcap: f32,
    /// If set, row i attends to keys 0 to i + causal; otherwise to all keys. It is negative if a part begins with a key that its first row
    /// does not attend to.
    pub causal: Option<i64>,
}
