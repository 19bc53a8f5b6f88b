//! Finds the layers of a model to which moved bytes belong: names with a common prefix, grouped so that they fill a table with a given
//! number of rows.

use std::collections::BTreeMap;

/// The separators between the parts of a name.
const SEPARATORS: [char; 2] = ['/', '.'];

/// Groups names, and returns for each name the prefix that is its layer. Groups are split, those with the largest weight first, as long
/// as there are no more than `most` of them.
pub(crate) fn layers<'a>(weights: &BTreeMap<&'a str, u64>, most: usize) -> BTreeMap<&'a str, &'a str> {
    let mut groups: BTreeMap<&str, Vec<&'a str>> = BTreeMap::new();
    for &name in weights.keys() {
        groups.entry(prefix(name, 0)).or_default().push(name);
    }
    loop {
        let weight = |names: &[&str]| names.iter().map(|name| weights[name]).sum::<u64>();
        let mut by_weight: Vec<(u64, &str)> = groups.iter().map(|(layer, names)| (weight(names), *layer)).collect();
        by_weight.sort_unstable_by(|a, b| b.cmp(a));
        let split = by_weight.into_iter().find_map(|(_, layer)| {
            let mut parts: BTreeMap<&str, Vec<&'a str>> = BTreeMap::new();
            for name in &groups[layer] {
                parts.entry(prefix(name, layer.len())).or_default().push(name);
            }
            let is_split = parts.len() > 1 || parts.keys().any(|part| *part != layer);
            (is_split && groups.len() - 1 + parts.len() <= most).then_some((layer, parts))
        });
        let Some((layer, parts)) = split else { break };
        groups.remove(layer);
        groups.extend(parts);
    }
    let named = |(layer, names): (&'a str, Vec<&'a str>)| names.into_iter().map(move |name| (name, layer));
    groups.into_iter().flat_map(named).collect()
}

/// Returns the name up to the separator that follows the part after its first `length` bytes, or the whole name if there is no such
/// separator.
fn prefix(name: &str, length: usize) -> &str {
    let rest = &name[length..];
    let start = rest.len() - rest.trim_start_matches(SEPARATORS).len();
    match rest[start..].find(SEPARATORS) {
        Some(end) => &name[..length + start + end],
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(names: &[(&'a str, u64)], most: usize) -> Vec<&'a str> {
        let weights = names.iter().copied().collect();
        let mut layers: Vec<&str> = layers(&weights, most).into_values().collect();
        layers.dedup();
        layers
    }

    #[test]
    fn groups_are_split_while_there_is_room() {
        let names = [("/enc1/enc1.0/Conv_output_0", 8), ("/enc1/enc1.1/Relu", 8), ("/enc2/Conv", 4), ("x", 1)];
        assert_eq!(of(&names, 3), ["/enc1/enc1", "/enc2/Conv", "x"]);
        assert_eq!(of(&names, 4), ["/enc1/enc1.0/Conv_output_0", "/enc1/enc1.1/Relu", "/enc2/Conv", "x"]);
    }

    #[test]
    fn more_names_than_rows_are_left_as_they_are() {
        assert_eq!(of(&[("a", 1), ("b", 1), ("c", 1)], 2), ["a", "b", "c"]);
        assert_eq!(of(&[("h.0.w", 1), ("h.1.w", 1), ("h.2.w", 1)], 2), ["h"]);
        assert_eq!(of(&[("", 1), ("///", 1), ("..a..", 2)], 9), ["", "..a..", "///"]);
    }
}
