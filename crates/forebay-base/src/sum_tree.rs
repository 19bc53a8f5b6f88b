//! The sum tree: the one order in which reduction blocks are added.
//!
//! The *leaves* of a sum are its reduction blocks ([`crate::kernel`]), each summed from zero in its internal order. Leaves are added along
//! one fixed tree over their indices: first neighbors, then neighboring pairs, and so on. If a node has no right half, it consists of its
//! left half alone. So the order depends only on the number of leaves: not on where a sum is cut, on how many threads or processes compute
//! it, or on how far it has progressed.
//!
//! ```text
//!   leaves       0   1   2   3   4   5   6
//!                 \ /     \ /     \ /    |
//!   level 1       0-1     2-3     4-5    6          the sum is  ((0 + 1) + (2 + 3)) + ((4 + 5) + 6)
//!                   \     /         \   /
//!   level 2           0-3            4-6
//! ```
//!
//! Leaves can come in groups of equal size, such as the blocks of images. Each group is then a tree, and the groups are the leaves of the
//! tree above. So a cut between images is always a cut between nodes, whatever the number of blocks per image.
//!
//! A range of leaves consists of a small, logarithmic number of nodes ([`nodes_of`]); [`PartialSums`] holds the sums of these nodes and can
//! be extended by the next ones. Adding leaves one after another keeps just as few sums ([`SumTree::merges_after`]).

use std::ops::Range;

/// A sum tree over a given number of leaves, which come in groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumTree {
    groups: u64,
    group_leaves: u64,
}

/// The number of levels above this many leaves.
fn levels(leaves: u64) -> u32 {
    u64::BITS - leaves.max(1).saturating_sub(1).leading_zeros()
}

/// The number of merges of two nodes into one when a leaf is added to the leaves before it.
fn merges(leaf: u64, leaves: u64) -> u32 {
    if leaf + 1 == leaves { leaf.count_ones() } else { leaf.trailing_ones() }
}

impl SumTree {
    /// A tree of groups that all have the same number of leaves.
    pub fn new(groups: u64, group_leaves: u64) -> SumTree {
        SumTree { groups, group_leaves }
    }

    /// A tree of leaves without groups.
    pub fn flat(leaves: u64) -> SumTree {
        SumTree::new(1, leaves)
    }

    /// Number of groups.
    pub fn groups(self) -> u64 {
        self.groups
    }

    /// Number of leaves in a group.
    pub fn group_leaves(self) -> u64 {
        self.group_leaves
    }

    /// Number of leaves.
    pub fn leaves(self) -> u64 {
        self.groups * self.group_leaves
    }

    /// The number of levels above the leaves. At most this many partial sums are pending while leaves are added one after another.
    pub fn depth(self) -> u32 {
        levels(self.groups) + levels(self.group_leaves)
    }

    /// The number of merges after a leaf has been pushed. Leaves are added one after another, and a stack keeps the sums of nodes whose
    /// right half is still missing. After leaf number `leaf` has been pushed, the last two sums are replaced this many times by the earlier
    /// one plus the later one. One sum is left after the last leaf.
    pub fn merges_after(self, leaf: u64) -> u32 {
        let (group, own) = (leaf / self.group_leaves, leaf % self.group_leaves);
        let within = merges(own, self.group_leaves);
        if own + 1 == self.group_leaves { within + merges(group, self.groups) } else { within }
    }

    /// The sum of all leaves, given in order; `None` if there are no leaves.
    pub fn sum<T>(self, leaves: impl IntoIterator<Item = T>, mut add: impl FnMut(T, T) -> T) -> Option<T> {
        let mut stack: Vec<T> = Vec::with_capacity(self.depth() as usize);
        for (leaf, mut sum) in (0..self.leaves()).zip(leaves) {
            for _ in 0..self.merges_after(leaf) {
                if let Some(earlier) = stack.pop() {
                    sum = add(earlier, sum);
                }
            }
            stack.push(sum);
        }
        stack.pop()
    }

    /// Divides the tree into subtrees of equal height: the smallest ones of which there are at most `most`.
    pub fn subtrees(self, most: u64) -> Subtrees {
        let most = most.max(1);
        let count = |leaves: u64, height: u32| leaves.div_ceil(1 << height.min(63));
        let in_groups =
            (0..levels(self.group_leaves)).find(|&height| self.groups * count(self.group_leaves, height) <= most);
        let height = in_groups.unwrap_or_else(|| {
            let above = (0..=levels(self.groups)).find(|&height| count(self.groups, height) <= most);
            levels(self.group_leaves) + above.unwrap_or(0)
        });
        Subtrees { tree: self, height }
    }
}

/// A tree cut at a height: the subtrees below it, and the tree whose leaves are these subtrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subtrees {
    tree: SumTree,
    height: u32,
}

impl Subtrees {
    /// The number of leaves of a group, or of groups, in a complete subtree, and whether it counts groups.
    pub fn own(self) -> (u64, bool) {
        let of_group = levels(self.tree.group_leaves);
        if self.height < of_group { (1 << self.height, false) } else { (1 << (self.height - of_group), true) }
    }

    /// The tree whose leaves are the subtrees.
    pub fn above(self) -> SumTree {
        match self.own() {
            (leaves, false) => SumTree::new(self.tree.groups, self.tree.group_leaves.div_ceil(leaves)),
            (groups, true) => SumTree::flat(self.tree.groups.div_ceil(groups)),
        }
    }

    /// Number of subtrees.
    pub fn count(self) -> u64 {
        self.above().leaves()
    }

    /// The number of a subtree's first leaf, and the subtree.
    pub fn get(self, number: u64) -> (u64, SumTree) {
        let SumTree { groups, group_leaves } = self.tree;
        match self.own() {
            (leaves, false) => {
                let per_group = group_leaves.div_ceil(leaves);
                let first = number % per_group * leaves;
                (number / per_group * group_leaves + first, SumTree::flat(leaves.min(group_leaves - first)))
            }
            (own, true) => {
                let first = number * own;
                (first * group_leaves, SumTree::new(own.min(groups - first), group_leaves))
            }
        }
    }

    /// The maximum number of levels above the leaves of a subtree.
    pub fn depth(self) -> u32 {
        self.height
    }
}

/// Whether a range of leaves is a node of a tree of `leaves` leaves.
pub fn is_node(range: &Range<u64>, leaves: u64) -> bool {
    let count = range.end.saturating_sub(range.start);
    let size = count.checked_next_power_of_two().unwrap_or(u64::MAX);
    count > 0 && range.end <= leaves && range.start.is_multiple_of(size) && (count == size || range.end == leaves)
}

/// The boundary between the two halves of a node with several leaves.
pub fn middle(node: &Range<u64>) -> Option<u64> {
    let count = node.end.checked_sub(node.start).filter(|&count| count > 1)?;
    Some(node.start + (1 << (levels(count) - 1)))
}

/// The smallest set of nodes, in order, that make up a range of leaves in a tree of `leaves` leaves.
pub fn nodes_of(range: Range<u64>, leaves: u64) -> Vec<Range<u64>> {
    let (mut nodes, mut start, end) = (Vec::new(), range.start, range.end.min(leaves));
    while start < end {
        // The largest node that begins here and ends within the range.
        let aligned = if start == 0 { 63 } else { start.trailing_zeros().min(63) };
        let node = (0..=aligned).rev().map(|level| start..leaves.min(start.saturating_add(1 << level)));
        let node = node.into_iter().find(|node| node.end <= end).unwrap_or(start..start + 1);
        start = node.end;
        nodes.push(node);
    }
    nodes
}

/// The partial sums that a range of leaves passes on: the sums of its nodes, which the owner of the next leaves continues from.
#[derive(Clone, Debug, PartialEq)]
pub struct PartialSums<T>(Vec<(Range<u64>, T)>);

impl<T> Default for PartialSums<T> {
    fn default() -> Self {
        PartialSums(Vec::new())
    }
}

impl<T> PartialSums<T> {
    /// Adds the sum of a node that begins where the previous ones end.
    ///
    /// # Panics
    /// If the node begins elsewhere.
    pub fn push(&mut self, node: Range<u64>, sum: T, mut add: impl FnMut(T, T) -> T) {
        let end = self.0.last().map(|(last, _)| last.end);
        assert!(end.is_none_or(|end| end == node.start), "{node:?} does not begin at {end:?}");
        let (mut node, mut sum) = (node, sum);
        while let Some((left, _)) = self.0.last() {
            let size = node.end - node.start;
            // Whether this node is complete and the one before it is the left half of the same node.
            let is_half = size.is_power_of_two() && left.end - left.start == size && left.start % (2 * size) == 0;
            let Some((left, earlier)) = is_half.then(|| self.0.pop()).flatten() else { break };
            (node, sum) = (left.start..node.end, add(earlier, sum));
        }
        self.0.push((node, sum));
    }

    /// Continues with the partial sums of the next range.
    ///
    /// # Panics
    /// If that range does not begin where this one ends.
    pub fn append(&mut self, behind: PartialSums<T>, mut add: impl FnMut(T, T) -> T) {
        behind.0.into_iter().for_each(|(node, sum)| self.push(node, sum, &mut add));
    }

    /// The nodes that are kept, with their sums.
    pub fn nodes(&self) -> &[(Range<u64>, T)] {
        &self.0
    }

    /// The sum of all leaves, once all have been added; `None` if there are none.
    pub fn total(mut self, mut add: impl FnMut(T, T) -> T) -> Option<T> {
        let (_, mut sum) = self.0.pop()?;
        while let Some((_, earlier)) = self.0.pop() {
            sum = add(earlier, sum);
        }
        Some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers whose sum depends on the order.
    fn numbers(count: u64) -> Vec<f64> {
        let mut state = 88_172_645_463_325_252u64;
        let next = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % 2001) as f64 / 7.0 * 10f64.powi((state >> 40) as i32 % 9 - 4) - 100.0
        };
        (0..count).map(next).collect()
    }

    /// The definition: split a node into halves, the left one a power of two.
    fn by_halves<T: Copy + std::ops::Add<Output = T>>(leaves: &[T]) -> T {
        if let [leaf] = leaves {
            return *leaf;
        }
        let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
        by_halves(left) + by_halves(right)
    }

    #[test]
    fn leaves_one_after_the_other_make_the_tree() {
        for leaves in 1..200 {
            let numbers = numbers(leaves);
            let sum = SumTree::flat(leaves).sum(numbers.iter().copied(), |a, b| a + b).unwrap();
            assert_eq!(sum.to_bits(), by_halves(&numbers).to_bits(), "{leaves} leaves");
            // Spelled out, so that the order cannot change unnoticed.
            let text =
                SumTree::flat(leaves.min(7)).sum((0..leaves).map(|leaf| leaf.to_string()), |a, b| format!("({a}{b})"));
            match leaves {
                3 => assert_eq!(text.unwrap(), "((01)2)"),
                6 => assert_eq!(text.unwrap(), "(((01)(23))(45))"),
                7 => assert_eq!(text.unwrap(), "(((01)(23))((45)6))"),
                _ => {}
            }
        }
        assert_eq!(SumTree::flat(0).sum(Vec::<f64>::new(), |a, b| a + b), None);
    }

    #[test]
    fn groups_are_trees_of_their_own() {
        for (groups, group_leaves) in [(1, 5), (5, 1), (3, 3), (6, 7), (8, 20), (13, 2)] {
            let numbers = numbers(groups * group_leaves);
            let of_groups: Vec<f64> = numbers.chunks(group_leaves as usize).map(by_halves).collect();
            let tree = SumTree::new(groups, group_leaves);
            let sum = tree.sum(numbers.iter().copied(), |a, b| a + b).unwrap();
            assert_eq!(sum.to_bits(), by_halves(&of_groups).to_bits(), "{tree:?}");
            // A stack of this depth is enough, and one sum is left.
            let mut kept = 0;
            for leaf in 0..tree.leaves() {
                kept -= i64::from(tree.merges_after(leaf));
                assert!((0..=i64::from(tree.depth())).contains(&kept), "{tree:?}");
                kept += 1;
            }
            assert_eq!(kept, 1, "{tree:?}");
        }
    }

    #[test]
    fn subtrees_add_up_to_the_tree() {
        for (groups, group_leaves) in [(1, 1), (1, 37), (37, 1), (5, 7), (4, 8), (3, 20), (17, 3)] {
            let tree = SumTree::new(groups, group_leaves);
            let numbers = numbers(tree.leaves());
            let whole = tree.sum(numbers.iter().copied(), |a, b| a + b).unwrap();
            for most in 1..=2 * tree.leaves() {
                let subtrees = tree.subtrees(most);
                assert!(subtrees.count() <= most, "{tree:?}, {most}");
                let mut next = 0;
                let sums: Vec<f64> = (0..subtrees.count())
                    .map(|number| {
                        let (first, own) = subtrees.get(number);
                        assert!(first == next && own.depth() <= subtrees.depth(), "{tree:?}, {most}");
                        next += own.leaves();
                        own.sum(numbers[first as usize..].iter().copied(), |a, b| a + b).unwrap()
                    })
                    .collect();
                assert_eq!(next, tree.leaves(), "{tree:?}, {most}");
                let sum = subtrees.above().sum(sums, |a, b| a + b).unwrap();
                assert_eq!(sum.to_bits(), whole.to_bits(), "{tree:?}, {most}");
            }
            assert_eq!(tree.subtrees(tree.leaves()).count(), tree.leaves());
        }
    }

    /// Checks that consecutive ranges, each passing on the sums of its nodes, add up to the bits of the whole and pass on only a few sums.
    fn check_ranges<T: Copy + std::ops::Add<Output = T> + PartialEq + std::fmt::Debug>(all: &[T], bounds: &[u64]) {
        let (leaves, add) = (all.len() as u64, |a: T, b: T| a + b);
        let mut sums = PartialSums::default();
        for range in bounds.windows(2).map(|pair| pair[0]..pair[1]) {
            let mut own = PartialSums::default();
            for node in nodes_of(range.clone(), leaves) {
                assert!(is_node(&node, leaves) && node.start >= range.start && node.end <= range.end, "{node:?}");
                let values = &all[node.start as usize..node.end as usize];
                own.push(node, by_halves(values), add);
            }
            let handed_over = own.nodes().len() as u32;
            assert!(handed_over <= 2 * levels(leaves).max(1), "{range:?} of {leaves}: {handed_over}");
            sums.append(own, add);
            assert!(sums.nodes().len() as u32 <= levels(leaves) + 1, "{range:?} of {leaves}");
        }
        assert_eq!(sums.total(add), Some(by_halves(all)), "{bounds:?} of {leaves}");
    }

    #[test]
    fn ranges_that_follow_each_other_add_up_to_the_whole() {
        let mut state = 1u64;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % limit
        };
        for leaves in 1..120 {
            let wide = numbers(leaves);
            let narrow: Vec<f32> = wide.iter().map(|&number| number as f32).collect();
            for _ in 0..20 {
                let mut bounds: Vec<u64> = (0..below(6)).map(|_| below(leaves + 1)).chain([0, leaves]).collect();
                bounds.sort_unstable();
                check_ranges(&wide, &bounds);
                check_ranges(&narrow, &bounds);
            }
        }
    }

    #[test]
    fn nodes_have_halves_that_are_nodes() {
        for leaves in 1..70 {
            let mut open = Vec::from([Range { start: 0, end: leaves }]);
            let mut count = 0;
            while let Some(node) = open.pop() {
                assert!(is_node(&node, leaves), "{node:?} of {leaves}");
                match middle(&node) {
                    Some(middle) => open.extend([node.start..middle, middle..node.end]),
                    None => count += 1,
                }
            }
            assert_eq!(count, leaves);
        }
        assert!(!is_node(&(1..3), 8) && !is_node(&(0..3), 8) && !is_node(&(4..4), 8) && !is_node(&(6..9), 8));
    }
}
