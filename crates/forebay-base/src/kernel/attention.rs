//! What attention kernels do to scores.

/// The largest size of a head of attention kernels, in elements.
pub const ATTENTION_SIZE_MAX: u64 = 256;

/// Rows of a block of scores: rows of a head are cut at multiples of it.
pub const ATTENTION_ROWS: u64 = 64;

/// Keys of a block of scores: keys of a head are cut at multiples of it.
pub const ATTENTION_KEYS: u64 = 256;

/// What is done to the scores of queries q\[n, h, m, d] and keys k\[n, g, l, d] before the softmax along keys.
///
/// h is a multiple of g: h / g heads in a row share keys and values. A mask \[n, h, m, l], of which the first three sizes may also
/// be 1, is added where it is `float32`; where it is bool, keys without it are not seen. A row that sees no key gives NaN, as a
/// softmax of nothing does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOptions {
    /// Factor of the products.
    pub scale: f32,
    /// Where not 0, scaled products s become softcap tanh(s / softcap).
    pub softcap: f32,
    /// Row i sees the keys 0 to i + causal; none for all keys. It is negative where a part begins with a key that its first row does
    /// not see.
    pub causal: Option<i64>,
}
