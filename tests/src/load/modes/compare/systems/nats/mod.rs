//! NATS JetStream: publishes with acks, pull consumers, and acks with answers.

mod client;
mod pulls;

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

use crate::daemon::free_addr;
use crate::load::broker::unused_name;
use crate::load::client::text_field;
use crate::load::error::Result;
use crate::load::modes::compare::server::{Folder, Server, find_program, version_of};
use crate::load::modes::compare::system::{PREFETCH, Site, System};
use crate::load::modes::compare::template::Template;
use crate::load::modes::compare::wire::{in_time, number};
use client::{Client, Publishes};
use pulls::Pulls;

/// The name of the consumer that all clients share.
const DURABLE: &str = "compare";
/// Unacked messages of all clients together.
const ACKS_PENDING_MAX: usize = 100_000;

/// What makes acks wait for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sync {
    /// The server's own setting.
    Setting,
    /// The attribute of its folder with which every write is on the disk when it returns.
    Attribute,
    /// Nothing.
    Nothing,
}

/// A running server. Its acks of publishes wait for the disk, unless it runs with the settings it has by default.
#[derive(Debug)]
pub(crate) struct Nats<const IS_SYNCED: bool> {
    server: Server,
    version: String,
    sync: Sync,
    value_bytes: u32,
}

impl<const IS_SYNCED: bool> Nats<IS_SYNCED> {
    /// A request of the API, answered with success.
    async fn api(&self, subject: &str, body: &str) -> Result<Vec<u8>> {
        let mut client = in_time(Client::connect(self.server.addr())).await?;
        let answer = in_time(client.request(&format!("$JS.API.{subject}"), body.as_bytes())).await?;
        match text_field(&answer, "error") {
            None => Ok(answer),
            Some(error) => Err(format!("{subject}: {}", String::from_utf8_lossy(error)).into()),
        }
    }
}

/// Whether a server accepts a configuration.
fn accepts(program: &Path, config: &Path) -> bool {
    let mut check = Command::new(program);
    check.arg("-t").arg("-c").arg(config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    check.status().is_ok_and(|status| status.success())
}

/// Sets the attribute with which every write to the files that will be created in a folder is on the disk when it
/// returns (`chattr +S`).
fn write_through(folder: &Path) -> io::Result<()> {
    let folder = File::open(folder)?;
    let flags = ioctl_getflags(&folder)?;
    Ok(ioctl_setflags(&folder, flags | IFlags::SYNC)?)
}

impl<const IS_SYNCED: bool> System for Nats<IS_SYNCED> {
    type Producer = Publishes;
    type Consumer = Pulls;
    const HAS_BATCHES: bool = true;

    async fn start(site: &Site) -> Result<Self> {
        let program = find_program(&["nats-server"])?;
        let folder = Folder::new(&site.parent, None)?;
        let (data, addr) = (folder.create("data")?, free_addr()?);
        let config = |more: &str| {
            let store = data.display();
            format!("listen: \"{addr}\"\njetstream {{ store_dir: \"{store}\"{more} }}\n")
        };
        let mut file = folder.write("nats.conf", &config(", sync_interval: always"))?;
        let sync = match (IS_SYNCED, accepts(&program, &file)) {
            (true, true) => Sync::Setting,
            (true, false) => Sync::Attribute,
            (false, _) => Sync::Nothing,
        };
        if sync != Sync::Setting {
            file = folder.write("nats.conf", &config(""))?;
        }
        if sync == Sync::Attribute {
            write_through(&data).map_err(|error| {
                format!("it has no setting to sync before acks, and the file system has no sync attribute: {error}")
            })?;
        }
        let mut server = Server::spawn(Command::new(&program).arg("-c").arg(file), folder, addr)?;
        server
            .wait_until_ready(async |addr| {
                let mut client = Client::connect(addr).await?;
                client.request("$JS.API.INFO", b"").await.map(|_| ())
            })
            .await?;
        Ok(Self { server, version: version_of(&program, "--version"), sync, value_bytes: site.value_bytes })
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn settings(&self) -> String {
        let sync = match self.sync {
            Sync::Setting => "`sync_interval: always`",
            Sync::Attribute => {
                "this version has no `sync_interval: always`, so its folder has the attribute with which every write \
                 is on the disk when it returns (`chattr +S`); **acks of consumers are answered before they are \
                 written**"
            }
            Sync::Nothing => "**its acks do not wait for the disk**: it syncs every two minutes",
        };
        format!(
            "{sync}; a file stream of one replica with work-queue retention; a durable pull consumer, of which each \
             client requests up to {PREFETCH} messages at a time and acks with an answer, one in flight; batches are \
             100 publishes before the answers are awaited"
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
        let stream = format!(
            r#"{{"name":"{queue}","subjects":["{queue}"],"retention":"workqueue","storage":"file","num_replicas":1}}"#
        );
        self.api(&format!("STREAM.CREATE.{queue}"), &stream).await?;
        let consumer = format!(
            r#"{{"stream_name":"{queue}","config":{{"durable_name":"{DURABLE}","deliver_policy":"all",
            "ack_policy":"explicit","ack_wait":60000000000,"max_ack_pending":{ACKS_PENDING_MAX}}}}}"#
        );
        self.api(&format!("CONSUMER.DURABLE.CREATE.{queue}.{DURABLE}"), &consumer).await?;
        Ok(queue)
    }

    async fn producer(&self, queue: &str, batch: u32) -> Result<Publishes> {
        let client = in_time(Client::connect(self.server.addr())).await?;
        let front = format!("PUB {queue} {} {}\r\n", client.inbox, self.value_bytes);
        let template = Template::new(self.value_bytes).fixed(front).value().fixed("\r\n").repeated(batch);
        Ok(Publishes::new(client, template))
    }

    async fn consumer(&self, queue: &str, _: u32) -> Result<Pulls> {
        let client = in_time(Client::connect(self.server.addr())).await?;
        let next = format!("$JS.API.CONSUMER.MSG.NEXT.{queue}.{DURABLE}");
        Ok(in_time(Pulls::subscribe(client, next)).await?)
    }

    async fn unacked(&self, queue: &str) -> Result<u64> {
        let info = self.api(&format!("STREAM.INFO.{queue}"), "").await?;
        let state = text_field(&info, "state").ok_or("a stream without a state")?;
        Ok(number(text_field(state, "messages").unwrap_or_default())?)
    }
}
