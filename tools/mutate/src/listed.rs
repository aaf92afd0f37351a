//! The mutants that `cargo mutants --list --json` names. They are planted beside those of this tool's own kinds, so
//! that each of them is run: by an equal mutant, by one of its own, or not with a switch at all.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use proc_macro2::Span;
use serde_json::Value;

/// The mutant with the number `FROM + n` is the n-th of the list.
const FROM: u32 = 10_000;

/// What a listed mutant changes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Result,
    Operator,
    Unary,
    Arm,
    Guard,
    Field,
}

/// One of the list.
struct Entry {
    id: u32,
    kind: Kind,
    replacement: String,
    name: String,
}

/// The list, by place.
#[derive(Default)]
pub(crate) struct Listed {
    by_place: BTreeMap<(String, usize, usize), Vec<Entry>>,
    /// Which mutant is the one of the list with this number: an equal one, or its own.
    planted_as: BTreeMap<u32, u32>,
}

impl Listed {
    /// Reads what `cargo mutants --list --json` printed.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let json = fs::read_to_string(path).map_err(|e| format!("{path:?}: {e}"))?;
        let list: Vec<Value> = serde_json::from_str(&json).map_err(|e| format!("{path:?}: {e}"))?;
        let mut listed = Self::default();
        for (id, of) in (FROM + 1..).zip(&list) {
            let kind = match of["genre"].as_str() {
                Some("FnValue") => Kind::Result,
                Some("BinaryOperator") => Kind::Operator,
                Some("UnaryOperator") => Kind::Unary,
                Some("MatchArm") => Kind::Arm,
                Some("MatchArmGuard") => Kind::Guard,
                Some("StructField") => Kind::Field,
                genre => return Err(format!("a kind that is not known: {genre:?}")),
            };
            let text = |field: &str| of[field].as_str().unwrap_or_default().to_owned();
            let number = |field: &str| of["span"]["start"][field].as_u64().unwrap_or_default() as usize;
            let entry = Entry { id, kind, replacement: text("replacement"), name: text("name") };
            listed.by_place.entry((text("file"), number("line"), number("column"))).or_default().push(entry);
        }
        Ok(listed)
    }

    /// The mutants of one kind at a place: columns count from 1 in the list, from 0 in a span.
    pub(crate) fn at(&self, file: &str, at: Span, kind: Kind) -> Vec<(u32, String)> {
        let at = at.start();
        let found = self.by_place.get(&(file.to_owned(), at.line, at.column + 1));
        let of_kind = found.into_iter().flatten().filter(|entry| entry.kind == kind);
        of_kind.map(|entry| (entry.id, entry.replacement.clone())).collect()
    }

    /// Before planting anew.
    pub(crate) fn forget_planted(&mut self) {
        self.planted_as.clear();
    }

    /// The mutant `id` is the one that is listed with the number `listed`.
    pub(crate) fn planted(&mut self, listed: u32, id: u32) {
        self.planted_as.insert(listed, id);
    }

    /// Which mutant is which of the list, and which of them have none.
    pub(crate) fn report(&self, left_out: &BTreeSet<u32>) -> String {
        let mut all: Vec<&Entry> = self.by_place.values().flatten().collect();
        all.sort_by_key(|entry| entry.id);
        let mut text = String::new();
        for Entry { id, name, .. } in all {
            let planted_as = match self.planted_as.get(id) {
                Some(as_id) if left_out.contains(as_id) => "does not compile".to_owned(),
                Some(as_id) => as_id.to_string(),
                None => "no switch".to_owned(),
            };
            let _ = writeln!(text, "{planted_as}\t{name}");
        }
        text
    }
}
