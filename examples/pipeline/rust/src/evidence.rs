//! What the broker and the outside service have at the end of a run.

use std::collections::HashMap;

use driftq_client::{Client, Error, Scope, idempotency_key};

use crate::ledger::{Effects, Kind};
use crate::producer::Request;

/// The group of the workers.
pub(crate) const GROUP: &str = "pipeline";
const PEEK_MAX: u32 = 1_000;

/// A message that is in a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) run_id: String,
    pub(crate) traceparent: String,
}

/// How often the broker granted something, by step and identity.
pub(crate) type Grants = HashMap<(Kind, String), u64>;

/// Everything that is verified.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence {
    /// What was asked for.
    pub(crate) requests: Vec<Request>,
    /// What happened outside.
    pub(crate) effects: Effects,
    /// The messages of each step's topic.
    pub(crate) messages: HashMap<Kind, Vec<Held>>,
    /// Grants of handlers.
    pub(crate) handlers: Grants,
    /// Grants of side effects.
    pub(crate) side_effects: Grants,
    /// Messages in dead-letter topics.
    pub(crate) dead_letters: u64,
    /// Messages that the group has not acked.
    pub(crate) unacked: u64,
}

impl Evidence {
    /// Asks the broker for its part.
    ///
    /// # Errors
    /// If it does not answer.
    pub(crate) async fn collect(client: &Client, requests: Vec<Request>, effects: Effects) -> Result<Self, Error> {
        let mut evidence = Self { requests, effects, unacked: unacked(client).await?, ..Self::default() };
        for kind in Kind::ALL {
            evidence.messages.insert(kind, messages(client, kind.topic()).await?);
        }
        for topic in client.topics().await?.iter().filter(|topic| topic.starts_with("dlq.")) {
            evidence.dead_letters += messages(client, topic).await?.len() as u64;
        }
        evidence.collect_grants(client).await?;
        Ok(evidence)
    }

    async fn collect_grants(&mut self, client: &Client) -> Result<(), Error> {
        // The scope of the side effects of a message is a task, whose id is made of topic, group and message key.
        let mut tasks = HashMap::new();
        for request in &self.requests {
            let identity = request.identity(Kind::Charge);
            let id = idempotency_key([Kind::Charge.topic().into(), GROUP.into(), identity.clone().into()])?;
            tasks.insert(id, identity);
        }
        let mut after = None;
        loop {
            let page = client.effects(None, after.as_deref()).await?;
            for effect in page.records {
                let count = u64::from(effect.attempt);
                match effect.scope {
                    Scope::Consume { topic, .. } => {
                        if let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.topic() == topic) {
                            *self.handlers.entry((kind, effect.key)).or_default() += count;
                        }
                    }
                    Scope::Task { id } => {
                        let identity = tasks.get(&id).cloned().unwrap_or(id);
                        *self.side_effects.entry((Kind::Charge, identity)).or_default() += count;
                    }
                    _ => {}
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// How often an effect may have been attempted: the charge is a side effect, the others are those of their handler.
    pub(crate) fn grants(&self, kind: Kind, identity: &str) -> u64 {
        let grants = if kind == Kind::Charge { &self.side_effects } else { &self.handlers };
        grants.get(&(kind, identity.to_owned())).copied().unwrap_or(0)
    }
}

/// How many messages the group has not acked, over all steps.
///
/// # Errors
/// If the broker does not answer.
pub(crate) async fn unacked(client: &Client) -> Result<u64, Error> {
    let mut unacked = 0;
    for kind in Kind::ALL {
        let topic = client.topic(kind.topic()).await?;
        let group = topic.groups.iter().find(|group| group.group == GROUP);
        unacked += match group {
            Some(group) => group.partitions.iter().map(|partition| partition.lag).sum::<u64>(),
            // No worker has come to consume yet.
            None => topic.partitions.iter().map(|partition| partition.messages).sum(),
        };
    }
    Ok(unacked)
}

async fn messages(client: &Client, topic: &str) -> Result<Vec<Held>, Error> {
    let mut held = Vec::new();
    for partition in client.topic(topic).await?.partitions {
        let mut offset = 0;
        while offset < partition.next_offset {
            let page = client.peek(topic, partition.partition, offset, PEEK_MAX).await?;
            let Some(last) = page.last() else { break };
            offset = last.offset + 1;
            held.extend(page.into_iter().map(|message| Held {
                run_id: message.envelope.run_id,
                traceparent: message.trace.unwrap_or_default(),
            }));
        }
    }
    Ok(held)
}
