//! The parts of Markdown that the checks of documents need: prose without code, links, headings, code spans.

/// A line of a page outside fenced code blocks.
pub struct Line<'a> {
    /// Its number, from 1.
    pub number: usize,
    /// Its text.
    pub text: &'a str,
}

/// Returns the lines outside fenced code blocks.
pub fn prose(text: &str) -> Vec<Line<'_>> {
    let mut fence: Option<&str> = None;
    let mut lines = Vec::new();
    for (index, text) in text.lines().enumerate() {
        let opening = ["```", "~~~"].into_iter().find(|mark| text.trim_start().starts_with(mark));
        match (fence, opening) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (Some(_), _) => {}
            (None, None) => lines.push(Line { number: index + 1, text }),
        }
    }
    lines
}

/// Returns the code spans of a line, without their backticks.
pub fn code_spans(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

/// Returns the line without its code spans.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// Returns the targets of a line's links: `[text](target)`, `![text](target)` and `[name]: target`, without titles.
pub fn links(line: &str) -> Vec<String> {
    let line = without_code(line);
    let mut targets = Vec::new();
    let mut rest = line.as_str();
    while let Some(start) = rest.find("](") {
        rest = &rest[start + 2..];
        let Some(end) = closing(rest) else { break };
        targets.extend(first_word(&rest[..end]));
        rest = &rest[end..];
    }
    if let Some((name, target)) = line.strip_prefix('[').and_then(|line| line.split_once("]: "))
        && !name.contains(']')
    {
        targets.extend(first_word(target));
    }
    targets
}

/// Finds where the parenthesis that is open at the start closes.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (position, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' if depth == 0 => return Some(position),
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Returns the first word, which a title may follow, without angle brackets around it.
fn first_word(text: &str) -> Option<String> {
    let word = text.split_whitespace().next()?;
    Some(word.trim_start_matches('<').trim_end_matches('>').to_owned())
}

/// Returns the anchors of a page's headings, as GitHub and mdBook generate them.
pub fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for line in prose(text) {
        let level = line.text.bytes().take_while(|&byte| byte == b'#').count();
        let Some(heading) = line.text.get(level..).and_then(|rest| rest.strip_prefix(' ')) else { continue };
        if !(1..=6).contains(&level) {
            continue;
        }
        let base = slug(heading);
        let twins = anchors.iter().filter(|known| is_twin(known, &base)).count();
        anchors.push(if twins == 0 { base } else { format!("{base}-{twins}") });
    }
    anchors
}

/// Returns whether an anchor belongs to an earlier heading with the same words.
fn is_twin(anchor: &str, base: &str) -> bool {
    let rest = anchor.strip_prefix(base);
    rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('-').is_some_and(|n| n.parse::<u32>().is_ok()))
}

/// Converts letters to lower case, keeps digits, `_` and `-`, replaces spaces by `-` and drops the rest. Of a link, only the text counts.
fn slug(heading: &str) -> String {
    let mut shown = heading.trim().to_owned();
    while let Some(start) = shown.find("](") {
        let Some(end) = closing(&shown[start + 2..]) else { break };
        shown.replace_range(start..start + 2 + end + 1, "");
    }
    let kept = shown.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_in_prose_only() {
        let text = "[a](b.md) and ![c](d.svg \"title\")\n```\n[no](x.md)\n```\n`[no](y.md)` [e](<f.md#g>) [h](i_(j).md)\n[k]: l.md";
        let found: Vec<String> = prose(text).iter().flat_map(|line| links(line.text)).collect();
        assert_eq!(found, ["b.md", "d.svg", "f.md#g", "i_(j).md", "l.md"]);
    }

    #[test]
    fn anchors_are_those_of_github() {
        let text = "# What it is, and why\n## `--memory`: 4 modes\n```\n# no\n```\n## Same\n## Same\n## [Link](x.md) here\n#no";
        assert_eq!(anchors(text), ["what-it-is-and-why", "--memory-4-modes", "same", "same-1", "link-here"]);
    }

    #[test]
    fn code_spans_are_what_stands_between_backticks() {
        assert_eq!(code_spans("see `a/b.rs`, `c`; not d"), ["a/b.rs", "c"]);
    }
}
