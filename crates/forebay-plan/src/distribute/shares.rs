//! Shares: the images of a batch that each process has.

use std::ops::Range;

/// Returns the images of each process, in order. Each share begins at a multiple of `quantum`. `None` if a process would have no images.
pub fn shares(images: u64, processes: u64, quantum: u64) -> Option<Vec<Range<u64>>> {
    if processes == 0 || images < processes || quantum == 0 {
        return None;
    }
    let start = |process: u64| match process == processes {
        true => images,
        false => {
            // The nearest multiple; the lower one if two are equally near.
            let exact = u128::from(images) * u128::from(process);
            let unit = u128::from(quantum) * u128::from(processes);
            ((exact + (unit - 1) / 2) / unit) as u64 * quantum
        }
    };
    let shares: Vec<Range<u64>> = (0..processes).map(|process| start(process)..start(process + 1)).collect();
    shares.iter().all(|share| share.start < share.end).then_some(shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_is_in_one_share_and_shares_are_about_equal() {
        for images in 1..100 {
            for processes in 1..20 {
                for quantum in [1, 2, 4, 8, 16] {
                    let Some(shares) = shares(images, processes, quantum) else {
                        assert!(images < processes * quantum, "{images} images, {processes} processes, {quantum}");
                        continue;
                    };
                    assert_eq!((shares.len() as u64, shares[0].start), (processes, 0));
                    assert_eq!(shares[shares.len() - 1].end, images);
                    assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
                    assert!(shares.iter().all(|share| share.start.is_multiple_of(quantum)));
                    let sizes: Vec<u64> = shares.iter().map(|share| share.end - share.start).collect();
                    let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
                    assert!(*least > 0 && most - least <= 2 * quantum, "{images}: {sizes:?}");
                }
            }
        }
        assert_eq!(shares(50, 2, 4).unwrap(), [0..24, 24..50]);
        assert_eq!(shares(32, 4, 8).unwrap(), [0..8, 8..16, 16..24, 24..32]);
        assert_eq!(shares(7, 3, 1).unwrap(), [0..2, 2..5, 5..7]);
        assert_eq!((shares(0, 1, 1), shares(3, 4, 1), shares(3, 0, 1), shares(4, 4, 2)), (None, None, None, None));
    }
}
