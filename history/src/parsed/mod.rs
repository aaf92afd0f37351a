//! A history, parsed: calls with their answers, messages with their offsets, deliveries with the calls that settled
//! them.
//!
//! Built in one pass over the lines, and borrows from them. It holds what clients know, nothing about the inside of a
//! broker. Lines that lack required fields are kept as malformed and take no further part.

mod fields;
mod history;
mod model;
mod parse;

pub(crate) use self::fields::{has_dead_letter_policy, is_dead_letter_topic, millis, same_envelope, short, text};
pub(crate) use self::history::{MessageKey, ParsedHistory, TimelineKey};
pub(crate) use self::model::{
    CallResult, Delivery, EffectCall, EffectOp, MessageTimeline, Origin, PartitionOffset, ProduceRequest, SettleCall,
    SettleOp, Step,
};
pub(crate) use self::parse::parse;
