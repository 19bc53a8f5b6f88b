//! Overlap: how long copies can move while kernels run, and what that costs the kernels.

use std::ops::Range;

/// What runs is grouped by price into about this many classes: a class has the price of its cheapest member.
const CLASSES: usize = 16;
/// The prices of the members of a class differ by at most this.
const SPREAD: f64 = 1.0 / 32.0;

/// Something that runs, as seen by copies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cover {
    /// The least time that it takes.
    pub duration_ns: f64,
    /// How much longer it takes for each nanosecond in which copies move at the same time: from 0 to 1.
    pub price: f64,
}

/// The cost of copies that move for some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stall {
    /// The least time by which the positions take longer, including waits between them.
    pub ns: f64,
    /// The most of that time that a nanosecond less of copies would spare.
    pub per_ns: f64,
}

/// The positions of a step, prepared for queries about stretches of it.
///
/// Copies that move for `x` nanoseconds while something runs that takes `d` and has price `r` make it last `r * x` longer, and at least `x`
/// in total, so it has room for `d / (1 - r)` at this price. Each nanosecond that has no room costs a nanosecond.
pub(super) struct Overlap {
    /// The price of each class, ascending, and its room before each position.
    classes: Vec<(f64, Vec<f64>)>,
}

impl Overlap {
    /// Prepares what runs at each position, one after the other.
    pub fn new(positions: &[Vec<Cover>]) -> Overlap {
        let room_ns = |cover: &Cover| cover.duration_ns / (1.0 - cover.price);
        let mut covers: Vec<(usize, Cover)> = Vec::new();
        for (position, inside) in positions.iter().enumerate() {
            // What makes copies cost as much as while nothing runs has no room for them.
            covers.extend(inside.iter().filter(|cover| cover.price < 1.0).map(|&cover| (position, cover)));
        }
        covers.sort_by(|(_, a), (_, b)| a.price.total_cmp(&b.price));
        let class_ns = covers.iter().map(|(_, cover)| room_ns(cover)).sum::<f64>() / CLASSES as f64;
        let mut overlap = Overlap { classes: Vec::new() };
        let mut members_ns = 0.0;
        for (position, cover) in covers {
            members_ns += room_ns(&cover);
            match overlap.classes.last() {
                Some((least, _)) if *least == cover.price => {}
                Some((least, _)) if cover.price - least <= SPREAD && members_ns <= class_ns => {}
                _ => {
                    overlap.classes.push((cover.price, vec![0.0; positions.len() + 1]));
                    members_ns = room_ns(&cover);
                }
            }
            let class = overlap.classes.len() - 1;
            overlap.classes[class].1[position + 1] += room_ns(&cover);
        }
        for (_, rooms_ns) in &mut overlap.classes {
            (0..positions.len()).for_each(|position| rooms_ns[position + 1] += rooms_ns[position]);
        }
        overlap
    }

    /// The least cost of copies that move for `link_ns` within these positions and the waits between them, if `free_ns` of that cost
    /// nothing. Positions can lie in the next step or the previous one.
    pub fn stall(&self, positions: Range<i64>, free_ns: f64, link_ns: f64) -> Stall {
        let mut left_ns = link_ns - free_ns;
        let mut stall = Stall { ns: 0.0, per_ns: 0.0 };
        for (price, rooms_ns) in &self.classes {
            if left_ns <= 0.0 {
                return stall;
            }
            let room_ns = before(rooms_ns, positions.end) - before(rooms_ns, positions.start);
            stall.ns += price * left_ns.min(room_ns);
            stall.per_ns = *price;
            left_ns -= room_ns;
        }
        if left_ns > 0.0 {
            stall = Stall { ns: stall.ns + left_ns, per_ns: 1.0 };
        }
        stall
    }
}

/// The sum before a position of this step, the previous step or the next step, from the sums of one step.
pub(super) fn before(sums: &[f64], position: i64) -> f64 {
    let count = sums.len() as i64 - 1;
    let total = sums[count as usize];
    if position < 0 {
        sums[(position + count) as usize] - total
    } else if position <= count {
        sums[position as usize]
    } else {
        sums[(position - count) as usize] + total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_testing::Random;

    /// The least cost by taking whole nanoseconds where they are cheapest.
    fn naive(covers: &[Cover], link_ns: u64) -> f64 {
        let mut rooms: Vec<(f64, f64)> =
            covers.iter().map(|cover| (cover.price, cover.duration_ns / (1.0 - cover.price))).collect();
        rooms.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut left, mut cost) = (link_ns as f64, 0.0);
        for (price, room) in rooms.into_iter().chain([(1.0, f64::INFINITY)]) {
            cost += price * room.min(left);
            left -= room.min(left);
        }
        cost
    }

    #[test]
    fn cheap_positions_are_taken_first_and_classes_lose_little() {
        for seed in 1..200 {
            let mut random = Random::new(seed);
            let count = 1 + random.below(40) as usize;
            let cover = |random: &mut Random| Cover {
                duration_ns: random.below(1000) as f64,
                price: [0.0, random.below(50) as f64 / 100.0, 0.5][random.below(3) as usize],
            };
            let covers: Vec<Cover> = (0..count).map(|_| cover(&mut random)).collect();
            let overlap = Overlap::new(&covers.iter().map(|cover| vec![*cover]).collect::<Vec<_>>());
            let (from, length) = (random.below(count as u64) as i64, random.below(count as u64) as i64);
            let inside: Vec<Cover> = (from..from + length).map(|at| covers[at as usize % count]).collect();
            let link_ns = random.below(30_000);
            let (found, exact) = (overlap.stall(from..from + length, 0.0, link_ns as f64), naive(&inside, link_ns));
            assert!(found.ns <= exact + 1e-6, "seed {seed}: {found:?}, but {exact} is enough");
            let rooms_ns: f64 = covers.iter().map(|cover| cover.duration_ns / (1.0 - cover.price)).sum();
            let (whole, exact) = (overlap.stall(0..count as i64, 0.0, link_ns as f64), naive(&covers, link_ns));
            assert!(whole.ns >= exact - SPREAD * rooms_ns - 1e-6, "seed {seed}: {whole:?} of {exact}");
            // Prices within classes differ by 0.5 in all.
            assert!(whole.ns >= exact - 0.5 * rooms_ns / CLASSES as f64 - 1e-6, "seed {seed}: {whole:?} of {exact}");
            let less = overlap.stall(from..from + length, 0.0, link_ns as f64 * 0.9);
            let most = found.per_ns * link_ns as f64 * 0.1;
            assert!(found.ns - less.ns <= most + 1e-6, "seed {seed}: {found:?} and {less:?}");
        }
    }
}
