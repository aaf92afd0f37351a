//! The file that callgrind writes: costs of functions by source file, and calls.
//!
//! Documented in Valgrind's manual, "Callgrind Format Specification". What is not needed here is skipped: addresses,
//! lines, jumps and summaries.

use std::collections::{BTreeMap, HashMap};

use crate::load::error::Result;

/// The number of a function.
pub(super) type FunctionId = usize;

/// A function and its own costs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Function {
    /// Its name as callgrind prints it.
    pub(super) name: String,
    /// Its own cost by source file: code of other files that was compiled into it is separate.
    pub(super) own: BTreeMap<String, u64>,
}

/// What was counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// All functions.
    pub(super) functions: Vec<Function>,
    /// The cost of calls, what the called functions call included, by caller and callee.
    pub(super) calls: BTreeMap<(FunctionId, FunctionId), u64>,
}

impl Counts {
    /// The own costs of all functions.
    pub(super) fn total(&self) -> u64 {
        self.functions.iter().flat_map(|function| function.own.values()).sum()
    }
}

/// Parses a file of one event.
pub(super) fn parse(text: &str) -> Result<Counts> {
    let mut parser = Parser::default();
    for (line, number) in text.lines().zip(1u32..) {
        parser.line(line.trim_end()).map_err(|error| format!("callgrind's file, line {number}: {error}: {line}"))?;
    }
    Ok(parser.counts)
}

/// Names are written once and then referred to by a number: `(7) name`, `(7)`.
#[derive(Debug, Default)]
struct Names(HashMap<u32, String>);

impl Names {
    fn resolve(&mut self, text: &str) -> std::result::Result<String, String> {
        let Some((number, rest)) = text.strip_prefix('(').and_then(|inner| inner.split_once(')')) else {
            return Ok(text.to_owned());
        };
        let number = number.parse().map_err(|_| "not the number of a name")?;
        match rest.trim_start() {
            "" => self.0.get(&number).cloned().ok_or_else(|| "a name that was not written before".to_owned()),
            name => {
                self.0.insert(number, name.to_owned());
                Ok(name.to_owned())
            }
        }
    }
}

#[derive(Debug, Default)]
struct Parser {
    files: Names,
    names: Names,
    ids: HashMap<String, FunctionId>,
    counts: Counts,
    /// Columns of a cost line in front of the cost.
    positions: Option<usize>,
    file: String,
    function: Option<FunctionId>,
    callee: Option<FunctionId>,
    /// The next cost line is that of a call.
    is_call: bool,
}

impl Parser {
    fn line(&mut self, line: &str) -> std::result::Result<(), String> {
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        if line.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '*')) {
            return self.cost(line);
        }
        if let Some((key, value)) = line.split_once('=') {
            return self.specification(key, value.trim());
        }
        match line.split_once(':') {
            Some(("positions", columns)) => self.positions = Some(columns.split_whitespace().count()),
            Some(("events", events)) if events.split_whitespace().count() != 1 => {
                return Err("more than one event".to_owned());
            }
            Some(_) => {}
            None => return Err("neither a cost, a specification nor a header".to_owned()),
        }
        Ok(())
    }

    fn specification(&mut self, key: &str, value: &str) -> std::result::Result<(), String> {
        match key {
            // A function's file, and the files of what was compiled into it.
            "fl" | "fi" | "fe" => self.file = self.files.resolve(value)?,
            "fn" => self.function = Some(self.function_named(value)?),
            "cfi" | "cfl" => _ = self.files.resolve(value)?,
            "cfn" => self.callee = Some(self.function_named(value)?),
            "calls" => self.is_call = true,
            // Objects, jumps, and headers that contain a sign of equality.
            _ => {}
        }
        Ok(())
    }

    fn function_named(&mut self, value: &str) -> std::result::Result<FunctionId, String> {
        let name = self.names.resolve(value)?;
        let functions = &mut self.counts.functions;
        Ok(*self.ids.entry(name).or_insert_with_key(|name| {
            functions.push(Function { name: name.clone(), own: BTreeMap::new() });
            functions.len() - 1
        }))
    }

    fn cost(&mut self, line: &str) -> std::result::Result<(), String> {
        let positions = self.positions.unwrap_or(1);
        // A cost that is left out is 0.
        let cost = line.split_whitespace().nth(positions).unwrap_or("0");
        let cost: u64 = cost.parse().map_err(|_| "not a cost")?;
        let function = self.function.ok_or("a cost without a function")?;
        if std::mem::take(&mut self.is_call) {
            let callee = self.callee.ok_or("a call without a function")?;
            *self.counts.calls.entry((function, callee)).or_default() += cost;
        } else {
            *self.counts.functions[function].own.entry(self.file.clone()).or_default() += cost;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "# callgrind format\nversion: 1\ncreator: callgrind\ncmd:  driftqd --a=b\npart: 1\n\
        desc: Trigger: Program termination\n\npositions: line\nevents: Ir\nsummary: 0\n\n";

    fn counts(body: &str) -> Counts {
        parse(&format!("{HEADER}{body}")).expect("it is well formed")
    }

    fn own(counts: &Counts, name: &str) -> Vec<(String, u64)> {
        let function = counts.functions.iter().find(|function| function.name == name).expect("a function");
        function.own.iter().map(|(file, cost)| (file.clone(), *cost)).collect()
    }

    #[test]
    fn own_costs_are_divided_by_the_file_they_were_compiled_from() {
        let counts = counts(
            "ob=(1) /x/driftqd\nfl=(1) a.rs\nfn=(1) a::run\n10 5\n+1 6\nfi=(2) b.rs\n* 7\nfe=(1)\n-2 8\n\n\
             fn=(2) a::other\n3 1\n",
        );
        assert_eq!(own(&counts, "a::run"), [("a.rs".to_owned(), 19), ("b.rs".to_owned(), 7)]);
        assert_eq!(own(&counts, "a::other"), [("a.rs".to_owned(), 1)]);
        assert_eq!(counts.total(), 27);
        assert!(counts.calls.is_empty());
    }

    #[test]
    fn calls_are_no_own_costs() {
        let counts = counts(
            "fl=(1) a.rs\nfn=(1) a::run\n1 5\ncob=(2) /x/libc\ncfi=(3) c.c\ncfn=(2) c\ncalls=3 +4\n+1 300\n\
             cfn=(2)\ncalls=1 2\n2 40\n9 2\n\nfl=(3)\nfn=(2)\n4 340\n",
        );
        assert_eq!(own(&counts, "a::run"), [("a.rs".to_owned(), 7)]);
        assert_eq!(own(&counts, "c"), [("c.c".to_owned(), 340)]);
        assert_eq!(counts.calls, BTreeMap::from([((0, 1), 340)]));
    }

    #[test]
    fn parts_of_one_file_add_up() {
        let part = "positions: line\nevents: Ir\nfl=(1) a.rs\nfn=(1) a\n1 5\ntotals: 5\n";
        assert_eq!(counts(&part.repeat(2)).total(), 10);
    }

    #[test]
    fn malformed_lines_are_named_by_their_number() {
        for (text, why) in [
            ("fn=(1)\n", "line 1: a name that was not written before"),
            ("1 5\n", "line 1: a cost without a function"),
            ("fn=(1) a\n1 x\n", "line 2: not a cost"),
            ("fn=(1) a\ncalls=1 1\n1 5\n", "line 3: a call without a function"),
            ("events: Ir Dr\n", "line 1: more than one event"),
            ("nonsense\n", "line 1: neither"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
