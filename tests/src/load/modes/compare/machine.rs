//! What is said about the machine, and text as it stands on a page.

use std::fs;
use std::thread::available_parallelism;

/// Characters of a line on a page.
const LINE_CHARS_MAX: usize = 120;

/// The processors and the kernel of this machine.
pub(crate) fn describe() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_else(|_| "of unknown version".to_owned());
    let count = available_parallelism().map_or_else(|_| "unknown".to_owned(), |count| count.to_string());
    format!("{count} × {}, Linux {}, servers and `load` sharing them", model_in(&cpuinfo), kernel.trim())
}

fn model_in(cpuinfo: &str) -> &str {
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or("processor of unknown model", |(_, model)| model.trim())
}

/// A paragraph in lines that are short enough.
pub(crate) fn wrapped(text: &str) -> String {
    wrapped_with(text, "", "")
}

/// An item of a list, in lines that are short enough.
pub(crate) fn bullet(text: &str) -> String {
    wrapped_with(text, "* ", "  ")
}

fn wrapped_with(text: &str, first_indent: &str, indent: &str) -> String {
    let (mut lines, mut line) = (String::new(), first_indent.to_owned());
    let mut is_empty = true;
    for part in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + part.chars().count() > LINE_CHARS_MAX {
            lines.push_str(&line);
            lines.push('\n');
            line = indent.to_owned();
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(part);
        is_empty = false;
    }
    lines + &line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_is_that_of_the_first_processor() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A @ 2 GHz\n\nprocessor\t: 1\nmodel name\t: B\n";
        assert_eq!(model_in(cpuinfo), "A @ 2 GHz");
        assert_eq!(model_in("Hardware: C\n"), "processor of unknown model");
        assert!(describe().contains("Linux "), "{}", describe());
    }

    #[test]
    fn text_is_broken_between_parts_and_indented() {
        let text = "ab ".repeat(60);
        let item = bullet(&text);
        assert!(item.starts_with("* ab ab") && item.contains("\n  ab"), "{item}");
        assert!(item.lines().all(|line| line.chars().count() <= LINE_CHARS_MAX && !line.ends_with(' ')));
        assert_eq!(item.split_whitespace().filter(|part| *part == "ab").count(), 60);
        let long = "x".repeat(200);
        assert_eq!(wrapped(&long), long);
    }
}
