//! A priority queue: the most urgent item first.

use std::collections::{BTreeMap, VecDeque};

/// Items waiting to be taken: the lowest priority number first, and items of equal priority in the order in which they were added.
pub(super) struct Urgency<T> {
    /// Empty lists are kept: there are few priorities, and they are used again.
    levels: BTreeMap<i32, VecDeque<T>>,
}

impl<T> Default for Urgency<T> {
    fn default() -> Self {
        Urgency { levels: BTreeMap::new() }
    }
}

impl<T> Urgency<T> {
    /// Adds an item behind those of the same priority.
    pub fn push(&mut self, priority: i32, item: T) {
        self.levels.entry(priority).or_default().push_back(item);
    }

    /// Adds an item before those of the same priority.
    pub fn push_first(&mut self, priority: i32, item: T) {
        self.levels.entry(priority).or_default().push_front(item);
    }

    /// Returns the priority of the most urgent item.
    pub fn first(&self) -> Option<i32> {
        self.levels.iter().find(|(_, level)| !level.is_empty()).map(|(&priority, _)| priority)
    }

    /// Returns the number of waiting items.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.levels.values().map(VecDeque::len).sum()
    }

    /// Takes the most urgent item.
    pub fn pop(&mut self) -> Option<T> {
        self.levels.values_mut().find_map(VecDeque::pop_front)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_number_goes_first_and_equals_in_order() {
        let mut urgency = Urgency::default();
        for (priority, item) in [(0, 'c'), (5, 'f'), (-1, 'a'), (0, 'd'), (-1, 'b'), (i32::MAX, 'g')] {
            urgency.push(priority, item);
        }
        urgency.push_first(5, 'e');
        assert_eq!(urgency.first(), Some(-1));
        let order: String = std::iter::from_fn(|| urgency.pop()).collect();
        assert_eq!(order, "abcdefg");
        urgency.push(3, 'z');
        assert_eq!((urgency.first(), urgency.pop()), (Some(3), Some('z')));
        assert_eq!((urgency.first(), urgency.pop()), (None, None));
    }
}
