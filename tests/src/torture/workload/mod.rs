//! The load on the broker while faults are injected: producers, and workers that do everything a worker may do,
//! including mistakes.
//!
//! Each client is a thread with its own connections and continues over restarts. Clients do not check responses: the
//! history is checked.

mod plan;
mod producer;
mod worker;

use std::sync::Arc;
use std::thread::JoinHandle;

pub use self::plan::{GROUPS, Load, OUTPUTS, REDELIVERY_MS_MAX, Shared, TOPICS, Topic, lease_of};
use self::producer::Producer;
use self::worker::Worker;
use super::recorder::Recorder;
use super::rng::SeededRng;
use crate::http::Client;

/// Running clients. They stop when this is dropped.
#[derive(Debug)]
pub struct Workload {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Workload {
    /// Starts the clients. `name` distinguishes them and their values from all others of the history.
    ///
    /// # Errors
    /// If a thread cannot be created.
    pub fn start(
        recorder: &Arc<Recorder>,
        client: &Client,
        load: Load,
        name: &str,
        seed: u64,
    ) -> std::io::Result<Self> {
        let mut workload = Self { shared: Arc::default(), threads: Vec::new() };
        for number in 0..load.producers {
            let rng = SeededRng::new(seed, number);
            let name = format!("{name}-producer-{number}");
            let producer = Producer::new(recorder, client, name, load, rng, Arc::clone(&workload.shared));
            workload.threads.push(std::thread::Builder::new().spawn(move || producer.run())?);
        }
        for (index, (topic, group)) in (0..).zip(GROUPS) {
            for number in 0..load.workers {
                let rng = SeededRng::new(seed, 1000 + index * 100 + number);
                let name = format!("{name}-{group}-{number}");
                let worker = Worker::new(recorder, client, (topic, group), name, rng, Arc::clone(&workload.shared));
                workload.threads.push(std::thread::Builder::new().spawn(move || worker.run())?);
            }
        }
        Ok(workload)
    }

    /// The counters of the clients.
    #[must_use]
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Stops the clients.
    ///
    /// # Errors
    /// If a client panicked.
    pub fn stop(mut self) -> Result<(), String> {
        if self.join() { Ok(()) } else { Err("a client of the workload panicked".to_owned()) }
    }

    fn join(&mut self) -> bool {
        self.shared.stop();
        self.threads.drain(..).map(JoinHandle::join).filter(Result::is_err).count() == 0
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.join();
    }
}
