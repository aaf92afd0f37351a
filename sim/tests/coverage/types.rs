//! The types of commands and records, parsed from the sources of the core.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use syn::{Fields, GenericArgument, Item, PathArguments, Type};

/// What a value of a field can be, as far as the table distinguishes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Option(Box<Kind>),
    Bool,
    Number,
    Text,
    Bytes,
    List(Box<Kind>),
    Tuple(Vec<Kind>),
    /// A struct or enum of the core.
    Named(String),
    /// An id, a name, a time: what it is says nothing.
    Opaque,
}

/// The fields of a struct or of a variant; those of tuples are numbered.
pub(crate) type FieldKinds = Vec<(String, Kind)>;

/// A struct or enum.
#[derive(Clone, Debug)]
pub(crate) enum Definition {
    Struct(FieldKinds),
    Enum(Vec<(String, FieldKinds)>),
}

/// All structs and enums, by name.
#[derive(Debug, Default)]
pub(crate) struct Types(BTreeMap<String, Definition>);

/// Ids, names, times and packed bytes.
const OPAQUE: &[&str] = &[
    "Body",
    "MessageChunk",
    "Boot",
    "ConsumerId",
    "GroupId",
    "GroupName",
    "IdentityKey",
    "LeaseToken",
    "Lsn",
    "OwnerName",
    "ResultHash",
    "Ticket",
    "Timestamp",
    "TopicId",
    "TopicName",
    // No client of a world has a key yet.
    "Audit",
    "AuditEntry",
    "BindKey",
    "CertificateSan",
    "CreateKey",
    "CreateTenant",
    "DeleteTenant",
    "Key",
    "KeyId",
    "ListAudit",
    "ListKeys",
    "ListTenants",
    "RevokeKey",
    "TenantName",
];

impl Types {
    /// Parses the files of these folders and their subfolders.
    pub(crate) fn parse(folders: &[&Path]) -> Self {
        let mut types = Self::default();
        folders.iter().for_each(|folder| types.parse_folder(folder));
        // It prints as what it consists of, not as it is stored.
        let fields = [("tenant", Kind::Text), ("scope", Kind::Named("Scope".into())), ("key", Kind::Text)];
        let fields = fields.into_iter().map(|(name, kind)| (name.to_owned(), kind)).collect();
        types.0.insert("Identity".to_owned(), Definition::Struct(fields));
        // Prints its key and value, which are packed.
        if let Some(Definition::Struct(fields)) = types.0.get_mut("Produce") {
            fields.retain(|(name, _)| name != "packed");
            fields.extend(["key", "value"].map(|name| (name.to_owned(), Kind::Bytes)));
        }
        // Made by a macro.
        for name in ["Offset", "PartitionId", "Position"] {
            types.0.insert(name.to_owned(), Definition::Struct(vec![("0".to_owned(), Kind::Number)]));
        }
        types
    }

    fn parse_folder(&mut self, folder: &Path) {
        for entry in fs::read_dir(folder).expect("the folder exists") {
            let path = entry.expect("it can be read").path();
            if path.is_dir() {
                self.parse_folder(&path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("it can be read");
                let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                file.items.iter().for_each(|item| self.add(item));
            }
        }
    }

    fn add(&mut self, item: &Item) {
        let (name, definition) = match item {
            Item::Struct(item) => (item.ident.to_string(), Definition::Struct(field_kinds(&item.fields))),
            Item::Enum(item) => {
                let variants = item.variants.iter().map(|it| (it.ident.to_string(), field_kinds(&it.fields)));
                (item.ident.to_string(), Definition::Enum(variants.collect()))
            }
            _ => return,
        };
        self.0.insert(name, definition);
    }

    pub(crate) fn get(&self, name: &str) -> &Definition {
        self.0.get(name).unwrap_or_else(|| panic!("no type {name} was found in the core"))
    }

    /// The kind itself, or what a struct of one unnamed field holds.
    pub(crate) fn resolve(&self, kind: &Kind) -> Kind {
        match kind {
            Kind::Named(name) => match self.get(name) {
                Definition::Struct(fields) if fields.len() == 1 && fields[0].0 == "0" => self.resolve(&fields[0].1),
                _ => kind.clone(),
            },
            kind => kind.clone(),
        }
    }

    /// Every entry of the table that the types reachable from `roots` have.
    pub(crate) fn entries(&self, roots: &[&str]) -> BTreeSet<String> {
        let (mut entries, mut seen) = (BTreeSet::new(), BTreeSet::new());
        roots.iter().for_each(|root| self.add_entries(root, &mut entries, &mut seen));
        entries
    }

    fn add_entries(&self, name: &str, entries: &mut BTreeSet<String>, seen: &mut BTreeSet<String>) {
        if !seen.insert(name.to_owned()) {
            return;
        }
        match self.get(name) {
            Definition::Struct(fields) => self.add_fields(name, fields, entries, seen),
            Definition::Enum(variants) => {
                for (variant, fields) in variants {
                    let path = format!("{name}::{variant}");
                    entries.insert(path.clone());
                    self.add_fields(&path, fields, entries, seen);
                }
            }
        }
    }

    fn add_fields(&self, path: &str, fields: &FieldKinds, entries: &mut BTreeSet<String>, seen: &mut BTreeSet<String>) {
        for (field, kind) in fields {
            self.add_kind(&format!("{path}.{field}"), kind, entries, seen);
        }
    }

    fn add_kind(&self, path: &str, kind: &Kind, entries: &mut BTreeSet<String>, seen: &mut BTreeSet<String>) {
        let mut add = |values: &[&str]| entries.extend(values.iter().map(|value| format!("{path} {value}")));
        match self.resolve(kind) {
            Kind::Option(inner) => {
                add(&["unset", "set"]);
                self.add_kind(path, &inner, entries, seen);
            }
            Kind::List(inner) => {
                add(&["empty", "one", "several"]);
                self.add_kind(&format!("{path}[]"), &inner, entries, seen);
            }
            Kind::Bool => add(&["false", "true"]),
            Kind::Number => add(&["zero", "nonzero"]),
            Kind::Text => add(&["no text", "text"]),
            Kind::Bytes => add(&["no bytes", "bytes"]),
            Kind::Tuple(kinds) => {
                for (nth, kind) in kinds.iter().enumerate() {
                    self.add_kind(&format!("{path}.{nth}"), kind, entries, seen);
                }
            }
            Kind::Named(name) => self.add_entries(&name, entries, seen),
            Kind::Opaque => {}
        }
    }
}

fn field_kinds(fields: &Fields) -> FieldKinds {
    let name = |nth: usize, field: &syn::Field| field.ident.as_ref().map_or(nth.to_string(), ToString::to_string);
    fields.iter().enumerate().map(|(nth, field)| (name(nth, field), kind_of(&field.ty))).collect()
}

/// Whether these are the arguments of a vector of bytes.
fn is_bytes(arguments: &PathArguments) -> bool {
    let PathArguments::AngleBracketed(arguments) = arguments else { return false };
    let is_byte = |of: &Type| matches!(of, Type::Path(path) if path.path.is_ident("u8"));
    arguments.args.iter().any(|argument| matches!(argument, GenericArgument::Type(of) if is_byte(of)))
}

fn kind_of(of: &Type) -> Kind {
    match of {
        Type::Tuple(tuple) => Kind::Tuple(tuple.elems.iter().map(kind_of).collect()),
        Type::Slice(slice) => Kind::List(Box::new(kind_of(&slice.elem))),
        Type::Array(array) => Kind::List(Box::new(kind_of(&array.elem))),
        Type::Path(path) => {
            let last = path.path.segments.last().expect("a type has a name");
            let mut arguments = match &last.arguments {
                PathArguments::AngleBracketed(arguments) => arguments
                    .args
                    .iter()
                    .filter_map(
                        |argument| if let GenericArgument::Type(of) = argument { Some(kind_of(of)) } else { None },
                    )
                    .collect(),
                _ => Vec::new(),
            };
            match last.ident.to_string().as_str() {
                "Option" => Kind::Option(Box::new(arguments.remove(0))),
                "Box" | "Arc" => arguments.remove(0),
                "Vec" if is_bytes(&last.arguments) => Kind::Bytes,
                "Vec" => Kind::List(Box::new(arguments.remove(0))),
                "BTreeMap" => Kind::List(Box::new(Kind::Tuple(arguments))),
                "bool" => Kind::Bool,
                "u8" | "u16" | "u32" | "u64" | "u128" | "usize" | "i64" => Kind::Number,
                "str" | "Text" | "String" => Kind::Text,
                name if OPAQUE.contains(&name) => Kind::Opaque,
                // A parameter of a generic type.
                name if name.len() == 1 => Kind::Opaque,
                name => Kind::Named(name.to_owned()),
            }
        }
        _ => Kind::Opaque,
    }
}
