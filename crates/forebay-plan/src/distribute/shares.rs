//! Shares: which images of a batch each process has.

use std::ops::Range;

/// A share begins at multiples of a power of two of images, of which it has this many at least: sums whose reduction blocks hold
/// several images can be shared out then, and shares differ by little.
const QUANTA_MIN: u64 = 4;

/// The images of each process, in order. None where there is less than one image for each.
pub fn shares(images: u64, processes: u64) -> Option<Vec<Range<u64>>> {
    if processes == 0 || images < processes {
        return None;
    }
    let quantum = 1u64 << (images / processes / QUANTA_MIN).max(1).ilog2();
    let start = |process: u64| match process == processes {
        true => images,
        false => {
            // The nearest multiple, of two the lower one.
            let exact = u128::from(images) * u128::from(process);
            let unit = u128::from(quantum) * u128::from(processes);
            ((exact + (unit - 1) / 2) / unit) as u64 * quantum
        }
    };
    Some((0..processes).map(|process| start(process)..start(process + 1)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_is_in_one_share_and_shares_are_about_equal() {
        for images in 1..300 {
            for processes in 1..20 {
                let Some(shares) = shares(images, processes) else {
                    assert!(images < processes);
                    continue;
                };
                assert_eq!((shares.len() as u64, shares[0].start), (processes, 0));
                assert_eq!(shares[shares.len() - 1].end, images);
                assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
                let sizes: Vec<u64> = shares.iter().map(|share| share.end - share.start).collect();
                let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
                assert!(*least > 0 && most - least <= (images / processes).max(2) / 2 + 1, "{images}: {sizes:?}");
            }
        }
        assert_eq!(shares(50, 2).unwrap(), [0..24, 24..50]);
        assert_eq!(shares(32, 4).unwrap(), [0..8, 8..16, 16..24, 24..32]);
        assert_eq!(shares(7, 3).unwrap(), [0..2, 2..5, 5..7]);
        assert_eq!((shares(0, 1), shares(3, 4), shares(3, 0)), (None, None, None));
    }
}
