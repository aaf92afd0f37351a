//! Conversion of values to JSON that refuses what JSON does not have, with the path of the value: NaN, infinities,
//! bytes, maps whose keys are no text. `serde_json` turns the first two into null.

use std::fmt;

use serde::Serialize;
use serde::ser::{self, Impossible, Serializer};
use serde_json::{Map, Number, Value};

use crate::error::Error;

/// The JSON of a value.
///
/// # Errors
/// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) with the path of what is no JSON.
pub(crate) fn to_value<T: Serialize + ?Sized>(value: &T) -> Result<Value, Error> {
    value.serialize(Strict { path: &Path::Root }).map_err(|NotJson(message)| Error::misuse(message))
}

/// Where a value is, for messages.
enum Path<'a> {
    Root,
    Index(&'a Path<'a>, usize),
    Field(&'a Path<'a>, &'a str),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("$"),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
        }
    }
}

/// What is no JSON, and where.
#[derive(Debug)]
struct NotJson(String);

impl NotJson {
    fn at(path: &Path<'_>, what: impl fmt::Display) -> Self {
        Self(format!("{path}: {what}"))
    }
}

impl fmt::Display for NotJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotJson {}

impl ser::Error for NotJson {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

#[derive(Clone, Copy)]
struct Strict<'a> {
    path: &'a Path<'a>,
}

/// A sequence, a map or a struct, and where it is. With a variant, it becomes an object with the variant's name.
struct Items<'a> {
    path: &'a Path<'a>,
    variant: Option<&'static str>,
    values: Vec<Value>,
}

struct Fields<'a> {
    path: &'a Path<'a>,
    variant: Option<&'static str>,
    fields: Map<String, Value>,
    key: Option<String>,
}

fn wrap(variant: Option<&'static str>, value: Value) -> Value {
    match variant {
        Some(name) => Value::Object(Map::from_iter([(name.to_owned(), value)])),
        None => value,
    }
}

impl<'a> Strict<'a> {
    fn items(self, variant: Option<&'static str>, len: Option<usize>) -> Items<'a> {
        Items { path: self.path, variant, values: Vec::with_capacity(len.unwrap_or(0).min(1_024)) }
    }

    fn fields(self, variant: Option<&'static str>) -> Fields<'a> {
        Fields { path: self.path, variant, fields: Map::new(), key: None }
    }
}

macro_rules! numbers {
    ($($method:ident: $type:ty),*) => {$(
        fn $method(self, value: $type) -> Result<Value, NotJson> {
            Ok(Value::Number(value.into()))
        }
    )*};
}

impl<'a> Serializer for Strict<'a> {
    type Ok = Value;
    type Error = NotJson;
    type SerializeSeq = Items<'a>;
    type SerializeTuple = Items<'a>;
    type SerializeTupleStruct = Items<'a>;
    type SerializeTupleVariant = Items<'a>;
    type SerializeMap = Fields<'a>;
    type SerializeStruct = Fields<'a>;
    type SerializeStructVariant = Fields<'a>;

    numbers!(serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64);
    numbers!(serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64);

    fn serialize_i128(self, value: i128) -> Result<Value, NotJson> {
        let narrow = i64::try_from(value).map(Number::from).or_else(|_| u64::try_from(value).map(Number::from));
        narrow.map(Value::Number).map_err(|_| NotJson::at(self.path, "an integer of more than 64 bits is no JSON"))
    }

    fn serialize_u128(self, value: u128) -> Result<Value, NotJson> {
        let narrow = u64::try_from(value).map(|value| Value::Number(value.into()));
        narrow.map_err(|_| NotJson::at(self.path, "an integer of more than 64 bits is no JSON"))
    }

    fn serialize_f32(self, value: f32) -> Result<Value, NotJson> {
        self.serialize_f64(f64::from(value))
    }

    fn serialize_f64(self, value: f64) -> Result<Value, NotJson> {
        let number = Number::from_f64(value);
        number.map(Value::Number).ok_or_else(|| NotJson::at(self.path, format_args!("{value} is no JSON number")))
    }

    fn serialize_bool(self, value: bool) -> Result<Value, NotJson> {
        Ok(Value::Bool(value))
    }

    fn serialize_char(self, value: char) -> Result<Value, NotJson> {
        Ok(Value::String(value.into()))
    }

    fn serialize_str(self, value: &str) -> Result<Value, NotJson> {
        Ok(Value::String(value.to_owned()))
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<Value, NotJson> {
        Err(NotJson::at(self.path, "bytes are no JSON; encode them as text"))
    }

    fn serialize_none(self) -> Result<Value, NotJson> {
        Ok(Value::Null)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Value, NotJson> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Value, NotJson> {
        Ok(Value::Null)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Value, NotJson> {
        Ok(Value::Null)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<Value, NotJson> {
        Ok(Value::String(variant.to_owned()))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<Value, NotJson> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Value, NotJson> {
        let path = Path::Field(self.path, variant);
        Ok(wrap(Some(variant), value.serialize(Strict { path: &path })?))
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Items<'a>, NotJson> {
        Ok(self.items(None, len))
    }

    fn serialize_tuple(self, len: usize) -> Result<Items<'a>, NotJson> {
        Ok(self.items(None, Some(len)))
    }

    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<Items<'a>, NotJson> {
        Ok(self.items(None, Some(len)))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Items<'a>, NotJson> {
        Ok(self.items(Some(variant), Some(len)))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Fields<'a>, NotJson> {
        Ok(self.fields(None))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Fields<'a>, NotJson> {
        Ok(self.fields(None))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Fields<'a>, NotJson> {
        Ok(self.fields(Some(variant)))
    }
}

impl Items<'_> {
    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NotJson> {
        let path = Path::Index(self.path, self.values.len());
        self.values.push(value.serialize(Strict { path: &path })?);
        Ok(())
    }

    fn finish(self) -> Value {
        wrap(self.variant, Value::Array(self.values))
    }
}

impl Fields<'_> {
    fn insert<T: Serialize + ?Sized>(&mut self, name: String, value: &T) -> Result<(), NotJson> {
        let path = Path::Field(self.path, &name);
        let value = value.serialize(Strict { path: &path })?;
        self.fields.insert(name, value);
        Ok(())
    }

    fn finish(self) -> Value {
        wrap(self.variant, Value::Object(self.fields))
    }
}

macro_rules! sequence {
    ($($trait:ident $method:ident),*) => {$(
        impl ser::$trait for Items<'_> {
            type Ok = Value;
            type Error = NotJson;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NotJson> {
                self.push(value)
            }

            fn end(self) -> Result<Value, NotJson> {
                Ok(self.finish())
            }
        }
    )*};
}

sequence!(
    SerializeSeq serialize_element,
    SerializeTuple serialize_element,
    SerializeTupleStruct serialize_field,
    SerializeTupleVariant serialize_field
);

macro_rules! object {
    ($($trait:ident),*) => {$(
        impl ser::$trait for Fields<'_> {
            type Ok = Value;
            type Error = NotJson;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), NotJson> {
                self.insert(name.to_owned(), value)
            }

            fn end(self) -> Result<Value, NotJson> {
                Ok(self.finish())
            }
        }
    )*};
}

object!(SerializeStruct, SerializeStructVariant);

impl ser::SerializeMap for Fields<'_> {
    type Ok = Value;
    type Error = NotJson;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), NotJson> {
        self.key = Some(key.serialize(Key { path: self.path })?);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NotJson> {
        let key = self.key.take().ok_or_else(|| NotJson::at(self.path, "a value without a key"))?;
        self.insert(key, value)
    }

    fn end(self) -> Result<Value, NotJson> {
        Ok(self.finish())
    }
}

/// Serializes the key of a map: text, a character, an integer or the name of a variant.
struct Key<'a> {
    path: &'a Path<'a>,
}

impl Key<'_> {
    fn refused<T>(&self) -> Result<T, NotJson> {
        Err(NotJson::at(self.path, "the keys of a map must be text"))
    }
}

macro_rules! key_numbers {
    ($($method:ident: $type:ty),*) => {$(
        fn $method(self, value: $type) -> Result<String, NotJson> {
            Ok(value.to_string())
        }
    )*};
}

macro_rules! no_keys {
    ($($method:ident($($argument:ty),*) -> $ok:ty),*) => {$(
        fn $method(self, $(_: $argument),*) -> Result<$ok, NotJson> {
            self.refused()
        }
    )*};
}

type NoKey = Impossible<String, NotJson>;

impl Serializer for Key<'_> {
    type Ok = String;
    type Error = NotJson;
    type SerializeSeq = NoKey;
    type SerializeTuple = NoKey;
    type SerializeTupleStruct = NoKey;
    type SerializeTupleVariant = NoKey;
    type SerializeMap = NoKey;
    type SerializeStruct = NoKey;
    type SerializeStructVariant = NoKey;

    key_numbers!(serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_i128: i128);
    key_numbers!(serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_u128: u128);
    key_numbers!(serialize_char: char, serialize_str: &str);
    no_keys!(
        serialize_bool(bool) -> String,
        serialize_f32(f32) -> String,
        serialize_f64(f64) -> String,
        serialize_bytes(&[u8]) -> String,
        serialize_none() -> String,
        serialize_unit() -> String,
        serialize_unit_struct(&'static str) -> String,
        serialize_seq(Option<usize>) -> NoKey,
        serialize_tuple(usize) -> NoKey,
        serialize_tuple_struct(&'static str, usize) -> NoKey,
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> NoKey,
        serialize_map(Option<usize>) -> NoKey,
        serialize_struct(&'static str, usize) -> NoKey,
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> NoKey
    );

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<String, NotJson> {
        Ok(variant.to_owned())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, _: &T) -> Result<String, NotJson> {
        self.refused()
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<String, NotJson> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<String, NotJson> {
        self.refused()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    #[derive(Serialize)]
    enum Shape {
        Point,
        Circle(f64),
        Line(u8, u8),
        Box { width: u8 },
    }

    #[test]
    fn every_kind_of_value_becomes_what_serde_json_makes_of_it() {
        let value = (
            vec![Some(1), None],
            [Shape::Point, Shape::Circle(1.5), Shape::Line(1, 2), Shape::Box { width: 3 }],
            BTreeMap::from([(7, 'c'), (8, 'd')]),
            ((), true, "text", -1_i128, f32::MAX),
            json!({"a": [null, 1]}),
        );
        assert_eq!(to_value(&value).expect("JSON"), serde_json::to_value(&value).expect("JSON"));
    }

    #[test]
    fn what_json_does_not_have_is_refused_with_its_path() {
        let refusal = |result: Result<Value, Error>| result.expect_err("no JSON").message().to_owned();
        assert_eq!(refusal(to_value(&f64::INFINITY)), "$: inf is no JSON number");
        assert_eq!(refusal(to_value(&[Shape::Circle(f64::NAN)])), "$[0].Circle: NaN is no JSON number");
        assert_eq!(refusal(to_value(&json!({}).as_object().map(|_| u128::MAX))).split(':').next(), Some("$"));
        let map = BTreeMap::from([("a", BTreeMap::from([((1, 2), 3)]))]);
        assert_eq!(refusal(to_value(&map)), "$.a: the keys of a map must be text");
    }
}
