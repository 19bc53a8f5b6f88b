//! Topological order of nodes.

use std::collections::BTreeSet;

/// Returns an order in which every node comes after the nodes that it depends on. Among the nodes that can come next, the one with the
/// lowest index comes first, so nodes already in order stay as they are. `producers` lists each node's dependences.
///
/// # Errors
/// If there is a cycle, returns the lowest node that is on a cycle or depends on one.
pub(super) fn topological(producers: &[Vec<usize>]) -> Result<Vec<usize>, usize> {
    let mut consumers: Vec<Vec<usize>> = vec![Vec::new(); producers.len()];
    let mut missing: Vec<usize> = producers.iter().map(Vec::len).collect();
    for (node, producers) in producers.iter().enumerate() {
        for &producer in producers {
            consumers[producer].push(node);
        }
    }
    let mut ready: BTreeSet<usize> = (0..producers.len()).filter(|&node| missing[node] == 0).collect();
    let mut order = Vec::with_capacity(producers.len());
    while let Some(node) = ready.pop_first() {
        order.push(node);
        for &consumer in &consumers[node] {
            missing[consumer] -= 1;
            if missing[consumer] == 0 {
                ready.insert(consumer);
            }
        }
    }
    match missing.iter().position(|&count| count > 0) {
        Some(node) => Err(node),
        None => Ok(order),
    }
}

#[cfg(test)]
mod tests {
    use super::topological;

    #[test]
    fn nodes_in_order_stay_and_others_move_as_little_as_they_can() {
        assert_eq!(topological(&[vec![], vec![0], vec![0], vec![1, 2]]), Ok(vec![0, 1, 2, 3]));
        assert_eq!(topological(&[vec![3], vec![], vec![0, 0], vec![1]]), Ok(vec![1, 3, 0, 2]));
    }

    #[test]
    fn cycles_are_found() {
        assert_eq!(topological(&[vec![], vec![2], vec![1]]), Err(1));
        assert_eq!(topological(&[vec![0]]), Err(0));
    }
}
