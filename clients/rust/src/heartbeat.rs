//! Heartbeats: they prolong the leases of messages and effects while the work on them goes on, on a thread of their
//! own, so that a handler that blocks its thread does not stop them.
//!
//! A lease is counted from the receipt of its message, and from the sending of the last heartbeat that succeeded. When
//! nothing has succeeded for a whole lease, or the broker says that another worker has it, it is lost.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::cancel::{Cancel, Cause};
use crate::client::Client;
use crate::error::Error;
use crate::event::{Event, Observer};
use crate::message::{Claim, Message};
use crate::store::{Identity, Store};

/// A heartbeat is sent every so many parts of a lease.
pub(crate) const BEATS_PER_LEASE: u32 = 3;
/// After a heartbeat that was refused for another reason than a lost lease, it is tried so many times per lease.
const RETRIES_PER_LEASE: u32 = 10;
/// Entries of the queue that belong to nothing any more are removed when they are so many more than the others.
const STALE_ENTRIES_MAX: usize = 4_096;

/// What is prolonged.
#[derive(Debug)]
enum Lease {
    /// The delivery of a message.
    Delivery(Claim),
    /// The grant of an effect.
    Effect { identity: Identity, lease_token: String },
}

#[derive(Debug)]
struct Entry {
    lease: Lease,
    message: Arc<Message>,
    cancel: Cancel,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// From when the lease is counted.
    since: Instant,
    /// A request is under way that ends the lease.
    is_ending: bool,
    /// No heartbeat is sent any more. The lease runs out.
    is_final: bool,
    is_lost: bool,
}

/// Everything that has a heartbeat. Time of the next one, and the number of the entry.
#[derive(Default)]
struct Table {
    entries: HashMap<u64, Arc<Entry>>,
    due: BinaryHeap<Reverse<(Instant, u64)>>,
    next_number: u64,
    is_stopped: bool,
}

struct Shared {
    client: Client,
    store: Arc<dyn Store>,
    length: Duration,
    observer: Observer,
    /// The runtime of the handlers.
    handlers: Handle,
    is_probing: AtomicBool,
    table: Mutex<Table>,
    changed: Notify,
}

/// The heartbeats of a worker. The thread ends when this is dropped.
pub(crate) struct Heartbeats(Arc<Shared>);

/// Keeps a heartbeat going until it is dropped.
pub(crate) struct Held {
    shared: Arc<Shared>,
    number: u64,
}

impl Heartbeats {
    /// Starts the thread. `client` and `store` must not share connections with another runtime.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(crate) fn start(
        client: Client,
        store: Arc<dyn Store>,
        length: Duration,
        observer: Observer,
    ) -> Result<Self, std::io::Error> {
        let shared = Arc::new(Shared {
            client,
            store,
            length,
            observer,
            handlers: Handle::current(),
            is_probing: AtomicBool::new(false),
            table: Mutex::default(),
            changed: Notify::new(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let background = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("driftq-heartbeat".to_owned())
            .spawn(move || runtime.block_on(background.run()))?;
        Ok(Self(shared))
    }

    /// Prolongs the lease of a message that was received at `since`.
    pub(crate) fn delivery(&self, claim: Claim, message: &Arc<Message>, since: Instant, cancel: &Cancel) -> Held {
        self.hold(Lease::Delivery(claim), message, since, cancel)
    }

    /// Prolongs the grant of an effect that was asked for at `since`.
    pub(crate) fn effect(
        &self,
        identity: Identity,
        lease_token: String,
        message: &Arc<Message>,
        since: Instant,
        cancel: &Cancel,
    ) -> Held {
        self.hold(Lease::Effect { identity, lease_token }, message, since, cancel)
    }

    /// Sends no heartbeat any more. Leases run out.
    pub(crate) fn let_run_out(&self) {
        let table = self.0.table();
        for entry in table.entries.values() {
            entry.state().is_final = true;
        }
    }

    fn hold(&self, lease: Lease, message: &Arc<Message>, since: Instant, cancel: &Cancel) -> Held {
        let state = Mutex::new(State { since, is_ending: false, is_final: false, is_lost: false });
        let entry = Entry { lease, message: Arc::clone(message), cancel: cancel.clone(), state };
        let mut table = self.0.table();
        let number = table.next_number;
        table.next_number += 1;
        table.entries.insert(number, Arc::new(entry));
        drop(table);
        self.0.schedule(number, since + self.0.length / BEATS_PER_LEASE);
        Held { shared: Arc::clone(&self.0), number }
    }
}

impl Drop for Heartbeats {
    fn drop(&mut self) {
        self.0.table().is_stopped = true;
        self.0.changed.notify_one();
    }
}

impl Held {
    /// A request is under way that ends the lease. Heartbeats go on, but an answer that the lease is gone may mean that
    /// the request was carried out: it no longer cancels anything before the lease has run out.
    pub(crate) fn ends_now(&self) {
        let entry = self.shared.table().entries.get(&self.number).cloned();
        if let Some(entry) = entry {
            entry.state().is_ending = true;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.table().entries.remove(&self.number);
    }
}

impl Entry {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        // A panic cannot leave the table half changed.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn schedule(&self, number: u64, at: Instant) {
        let mut table = self.table();
        if table.due.len() > 2 * table.entries.len() + STALE_ENTRIES_MAX {
            let Table { due, entries, .. } = &mut *table;
            due.retain(|Reverse((_, number))| entries.contains_key(number));
        }
        let is_first = table.due.peek().is_none_or(|Reverse((first, _))| at < *first);
        table.due.push(Reverse((at, number)));
        drop(table);
        if is_first {
            self.changed.notify_one();
        }
    }

    async fn run(self: Arc<Self>) {
        loop {
            let (due, next) = {
                let mut table = self.table();
                if table.is_stopped {
                    return;
                }
                table.take_due(Instant::now())
            };
            for (number, entry) in due {
                tokio::spawn(Arc::clone(&self).beat(number, entry));
            }
            match next {
                None => self.changed.notified().await,
                Some(at) => {
                    tokio::select! {
                        () = self.changed.notified() => {}
                        () = sleep_until(at) => {}
                    }
                }
            }
        }
    }

    /// What is due for an entry: a heartbeat, or a look at whether it still holds its slot.
    async fn beat(self: Arc<Self>, number: u64, entry: Arc<Entry>) {
        let (since, is_final, is_lost) = {
            let state = entry.state();
            (state.since, state.is_final, state.is_lost)
        };
        if is_lost {
            if matches!(entry.lease, Lease::Delivery(_)) {
                self.observer.report(&Event::HandlerStuck { message: &entry.message });
            }
            return;
        }
        let ends = since + self.length;
        if is_final {
            if Instant::now() < ends {
                self.schedule(number, ends);
            } else {
                self.lose(number, &entry);
            }
            return;
        }
        if matches!(entry.lease, Lease::Delivery(_)) {
            self.probe_handlers();
        }
        loop {
            let sent = Instant::now();
            match timeout_at(ends, self.prolong(&entry.lease, ends.saturating_duration_since(sent))).await {
                Ok(Ok(())) => {
                    entry.state().since = sent;
                    return self.schedule(number, sent + self.length / BEATS_PER_LEASE);
                }
                // The request that ends it has overtaken this one.
                Ok(Err(error)) if error.is_lease_lost() && entry.state().is_ending => {
                    entry.state().is_final = true;
                    return self.schedule(number, ends);
                }
                Ok(Err(error)) if error.is_lease_lost() => break,
                Ok(Err(_)) if Instant::now() < ends => sleep(self.length / RETRIES_PER_LEASE).await,
                Ok(Err(_)) | Err(_) => break,
            }
            if !self.table().entries.contains_key(&number) {
                return;
            }
        }
        self.lose(number, &entry);
    }

    fn lose(&self, number: u64, entry: &Arc<Entry>) {
        if !self.table().entries.contains_key(&number) {
            return;
        }
        entry.state().is_lost = true;
        if entry.cancel.trigger(Cause::LeaseLost) {
            self.observer.report(&Event::LeaseLost { message: &entry.message });
        }
        self.schedule(number, Instant::now() + self.length);
    }

    async fn prolong(&self, lease: &Lease, limit: Duration) -> Result<(), Error> {
        match lease {
            Lease::Delivery(claim) => self.client.extend_within(claim, self.length, limit).await,
            Lease::Effect { identity, lease_token } => self.store.renew(identity, lease_token, self.length).await,
        }
    }

    /// Finds out whether the threads of the handlers are blocked: a task there runs at once if one of them is free.
    fn probe_handlers(self: &Arc<Self>) {
        if self.is_probing.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = Arc::clone(self);
        let sent = Instant::now();
        self.handlers.spawn(async move {
            shared.is_probing.store(false, Ordering::Release);
            let blocked = sent.elapsed();
            if blocked >= shared.length / BEATS_PER_LEASE {
                shared.observer.report(&Event::LoopBlocked { blocked });
            }
        });
    }
}

impl Table {
    /// Takes what is due, and says when the next entry is.
    fn take_due(&mut self, now: Instant) -> (Vec<(u64, Arc<Entry>)>, Option<Instant>) {
        let mut taken = Vec::new();
        while let Some(Reverse((at, number))) = self.due.peek().copied() {
            let entry = self.entries.get(&number);
            if at > now && entry.is_some() {
                return (taken, Some(at));
            }
            taken.extend(entry.map(|entry| (number, Arc::clone(entry))));
            self.due.pop();
        }
        (taken, None)
    }
}

impl fmt::Debug for Heartbeats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heartbeats").field("held", &self.0.table().entries.len()).finish_non_exhaustive()
    }
}
