//! Escaping text for terminals and pages: names come from files, which must not be able to control a terminal or a browser.

use std::borrow::Cow;

/// Escapes control characters as in JSON (`\u001b`), except for line ends and tabs. Text stays text, and JSON, which has control
/// characters only in strings, keeps its meaning.
pub fn escaped(text: &str) -> Cow<'_, str> {
    let is_dangerous = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(is_dangerous) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_dangerous(c) {
            true => safe.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

/// Escapes text for HTML and removes control characters except for line ends.
pub fn html(text: &str) -> String {
    let plain = |letter: char| if letter.is_control() && letter != '\n' { ' ' } else { letter };
    let text: String = text.chars().map(plain).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_are_told_nothing() {
        assert_eq!(escaped("\u{1b}[31mred\u{7f}\r\u{9b}2J"), "\\u001b[31mred\\u007f\\u000d\\u009b2J");
        assert_eq!(escaped("a\tb\nä 漢"), "a\tb\nä 漢");
        let value = serde_json::json!({ "name": "\u{9b}\u{7f}\u{1b}\\" });
        let text = escaped(&value.to_string()).into_owned();
        assert!(!text.contains(char::is_control), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
