//! One run of a scenario: the model, and the names that the file gives to consumers, tokens and held commands.

use std::collections::BTreeMap;

use driftq_core::command::Subscribe;
use driftq_core::faults::Faults;
use driftq_core::reply::{CloseCause, Delivery};
use driftq_core::types::{ConsumerId, Identity, LeaseToken, Limits, Ticket, Timestamp, TokenClaim};
use driftq_core::{Model, ModelCommand, ModelOutput, PipelineConfig};

use super::args::Args;
use super::commands::{self, Action, Binding};
use super::format::Printer;

/// What a file has named so far.
#[derive(Debug)]
pub struct Names {
    pub start: Timestamp,
    /// Tokens in order of first appearance: `T1` is the first.
    tokens: Vec<LeaseToken>,
    consumers: BTreeMap<String, Consumer>,
    /// The newest grant of each effect.
    grants: BTreeMap<Identity, LeaseToken>,
}

/// A consumer as the file knows it. It stays known after its stream has ended, as a worker does.
#[derive(Debug)]
pub struct Consumer {
    pub stream: Subscribe,
    /// `None` while the reply is held, and after a crash or restart.
    pub id: Option<ConsumerId>,
    /// What it was delivered, newest last.
    pub deliveries: Vec<Delivery>,
}

impl Names {
    fn new(start: Timestamp) -> Self {
        Self { start, tokens: Vec::new(), consumers: BTreeMap::new(), grants: BTreeMap::new() }
    }

    /// The name of a token, a new one if it has none.
    pub fn name_token(&mut self, token: LeaseToken) -> String {
        let known = self.tokens.iter().position(|known| *known == token);
        let index = known.unwrap_or_else(|| {
            self.tokens.push(token);
            self.tokens.len() - 1
        });
        format!("T{}", index + 1)
    }

    /// The token that `text` names.
    pub fn token(&self, text: &str) -> Result<LeaseToken, String> {
        let number = text.strip_prefix('T').and_then(|number| number.parse::<usize>().ok());
        let token = number.and_then(|number| self.tokens.get(number.checked_sub(1)?));
        token.copied().ok_or_else(|| format!("\"{text}\" names no token that was printed before"))
    }

    /// What `text` shows as a token.
    pub fn token_claim(&self, text: &str) -> Result<TokenClaim, String> {
        match text {
            "none" => Ok(TokenClaim::Absent),
            "garbage" => Ok(TokenClaim::Unreadable),
            name => self.token(name).map(TokenClaim::Shown),
        }
    }

    pub fn consumer(&self, name: &str) -> Result<&Consumer, String> {
        self.consumers.get(name).ok_or_else(|| format!("no consumer is named \"{name}\""))
    }

    /// The delivery with this token.
    pub fn delivery(&self, token: LeaseToken) -> Option<&Delivery> {
        self.consumers.values().flat_map(|consumer| &consumer.deliveries).find(|delivery| delivery.token == token)
    }

    /// The newest grant of an effect.
    pub fn grant(&self, identity: &Identity) -> Option<LeaseToken> {
        self.grants.get(identity).copied()
    }

    pub fn set_grant(&mut self, identity: Identity, token: LeaseToken) {
        self.grants.insert(identity, token);
    }

    pub fn connect(&mut self, name: &str, id: ConsumerId) {
        if let Some(consumer) = self.consumers.get_mut(name) {
            consumer.id = Some(id);
        }
    }
}

/// A model that a scenario drives.
#[derive(Debug)]
pub struct Session<F: Faults> {
    faults: F,
    model: Model<F>,
    names: Names,
    /// Commands that were held, in order: `#1` is the first.
    held: Vec<(Ticket, Binding)>,
    is_new: bool,
}

impl<F: Faults> Session<F> {
    pub fn new(faults: F) -> Self {
        let model = Model::with_faults(small_config(Limits::production()), faults);
        let names = Names::new(model.now());
        Self { faults, model, names, held: Vec::new(), is_new: true }
    }

    /// Performs one command and returns what it prints.
    ///
    /// # Errors
    /// If the file is wrong: an unknown command, an unknown or missing argument, an unknown name.
    pub fn execute(&mut self, line: &str, additions: &[String]) -> Result<Vec<String>, String> {
        let mut args = Args::parse(self.names.start, line)?;
        let action = commands::parse(&self.names, &mut args, additions)?;
        args.finish()?;
        let is_first = std::mem::replace(&mut self.is_new, false);
        let mut printed = match action {
            Action::Limits(config) if is_first => {
                self.model = Model::with_faults(*config, self.faults);
                vec!["ok".to_owned()]
            }
            Action::Limits(_) => return Err("limits must be the first command".to_owned()),
            Action::Deliver(name) => self.deliver(&name),
            Action::Reply(number) => self.reply(number)?,
            Action::Apply(command, binding) => self.apply(*command, binding)?,
        };
        printed.extend(self.closed());
        Ok(printed)
    }

    fn apply(&mut self, command: ModelCommand, binding: Binding) -> Result<Vec<String>, String> {
        if let Binding::Stream(name, stream) = &binding {
            let consumer = Consumer { stream: stream.clone(), id: None, deliveries: Vec::new() };
            if self.names.consumers.insert(name.clone(), consumer).is_some() {
                return Err(format!("a consumer was named \"{name}\" before"));
            }
        }
        Ok(match self.model.apply(command) {
            ModelOutput::Reply(result) => Printer { names: &mut self.names }.reply(result, binding),
            ModelOutput::Held(ticket) => {
                self.held.push((ticket, binding));
                vec![format!("held #{}", self.held.len())]
            }
            ModelOutput::Recovered(recovered) => {
                self.names.consumers.values_mut().for_each(|consumer| consumer.id = None);
                let from = if recovered.snapshot.is_some() { " from a snapshot" } else { "" };
                vec![format!("recovered{from}")]
            }
            ModelOutput::NotOpened(error) => vec![format!("not opened: {error}")],
            ModelOutput::Done => vec!["ok".to_owned()],
            other => return Err(format!("the runner cannot print {other:?}")),
        })
    }

    fn deliver(&mut self, name: &str) -> Vec<String> {
        let consumer = self.names.consumers.get_mut(name).expect("the parser knows the consumer");
        let Some(id) = consumer.id else { return vec!["not connected".to_owned()] };
        let Some(delivery) = self.model.deliver(id) else { return vec!["nothing".to_owned()] };
        consumer.deliveries.push(delivery.clone());
        Printer { names: &mut self.names }.delivery(&delivery)
    }

    fn reply(&mut self, number: usize) -> Result<Vec<String>, String> {
        let held = number.checked_sub(1).and_then(|index| self.held.get(index));
        let (ticket, binding) = held.cloned().ok_or_else(|| format!("no command was held as #{number}"))?;
        Ok(match self.model.reply(ticket) {
            Some(result) => Printer { names: &mut self.names }.reply(result, binding),
            None => vec!["no reply".to_owned()],
        })
    }

    /// The streams that the broker has closed since the last command.
    fn closed(&mut self) -> Vec<String> {
        let name = |id: ConsumerId| {
            let named = self.names.consumers.iter().find(|(_, consumer)| consumer.id == Some(id));
            named.map_or_else(|| "an unnamed consumer".to_owned(), |(name, _)| name.clone())
        };
        let cause = |cause| match cause {
            CloseCause::TopicDeleted => "topic deleted",
            CloseCause::GroupDeleted => "group deleted",
            CloseCause::KeyRevoked => "key revoked",
            CloseCause::KeyExpired => "key expired",
        };
        self.model.take_closed().into_iter().map(|(id, why)| format!("closed {}: {}", name(id), cause(why))).collect()
    }
}

/// Small segments, and snapshots on command only.
pub fn small_config(limits: Limits) -> PipelineConfig {
    PipelineConfig {
        limits,
        segment_bytes: 1 << 20,
        reserve_bytes: 64 << 10,
        snapshot_every_bytes: u64::MAX,
        snapshot_every_segments: usize::MAX,
        rest_after: None,
        ..PipelineConfig::default()
    }
}
