//! The rules. Each is a function of one file's path and text, and has a test with a line that it must catch.

use std::fmt;

use crate::vocabulary;

/// Characters in a line of prose: a comment or a line of a page.
const PROSE_CHARS_MAX: usize = 120;
/// Characters in a line of code. rustfmt wraps at the limit of prose, except in macros and string literals.
const CODE_CHARS_MAX: usize = 150;
/// Lines of a Rust file.
const FILE_LINES_MAX: usize = 600;

/// Parts of pages that a program writes. Their lines may be long and use words of the program's own.
const GENERATED: &[(&str, &str)] = &[("<!-- kill matrix -->", "<!-- /kill matrix -->")];

/// First components of absolute paths that belong to one machine or one person.
const MACHINE_FOLDERS: &[&str] = &["home", "root", "Users", "work", "workspace", "builds", "mnt"];

/// Absolute paths that are data of a test: (path of the file, what stands there, why).
const ALLOWED_PATHS: &[(&str, &str, &str)] = &[
    ("tests/src/load/disk.rs", "/home/x", "an argument for the parser of /proc/mounts"),
    ("tests/tests/tidy/rules.rs", "/home/x", "this list"),
];

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) rule: &'static str,
    pub(crate) what: String,
}

impl Complaint {
    pub(crate) fn new(path: &str, line: usize, rule: &'static str, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, rule, what: what.into() }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.what)
    }
}

/// What the path itself violates.
pub(crate) fn check_path(path: &str) -> Vec<Complaint> {
    let in_code = is_rust(path) || path.ends_with(".js");
    let in_page = is_markdown(path);
    if !(in_code || in_page) {
        return Vec::new();
    }
    let module = vocabulary::dropped_module(path).map(|name| format!("`{name}` is a dropped module name"));
    let words = vocabulary::dropped_in(path, "", path).into_iter().map(|word| format!("`{word}` is a dropped word"));
    module.into_iter().chain(words).map(|what| Complaint::new(path, 1, "file name", what)).collect()
}

/// What the text of the file at `path` violates, line by line.
pub(crate) fn check_text(path: &str, text: &str) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let mut complain = |line: usize, rule: &'static str, what: String| {
        complaints.push(Complaint::new(path, line, rule, what));
    };
    let prose = is_rust(path) || is_markdown(path);
    let mut generated_until = None;
    let mut above = "";
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if line.ends_with([' ', '\t', '\r']) {
            complain(number, "trailing whitespace", format!("{:?}", line.trim_start()));
        }
        if let Some(found) = machine_path(path, line) {
            complain(number, "machine path", format!("`{found}` exists on one machine only"));
        }
        if let Some(mark) = left_over(line) {
            complain(number, "left over", format!("{mark}: do it, or describe it in an issue"));
        }
        if is_rust(path) && line.contains(concat!("#[ign", "ore]")) {
            complain(number, "ignored test", "give a reason: #[ignore = \"…\"]".to_owned());
        }
        if !prose {
            continue;
        }
        if generated_until.is_some_and(|end| line.trim() == end) {
            generated_until = None;
        }
        if generated_until.is_none() {
            let max = if is_code(path, line) { CODE_CHARS_MAX } else { PROSE_CHARS_MAX };
            if is_longer(line, max) {
                complain(number, "line length", format!("{} characters, at most {max}", line.chars().count()));
            }
            for word in vocabulary::dropped_in(path, above, line) {
                complain(number, "vocabulary", format!("`{word}` is a dropped word"));
            }
            generated_until = GENERATED.iter().find(|(begin, _)| line.trim() == *begin).map(|(_, end)| *end);
        }
        above = line;
    }
    if let Some(end) = generated_until {
        complain(text.lines().count(), "generated part", format!("`{end}` is missing"));
    }
    if is_rust(path) {
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            complain(lines, "file length", format!("{lines} lines, at most {FILE_LINES_MAX}: split it"));
        }
        if is_in_src(path) && !has_module_docs(text) {
            complain(1, "module docs", "open the module with a `//!` paragraph".to_owned());
        }
    }
    complaints
}

fn is_rust(path: &str) -> bool {
    path.ends_with(".rs")
}

fn is_markdown(path: &str) -> bool {
    path.ends_with(".md")
}

fn is_in_src(path: &str) -> bool {
    path.split('/').any(|part| part == "src")
}

fn is_code(path: &str, line: &str) -> bool {
    is_rust(path) && !line.trim_start().starts_with("//")
}

/// A line may be longer only for the sake of a URL, or as a row of a table: neither can be broken.
fn is_longer(line: &str, max: usize) -> bool {
    let chars = line.chars().count();
    let urls = line.split_whitespace().filter(|part| part.contains("://")).map(|url| url.chars().count());
    let is_row = line.trim_start_matches(['/', '!', ' ']).starts_with('|') && line.ends_with('|');
    !is_row && chars > max && chars - urls.max().unwrap_or(0) + "://".len() > max
}

/// Only inner attributes may precede the documentation of a module.
fn has_module_docs(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("#!["));
    lines.next().is_some_and(|line| line.starts_with("//!"))
}

/// Marks of unfinished work.
fn left_over(line: &str) -> Option<&'static str> {
    const MARKS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    let mut parts = line.split(|c: char| !c.is_alphanumeric());
    parts.find_map(|part| MARKS.into_iter().find(|mark| *mark == part))
}

/// An absolute path that means something on one machine only.
fn machine_path<'a>(path: &str, line: &'a str) -> Option<&'a str> {
    let is_end = |c: char| c.is_whitespace() || "\"'`)]},;|<>".contains(c);
    line.match_indices('/').find_map(|(at, _)| {
        let before = line[..at].chars().next_back();
        // Within a longer path or a URL this is not the first component.
        if before.is_some_and(|c| c.is_alphanumeric() || "/.~_-}$*".contains(c)) {
            return None;
        }
        let found = line[at..].split(is_end).next().unwrap_or_default();
        let (first, _) = found[1..].split_once('/')?;
        let allowed = ALLOWED_PATHS.iter().any(|(file, data, _)| *file == path && *data == found);
        (MACHINE_FOLDERS.contains(&first) && !allowed).then_some(found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        check_text(path, text).into_iter().map(|found| (found.line, found.rule)).collect()
    }

    #[test]
    fn plain_source_and_page_pass() {
        assert_eq!(rules("core/src/log/frame.rs", "//! Frames.\n\n/// One frame.\npub struct Frame;\n"), []);
        assert_eq!(rules("docs/wal.md", "# The log\n\nA segment holds frames.\n"), []);
        assert_eq!(check_path("core/src/log/frame.rs"), []);
    }

    #[test]
    fn long_line_is_found_in_rust_and_markdown_and_counted_in_characters() {
        let long = "x".repeat(121);
        let wide = "é".repeat(120);
        assert_eq!(rules("docs/a.md", &format!("a\n{long}\n")), [(2, "line length")]);
        assert_eq!(rules("sim/tests/a.rs", &format!("    {long}\n")), []);
        assert_eq!(rules("sim/tests/a.rs", &"x".repeat(151)), [(1, "line length")]);
        assert_eq!(rules("sim/tests/a.rs", &format!("// {long}\n")), [(1, "line length")]);
        assert_eq!(rules("docs/a.md", &wide), []);
        assert_eq!(rules("docs/a.toml", &long), []);
    }

    #[test]
    fn long_line_passes_for_the_sake_of_a_url_alone() {
        let url = format!("https://example.org/{}", "p".repeat(120));
        assert_eq!(rules("docs/a.md", &format!("See [there]({url}).\n")), []);
        assert_eq!(rules("docs/a.md", &format!("{} {url}\n", "x".repeat(130))), [(1, "line length")]);
    }

    #[test]
    fn row_of_a_table_may_be_long_and_text_with_a_bar_may_not() {
        let long = "x".repeat(121);
        assert_eq!(rules("docs/a.md", &format!("| {long} |\n")), []);
        assert_eq!(rules("core/src/a.rs", &format!("//! A.\n//! | {long} |\n")), []);
        assert_eq!(rules("docs/a.md", &format!("{long} | a\n")), [(1, "line length")]);
        assert_eq!(rules("docs/a.md", &format!("| {long}\n")), [(1, "line length")]);
    }

    #[test]
    fn generated_part_may_be_long_and_what_follows_may_not() {
        let long = "x".repeat(121);
        let page = format!("<!-- kill matrix -->\n{long} nobody\n<!-- /kill matrix -->\n{long}\n");
        assert_eq!(rules("docs/a.md", &page), [(4, "line length")]);
        assert_eq!(rules("docs/a.md", "<!-- kill matrix -->\n"), [(1, "generated part")]);
    }

    #[test]
    fn long_file_is_found() {
        assert_eq!(rules("core/tests/a.rs", &"fn f() {}\n".repeat(601)), [(601, "file length")]);
        assert_eq!(rules("core/tests/a.rs", &"fn f() {}\n".repeat(600)), []);
    }

    #[test]
    fn module_without_docs_is_found_below_src_only() {
        assert_eq!(rules("core/src/a.rs", "/// A.\npub struct A;\n"), [(1, "module docs")]);
        assert_eq!(rules("core/src/a.rs", ""), [(1, "module docs")]);
        assert_eq!(rules("core/src/a.rs", "#![forbid(unsafe_code)]\n\n//! A.\n"), []);
        assert_eq!(rules("core/tests/a.rs", "fn a() {}\n"), []);
    }

    #[test]
    fn trailing_whitespace_is_found_in_every_text_file() {
        for path in ["core/src/a.rs", "docs/a.md", "Cargo.toml", ".ci/run"] {
            assert_eq!(rules(path, "//! A.\nlet a = 1; \nlet b = 2;\t\n"), [2, 3].map(|n| (n, "trailing whitespace")));
        }
    }

    #[test]
    fn ignored_test_without_reason_is_found() {
        let bare = concat!("#[test]\n#[ign", "ore]\nfn a() {}\n");
        assert_eq!(rules("core/tests/a.rs", bare), [(2, "ignored test")]);
        assert_eq!(rules("core/tests/a.rs", "#[test]\n#[ignore = \"minutes\"]\nfn a() {}\n"), []);
    }

    #[test]
    fn unfinished_work_is_found() {
        let comment = format!("// {}: later\n", concat!("TO", "DO"));
        assert_eq!(rules("core/tests/a.rs", &comment), [(1, "left over")]);
        assert_eq!(rules("docs/a.md", &format!("({})\n", concat!("FIX", "ME"))), [(1, "left over")]);
        assert_eq!(rules("docs/a.md", "A todo list, and XXXII.\n"), []);
    }

    #[test]
    fn machine_path_is_found_and_system_path_and_url_are_not() {
        let home = format!("/{}/me/driftq", "home");
        assert_eq!(rules("docs/a.md", &format!("cd {home}\n")), [(1, "machine path")]);
        assert_eq!(rules("core/tests/a.rs", &format!("let a = \"{home}\";\n")), [(1, "machine path")]);
        let fine = "`/var/lib/private/driftqd`, `/tmp/seed-34`, https://example.org/home/a, core/work/a, ~/home/a\n";
        assert_eq!(rules("docs/a.md", fine), []);
    }

    #[test]
    fn dropped_word_is_found_in_comment_identifier_and_page() {
        assert_eq!(rules("core/tests/a.rs", "// Nobody waits.\n"), [(1, "vocabulary")]);
        assert_eq!(
            rules("core/tests/a.rs", "struct LogKeeper;\nlet chore_count = 1;\n"),
            [1, 2].map(|n| (n, "vocabulary"))
        );
        assert_eq!(rules("docs/a.md", "The life of a message.\n"), [(1, "vocabulary")]);
        assert_eq!(rules("core/tests/a.rs", "fn f<'a>(x: &'a str) {} // its lifetime, a bookkeeper\n"), []);
    }

    #[test]
    fn dropped_word_and_module_are_found_in_a_path() {
        let found = |path: &str| check_path(path).len();
        assert_eq!(found("sim/src/life.rs"), 2);
        assert_eq!(found("server/src/driver/apart.rs"), 1);
        assert_eq!(found("core/src/pipeline/keeper.rs"), 2);
        assert_eq!(found("sim/tests/histories/half-a-life.jsonl"), 0);
    }

    #[test]
    fn complaint_names_file_and_line() {
        let complaint = Complaint::new("docs/a.md", 7, "vocabulary", "`x` is a dropped word");
        assert_eq!(complaint.to_string(), "docs/a.md:7: vocabulary: `x` is a dropped word");
    }
}
