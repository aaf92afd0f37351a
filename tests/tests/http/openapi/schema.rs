//! Compares a JSON value with a schema of the OpenAPI document: the part of JSON Schema that the document uses, and
//! stricter in that an object has no field that the schema does not name.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// What says nothing about the structure of a value.
const ANNOTATIONS: [&str; 6] = ["description", "examples", "default", "contentEncoding", "format", "pattern"];

/// The fields of an object that a schema names.
#[derive(Clone, Debug, Default)]
struct Named {
    fields: BTreeSet<String>,
    /// Whether any other field is allowed, too.
    any: bool,
}

/// A schema of a document.
#[derive(Clone, Copy)]
pub struct Schema<'a> {
    pub document: &'a Value,
    pub schema: &'a Value,
}

impl<'a> Schema<'a> {
    /// Where a value differs from the schema; `at` is the path of the value.
    pub fn differences(self, value: &Value, at: &str) -> Vec<String> {
        let mut named = Named::default();
        let mut differences = self.compare(value, at, &mut named);
        if let Value::Object(fields) = value
            && !named.any
        {
            let unknown = fields.keys().filter(|name| !named.fields.contains(*name));
            differences.extend(unknown.map(|name| format!("{at}.{name} is not in the document")));
        }
        differences
    }

    fn at(self, schema: &'a Value) -> Self {
        Self { schema, ..self }
    }

    fn compare(self, value: &Value, at: &str, named: &mut Named) -> Vec<String> {
        let keywords = self.schema.as_object().unwrap_or_else(|| panic!("{at}: {} is no schema", self.schema));
        let says_nothing = |name: &String| ANNOTATIONS.contains(&name.as_str()) || name == "type";
        // A schema without fields, such as that of the settings, leaves them open.
        named.any |= keywords.keys().all(says_nothing);
        let mut differences = Vec::new();
        for (keyword, operand) in keywords {
            differences.extend(match keyword.as_str() {
                "$ref" => self.at(self.resolve(operand)).compare(value, at, named),
                "allOf" => list(operand).iter().flat_map(|all| self.at(all).compare(value, at, named)).collect(),
                "oneOf" => self.compare_one_of(list(operand), value, at, named),
                "properties" => self.compare_fields(operand, value, at, named),
                "additionalProperties" => self.compare_others(keywords, operand, value, at, named),
                "items" => match value.as_array() {
                    Some(items) => {
                        let each = items.iter().enumerate();
                        each.flat_map(|(n, item)| self.at(operand).differences(item, &format!("{at}[{n}]"))).collect()
                    }
                    None => Vec::new(),
                },
                "required" => {
                    let names = list(operand).iter().map(|name| name.as_str().expect("a name"));
                    let missing = names.filter(|name| value.is_object() && value.get(name).is_none());
                    missing.map(|name| format!("{at}.{name} is missing")).collect()
                }
                _ => compare_scalar(keyword, operand, value, at).into_iter().collect(),
            });
        }
        differences
    }

    fn compare_one_of(self, choices: &'a [Value], value: &Value, at: &str, named: &mut Named) -> Vec<String> {
        let tried = choices.iter().map(|choice| {
            let mut own = named.clone();
            (self.at(choice).compare(value, at, &mut own), own)
        });
        let (differences, chosen) = tried.min_by_key(|(differences, _)| differences.len()).expect("a choice");
        *named = chosen;
        differences
    }

    fn compare_fields(self, fields: &'a Value, value: &Value, at: &str, named: &mut Named) -> Vec<String> {
        let mut differences = Vec::new();
        for (name, schema) in fields.as_object().expect("fields") {
            named.fields.insert(name.clone());
            if let Some(field) = value.get(name) {
                differences.extend(self.at(schema).differences(field, &format!("{at}.{name}")));
            }
        }
        differences
    }

    fn compare_others(
        self,
        keywords: &Map<String, Value>,
        operand: &'a Value,
        value: &Value,
        at: &str,
        named: &mut Named,
    ) -> Vec<String> {
        if !operand.is_object() {
            named.any |= operand == &Value::Bool(true);
            return Vec::new();
        }
        named.any = true;
        let known = |name: &str| keywords.get("properties").is_some_and(|fields| fields.get(name).is_some());
        let others = value.as_object().into_iter().flatten().filter(|(name, _)| !known(name));
        others.flat_map(|(name, field)| self.at(operand).differences(field, &format!("{at}.{name}"))).collect()
    }

    fn resolve(self, reference: &Value) -> &'a Value {
        let pointer = reference.as_str().and_then(|text| text.strip_prefix('#')).expect("a reference within");
        self.document.pointer(pointer).unwrap_or_else(|| panic!("{reference} does not resolve"))
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn compare_scalar(keyword: &str, operand: &Value, value: &Value, at: &str) -> Option<String> {
    let fits = match keyword {
        "type" => match operand {
            Value::Array(types) => types.iter().any(|kind| is_a(value, kind)),
            kind => is_a(value, kind),
        },
        "const" => value == operand,
        "enum" => list(operand).contains(value),
        "minimum" => value.as_f64().is_none_or(|number| number >= operand.as_f64().expect("a number")),
        "maximum" => value.as_f64().is_none_or(|number| number <= operand.as_f64().expect("a number")),
        "minItems" => items(value).is_none_or(|items| items >= operand.as_u64().expect("a number")),
        "maxItems" => items(value).is_none_or(|items| items <= operand.as_u64().expect("a number")),
        "minLength" => length(value).is_none_or(|length| length >= operand.as_u64().expect("a length")),
        "maxLength" => length(value).is_none_or(|length| length <= operand.as_u64().expect("a length")),
        _ => {
            assert!(ANNOTATIONS.contains(&keyword), "{keyword} is not compared: add it");
            true
        }
    };
    (!fits).then(|| format!("{at} is {value}, {keyword} in the document is {operand}"))
}

fn length(value: &Value) -> Option<u64> {
    value.as_str().map(|text| text.chars().count() as u64)
}

fn items(value: &Value) -> Option<u64> {
    value.as_array().map(|items| items.len() as u64)
}

fn is_a(value: &Value, kind: &Value) -> bool {
    match kind.as_str().expect("a type") {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{other} is no type"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn differences(schema: &Value, value: &Value) -> Vec<String> {
        let document = json!({ "base": {
            "type": "object", "required": ["n"], "properties": { "n": { "type": "integer", "minimum": 1 } },
        } });
        Schema { document: &document, schema }.differences(value, "$")
    }

    #[test]
    fn each_kind_of_difference_is_told_with_its_place() {
        let schema = json!({ "allOf": [
            { "$ref": "#/base" },
            { "properties": {
                "list": { "items": { "$ref": "#/base" } }, "kind": { "enum": ["a"] }, "map": {
                    "type": "object", "additionalProperties": { "type": "string" } },
            } },
        ] });
        let value = json!({ "n": 0, "list": [{ "n": 1 }, { "m": 1 }], "kind": "b", "map": { "x": 1 }, "more": null });
        let mut told = differences(&schema, &value);
        told.sort();
        let expected = [
            "$.kind is \"b\", enum in the document is [\"a\"]",
            "$.list[1].m is not in the document",
            "$.list[1].n is missing",
            "$.map.x is 1, type in the document is \"string\"",
            "$.more is not in the document",
            "$.n is 0, minimum in the document is 1",
        ];
        assert_eq!(told, expected);
        assert!(differences(&schema, &json!({ "n": 1, "map": { "x": "y" } })).is_empty());
    }

    #[test]
    fn choice_that_differs_least_names_the_fields() {
        let schema = json!({ "oneOf": [
            { "required": ["a"], "properties": { "a": { "const": 1 } } },
            { "required": ["b"], "properties": { "b": { "const": 1 } } },
        ] });
        assert!(differences(&schema, &json!({ "b": 1 })).is_empty());
        assert_eq!(differences(&schema, &json!({ "a": 1, "b": 1 })), ["$.b is not in the document"]);
        assert_eq!(differences(&schema, &json!({ "c": 1 })).len(), 2);
    }
}
