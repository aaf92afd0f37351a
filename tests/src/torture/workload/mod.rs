//! What goes on at the broker while it is tortured: producers, and workers who do everything a worker may do, some of it badly.
//!
//! Each client is a thread with sockets of its own and goes on over restarts. Nobody here judges an answer: it is in the history.

mod producer;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use self::producer::Producer;
use self::worker::Worker;
use super::dice::Dice;
use super::recorder::Recorder;
use crate::http::Server;

/// A topic, and how many partitions it has.
pub type Topic = (&'static str, u32);

/// The topics of every history. What is completed makes messages in the third, what has failed too often ends in the last two.
pub const TOPICS: [Topic; 5] = [("orders", 4), ("mail", 1), (OUTPUTS, 2), ("dlq.orders", 4), ("dlq.mail", 1)];
/// The groups, each of which must see everything of its topic.
pub const GROUPS: [(&str, &str); 6] = [
    ("orders", "kitchen"),
    ("orders", "audit"),
    ("mail", "postman"),
    (OUTPUTS, "office"),
    ("dlq.orders", "undertaker"),
    ("dlq.mail", "gravedigger"),
];
/// Where the messages of completed steps go.
pub const OUTPUTS: &str = "receipts";
/// The longest that a message may stay away: lease, extension, backoff or delay. What has not come after this will not come.
pub const AWAY_MS_MAX: u64 = 300;

/// How much goes on.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// How many clients produce.
    pub producers: u64,
    /// How many workers each group has.
    pub workers: u64,
    /// How long a producer rests between two messages at most.
    pub rest: Duration,
    /// Bytes by which a value is made longer.
    pub padding: usize,
}

impl Default for Load {
    fn default() -> Self {
        Self { producers: 3, workers: 2, rest: Duration::from_millis(8), padding: 0 }
    }
}

/// What the clients tell each other and the driver.
#[derive(Debug, Default)]
pub struct Shared {
    stop: AtomicBool,
    /// Acks that came too late and were refused for it.
    pub fenced: AtomicU64,
    /// Produces that were refused because there is no room.
    pub no_room: AtomicU64,
    /// Produces that were taken.
    pub produced: AtomicU64,
    /// Acks that were taken.
    pub acked: AtomicU64,
}

impl Shared {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Clients at work. They end when this does.
#[derive(Debug)]
pub struct Workload {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Workload {
    /// Sets everybody to work. `name` tells these clients and their values from all others of the history.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub fn start(
        recorder: &Arc<Recorder>,
        server: &Server,
        load: Load,
        name: &str,
        seed: u64,
    ) -> std::io::Result<Self> {
        let mut work = Self { shared: Arc::default(), threads: Vec::new() };
        for number in 0..load.producers {
            let dice = Dice::new(seed, number);
            let name = format!("{name}-producer-{number}");
            let producer = Producer::new(recorder, server, name, load, dice, Arc::clone(&work.shared));
            work.threads.push(std::thread::Builder::new().spawn(move || producer.run())?);
        }
        for (place, (topic, group)) in (0..).zip(GROUPS) {
            for number in 0..load.workers {
                let dice = Dice::new(seed, 1000 + place * 100 + number);
                let name = format!("{name}-{group}-{number}");
                let worker = Worker::new(recorder, server, (topic, group), name, dice, Arc::clone(&work.shared));
                work.threads.push(std::thread::Builder::new().spawn(move || worker.run())?);
            }
        }
        Ok(work)
    }

    /// What the clients count.
    #[must_use]
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Ends the work.
    ///
    /// # Errors
    /// If a client broke down, which is the driver's own fault.
    pub fn stop(mut self) -> Result<(), String> {
        if self.end() { Ok(()) } else { Err("a client of the workload panicked".to_owned()) }
    }

    fn end(&mut self) -> bool {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).map(JoinHandle::join).filter(Result::is_err).count() == 0
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.end();
    }
}
