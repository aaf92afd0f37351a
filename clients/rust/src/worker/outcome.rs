//! What a handler returns: a result, the next messages, or why it failed.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::error::Error;
use crate::produce::Produce;
use crate::strict;

/// The longest text of a failure, in bytes. The broker stores no more.
const TEXT_BYTES_MAX: usize = 4_096;

/// What a handler has done: a result, and the next messages. All of it is stored in one step with the end of its
/// message.
#[derive(Debug, Default)]
pub struct Outputs {
    result: Option<Box<RawValue>>,
    messages: Vec<Produce>,
    /// Why the result is no JSON.
    defect: Option<Error>,
}

impl Outputs {
    /// Neither a result nor messages.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The result, any value that is JSON. What is none (NaN, bytes) fails the message for good.
    #[must_use]
    pub fn result<T: Serialize + ?Sized>(mut self, result: &T) -> Self {
        match to_json(result) {
            Ok(json) => self.result = json,
            Err(error) => self.defect = Some(error),
        }
        self
    }

    /// Adds a message. Give it an idempotency key where the work may be repeated.
    #[must_use]
    pub fn message(mut self, message: Produce) -> Self {
        self.messages.push(message);
        self
    }

    /// Adds messages.
    #[must_use]
    pub fn messages(mut self, messages: impl IntoIterator<Item = Produce>) -> Self {
        self.messages.extend(messages);
        self
    }

    pub(super) fn into_parts(self) -> Result<(Option<Box<RawValue>>, Vec<Produce>), Error> {
        match self.defect {
            Some(defect) => Err(defect),
            None => Ok((self.result, self.messages)),
        }
    }
}

/// The JSON text of a value; none for null, which is how the broker stores no result.
pub(super) fn to_json<T: Serialize + ?Sized>(value: &T) -> Result<Option<Box<RawValue>>, Error> {
    to_text(&strict::to_value(value)?)
}

/// The same of what is known to be JSON.
fn to_text(value: &Value) -> Result<Option<Box<RawValue>>, Error> {
    if value.is_null() {
        return Ok(None);
    }
    to_raw_value(value).map(Some).map_err(|error| Error::misuse(error.to_string()))
}

/// A result of any type that is JSON.
#[derive(Clone, Copy, Debug)]
pub struct Json<T>(pub T);

/// What a handler may return: `()`, a [`Value`], [`Json`] of any type, or [`Outputs`].
pub trait HandlerResult {
    /// The result and the next messages.
    fn into_outputs(self) -> Outputs;
}

impl HandlerResult for () {
    fn into_outputs(self) -> Outputs {
        Outputs::new()
    }
}

impl HandlerResult for Value {
    fn into_outputs(self) -> Outputs {
        match to_text(&self) {
            Ok(result) => Outputs { result, ..Outputs::new() },
            Err(error) => Outputs { defect: Some(error), ..Outputs::new() },
        }
    }
}

impl<T: Serialize> HandlerResult for Json<T> {
    fn into_outputs(self) -> Outputs {
        Outputs::new().result(&self.0)
    }
}

impl HandlerResult for Outputs {
    fn into_outputs(self) -> Outputs {
        self
    }
}

/// A failure that may pass: the message is delivered again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    reason: String,
    delay: Option<Duration>,
}

impl Retry {
    /// Delivers the message again, as its retry policy says.
    #[must_use]
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), delay: None }
    }

    /// Delivers the message again after this time.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self { delay: Some(delay), ..self }
    }
}

impl fmt::Display for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl StdError for Retry {}

/// A failure that stays: the message becomes a dead letter, and its effect is not run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permanent {
    reason: String,
}

impl Permanent {
    /// Fails the message for good.
    #[must_use]
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

impl fmt::Display for Permanent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl StdError for Permanent {}

/// Why a handler failed. Every error becomes one with `?`: [`Retry`] and [`Permanent`] as what they are, all others as
/// a retry with their text.
///
/// # Examples
/// ```
/// use driftq_client::{HandlerError, Permanent};
///
/// fn dish(text: &str) -> Result<u32, HandlerError> {
///     let number: u32 = text.parse()?; // tried again
///     if number == 0 {
///         return Err(Permanent::new("there is no dish 0").into()); // a dead letter
///     }
///     Ok(number)
/// }
/// assert!(dish("0").expect_err("no dish").is_permanent());
/// assert!(!dish("x").expect_err("no number").is_permanent());
/// ```
pub struct HandlerError {
    pub(super) text: String,
    pub(super) delay: Option<Duration>,
    pub(super) is_permanent: bool,
}

impl HandlerError {
    /// Whether the message becomes a dead letter.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        self.is_permanent
    }

    /// The text of the failure.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn retry(text: impl Into<String>) -> Self {
        Self { text: shortened(text.into()), delay: None, is_permanent: false }
    }

    pub(super) fn permanent(text: impl Into<String>) -> Self {
        Self { text: shortened(text.into()), delay: None, is_permanent: true }
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let error: Box<dyn StdError + Send + Sync> = Box::new(error);
        let error = match error.downcast::<Retry>() {
            Ok(retry) => return Self { delay: retry.delay, ..Self::retry(retry.reason) },
            Err(error) => error,
        };
        match error.downcast::<Permanent>() {
            Ok(permanent) => Self::permanent(permanent.reason),
            Err(error) => {
                let mut text = error.to_string();
                let mut cause = error.source();
                while let Some(next) = cause {
                    text.push_str(": ");
                    text.push_str(&next.to_string());
                    cause = next.source();
                }
                Self::retry(text)
            }
        }
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({:?})", if self.is_permanent { "Permanent" } else { "Retry" }, self.text)
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn shortened(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_kind_text_and_delay() {
        let retry = HandlerError::from(Retry::new("busy").after(Duration::from_secs(3)));
        assert_eq!((retry.text(), retry.delay, retry.is_permanent), ("busy", Some(Duration::from_secs(3)), false));
        assert!(HandlerError::from(Permanent::new("no")).is_permanent());
        let other = HandlerError::from(std::io::Error::other(Retry::new("inner")));
        assert_eq!((other.text(), other.is_permanent), ("inner", false));
    }

    #[test]
    fn text_is_shortened_between_two_characters() {
        let text = "é".repeat(4_000);
        assert_eq!(HandlerError::retry(format!("a{text}")).text().len(), 4_095);
    }

    #[test]
    fn result_that_is_no_json_is_a_defect_with_its_path() {
        let defect = Json(vec![0.0, f64::NAN]).into_outputs().into_parts().expect_err("no JSON");
        assert!(defect.message().starts_with("$[1]: "), "{defect}");
        assert!(Value::Null.into_outputs().into_parts().expect("JSON").0.is_none());
    }
}
