//! The outputs of a handler inside the result that is stored, for stores that do not produce them.

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::error::Error;
use crate::produce::Produce;

/// The version of the stored form.
const FORM: u8 = 1;

#[derive(Serialize)]
struct Stored<'a> {
    driftq: u8,
    result: Option<&'a RawValue>,
    produce: &'a [Produce],
}

#[derive(Deserialize)]
struct Unstored {
    driftq: u8,
    #[serde(default)]
    result: Option<Box<RawValue>>,
    produce: Vec<Produce>,
}

/// What is stored as the result of an effect: the handler's own, with the next messages if there are any.
pub(super) fn stored(result: Option<&RawValue>, produce: &[Produce]) -> Result<Option<Box<RawValue>>, Error> {
    if produce.is_empty() {
        return Ok(result.map(ToOwned::to_owned));
    }
    let stored = to_raw_value(&Stored { driftq: FORM, result, produce });
    stored.map(Some).map_err(|error| Error::misuse(error.to_string()))
}

/// The result and the next messages of what was stored.
pub(super) fn unstored(stored: Option<&RawValue>) -> (Option<Box<RawValue>>, Vec<Produce>) {
    let Some(stored) = stored else { return (None, Vec::new()) };
    // serde would also take a list for a struct.
    let is_object = stored.get().trim_start().starts_with('{');
    match serde_json::from_str::<Unstored>(stored.get()) {
        Ok(unstored) if is_object && unstored.driftq == FORM => (unstored.result, unstored.produce),
        _ => (Some(stored.to_owned()), Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).expect("JSON")
    }

    #[test]
    fn result_and_messages_come_back_as_they_were_stored() {
        let produce = [Produce::new("t", "v").key("k").idempotency_key("i"), Produce::new("t", &b"\xff"[..])];
        for result in [None, Some(raw("{\"b\":1.0, \"a\":2}"))] {
            let stored = stored(result.as_deref(), &produce).expect("JSON").expect("something");
            let (again, messages) = unstored(Some(&stored));
            assert_eq!(again.as_ref().map(|json| json.get()), result.as_ref().map(|json| json.get()));
            assert_eq!(messages, produce);
        }
    }

    #[test]
    fn result_of_another_form_is_the_handlers_own() {
        for json in ["1", "{\"driftq\":2,\"produce\":[]}", "{\"produce\":[]}", "[1,null,[]]"] {
            let (result, messages) = unstored(Some(&raw(json)));
            assert_eq!((result.expect("a result").get(), messages.len()), (json, 0));
        }
        assert!(stored(None, &[]).expect("JSON").is_none());
    }
}
