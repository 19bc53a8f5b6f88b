//! Compares passes with naive ones that look at every item for every base.

use super::*;
use forebay_base::ByteRange;

/// The open intervals of bases that another item at `base` forbids.
fn forbidden(item: &Item, other: &Item, base: i64) -> Vec<(i64, i64)> {
    let taken = |item: &Item| item.pieces.iter().filter(|piece| piece.is_taken()).cloned().collect::<Vec<_>>();
    let mut intervals = Vec::new();
    for own in taken(item) {
        for met in taken(other).iter().filter(|met| met.coincides(&own)) {
            let low = base + met.bytes.start as i64 - own.bytes.end as i64;
            intervals.push((low, base + met.bytes.end as i64 - own.bytes.start as i64));
        }
    }
    intervals
}

/// The bases of a pass, found by comparing each item with every one before it.
fn plain_pass(items: &[Item], order: &[u32]) -> Vec<i64> {
    let mut bases = vec![0; items.len()];
    for (turn, &item) in order.iter().enumerate() {
        let own = &items[item as usize];
        let before = order[..turn].iter().map(|&other| other as usize);
        let mut intervals: Vec<(i64, i64)> =
            before.flat_map(|other| forbidden(own, &items[other], bases[other])).collect();
        intervals.sort_unstable();
        let mut base = 0;
        for (low, high) in intervals {
            if low < base && high > base {
                base = aligned(high, own.alignment_bytes as i64);
            }
        }
        bases[item as usize] = own.fixed_offset.map_or(base, |fixed| fixed as i64);
    }
    bases
}

fn aligned(base: i64, alignment: i64) -> i64 {
    (base + alignment - 1) / alignment * alignment
}

/// The last simple item that a simple one rests on; `Err` if items of several pieces are involved.
fn plain_below(items: &[Item], attempt: &Attempt, item: usize) -> Result<Option<usize>, usize> {
    let base = attempt.bases[item];
    let reach = base - items[item].alignment_bytes as i64 + 1..=base;
    let rests_on = |&other: &usize| {
        let intervals = forbidden(&items[item], &items[other], attempt.bases[other]);
        let earlier = attempt.turns[other] < attempt.turns[item];
        earlier && intervals.iter().any(|&(_, high)| high > 0 && reach.contains(&high))
    };
    let is_shaped = |other: usize| items[other].pieces.len() > 1 || items[item].pieces.len() > 1;
    let mut found = (0..items.len()).filter(rests_on);
    match found.clone().find(|&other| is_shaped(other)) {
        Some(other) => Err(other),
        None => Ok(found.next_back()),
    }
}

/// Items of which one in `shaped_every` has two pieces, all live for up to `duration` of `times`.
fn random_items(
    random: &mut Xorshift64,
    count: usize,
    times: usize,
    duration: usize,
    shaped_every: usize,
) -> Vec<Item> {
    let mut items = Vec::new();
    for _ in 0..count {
        let start = random.below(times) as u32;
        let end = start + 1 + random.below(duration) as u32;
        let low = if random.below(4) == 0 { random.below(70) as u64 } else { 0 };
        let mut pieces =
            vec![Piece { time: start..end, bytes: ByteRange::new(low, low + 1 + random.below(200) as u64) }];
        if random.below(shaped_every) == 0 {
            let bytes = ByteRange::new(300, 301 + random.below(100) as u64);
            pieces.push(Piece { time: end..end + 3, bytes });
        }
        items.push(Item::new([1, 16, 64][random.below(3)], pieces));
    }
    items
}

#[test]
fn a_pass_gives_the_bases_of_a_plain_one() {
    let mut random = Xorshift64::new();
    // Few at a time, all at a time, and in between; some with items of several pieces.
    let cases =
        [(900, 3000, 6, 1 << 30), (600, 1, 40, 1 << 30), (700, 300, 200, 1 << 30), (500, 200, 60, 20), (60, 9, 9, 2)];
    let mut simple = 0;
    for (count, times, duration, shaped_every) in cases {
        for round in 0..2 {
            let mut items = random_items(&mut random, count, times, duration, shaped_every);
            if round % 2 == 0 {
                items.iter_mut().for_each(|item| item.alignment_bytes = 64);
            }
            let mut search = Greedy::new(&items);
            let orders = search.first_orders();
            for order in orders {
                let mut attempt = Attempt::new(order, search.grain);
                search.pass(&mut attempt, 0, i64::MAX);
                assert_eq!(attempt.bases, plain_pass(&items, &attempt.order), "{count} items, round {round}");
                // From some turn on, in another order.
                let first = random.below(count);
                attempt.order[first..].reverse();
                search.pass(&mut attempt, first, i64::MAX);
                assert_eq!(attempt.bases, plain_pass(&items, &attempt.order), "{count} items, from turn {first}");
                let chain = search.chain(&attempt);
                for (place, &item) in chain.iter().enumerate() {
                    let next = chain.get(place + 1).copied();
                    let plain = plain_below(&items, &attempt, item);
                    assert!(plain.is_err() || plain == Ok(next), "{count} items: {plain:?}, not {next:?}");
                    simple += usize::from(plain.is_ok());
                }
            }
        }
    }
    assert!(simple > 100, "{simple} steps of a chain");
}
