//! Text of others on a terminal: control characters shown, widths measured, long text cut.

use ratatui::text::Span;

/// The text with every control character escaped, so that no payload can control the terminal.
pub(crate) fn visible(text: &str) -> String {
    if !text.contains(char::is_control) {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Columns of a terminal that the text needs.
pub(crate) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// The text, or its start and an ellipsis where it needs more than `max` columns.
pub(crate) fn cut(text: &str, max: usize) -> String {
    if width(text) <= max {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut used = 0;
    for character in text.chars() {
        let needed = width(character.encode_utf8(&mut [0; 4]));
        if used + needed >= max {
            break;
        }
        kept.push(character);
        used += needed;
    }
    kept.push('…');
    kept
}

/// The text in lines of at most `max` columns, broken at spaces. A longer part has a line of its own.
pub(crate) fn wrapped(text: &str, max: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in text.split(' ') {
        match lines.last_mut() {
            Some(line) if width(line) + 1 + width(part) <= max => {
                line.push(' ');
                line.push_str(part);
            }
            _ => lines.push(part.to_owned()),
        }
    }
    lines
}

/// A payload on a terminal.
pub(crate) fn payload(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => visible(text),
        Err(_) => format!("({} bytes, not text)", bytes.len()),
    }
}

/// The noun with its count, such as `1 message` and `2 messages`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", crate::units::count(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(visible("a\u{1b}[31mb\n"), "a\\u{1b}[31mb\\n");
        assert_eq!(visible("plain é"), "plain é");
        assert_eq!(payload(b"\xff\xfe"), "(2 bytes, not text)");
    }

    #[test]
    fn long_text_is_cut_by_columns() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdefg", 6), "abcde…");
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(wrapped("a bc def ghijkl m", 6), ["a bc", "def", "ghijkl", "m"]);
    }
}
