//! Requests as bytes: encoded once, and patched in place where messages differ.

use crate::load::client::write_value;

/// A request with the values of one message or several.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    bytes: Vec<u8>,
    /// Where values begin.
    values: Vec<usize>,
    value_bytes: usize,
}

impl Template {
    /// An empty request, for values of this many bytes.
    pub(crate) fn new(value_bytes: u32) -> Self {
        Self { bytes: Vec::new(), values: Vec::new(), value_bytes: value_bytes as usize }
    }

    /// Appends bytes that do not change.
    pub(crate) fn fixed(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.bytes.extend_from_slice(bytes.as_ref());
        self
    }

    /// Appends the value of the next message.
    pub(crate) fn value(mut self) -> Self {
        self.values.push(self.bytes.len());
        self.bytes.resize(self.bytes.len() + self.value_bytes, b'x');
        self
    }

    /// Repeats what was appended so far.
    pub(crate) fn repeated(self, count: u32) -> Self {
        let (bytes, length) = (self.bytes.repeat(count as usize), self.bytes.len());
        let values = (0..count as usize).flat_map(|copy| self.values.iter().map(move |at| copy * length + at));
        Self { bytes, values: values.collect(), value_bytes: self.value_bytes }
    }

    /// Puts fixed bytes in front of what was appended so far, and behind it.
    pub(crate) fn enclosed(self, front: &[u8], end: &[u8]) -> Self {
        let bytes = [front, &self.bytes, end].concat();
        let values = self.values.iter().map(|at| at + front.len()).collect();
        Self { bytes, values, value_bytes: self.value_bytes }
    }

    /// Messages in the request.
    pub(crate) fn messages(&self) -> u64 {
        self.values.len() as u64
    }

    /// The request, its messages numbered from `first` on.
    pub(crate) fn numbered(&mut self, first: u64) -> &[u8] {
        for (number, at) in (first..).zip(&self.values) {
            write_value(&mut self.bytes[*at..][..self.value_bytes], number);
        }
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::client::Checked;

    fn template_numbered(first: u64) -> Vec<u8> {
        Template::new(20).fixed("put 20\r\n").value().fixed(b"\r\n").repeated(3).numbered(first).to_vec()
    }

    #[test]
    fn values_of_a_repeated_request_are_numbered() {
        let mut template = Template::new(20).fixed("put 20\r\n").value().fixed(b"\r\n").repeated(3);
        assert_eq!(template.messages(), 3);
        let checked = Checked::new(20);
        for first in [7, 30] {
            let bytes = template.numbered(first).to_vec();
            assert_eq!(bytes.len(), 3 * 30);
            for (number, request) in (first..).zip(bytes.chunks(30)) {
                let value = request.strip_prefix(b"put 20\r\n").and_then(|rest| rest.strip_suffix(b"\r\n"));
                assert_eq!(checked.note(value.expect("the rest is fixed")), Some(number));
            }
        }
        assert_eq!(checked.distinct(), 6);
        let enclosed = template.enclosed(b"front", b"end").numbered(7).to_vec();
        let inner = enclosed.strip_prefix(b"front").and_then(|rest| rest.strip_suffix(b"end"));
        assert_eq!(inner, Some(template_numbered(7).as_slice()));
    }
}
