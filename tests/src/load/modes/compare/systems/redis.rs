//! Redis Streams: XADD, XREADGROUP and XACK, with the append-only file synced before every answer.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::daemon::free_addr;
use crate::load::broker::unused_name;
use crate::load::error::Result;
use crate::load::modes::compare::deliveries::Deliveries;
use crate::load::modes::compare::protocols::resp::{Reply, command, decode};
use crate::load::modes::compare::server::{Folder, Server, find_program, version_of};
use crate::load::modes::compare::system::{Answers, Consumer, PREFETCH, Producer, Site, System};
use crate::load::modes::compare::template::Template;
use crate::load::modes::compare::wire::{Wire, in_time, malformed, unexpected};

const GROUP: &str = "compare";
/// The only field of an entry.
const FIELD: &str = "v";
/// How long a read waits for entries; another one follows.
const BLOCK_MS: &str = "1000";

/// A running server.
#[derive(Debug)]
pub(crate) struct Redis {
    server: Server,
    version: String,
    value_bytes: u32,
}

impl System for Redis {
    type Producer = Adds;
    type Consumer = GroupReader;
    const HAS_BATCHES: bool = true;

    async fn start(site: &Site) -> Result<Self> {
        let program = program()?;
        let folder = Folder::new(&site.parent, None)?;
        let (data, addr) = (folder.create("data")?, free_addr()?);
        let mut start = Command::new(&program);
        start.args(["--bind", &addr.ip().to_string(), "--port", &addr.port().to_string(), "--protected-mode", "no"]);
        start.args(["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir"]).arg(data);
        let mut server = Server::spawn(&mut start, folder, addr)?;
        let ping = command(&["PING"]);
        server.wait_until_ready(async |addr| expect(&mut Wire::connect(addr).await?, &ping, b"PONG").await).await?;
        let version = version_of(&program, "--version");
        // Details of the build follow.
        let version = version.split(" sha=").next().unwrap_or_default().to_owned();
        Ok(Self { server, version, value_bytes: site.value_bytes })
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn settings(&self) -> String {
        format!(
            "`--appendonly yes --appendfsync always --save ''`; a consumer reads up to {PREFETCH} entries at a time \
             (`XREADGROUP COUNT BLOCK`) and has a connection for XACK, one in flight; acked entries stay in the \
             stream; batches are pipelines of 100 XADD"
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
        let mut wire = Wire::connect(self.server.addr()).await?;
        in_time(expect(&mut wire, &command(&["XGROUP", "CREATE", &queue, GROUP, "0", "MKSTREAM"]), b"OK")).await?;
        Ok(queue)
    }

    async fn producer(&self, queue: &str, batch: u32) -> Result<Adds> {
        let mut front = command(&["XADD", queue, "*", FIELD]);
        // One part more than these: the value.
        front.splice(..2, *b"*5");
        let front = [front, format!("${}\r\n", self.value_bytes).into_bytes()].concat();
        let template = Template::new(self.value_bytes).fixed(front).value().fixed("\r\n").repeated(batch);
        Ok(Adds { wire: Wire::connect(self.server.addr()).await?, template })
    }

    async fn consumer(&self, queue: &str, index: u32) -> Result<GroupReader> {
        let addr = self.server.addr();
        let (reads, acks) = (Wire::connect(addr).await?, Wire::connect(addr).await?);
        Ok(GroupReader { reads, acks, queue: queue.to_owned(), name: format!("c{index}"), held: Held::default() })
    }

    async fn unacked(&self, queue: &str) -> Result<u64> {
        let mut wire = Wire::connect(self.server.addr()).await?;
        let count = in_time(async {
            wire.send(&command(&["XINFO", "GROUPS", queue])).await?;
            wire.answer(|bytes| Ok(decode(bytes)?.map(|(reply, used)| (unacked_in(&reply), used)))).await?
        });
        Ok(count.await?)
    }
}

/// The program of the server; an error that says so if it is not installed.
pub(crate) fn program() -> Result<PathBuf> {
    find_program(&["redis-server"])
}

/// Entries of the only group that were not delivered, or delivered and not acked.
fn unacked_in(groups: &Reply<'_>) -> io::Result<u64> {
    let group = groups.elements().first().ok_or_else(|| malformed("no group"))?;
    match (group.field("lag"), group.field("pending")) {
        (Some(Reply::Integer(lag)), Some(Reply::Integer(pending))) => Ok((lag + pending).max(0) as u64),
        _ => Err(malformed("a group without lag and pending entries")),
    }
}

/// Sends a command and requires a status.
async fn expect(wire: &mut Wire, command: &[u8], status: &[u8]) -> io::Result<()> {
    wire.send(command).await?;
    let answer = wire.answer(|bytes| {
        Ok(decode(bytes)?.map(|(reply, used)| match reply {
            Reply::Simple(text) if text == status => (Ok(()), used),
            Reply::Error(text) => (Err(unexpected(text)), used),
            _ => (Err(unexpected(b"another type of reply")), used),
        }))
    });
    answer.await?
}

/// A connection that adds entries.
#[derive(Debug)]
pub(crate) struct Adds {
    wire: Wire,
    template: Template,
}

impl Producer for Adds {
    async fn produce(&mut self, first: u64, answers: &mut Answers) -> io::Result<()> {
        self.wire.send(self.template.numbered(first)).await?;
        for _ in 0..self.template.messages() {
            let answer = self.wire.answer(|bytes| {
                Ok(decode(bytes)?.map(|(reply, used)| match reply {
                    // The id of the entry.
                    Reply::Bulk(_) => (Ok(()), used),
                    Reply::Error(text) => (Err(format!("XADD {}", String::from_utf8_lossy(text))), used),
                    other => (Err(format!("XADD answered with {other:?}")), used),
                }))
            });
            match answer.await? {
                Ok(()) => answers.confirm(1),
                Err(refusal) => answers.refuse(&refusal),
            }
        }
        Ok(())
    }
}

/// A consumer: a connection for reads that block, and one for acks.
#[derive(Debug)]
pub(crate) struct GroupReader {
    reads: Wire,
    acks: Wire,
    queue: String,
    name: String,
    held: Held,
}

/// Entries that were delivered and not acked.
#[derive(Debug, Default)]
struct Held {
    count: AtomicUsize,
    ids: Mutex<VecDeque<Vec<u8>>>,
    delivered: Notify,
    acked: Notify,
}

impl Consumer for GroupReader {
    async fn run(&mut self, deliveries: Arc<Deliveries>) -> io::Result<()> {
        let reading = read(&mut self.reads, &self.queue, &self.name, &self.held, &deliveries);
        let acking = ack(&mut self.acks, &self.queue, &self.held, &deliveries);
        tokio::try_join!(reading, acking).map(|((), ())| ())
    }
}

async fn read(wire: &mut Wire, queue: &str, name: &str, held: &Held, deliveries: &Deliveries) -> io::Result<()> {
    loop {
        let count = PREFETCH - held.count.load(Ordering::Relaxed).min(PREFETCH);
        if count == 0 {
            held.acked.notified().await;
            continue;
        }
        let count = count.to_string();
        let group = ["XREADGROUP", "GROUP", GROUP, name, "COUNT", &count, "BLOCK", BLOCK_MS, "STREAMS", queue, ">"];
        wire.send(&command(&group)).await?;
        wire.answer(|bytes| match decode(bytes)? {
            Some((reply, used)) => take(&reply, held, deliveries).map(|()| Some(((), used))),
            None => Ok(None),
        })
        .await?;
        held.delivered.notify_one();
    }
}

/// Takes the entries of a read: an array of streams, each a name and an array of entries, each an id and its fields.
fn take(reply: &Reply<'_>, held: &Held, deliveries: &Deliveries) -> io::Result<()> {
    match reply {
        // There was none for so long.
        Reply::Nil => return Ok(()),
        Reply::Error(text) => return Err(unexpected(text)),
        _ => {}
    }
    let entries = reply.elements().first().and_then(|stream| stream.elements().get(1));
    let entries = entries.ok_or_else(|| malformed("a read without a stream"))?.elements();
    let mut ids = held.ids.lock().unwrap_or_else(PoisonError::into_inner);
    for entry in entries {
        let fields = entry.elements().get(1);
        let id = entry.elements().first().and_then(Reply::bulk);
        let value = fields.and_then(|fields| fields.field(FIELD)).and_then(Reply::bulk);
        let (id, value) = id.zip(value).ok_or_else(|| malformed("an entry without id and value"))?;
        deliveries.note_delivered(value);
        ids.push_back(id.to_vec());
    }
    held.count.fetch_add(entries.len(), Ordering::Relaxed);
    Ok(())
}

async fn ack(wire: &mut Wire, queue: &str, held: &Held, deliveries: &Deliveries) -> io::Result<()> {
    loop {
        let next = held.ids.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(id) = next else {
            held.delivered.notified().await;
            continue;
        };
        wire.send(&command(&["XACK", queue, GROUP, &String::from_utf8_lossy(&id)])).await?;
        let answer = wire.answer(|bytes| {
            Ok(decode(bytes)?.map(|(reply, used)| match reply {
                Reply::Integer(1) => (Ok(()), used),
                Reply::Error(text) => (Err(String::from_utf8_lossy(text).into_owned()), used),
                other => (Err(format!("{other:?}")), used),
            }))
        });
        match answer.await? {
            Ok(()) => deliveries.note_acked(1),
            Err(refusal) => deliveries.note_failure(&format!("XACK {refusal}")),
        }
        held.count.fetch_sub(1, Ordering::Relaxed);
        held.acked.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(bytes: &[u8]) -> Reply<'_> {
        decode(bytes).expect("well formed").expect("complete").0
    }

    #[test]
    fn entries_are_taken_and_a_refused_read_is_an_error() {
        let (held, deliveries) = (Held::default(), Deliveries::new(16, 1));
        let entry = b"*1\r\n*2\r\n$1\r\nq\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nv\r\n$16\r\n0000000000000007\r\n";
        take(&reply(entry), &held, &deliveries).expect("an entry");
        assert_eq!((deliveries.checked(), held.count.load(Ordering::Relaxed)), (1, 1));
        take(&reply(b"*-1\r\n"), &held, &deliveries).expect("none in time");
        assert!(take(&reply(b"-NOGROUP no such group\r\n"), &held, &deliveries).is_err());
        let without_value = b"*1\r\n*2\r\n$1\r\nq\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*-1\r\n";
        assert!(take(&reply(without_value), &held, &deliveries).is_err());
    }

    #[test]
    fn entries_of_a_group_are_counted_whether_delivered_or_not() {
        let bytes = b"*1\r\n*4\r\n$7\r\npending\r\n:3\r\n$3\r\nlag\r\n:4\r\n";
        assert_eq!(unacked_in(&reply(bytes)).expect("a group"), 7);
        assert!(unacked_in(&reply(b"*1\r\n*4\r\n$7\r\npending\r\n:3\r\n$3\r\nlag\r\n$-1\r\n")).is_err());
        assert!(unacked_in(&reply(b"-ERR no such key\r\n")).is_err());
    }
}
