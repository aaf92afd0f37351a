//! Values as their `Debug` form shows them, and the entries of the table that they have.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::str::Chars;

use super::types::{Definition, FieldKinds, Kind, Types};

/// A parsed value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// A struct, a variant or a name, with its fields; those of tuples are numbered.
    Named(String, Vec<(String, Value)>),
    /// A list, a set or a map of pairs.
    List(Vec<Value>),
    Tuple(Vec<Value>),
    Text(String),
    Number(String),
}

/// Parses what `{:?}` prints.
pub(crate) fn parse(text: &str) -> Value {
    let mut parser = Parser { text: text.chars().peekable() };
    let value = parser.value();
    assert_eq!(parser.text.next(), None, "the value ends: {text}");
    value
}

struct Parser<'a> {
    text: Peekable<Chars<'a>>,
}

impl Parser<'_> {
    fn skip(&mut self) {
        while self.text.next_if(|it| it.is_whitespace() || *it == ',').is_some() {}
    }

    fn expect(&mut self, expected: char) -> bool {
        self.skip();
        self.text.next_if_eq(&expected).is_some()
    }

    fn name(&mut self) -> String {
        let is_part = |it: &char| it.is_alphanumeric() || matches!(it, '_' | '-' | '.');
        std::iter::from_fn(|| self.text.next_if(is_part)).collect()
    }

    fn values(&mut self, end: char) -> Vec<Value> {
        let mut values = Vec::new();
        while !self.expect(end) {
            let value = self.value();
            values.push(match self.expect(':') {
                true => Value::Tuple(vec![value, self.value()]),
                false => value,
            });
        }
        values
    }

    fn value(&mut self) -> Value {
        self.skip();
        match self.text.peek() {
            Some('"') => self.string(),
            Some('[') => {
                self.text.next();
                Value::List(self.values(']'))
            }
            Some('{') => {
                self.text.next();
                Value::List(self.values('}'))
            }
            Some('(') => {
                self.text.next();
                Value::Tuple(self.values(')'))
            }
            Some(first) if first.is_ascii_digit() || *first == '-' => Value::Number(self.name()),
            _ => {
                let name = self.name();
                assert!(!name.is_empty(), "a value begins at {:?}", self.text.clone().collect::<String>());
                let mut fields = Vec::new();
                if self.text.next_if_eq(&'(').is_some() {
                    fields.extend(self.values(')').into_iter().enumerate().map(|(nth, it)| (nth.to_string(), it)));
                } else if self.text.clone().take(2).eq(" {".chars()) {
                    self.text.nth(1);
                    while !self.expect('}') {
                        let field = self.name();
                        assert!(self.expect(':'), "a field of {name} has a value");
                        fields.push((field, self.value()));
                    }
                }
                Value::Named(name, fields)
            }
        }
    }

    fn string(&mut self) -> Value {
        self.text.next();
        let mut text = String::new();
        while let Some(next) = self.text.next().filter(|it| *it != '"') {
            text.push(next);
            if next == '\\' {
                text.extend(self.text.next());
            }
        }
        Value::Text(text)
    }
}

/// How often each entry was seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) entries: BTreeMap<String, u64>,
    /// The number of values by type and variant.
    values: BTreeMap<String, u64>,
}

impl Seen {
    fn count(&mut self, entry: String) {
        *self.entries.entry(entry).or_default() += 1;
    }

    /// Whether to look at one more value, which is shown so: all but the most frequent ones.
    pub(crate) fn wants(&mut self, name: &str, shown: &str) -> bool {
        let variant = shown.split(|it: char| !it.is_alphanumeric()).next().unwrap_or_default();
        let count = self.values.entry(format!("{name} {variant}")).or_default();
        *count += 1;
        *count < 2_000 || count.is_multiple_of(16)
    }

    /// Counts the entries of a value of the named type.
    pub(crate) fn add(&mut self, types: &Types, name: &str, value: &Value) {
        let Value::Named(shown, fields) = value else { panic!("{name} is shown as {value:?}") };
        match types.get(name) {
            Definition::Struct(kinds) => self.add_fields(types, name, kinds, fields),
            Definition::Enum(variants) => {
                let found = variants.iter().find(|(variant, _)| variant == shown);
                let (variant, kinds) = found.unwrap_or_else(|| panic!("{name} has no variant {shown}"));
                let path = format!("{name}::{variant}");
                self.count(path.clone());
                self.add_fields(types, &path, kinds, fields);
            }
        }
    }

    fn add_fields(&mut self, types: &Types, path: &str, kinds: &FieldKinds, fields: &[(String, Value)]) {
        for (field, kind) in kinds {
            let shown = fields.iter().find(|(shown, _)| shown == field);
            let (_, value) = shown.unwrap_or_else(|| panic!("{path} is shown without its field {field}"));
            self.add_kind(types, &format!("{path}.{field}"), kind, value);
        }
    }

    fn add_kind(&mut self, types: &Types, path: &str, kind: &Kind, value: &Value) {
        let mut value = value;
        let mut resolved = kind.clone();
        // What a struct of one unnamed field holds is shown within it.
        while let Kind::Named(name) = &resolved {
            match (types.get(name), value) {
                (Definition::Struct(kinds), Value::Named(_, fields)) if kinds.len() == 1 && kinds[0].0 == "0" => {
                    (resolved, value) = (kinds[0].1.clone(), &fields[0].1);
                }
                _ => break,
            }
        }
        match (&resolved, value) {
            (Kind::Option(inner), Value::Named(shown, fields)) => match (shown.as_str(), fields.first()) {
                ("Some", Some((_, value))) => {
                    self.count(format!("{path} set"));
                    self.add_kind(types, path, inner, value);
                }
                _ => self.count(format!("{path} unset")),
            },
            (Kind::Bytes, Value::List(values)) => {
                self.count(format!("{path} {}", if values.is_empty() { "no bytes" } else { "bytes" }));
            }
            (Kind::List(inner), Value::List(values)) => {
                let len = ["empty", "one", "several"][values.len().min(2)];
                self.count(format!("{path} {len}"));
                values.iter().for_each(|value| self.add_kind(types, &format!("{path}[]"), inner, value));
            }
            (Kind::Bool, Value::Named(shown, _)) => self.count(format!("{path} {shown}")),
            (Kind::Number, Value::Number(shown)) => {
                self.count(format!("{path} {}", if shown == "0" { "zero" } else { "nonzero" }));
            }
            (Kind::Text, Value::Text(shown)) => {
                self.count(format!("{path} {}", if shown.is_empty() { "no text" } else { "text" }));
            }
            (Kind::Tuple(kinds), Value::Tuple(values)) => {
                for (nth, (kind, value)) in kinds.iter().zip(values).enumerate() {
                    self.add_kind(types, &format!("{path}.{nth}"), kind, value);
                }
            }
            (Kind::Named(name), value) => self.add(types, name, value),
            (Kind::Opaque, _) => {}
            (kind, value) => panic!("{path}, a {kind:?}, is shown as {value:?}"),
        }
    }
}
