//! A client of a pull consumer: requests messages, and acks one after the other.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::client::{ANSWERS, Client, next_event};
use crate::load::modes::compare::deliveries::Deliveries;
use crate::load::modes::compare::protocols::nats::{Message, decode, publish};
use crate::load::modes::compare::system::{Consumer, PREFETCH};
use crate::load::modes::compare::wire::{Wire, unexpected};

/// The subscription of messages.
const MESSAGES: &str = "2";
/// How long a request for messages is valid; it is sent again when it has ended.
const REQUEST_NANOS: u64 = 30_000_000_000;

/// A client of the pull consumer.
#[derive(Debug)]
pub(crate) struct Pulls {
    wire: Wire,
    /// The subject of a request for messages.
    next: String,
    /// Where messages go, and answers to acks.
    messages: String,
    answers: String,
    state: PullState,
}

/// What a client has asked for and received.
#[derive(Debug, Default)]
struct PullState {
    /// Messages that were requested and have not arrived.
    requested: usize,
    /// Where to ack the messages that were not acked.
    to_ack: VecDeque<String>,
    is_acking: bool,
}

impl Pulls {
    /// Subscribes to messages. `next` is the subject of a request for some.
    pub(super) async fn subscribe(client: Client, next: String) -> io::Result<Self> {
        let Client { mut wire, inbox: answers } = client;
        let messages = format!("{answers}.m");
        wire.send(format!("SUB {messages} {MESSAGES}\r\n").as_bytes()).await?;
        Ok(Self { wire, next, messages, answers, state: PullState::default() })
    }
}

impl Consumer for Pulls {
    async fn run(&mut self, deliveries: Arc<Deliveries>) -> io::Result<()> {
        let mut requests = Vec::new();
        loop {
            self.state.request(&mut requests, &self.next, &self.messages, &self.answers);
            if !requests.is_empty() {
                self.wire.send(&requests).await?;
                requests.clear();
            }
            // Then everything that has arrived, before the next requests are sent together.
            next_event(&mut self.wire, |message| self.state.take(message, &deliveries)).await?;
            while decode(self.wire.unread())?.is_some() {
                next_event(&mut self.wire, |message| self.state.take(message, &deliveries)).await?;
            }
        }
    }
}

impl PullState {
    /// Appends the requests that are due: for messages when half of those it may hold are neither here nor requested,
    /// and the next ack.
    fn request(&mut self, requests: &mut Vec<u8>, next: &str, messages: &str, answers: &str) {
        let held = self.to_ack.len() + usize::from(self.is_acking);
        let room = PREFETCH.saturating_sub(self.requested + held);
        if room >= PREFETCH / 2 {
            let body = format!(r#"{{"batch":{room},"expires":{REQUEST_NANOS}}}"#);
            requests.extend_from_slice(&publish(next, messages, body.as_bytes()));
            self.requested += room;
        }
        if !self.is_acking
            && let Some(subject) = self.to_ack.pop_front()
        {
            requests.extend_from_slice(&publish(&subject, answers, b"+ACK"));
            self.is_acking = true;
        }
    }

    /// Takes a message of the stream, the end of a request for messages, or the answer to an ack.
    fn take(&mut self, message: &Message<'_>, deliveries: &Deliveries) -> io::Result<()> {
        let subscription = std::str::from_utf8(message.subscription).unwrap_or_default();
        match (subscription, message.reply_to, message.status()) {
            (ANSWERS, _, None) if message.payload.is_empty() => {
                self.is_acking = false;
                deliveries.note_acked(1);
            }
            (ANSWERS, _, status) => {
                self.is_acking = false;
                deliveries.note_failure(&format!("ack {}", status.unwrap_or_else(|| "with another answer".to_owned())));
            }
            (MESSAGES, Some(ack_subject), None) => {
                self.requested = self.requested.saturating_sub(1);
                deliveries.note_delivered(message.payload);
                self.to_ack.push_back(String::from_utf8_lossy(ack_subject).into_owned());
            }
            // 404 and 408: a request has ended without all its messages.
            (MESSAGES, _, Some(status)) if status.starts_with("NATS/1.0 40") => self.requested = 0,
            (_, _, status) => return Err(unexpected(status.as_deref().unwrap_or("a message").as_bytes())),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<'a>(subscription: &'a str, reply_to: Option<&'a [u8]>, payload: &'a [u8]) -> Message<'a> {
        Message { subscription: subscription.as_bytes(), reply_to, headers: b"", payload }
    }

    #[test]
    fn messages_are_requested_and_acked_one_by_one() {
        let (mut state, mut requests) = (PullState::default(), Vec::new());
        let deliveries = Deliveries::new(16, 1);
        let mut next = |state: &mut PullState| {
            requests.clear();
            state.request(&mut requests, "next", "m", "a");
            String::from_utf8_lossy(&requests).into_owned()
        };
        assert!(next(&mut state).starts_with("PUB next m "));
        assert_eq!(next(&mut state), "");
        for ack in [b"ack-1", b"ack-2"] {
            state.take(&message(MESSAGES, Some(ack), b"0000000000000007"), &deliveries).expect("a message");
        }
        assert_eq!(next(&mut state), "PUB ack-1 a 4\r\n+ACK\r\n");
        assert_eq!(next(&mut state), "");
        state.take(&message(ANSWERS, None, b""), &deliveries).expect("an answer");
        assert_eq!(next(&mut state), "PUB ack-2 a 4\r\n+ACK\r\n");
        assert_eq!(deliveries.acked(), 1);
    }

    #[test]
    fn refused_ack_is_a_failure_and_an_expired_request_is_sent_again() {
        let (mut state, deliveries) = (PullState { requested: 3, ..PullState::default() }, Deliveries::new(16, 1));
        let mut answer = message(ANSWERS, None, b"");
        answer.headers = b"NATS/1.0 503\r\n\r\n";
        state.take(&answer, &deliveries).expect("an answer");
        state.take(&message(ANSWERS, None, b"-ERR"), &deliveries).expect("an answer");
        assert_eq!((deliveries.acked(), state.is_acking), (0, false));
        assert_eq!(deliveries.failures().to_string(), "1 × ack NATS/1.0 503, 1 × ack with another answer");
        let mut expired = message(MESSAGES, None, b"");
        expired.headers = b"NATS/1.0 408 Request Timeout\r\n\r\n";
        state.take(&expired, &deliveries).expect("the end of a request");
        assert_eq!(state.requested, 0);
        expired.headers = b"NATS/1.0 503\r\n\r\n";
        assert!(state.take(&expired, &deliveries).is_err());
        assert!(state.take(&message("3", None, b"x"), &deliveries).is_err());
    }
}
