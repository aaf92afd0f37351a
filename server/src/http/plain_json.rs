//! A fast reader of plain JSON objects, as most requests are: texts without escapes, natural numbers, booleans, nested
//! objects and lists of these, no line breaks or tabs.
//!
//! It reads a subset. Whatever is not in it, malformed JSON included, is left to the general parser, which decides and
//! explains; so what this reader accepts must mean the same there.

use crate::byte_search::{find, has_control_or};

/// The longest number in digits that is read; it fits 64 bits.
const DIGITS_MAX: usize = 19;
/// How deep the objects and lists of a value that is kept as it was written may be nested.
const RAW_DEPTH_MAX: usize = 16;

/// A type that can be read from plain JSON.
pub(super) trait Plain<'a>: Sized {
    /// Reads a value; `None` if it is not plain, or of another type.
    fn read(reader: &mut PlainReader<'a>) -> Option<Self>;
}

/// Implements [`Plain`] for a type whose fields, all of them optional, are those of an object. Unknown and repeated
/// fields are not plain.
macro_rules! plain_object {
    ($name:ty { $($field:ident),* $(,)? }) => {
        impl<'a> $crate::http::plain_json::Plain<'a> for $name {
            fn read(reader: &mut $crate::http::plain_json::PlainReader<'a>) -> Option<Self> {
                let mut fields = Self::default();
                reader.object(|name, reader| match name {
                    $(stringify!($field) => reader.set(&mut fields.$field),)*
                    _ => None,
                })?;
                Some(fields)
            }
        }
    };
}
pub(super) use plain_object;

/// Reads the value that is all `text` holds; `None` if it is not plain.
#[inline]
pub(super) fn read_plain<'a, T: Plain<'a>>(text: &'a str) -> Option<T> {
    let text = text.trim_matches([' ', '\t', '\n', '\r']);
    if has_control_or(text.as_bytes(), [b'\\']) {
        return None;
    }
    let mut reader = PlainReader { text, at: 0 };
    let value = T::read(&mut reader)?;
    (reader.at == text.len()).then_some(value)
}

/// A text without control characters and escapes, which is read from the front.
pub(super) struct PlainReader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> PlainReader<'a> {
    /// Reads an object: `field` reads the value of each field, whose name it is given.
    #[inline]
    pub(super) fn object(&mut self, mut field: impl FnMut(&'a str, &mut Self) -> Option<()>) -> Option<()> {
        self.items(b'{', b'}', |reader| {
            let name = reader.text()?;
            reader.skip_space();
            reader.expect(b':')?;
            reader.skip_space();
            field(name, reader)
        })
    }

    /// Reads a field that must not be set yet.
    #[inline]
    pub(super) fn set<T: Plain<'a>>(&mut self, field: &mut Option<T>) -> Option<()> {
        if field.is_some() {
            return None;
        }
        *field = Some(T::read(self)?);
        Some(())
    }

    /// A text in quotes.
    #[inline]
    pub(super) fn text(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        let len = find(self.text.as_bytes().get(self.at..)?, b'"')?;
        let text = self.text.get(self.at..self.at + len)?;
        self.at += len + 1;
        Some(text)
    }

    /// A value as it is written, unless it is `null`.
    pub(super) fn raw(&mut self) -> Option<&'a str> {
        let start = self.at;
        match self.peek()? {
            b'n' => None,
            _ => {
                self.skip_value(RAW_DEPTH_MAX)?;
                self.text.get(start..self.at)
            }
        }
    }

    fn skip_value(&mut self, depth_max: usize) -> Option<()> {
        match self.peek()? {
            b'"' => self.text().map(drop),
            b'{' => {
                let depth_max = depth_max.checked_sub(1)?;
                self.object(|_, reader| reader.skip_value(depth_max))
            }
            b'[' => {
                let depth_max = depth_max.checked_sub(1)?;
                self.items(b'[', b']', |reader| reader.skip_value(depth_max))
            }
            b'n' => self.literal("null"),
            b't' | b'f' => self.flag().map(drop),
            _ => self.number().map(drop),
        }
    }

    /// Items with commas between them.
    #[inline]
    fn items(&mut self, open: u8, close: u8, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.expect(open)?;
        self.skip_space();
        if self.peek()? == close {
            self.at += 1;
            return Some(());
        }
        loop {
            item(self)?;
            self.skip_space();
            match self.next()? {
                b',' => self.skip_space(),
                byte => return (byte == close).then_some(()),
            }
        }
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    #[inline]
    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    #[inline]
    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    #[inline]
    fn skip_space(&mut self) {
        while let Some(b' ') = self.peek() {
            self.at += 1;
        }
    }

    fn literal(&mut self, literal: &str) -> Option<()> {
        let is_next = self.text.as_bytes()[self.at..].starts_with(literal.as_bytes());
        self.at += literal.len();
        is_next.then_some(())
    }

    fn flag(&mut self) -> Option<bool> {
        match self.peek()? {
            b't' => self.literal("true").map(|()| true),
            _ => self.literal("false").map(|()| false),
        }
    }

    fn number(&mut self) -> Option<u64> {
        let start = self.at;
        let mut number = 0;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            if self.at - start == DIGITS_MAX {
                return None;
            }
            number = number * 10 + u64::from(digit - b'0');
            self.at += 1;
        }
        let is_plain = match self.at - start {
            0 => false,
            1 => true,
            _ => self.text.as_bytes()[start] != b'0',
        };
        is_plain.then_some(number)
    }
}

impl Plain<'_> for bool {
    fn read(reader: &mut PlainReader<'_>) -> Option<Self> {
        reader.flag()
    }
}

impl Plain<'_> for u64 {
    fn read(reader: &mut PlainReader<'_>) -> Option<Self> {
        reader.number()
    }
}

impl Plain<'_> for u32 {
    fn read(reader: &mut PlainReader<'_>) -> Option<Self> {
        reader.number()?.try_into().ok()
    }
}

impl Plain<'_> for i64 {
    fn read(reader: &mut PlainReader<'_>) -> Option<Self> {
        reader.number()?.try_into().ok()
    }
}

impl Plain<'_> for String {
    fn read(reader: &mut PlainReader<'_>) -> Option<Self> {
        reader.text().map(str::to_owned)
    }
}

impl<'a, T: Plain<'a>> Plain<'a> for Box<T> {
    fn read(reader: &mut PlainReader<'a>) -> Option<Self> {
        T::read(reader).map(Box::new)
    }
}

impl<'a, T: Plain<'a>> Plain<'a> for Vec<T> {
    fn read(reader: &mut PlainReader<'a>) -> Option<Self> {
        let mut all = Vec::new();
        reader.items(b'[', b']', |reader| {
            all.push(T::read(reader)?);
            Some(())
        })?;
        Some(all)
    }
}

#[cfg(test)]
mod tests;
