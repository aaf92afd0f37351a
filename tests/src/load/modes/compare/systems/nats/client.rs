//! A connection to NATS, and one that publishes.

use std::io;
use std::net::SocketAddr;

use crate::load::broker::unused_name;
use crate::load::modes::compare::protocols::nats::{Frame, Message, decode, publish};
use crate::load::modes::compare::system::{Answers, Producer};
use crate::load::modes::compare::template::Template;
use crate::load::modes::compare::wire::{Wire, unexpected};

const CONNECT: &str = "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}\r\n";
/// The subscription of answers.
pub(super) const ANSWERS: &str = "1";

/// A connection with a subscription for answers.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) wire: Wire,
    /// Where answers go.
    pub(super) inbox: String,
}

impl Client {
    /// Connects and waits until requests are accepted.
    pub(super) async fn connect(addr: SocketAddr) -> io::Result<Self> {
        let mut wire = Wire::connect(addr).await?;
        let inbox = format!("_INBOX.{}", unused_name());
        wire.send(format!("{CONNECT}SUB {inbox} {ANSWERS}\r\nPING\r\n").as_bytes()).await?;
        // The server's greeting, then the answer.
        loop {
            let is_ready = wire.answer(|bytes| match decode(bytes)? {
                Some((Frame::Pong, used)) => Ok(Some((true, used))),
                Some((Frame::Info(_) | Frame::Ping | Frame::Good, used)) => Ok(Some((false, used))),
                Some((Frame::Error(text), _)) => Err(unexpected(text)),
                Some((Frame::Message(_), _)) => Err(unexpected(b"a message")),
                None => Ok(None),
            });
            if is_ready.await? {
                return Ok(Self { wire, inbox });
            }
        }
    }

    /// Sends a request and returns the payload of its answer.
    pub(super) async fn request(&mut self, subject: &str, payload: &[u8]) -> io::Result<Vec<u8>> {
        self.wire.send(&publish(subject, &self.inbox, payload)).await?;
        loop {
            let event = next_event(&mut self.wire, |message| match message.status() {
                Some(status) => Err(io::Error::other(status)),
                None => Ok(message.payload.to_vec()),
            });
            if let Some(payload) = event.await? {
                return Ok(payload);
            }
        }
    }
}

/// Reads a frame: what `take` makes of a message, nothing if it was another one. Answers the server's pings.
pub(super) async fn next_event<T>(
    wire: &mut Wire,
    mut take: impl FnMut(&Message<'_>) -> io::Result<T>,
) -> io::Result<Option<T>> {
    let event = wire.answer(|bytes| match decode(bytes)? {
        Some((Frame::Message(message), used)) => Ok(Some((Event::Taken(take(&message)?), used))),
        Some((Frame::Ping, used)) => Ok(Some((Event::Ping, used))),
        Some((Frame::Error(text), _)) => Err(unexpected(text)),
        Some((Frame::Info(_) | Frame::Pong | Frame::Good, used)) => Ok(Some((Event::Nothing, used))),
        None => Ok(None),
    });
    match event.await? {
        Event::Taken(taken) => Ok(Some(taken)),
        Event::Ping => wire.send(b"PONG\r\n").await.map(|()| None),
        Event::Nothing => Ok(None),
    }
}

enum Event<T> {
    Taken(T),
    Ping,
    Nothing,
}

/// A connection that publishes.
#[derive(Debug)]
pub(crate) struct Publishes {
    wire: Wire,
    template: Template,
}

impl Publishes {
    /// Sends batches made of this template, whose messages are answered to the client's inbox.
    pub(super) fn new(client: Client, template: Template) -> Self {
        Self { wire: client.wire, template }
    }
}

impl Producer for Publishes {
    async fn produce(&mut self, first: u64, answers: &mut Answers) -> io::Result<()> {
        self.wire.send(self.template.numbered(first)).await?;
        let mut waiting = self.template.messages();
        while waiting > 0 {
            match next_event(&mut self.wire, |message| Ok(message.stored())).await? {
                Some(Ok(_)) => answers.confirm(1),
                Some(Err(refusal)) => answers.refuse(&format!("publish {refusal}")),
                None => continue,
            }
            waiting -= 1;
        }
        Ok(())
    }
}
