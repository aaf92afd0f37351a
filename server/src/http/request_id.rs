//! Request ids: `X-Request-Id` is echoed, or generated if the request has none.

use std::cell::{Cell, RefCell};

use bytes::Bytes;
use hyper::header::HeaderValue;

use crate::json::hex;

/// Longest request id that is echoed, in bytes.
const ECHOED_BYTES_MAX: usize = 128;
/// Bytes of a generated id.
const ID_BYTES: usize = 32;
/// Ids generated at once.
const BATCH: usize = 64;

/// Generator of request ids.
pub(super) struct RequestIds {
    /// Prefix of all ids of this process, in hexadecimal digits.
    prefix: Vec<u8>,
    next: Cell<u64>,
    /// Generated ids that are not used yet.
    ready: RefCell<Bytes>,
}

impl RequestIds {
    pub(super) fn new(seed: u64) -> Self {
        let mut prefix = Vec::new();
        hex::<16>(seed, &mut prefix);
        Self { prefix, next: Cell::new(0), ready: RefCell::default() }
    }

    /// The id of a request whose header has `own`, or a new one if that is absent or unusable.
    pub(super) fn id_for(&self, own: Option<&HeaderValue>) -> HeaderValue {
        if let Some(id) = own {
            let has_valid_length = (1..=ECHOED_BYTES_MAX).contains(&id.len());
            if has_valid_length && id.as_bytes().iter().all(u8::is_ascii_graphic) {
                return id.clone();
            }
        }
        let mut ready = self.ready.borrow_mut();
        if ready.is_empty() {
            *ready = self.generate();
        }
        HeaderValue::from_maybe_shared(ready.split_to(ID_BYTES)).expect("hexadecimal digits")
    }

    /// A batch of ids, which share one allocation.
    fn generate(&self) -> Bytes {
        let mut text = Vec::with_capacity(BATCH * ID_BYTES);
        for _ in 0..BATCH {
            let number = self.next.get();
            self.next.set(number.wrapping_add(1));
            text.extend_from_slice(&self.prefix);
            hex::<16>(number, &mut text);
        }
        text.into()
    }
}
