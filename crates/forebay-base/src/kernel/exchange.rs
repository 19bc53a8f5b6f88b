//! Exchanges: bytes sent from each process of a run to every process.

use crate::ByteRange;

/// The maximum number of exchanges in a step.
pub const EXCHANGES_MAX: u32 = 32_000;

/// The bytes that a process sends to each process of a run, including itself, and those that it receives from each. The ranges sent to a
/// process are in the order in which that process receives them, and have the same lengths.
///
/// ```
/// use forebay_base::kernel::Exchange;
/// use forebay_base::ByteRange;
///
/// // The first of two processes has 8 bytes, the second one 16: each gets all of them, in order.
/// let exchange = Exchange::gather(3, 0, &[8, 16]);
/// assert_eq!(exchange.sends, [[ByteRange::new(0, 8)], [ByteRange::new(0, 8)]]);
/// assert_eq!(exchange.receives, [[ByteRange::new(0, 8)], [ByteRange::new(8, 24)]]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The number of the exchange within a step, the same in all processes.
    pub number: u32,
    /// For each process, ranges of the first read's bytes.
    pub sends: Vec<Vec<ByteRange>>,
    /// For each process, ranges of the first write's bytes.
    pub receives: Vec<Vec<ByteRange>>,
}

impl Exchange {
    /// An exchange in which every process receives the bytes of all processes, in the order of their ranks. `sizes` are the bytes that each
    /// has.
    pub fn gather(number: u32, rank: usize, sizes: &[u64]) -> Exchange {
        let own = sizes.get(rank).copied().unwrap_or(0);
        let mut end = 0;
        let mut next = |&size: &u64| {
            end += size;
            vec![ByteRange::new(end - size, end)]
        };
        Exchange {
            number,
            sends: vec![vec![ByteRange::new(0, own)]; sizes.len()],
            receives: sizes.iter().map(&mut next).collect(),
        }
    }
}
