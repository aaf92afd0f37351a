//! PostgreSQL as a queue: a consumer leases rows that no other one leases at the same time (SKIP LOCKED), and deletes
//! each of them when it is done.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;

use crate::daemon::free_addr;
use crate::load::broker::unused_name;
use crate::load::error::Result;
use crate::load::modes::compare::deliveries::Deliveries;
use crate::load::modes::compare::protocols::postgres::{
    BIND_END, Message, bind_front, columns, decode, error_text, execute, parse, query, run, startup, sync,
};
use crate::load::modes::compare::server::{Folder, Server, User, find_program, version_of};
use crate::load::modes::compare::system::{Answers, Consumer, PREFETCH, Producer, Site, System};
use crate::load::modes::compare::template::Template;
use crate::load::modes::compare::wire::{Wire, in_time, malformed, number};

/// Where Debian has a folder for each version.
const VERSIONS: &str = "/usr/lib/postgresql";
const USER: &str = "postgres";
const DATABASE: &str = "postgres";
/// Connections beside those of the measurement.
const MORE_CONNECTIONS: u32 = 20;
/// How full pages are made. The rest is for the versions of rows that leases make.
const FILL_PERCENT: u32 = 60;
/// How long a lease lasts.
const LEASE: &str = "60 s";
/// How long a consumer waits when there is no row.
const EMPTY_PAUSE: Duration = Duration::from_millis(1);

/// The id of a row, as it is sent.
type Id = [u8; ID_BYTES as usize];
const ID_BYTES: u32 = 8;

/// A running server.
#[derive(Debug)]
pub(crate) struct Postgres {
    server: Server,
    version: String,
    value_bytes: u32,
}

impl System for Postgres {
    type Producer = Inserts;
    type Consumer = Leases;
    const HAS_BATCHES: bool = true;

    async fn start(site: &Site) -> Result<Self> {
        let programs = programs()?;
        let folder = Folder::new(&site.parent, User::instead_of_root(USER)?)?;
        let (data, addr) = (folder.create("data")?, free_addr()?);
        let mut init = Command::new(programs.join("initdb"));
        init.args(["-U", USER, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "-D"]).arg(&data);
        folder.run(&mut init).await?;
        let program = programs.join("postgres");
        let mut start = Command::new(&program);
        start.arg("-D").arg(data);
        let settings = [
            format!("listen_addresses={}", addr.ip()),
            format!("port={}", addr.port()),
            "unix_socket_directories=".to_owned(),
            format!("max_connections={}", site.connections + MORE_CONNECTIONS),
            "fsync=on".to_owned(),
            "synchronous_commit=on".to_owned(),
        ];
        for setting in settings {
            start.args(["-c", &setting]);
        }
        // Ends at once, and has its processes end.
        let mut server = Server::spawn(&mut start, folder, addr)?.stopped_by(Signal::QUIT);
        server.wait_until_ready(async |addr| connect(addr).await.map(|_| ())).await?;
        Ok(Self { server, version: version_of(&program, "--version"), value_bytes: site.value_bytes })
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn settings(&self) -> String {
        format!(
            "`fsync=on`, `synchronous_commit=on`, defaults otherwise; prepared statements; a consumer has one \
             connection, on which it leases up to {PREFETCH} rows by one UPDATE (`SELECT … FOR UPDATE SKIP LOCKED` \
             chooses them) and deletes them one by one, each in a transaction of its own; it waits {} ms where there \
             is no row; pages are filled to {FILL_PERCENT} %, so that leases stay on them; values are not \
             compressed; batches are one INSERT of \
             100 rows",
            EMPTY_PAUSE.as_millis()
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
        let mut wire = in_time(connect(self.server.addr())).await?;
        let sql = format!(
            r#"CREATE TABLE "{queue}" (id bigserial PRIMARY KEY,
            leased_until timestamptz NOT NULL DEFAULT '-infinity', value bytea NOT NULL)
            WITH (fillfactor = {FILL_PERCENT});
            ALTER TABLE "{queue}" ALTER value SET STORAGE EXTERNAL"#
        );
        in_time(call(&mut wire, &query(&sql))).await?;
        Ok(queue)
    }

    async fn producer(&self, queue: &str, batch: u32) -> Result<Inserts> {
        let mut wire = in_time(connect(self.server.addr())).await?;
        let rows: Vec<String> = (1..=batch).map(|number| format!("(${number})")).collect();
        let insert = format!(r#"INSERT INTO "{queue}" (value) VALUES {}"#, rows.join(","));
        in_time(call(&mut wire, &[parse("put", &insert), sync()].concat())).await?;
        let lengths = vec![self.value_bytes; batch as usize];
        let row = Template::new(self.value_bytes).fixed(self.value_bytes.to_be_bytes()).value();
        let end = [BIND_END, &execute(), &sync()].concat();
        let template = row.repeated(batch).enclosed(&bind_front("put", &lengths), &end);
        Ok(Inserts { wire, template })
    }

    async fn consumer(&self, queue: &str, _: u32) -> Result<Leases> {
        let mut wire = in_time(connect(self.server.addr())).await?;
        let lease = format!(
            r#"WITH next AS (SELECT id FROM "{queue}" WHERE leased_until < now() ORDER BY id
            FOR UPDATE SKIP LOCKED LIMIT {PREFETCH})
            UPDATE "{queue}" SET leased_until = now() + interval '{LEASE}' FROM next WHERE "{queue}".id = next.id
            RETURNING "{queue}".id, value"#
        );
        let delete = format!(r#"DELETE FROM "{queue}" WHERE id = $1"#);
        in_time(call(&mut wire, &[parse("lease", &lease), parse("delete", &delete), sync()].concat())).await?;
        Ok(Leases { wire })
    }

    async fn unacked(&self, queue: &str) -> Result<u64> {
        let mut wire = in_time(connect(self.server.addr())).await?;
        let sql = query(&format!(r#"SELECT count(*) FROM "{queue}""#));
        let row = in_time(call(&mut wire, &sql)).await?.ok_or("a count without a row")?;
        Ok(number(&row)?)
    }
}

/// The folder with the programs of the newest version.
fn programs() -> Result<PathBuf> {
    let versions = fs::read_dir(VERSIONS).into_iter().flatten().flatten();
    let mut versions: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .filter(|(_, programs)| programs.join("postgres").is_file())
        .collect();
    versions.sort();
    if let Some((_, programs)) = versions.pop() {
        return Ok(programs);
    }
    let program = find_program(&["postgres"])?.canonicalize()?;
    Ok(program.parent().unwrap_or(Path::new("/")).to_owned())
}

/// Connects and waits until statements are accepted.
async fn connect(addr: std::net::SocketAddr) -> io::Result<Wire> {
    let mut wire = Wire::connect(addr).await?;
    call(&mut wire, &startup(USER, DATABASE)).await?;
    Ok(wire)
}

/// Sends requests, requires that all succeed, and returns the first column of the last row.
async fn call(wire: &mut Wire, requests: &[u8]) -> io::Result<Option<Vec<u8>>> {
    wire.send(requests).await?;
    let (mut column, mut refusal) = (None, None);
    let wants_more = |message: Message<'_>| {
        match message {
            Message::Row(row) => column = Some(columns::<1>(row)?[0].to_vec()),
            Message::Error(body) => refusal = Some(error_text(body)),
            Message::AuthenticationRequest => return Err(malformed("authentication is required")),
            Message::Ready => return Ok(false),
            _ => {}
        }
        // A connection that is refused gets no more than an error.
        Ok(true)
    };
    let read = read(wire, wants_more).await;
    match refusal {
        Some(refusal) => Err(io::Error::other(refusal)),
        None => read.map(|()| column),
    }
}

/// Reads messages as long as more are wanted.
async fn read(wire: &mut Wire, mut wants_more: impl FnMut(Message<'_>) -> io::Result<bool>) -> io::Result<()> {
    loop {
        let more = wire.answer(|bytes| match decode(bytes)? {
            Some((message, used)) => wants_more(message).map(|more| Some((more, used))),
            None => Ok(None),
        });
        if !more.await? {
            return Ok(());
        }
    }
}

/// A connection that inserts rows.
#[derive(Debug)]
pub(crate) struct Inserts {
    wire: Wire,
    template: Template,
}

impl Producer for Inserts {
    async fn produce(&mut self, first: u64, answers: &mut Answers) -> io::Result<()> {
        self.wire.send(self.template.numbered(first)).await?;
        let count = |message: Message<'_>| {
            match message {
                Message::Complete(tag) => answers.confirm(inserted(tag)?),
                Message::Error(body) => answers.refuse(&format!("INSERT {}", error_text(body))),
                Message::Ready => return Ok(false),
                _ => {}
            }
            Ok(true)
        };
        read(&mut self.wire, count).await
    }
}

/// How many rows were inserted, of the name of a completed command.
fn inserted(tag: &[u8]) -> io::Result<u64> {
    number(tag.strip_prefix(b"INSERT 0 ").ok_or_else(|| malformed("another command was completed"))?)
}

/// A connection that leases rows and deletes them.
#[derive(Debug)]
pub(crate) struct Leases {
    wire: Wire,
}

impl Consumer for Leases {
    async fn run(&mut self, deliveries: Arc<Deliveries>) -> io::Result<()> {
        let lease = [run("lease"), sync()].concat();
        let mut delete = [&bind_front("delete", &[ID_BYTES])[..], &ID_BYTES.to_be_bytes()].concat();
        let id_at = delete.len();
        delete.extend_from_slice(&[0; ID_BYTES as usize]);
        delete.extend_from_slice(&[BIND_END, &execute(), &sync()].concat());
        let mut ids = Vec::new();
        loop {
            self.wire.send(&lease).await?;
            read(&mut self.wire, |message| take_leased(message, &mut ids, &deliveries)).await?;
            if ids.is_empty() {
                tokio::time::sleep(EMPTY_PAUSE).await;
            }
            for id in ids.drain(..) {
                delete[id_at..][..id.len()].copy_from_slice(&id);
                self.wire.send(&delete).await?;
                read(&mut self.wire, |message| take_deleted(message, &deliveries)).await?;
            }
        }
    }
}

/// Takes an answer to a lease; false if it is the last one.
fn take_leased(message: Message<'_>, ids: &mut Vec<Id>, deliveries: &Deliveries) -> io::Result<bool> {
    match message {
        Message::Row(row) => {
            let [id, value] = columns(row)?;
            ids.push(id.try_into().map_err(|_| malformed("an id of another length"))?);
            deliveries.note_delivered(value);
        }
        Message::Error(body) => return Err(io::Error::other(error_text(body))),
        Message::Ready => return Ok(false),
        _ => {}
    }
    Ok(true)
}

/// Takes an answer to a delete; false if it is the last one.
fn take_deleted(message: Message<'_>, deliveries: &Deliveries) -> io::Result<bool> {
    match message {
        Message::Complete(b"DELETE 1") => deliveries.note_acked(1),
        Message::Complete(tag) => deliveries.note_failure(&format!("ack {}", String::from_utf8_lossy(tag))),
        Message::Error(body) => deliveries.note_failure(&format!("ack {}", error_text(body))),
        Message::Ready => return Ok(false),
        _ => {}
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_is_acked_by_its_deletion_and_not_by_that_of_none() {
        let (mut ids, deliveries) = (Vec::new(), Deliveries::new(16, 1));
        let row = [&[0, 2, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 16][..], b"0000000000000007"].concat();
        assert!(take_leased(Message::Row(&row), &mut ids, &deliveries).is_ok_and(|more| more));
        assert!(take_leased(Message::Ready, &mut ids, &deliveries).is_ok_and(|more| !more));
        assert_eq!((ids, deliveries.checked()), (vec![258u64.to_be_bytes()], 1));
        for message in [Message::Complete(b"DELETE 0"), Message::Error(b"C40001\0Mno\0\0"), Message::Ready] {
            take_deleted(message, &deliveries).expect("an answer");
        }
        assert_eq!(deliveries.acked(), 0);
        assert_eq!(deliveries.failures().to_string(), "1 × ack 40001 no, 1 × ack DELETE 0");
        assert!(take_deleted(Message::Complete(b"DELETE 1"), &deliveries).is_ok_and(|more| more));
        assert_eq!(deliveries.acked(), 1);
    }

    #[test]
    fn refused_lease_and_a_row_of_another_form_are_errors() {
        let (mut ids, deliveries) = (Vec::new(), Deliveries::new(16, 1));
        let short_id = [0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 1, b'x'];
        for message in [Message::Error(b"C57014\0Mno\0\0"), Message::Row(&short_id), Message::Row(&short_id[..6])] {
            assert!(take_leased(message, &mut ids, &deliveries).is_err());
        }
    }

    #[test]
    fn another_command_is_not_counted_as_an_insert() {
        assert_eq!(inserted(b"INSERT 0 100").expect("a count"), 100);
        assert!(inserted(b"DELETE 1").is_err());
        assert!(inserted(b"INSERT 0 x").is_err());
    }
}
