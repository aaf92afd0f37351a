//! beanstalkd: put, reserve and delete, with its log synced at every write.

use std::io;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::daemon::free_addr;
use crate::load::broker::unused_name;
use crate::load::error::Result;
use crate::load::modes::compare::deliveries::Deliveries;
use crate::load::modes::compare::protocols::beanstalk::{Answer, decode, statistic};
use crate::load::modes::compare::server::{Folder, Server, find_program, version_of};
use crate::load::modes::compare::system::{Answers, Consumer, Producer, Site, System};
use crate::load::modes::compare::template::Template;
use crate::load::modes::compare::wire::{Wire, in_time, unexpected};

/// Longer than any job is held.
const TIME_TO_RUN_SECONDS: u32 = 60;

/// A running server.
#[derive(Debug)]
pub(crate) struct Beanstalkd {
    server: Server,
    version: String,
    value_bytes: u32,
}

impl System for Beanstalkd {
    type Producer = Puts;
    type Consumer = Reserves;
    const HAS_BATCHES: bool = false;

    async fn start(site: &Site) -> Result<Self> {
        let program = find_program(&["beanstalkd"])?;
        let folder = Folder::new(&site.parent, None)?;
        let (data, addr) = (folder.create("data")?, free_addr()?);
        let mut start = Command::new(&program);
        start.args(["-l", &addr.ip().to_string(), "-p", &addr.port().to_string(), "-f", "0", "-b"]);
        let mut server = Server::spawn(start.arg(data), folder, addr)?;
        server.wait_until_ready(async |addr| tube(&mut Wire::connect(addr).await?, "use default").await).await?;
        Ok(Self { server, version: version_of(&program, "-v"), value_bytes: site.value_bytes })
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn settings(&self) -> String {
        "`-b DIR -f 0`, which syncs at every put and delete; a consumer has one connection, on which it sends the \
         delete of a job together with the next reserve; the protocol has no batches"
            .to_owned()
    }

    fn cpu(&self) -> Option<Duration> {
        self.server.cpu()
    }

    fn exited(&mut self) -> Option<String> {
        self.server.exited()
    }

    async fn create(&self) -> Result<String> {
        Ok(unused_name())
    }

    async fn producer(&self, queue: &str, batch: u32) -> Result<Puts> {
        let mut wire = Wire::connect(self.server.addr()).await?;
        in_time(tube(&mut wire, &format!("use {queue}"))).await?;
        let front = format!("put 0 0 {TIME_TO_RUN_SECONDS} {}\r\n", self.value_bytes);
        let template = Template::new(self.value_bytes).fixed(front).value().fixed("\r\n").repeated(batch);
        Ok(Puts { wire, template })
    }

    async fn consumer(&self, queue: &str, _: u32) -> Result<Reserves> {
        let mut wire = Wire::connect(self.server.addr()).await?;
        in_time(tube(&mut wire, &format!("watch {queue}"))).await?;
        in_time(tube(&mut wire, "ignore default")).await?;
        Ok(Reserves { wire })
    }

    async fn unacked(&self, queue: &str) -> Result<u64> {
        let mut wire = Wire::connect(self.server.addr()).await?;
        let count = in_time(async {
            wire.send(format!("stats-tube {queue}\r\n").as_bytes()).await?;
            wire.answer(|bytes| Ok(decode(bytes)?.map(|(answer, used)| (unacked_in(&answer), used)))).await?
        });
        Ok(count.await?)
    }
}

fn unacked_in(answer: &Answer<'_>) -> io::Result<u64> {
    match answer {
        Answer::Statistics(yaml) => {
            Ok(statistic(yaml, "current-jobs-ready")? + statistic(yaml, "current-jobs-reserved")?)
        }
        // A tube is there as long as it has jobs or clients.
        Answer::Other(b"NOT_FOUND") => Ok(0),
        _ => Err(unexpected(b"no statistics")),
    }
}

/// Chooses a tube.
async fn tube(wire: &mut Wire, command: &str) -> io::Result<()> {
    wire.send(format!("{command}\r\n").as_bytes()).await?;
    let answer = wire.answer(|bytes| {
        Ok(decode(bytes)?.map(|(answer, used)| match answer {
            Answer::Tube(_) => (Ok(()), used),
            Answer::Other(text) => (Err(unexpected(text)), used),
            _ => (Err(unexpected(command.as_bytes())), used),
        }))
    });
    answer.await?
}

/// A connection that puts jobs.
#[derive(Debug)]
pub(crate) struct Puts {
    wire: Wire,
    template: Template,
}

impl Producer for Puts {
    async fn produce(&mut self, first: u64, answers: &mut Answers) -> io::Result<()> {
        self.wire.send(self.template.numbered(first)).await?;
        for _ in 0..self.template.messages() {
            let answer = self.wire.answer(|bytes| {
                Ok(decode(bytes)?.map(|(answer, used)| match answer {
                    Answer::Inserted(_) => (Ok(()), used),
                    Answer::Other(text) => (Err(format!("put {}", String::from_utf8_lossy(text))), used),
                    _ => (Err("put with the answer of another command".to_owned()), used),
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

/// A connection that reserves and deletes.
#[derive(Debug)]
pub(crate) struct Reserves {
    wire: Wire,
}

impl Consumer for Reserves {
    async fn run(&mut self, deliveries: Arc<Deliveries>) -> io::Result<()> {
        self.wire.send(b"reserve\r\n").await?;
        loop {
            let reserved = self.wire.answer(|bytes| {
                Ok(decode(bytes)?.map(|(answer, used)| match answer {
                    Answer::Reserved { id, body } => {
                        deliveries.note_delivered(body);
                        (Ok(id), used)
                    }
                    Answer::Other(text) => (Err(unexpected(text)), used),
                    _ => (Err(unexpected(b"not a job")), used),
                }))
            });
            let id = reserved.await??;
            self.wire.send(format!("delete {id}\r\nreserve\r\n").as_bytes()).await?;
            let deleted = self.wire.answer(|bytes| {
                Ok(decode(bytes)?.map(|(answer, used)| match answer {
                    Answer::Deleted => (Ok(()), used),
                    Answer::Other(text) => (Err(format!("delete {}", String::from_utf8_lossy(text))), used),
                    _ => (Err("delete with the answer of another command".to_owned()), used),
                }))
            });
            match deleted.await? {
                Ok(()) => deliveries.note_acked(1),
                Err(refusal) => deliveries.note_failure(&refusal),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_a_tube_are_counted_whether_reserved_or_not() {
        let yaml = b"---\ncurrent-jobs-ready: 4\ncurrent-jobs-reserved: 3\n";
        assert_eq!(unacked_in(&Answer::Statistics(yaml)).expect("statistics"), 7);
        assert_eq!(unacked_in(&Answer::Other(b"NOT_FOUND")).expect("no tube"), 0);
        assert!(unacked_in(&Answer::Other(b"INTERNAL_ERROR")).is_err());
        assert!(unacked_in(&Answer::Deleted).is_err());
    }
}
