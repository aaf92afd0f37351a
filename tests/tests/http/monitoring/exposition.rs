//! Reads the Prometheus text format: metrics with their types, labels and values.

use std::collections::{BTreeMap, BTreeSet};

/// What `/metrics` has.
#[derive(Debug, Default)]
pub(super) struct Exposition {
    /// The labels of each series by name, and the values that each label has.
    pub(super) series: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
    /// The type of each family.
    pub(super) kinds: BTreeMap<String, String>,
    /// The help of each family.
    pub(super) helps: BTreeMap<String, String>,
}

impl Exposition {
    pub(super) fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines() {
            match line.splitn(4, ' ').collect::<Vec<_>>()[..] {
                ["#", "TYPE", name, kind] => drop(found.kinds.insert(name.to_owned(), kind.to_owned())),
                ["#", "HELP", name, help] => drop(found.helps.insert(name.to_owned(), help.to_owned())),
                _ => found.add_series(line),
            }
        }
        found
    }

    fn add_series(&mut self, line: &str) {
        let name_end = line.find(['{', ' ']).unwrap_or_else(|| panic!("no value in {line:?}"));
        let labels = self.series.entry(line[..name_end].to_owned()).or_default();
        let mut rest = line[name_end..].strip_prefix('{').unwrap_or_default();
        while let Some((label, after)) = rest.split_once("=\"") {
            let (value, after) = quoted(after);
            labels.entry(label.to_owned()).or_default().insert(value);
            rest = after.strip_prefix(',').unwrap_or_default();
        }
    }

    /// Families that have no series, which are listed all the same.
    pub(super) fn has_no_series(&self, name: &str) -> bool {
        self.kinds.contains_key(name) && !self.series.contains_key(name)
    }

    /// What violates the conventions for names (<https://prometheus.io/docs/practices/naming/>).
    pub(super) fn unconventional(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (name, kind) in &self.kinds {
            let mut complain = |what: &str| found.push(format!("{name}: {what}"));
            if !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_') {
                complain("a name is in snake case");
            }
            if (kind == "counter") != name.ends_with("_total") {
                complain("a counter ends with _total, and nothing else does");
            }
            let units =
                ["ms", "us", "ns", "milliseconds", "microseconds", "minutes", "hours", "kb", "kib", "mb", "mib"];
            if name.split('_').any(|part| units.contains(&part)) {
                complain("units are seconds and bytes");
            }
            if ["gauge", "counter", "histogram"].iter().any(|kind| name.split('_').any(|part| part == *kind)) {
                complain("the type is no part of a name");
            }
            if self.helps.get(name).is_none_or(|help| help.trim().is_empty()) {
                complain("there is no help");
            }
        }
        let typed = |name: &str| {
            let suffixes = ["", "_bucket", "_sum", "_count"];
            suffixes.iter().any(|suffix| name.strip_suffix(suffix).is_some_and(|name| self.kinds.contains_key(name)))
        };
        found.extend(self.series.keys().filter(|name| !typed(name)).map(|name| format!("{name}: there is no type")));
        found
    }
}

/// The text up to the quotation mark that ends it, unescaped, and what follows.
fn quoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, c)| if c == 'n' { '\n' } else { c })),
            c => value.push(c),
        }
    }
    panic!("no end of {text:?}");
}

#[test]
fn series_are_read_with_their_labels() {
    let text = "# HELP a_total What.\n# TYPE a_total counter\na_total{x=\"1\",y=\"q\\\"},{\"} 2\na_total{x=\"2\",y=\"\"} 3\nb 1\n";
    let found = Exposition::parse(text);
    assert_eq!(found.series["a_total"]["x"], BTreeSet::from(["1".to_owned(), "2".to_owned()]));
    assert_eq!(found.series["a_total"]["y"], BTreeSet::from([String::new(), "q\"},{".to_owned()]));
    assert!(found.series["b"].is_empty());
    assert_eq!(found.kinds["a_total"], "counter");
}

#[test]
fn names_against_the_conventions_are_found() {
    for (text, expected) in [
        ("# HELP a_total X.\n# TYPE a_total gauge\n", 1),
        ("# HELP a X.\n# TYPE a counter\n", 1),
        ("# HELP a_ms X.\n# TYPE a_ms gauge\n", 1),
        ("# HELP aB X.\n# TYPE aB gauge\n", 1),
        ("# HELP a_gauge X.\n# TYPE a_gauge gauge\n", 1),
        ("# TYPE a gauge\n", 1),
        ("a 1\n", 1),
        ("# HELP a X.\n# TYPE a histogram\na_bucket{le=\"1\"} 1\na_sum 1\na_count 1\n", 0),
        ("# HELP a_bytes_total X.\n# TYPE a_bytes_total counter\na_bytes_total 1\n", 0),
    ] {
        let found = Exposition::parse(text).unconventional();
        assert_eq!(found.len(), expected, "{text}: {found:?}");
    }
}
