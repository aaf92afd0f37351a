//! RabbitMQ: a quorum queue, publisher confirms, and consumers with prefetch that ack each delivery.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;

use crate::daemon::free_addr;
use crate::load::broker::unused_name;
use crate::load::error::Result;
use crate::load::modes::compare::deliveries::Deliveries;
use crate::load::modes::compare::protocols::amqp::{
    Arguments, CHANNEL, Confirms, Frame, HEADER, Method, call, decode, long_text, method, publish_end, publish_front,
    short_text, table,
};
use crate::load::modes::compare::server::{Folder, Server, find_program};
use crate::load::modes::compare::system::{Answers, Consumer, PREFETCH, Producer, Site, System};
use crate::load::modes::compare::template::Template;
use crate::load::modes::compare::wire::{Wire, in_time, unexpected};

/// The script that starts it; the one in the path on Debian does more.
const PROGRAMS: [&str; 2] = ["/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server"];
const USER: &str = "guest";
/// Queues are durable.
const DURABLE: u8 = 2;
/// The queue is there already.
const PASSIVE: u8 = 1;
/// Of other frames than those that are waited for, so many may come.
const FRAMES_MAX: u32 = 100;

/// A running server.
#[derive(Debug)]
pub(crate) struct Rabbitmq {
    server: Server,
    version: String,
    value_bytes: u32,
}

impl System for Rabbitmq {
    type Producer = Publishes;
    type Consumer = Channel;
    const HAS_BATCHES: bool = true;

    async fn start(site: &Site) -> Result<Self> {
        let (program, epmd) = (find_program(&PROGRAMS)?, find_program(&["epmd"])?);
        let folder = Folder::new(&site.parent, None)?;
        let (data, addr, other) = (folder.create("data")?, free_addr()?, free_addr()?);
        let config = folder.write("rabbitmq.conf", "loopback_users = none\n")?;
        let plugins = folder.write("enabled_plugins", "[].\n")?;
        let environment = folder.write("rabbitmq-env.conf", "")?;
        // Erlang's register of nodes, which it would leave running.
        let port = free_port()?.to_string();
        let mut register = Command::new(epmd);
        register.args(["-address", "127.0.0.1", "-port", &port]);
        let mut start = Command::new(program);
        start.env("HOME", &data).env("ERL_EPMD_PORT", &port).env("ERL_EPMD_ADDRESS", "127.0.0.1");
        // Has the script execute the server instead of waiting for it.
        start.env("RUNNING_UNDER_SYSTEMD", "true").env_remove("NOTIFY_SOCKET");
        start.env("RABBITMQ_NODENAME", "compare@localhost").env("RABBITMQ_NODE_IP_ADDRESS", addr.ip().to_string());
        start.env("RABBITMQ_NODE_PORT", addr.port().to_string()).env("RABBITMQ_DIST_PORT", other.port().to_string());
        start.env("RABBITMQ_MNESIA_BASE", &data).env("RABBITMQ_LOG_BASE", &data).env("RABBITMQ_LOGS", "-");
        start.env("RABBITMQ_CONFIG_FILE", config).env("RABBITMQ_ENABLED_PLUGINS_FILE", plugins);
        start.env("RABBITMQ_CONF_ENV_FILE", environment).env("RABBITMQ_ADVANCED_CONFIG_FILE", data.join("none"));
        let interface = addr.ip().to_string().replace('.', ",");
        let arguments = format!("-start_epmd false -kernel inet_dist_use_interface {{{interface}}}");
        start.env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", arguments);
        let mut server = Server::spawn(&mut register, folder, addr)?;
        server.add(&mut start, Signal::KILL)?;
        let version = server.wait_until_ready(async |addr| connect(addr).await.map(|(_, version)| version)).await?;
        Ok(Self { server, version, value_bytes: site.value_bytes })
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn settings(&self) -> String {
        format!(
            "its defaults, no plugins; a quorum queue of one node, which syncs before it confirms; persistent \
             messages, publisher confirms; a consumer has one connection with prefetch {PREFETCH} and acks each \
             delivery, for which AMQP has no answer: **an ack counts when it is sent**; batches are 100 publishes \
             before the confirms are awaited"
        )
    }

    fn cpu(&self) -> Option<Duration> {
        self.server.cpu()
    }

    fn exited(&mut self) -> Option<String> {
        self.server.exited()
    }

    async fn create(&self) -> Result<String> {
        let queue = unused_name();
        let arguments = table("x-queue-type", "quorum");
        in_time(async {
            let mut channel = open(self.server.addr()).await?;
            let declare = [&[0, 0][..], &short_text(&queue), &[DURABLE], &arguments];
            request(&mut channel, CHANNEL, method::QUEUE_DECLARE, &declare, method::QUEUE_DECLARE_OK, |_| Ok(())).await
        })
        .await?;
        Ok(queue)
    }

    async fn producer(&self, queue: &str, batch: u32) -> Result<Publishes> {
        let wire = in_time(async {
            let mut wire = open(self.server.addr()).await?;
            let (select, selected) = (method::CONFIRM_SELECT, method::CONFIRM_SELECT_OK);
            request(&mut wire, CHANNEL, select, &[&[0]], selected, |_| Ok(())).await?;
            Ok(wire)
        })
        .await?;
        let front = publish_front(queue, self.value_bytes);
        let template = Template::new(self.value_bytes).fixed(front).value().fixed(publish_end()).repeated(batch);
        Ok(Publishes { wire, template, confirms: Confirms::default() })
    }

    async fn consumer(&self, queue: &str, index: u32) -> Result<Channel> {
        let wire = in_time(async {
            let mut wire = open(self.server.addr()).await?;
            let prefetch = (PREFETCH as u16).to_be_bytes();
            let qos = [&[0; 4][..], &prefetch, &[0]];
            request(&mut wire, CHANNEL, method::BASIC_QOS, &qos, method::BASIC_QOS_OK, |_| Ok(())).await?;
            let consume = [&[0, 0][..], &short_text(queue), &short_text(&format!("c{index}")), &[0], &long_text(b"")];
            let (consuming, consumes) = (method::BASIC_CONSUME, method::BASIC_CONSUME_OK);
            request(&mut wire, CHANNEL, consuming, &consume, consumes, |_| Ok(())).await?;
            Ok(wire)
        });
        Ok(Channel { wire: wire.await?, delivery: Delivery::default() })
    }

    /// Messages that are ready: unacked ones become so when their channel closes.
    async fn unacked(&self, queue: &str) -> Result<u64> {
        let count = in_time(async {
            let mut wire = open(self.server.addr()).await?;
            let declare = [&[0, 0][..], &short_text(queue), &[PASSIVE | DURABLE], &long_text(b"")];
            let count = |mut arguments: Arguments<'_>| {
                arguments.short_text()?;
                arguments.u32()
            };
            request(&mut wire, CHANNEL, method::QUEUE_DECLARE, &declare, method::QUEUE_DECLARE_OK, count).await
        });
        Ok(count.await?.into())
    }
}

/// A free port of 127.0.0.1, where Erlang looks for its register of nodes.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Connects and logs in. Returns the server's version too.
async fn connect(addr: SocketAddr) -> io::Result<(Wire, String)> {
    let mut wire = Wire::connect(addr).await?;
    wire.send(HEADER).await?;
    let version = await_method(&mut wire, method::CONNECTION_START, |mut arguments| {
        arguments.u16()?;
        Ok(arguments.text_in_table("version")?.unwrap_or_else(|| "of unknown version".to_owned()))
    });
    let version = format!("RabbitMQ {}", version.await?);
    let login = format!("\0{USER}\0{USER}");
    let start = [&long_text(b"")[..], &short_text("PLAIN"), &long_text(login.as_bytes()), &short_text("en_US")];
    wire.send(&call(0, method::CONNECTION_START_OK, &start)).await?;
    // Its limits are accepted; no heartbeats.
    let limits = await_method(&mut wire, method::CONNECTION_TUNE, |mut limits| Ok((limits.u16()?, limits.u32()?)));
    let (channels, frame_bytes) = limits.await?;
    let tune = [&channels.to_be_bytes()[..], &frame_bytes.to_be_bytes(), &[0, 0]];
    wire.send(&call(0, method::CONNECTION_TUNE_OK, &tune)).await?;
    let open = [&short_text("/")[..], &[0, 0]];
    request(&mut wire, 0, method::CONNECTION_OPEN, &open, method::CONNECTION_OPEN_OK, |_| Ok(())).await?;
    Ok((wire, version))
}

/// Connects and opens the channel.
async fn open(addr: SocketAddr) -> io::Result<Wire> {
    let (mut wire, _) = connect(addr).await?;
    request(&mut wire, CHANNEL, method::CHANNEL_OPEN, &[&[0]], method::CHANNEL_OPEN_OK, |_| Ok(())).await?;
    Ok(wire)
}

/// Calls a method and takes its answer.
async fn request<T>(
    wire: &mut Wire,
    channel: u16,
    method: Method,
    arguments: &[&[u8]],
    answer: Method,
    take: impl FnOnce(Arguments<'_>) -> io::Result<T>,
) -> io::Result<T> {
    wire.send(&call(channel, method, arguments)).await?;
    await_method(wire, answer, take).await
}

/// Reads until this method is called, and takes its arguments. Deliveries in between are dropped.
async fn await_method<T>(
    wire: &mut Wire,
    wanted: Method,
    take: impl FnOnce(Arguments<'_>) -> io::Result<T>,
) -> io::Result<T> {
    let mut take = Some(take);
    for _ in 0..FRAMES_MAX * PREFETCH as u32 {
        let found = wire.answer(|bytes| match decode(bytes)? {
            Some((Frame::Method(found, arguments), used)) if found == wanted => {
                let taken = take.take().map(|take| take(arguments)).transpose()?;
                Ok(Some((taken, used)))
            }
            Some((frame, used)) => refusal(&frame).map_or(Ok(Some((None, used))), Err),
            None => Ok(None),
        });
        if let Some(taken) = found.await? {
            return Ok(taken);
        }
    }
    Err(unexpected(b"many frames of other kinds"))
}

/// Why the server closes the channel or the connection, if the frame says that.
fn refusal(frame: &Frame<'_>) -> Option<io::Error> {
    match frame {
        Frame::Method(method::CONNECTION_CLOSE | method::CHANNEL_CLOSE, arguments) => {
            let reason = arguments.clone().reason().unwrap_or_else(|error| error.to_string());
            Some(io::Error::other(format!("closed by the server: {reason}")))
        }
        _ => None,
    }
}

/// A channel that publishes.
#[derive(Debug)]
pub(crate) struct Publishes {
    wire: Wire,
    template: Template,
    confirms: Confirms,
}

impl Producer for Publishes {
    async fn produce(&mut self, first: u64, answers: &mut Answers) -> io::Result<()> {
        self.confirms.expect(self.template.messages());
        self.wire.send(self.template.numbered(first)).await?;
        while !self.confirms.is_finished() {
            let confirms = &mut self.confirms;
            let note = self.wire.answer(|bytes| {
                let Some((frame, used)) = decode(bytes)? else { return Ok(None) };
                note_confirm(confirms, frame, answers).map(|()| Some(((), used)))
            });
            note.await?;
        }
        Ok(())
    }
}

fn note_confirm(confirms: &mut Confirms, frame: Frame<'_>, answers: &mut Answers) -> io::Result<()> {
    match frame {
        Frame::Method(found @ (method::BASIC_ACK | method::BASIC_NACK), mut arguments) => {
            let (tag, is_multiple) = (arguments.u64()?, arguments.u8()? & 1 != 0);
            let answered = confirms.note(tag, is_multiple)?;
            if found == method::BASIC_ACK {
                answers.confirm(answered);
            } else {
                answers.failures.add("publish refused", answered);
            }
            Ok(())
        }
        Frame::Heartbeat => Ok(()),
        other => Err(refusal(&other).unwrap_or_else(|| unexpected(b"a frame that is no confirm"))),
    }
}

/// A channel that consumes.
#[derive(Debug)]
pub(crate) struct Channel {
    wire: Wire,
    delivery: Delivery,
}

impl Consumer for Channel {
    async fn run(&mut self, deliveries: Arc<Deliveries>) -> io::Result<()> {
        let mut acks = Vec::new();
        loop {
            let mut acked = 0;
            while let Some((frame, used)) = decode(self.wire.unread())? {
                if let Some(tag) = self.delivery.take(frame, &deliveries)? {
                    acks.extend_from_slice(&call(CHANNEL, method::BASIC_ACK, &[&tag.to_be_bytes(), &[0]]));
                    acked += 1;
                }
                self.wire.consume(used);
            }
            if acked > 0 {
                self.wire.send(&acks).await?;
                acks.clear();
                deliveries.note_acked(acked);
            }
            self.wire.fill().await?;
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        let close = [&200u16.to_be_bytes()[..], &short_text("done"), &[0; 4]];
        let (closing, closed) = (method::CHANNEL_CLOSE, method::CHANNEL_CLOSE_OK);
        in_time(request(&mut self.wire, CHANNEL, closing, &close, closed, |_| Ok(()))).await
    }
}

/// A delivery of which not all frames have arrived.
#[derive(Debug, Default)]
struct Delivery {
    tag: u64,
    body: Vec<u8>,
    /// Bytes of the body that are missing, once its header is here.
    missing: Option<usize>,
}

impl Delivery {
    /// Takes a frame; returns the tag of the delivery when it is complete.
    fn take(&mut self, frame: Frame<'_>, deliveries: &Deliveries) -> io::Result<Option<u64>> {
        match (frame, self.missing) {
            (Frame::Heartbeat, _) => return Ok(None),
            (Frame::Method(method::BASIC_DELIVER, mut arguments), None) => {
                arguments.short_text()?;
                self.tag = arguments.u64()?;
                self.body.clear();
                return Ok(None);
            }
            (Frame::Header(bytes), None) => self.missing = Some(bytes as usize),
            (Frame::Body(part), Some(missing)) if part.len() <= missing => {
                self.body.extend_from_slice(part);
                self.missing = Some(missing - part.len());
            }
            (frame, _) => return Err(refusal(&frame).unwrap_or_else(|| unexpected(b"a frame of no delivery"))),
        }
        if self.missing != Some(0) {
            return Ok(None);
        }
        self.missing = None;
        deliveries.note_delivered(&self.body);
        Ok(Some(self.tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn method_frame(bytes: &[u8]) -> Frame<'_> {
        decode(bytes).expect("well formed").expect("complete").0
    }

    #[test]
    fn delivery_is_complete_with_the_last_part_of_its_body() {
        let (mut delivery, deliveries) = (Delivery::default(), Deliveries::new(16, 1));
        let arguments = [&short_text("c1")[..], &9u64.to_be_bytes(), &[0], &short_text(""), &short_text("q")];
        let deliver = call(CHANNEL, method::BASIC_DELIVER, &arguments);
        let mut take = |frame| delivery.take(frame, &deliveries);
        for frame in [method_frame(&deliver), Frame::Header(16), Frame::Body(b"00000000"), Frame::Heartbeat] {
            assert_eq!(take(frame).expect("a part"), None);
        }
        assert_eq!(take(Frame::Body(b"00000007")).expect("the rest"), Some(9));
        assert_eq!(deliveries.checked(), 1);
        assert!(take(Frame::Body(b"x")).is_err(), "of no delivery");
        take(Frame::Header(2)).expect("a header");
        assert!(take(Frame::Body(b"xyz")).is_err(), "longer than it was said to be");
    }

    #[test]
    fn nack_and_close_are_no_confirms() {
        let (mut confirms, mut answers) = (Confirms::default(), Answers::new(&Arc::default()));
        confirms.expect(3);
        let nack = call(CHANNEL, method::BASIC_NACK, &[&2u64.to_be_bytes(), &[1]]);
        let ack = call(CHANNEL, method::BASIC_ACK, &[&3u64.to_be_bytes(), &[0]]);
        let mut note = |frame| note_confirm(&mut confirms, frame, &mut answers);
        note(method_frame(&nack)).expect("an answer");
        note(method_frame(&ack)).expect("an answer");
        let arguments = [&506u16.to_be_bytes()[..], &short_text("no memory"), &[0; 4]];
        let close = call(CHANNEL, method::CHANNEL_CLOSE, &arguments);
        let error = note(method_frame(&close)).expect_err("no answer");
        assert!(error.to_string().contains("506 no memory"), "{error}");
        assert!(note(Frame::Header(3)).is_err());
        assert!(confirms.is_finished());
        assert_eq!((answers.confirmed, answers.failures.to_string()), (1, "2 × publish refused".to_owned()));
    }
}
