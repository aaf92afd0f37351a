//! How it came to what is known, kept as long as a crash may take some of it back.
//!
//! A crash keeps the first so many records of the log, and they may end anywhere, in the midst of what one command did.
//! So the story is told again from a point that is certain, until as many records are written as survived.

use std::fmt;

use driftq_core::Command;
use driftq_core::types::Timestamp;

use super::model::Model;

/// So many inputs are remembered before the model is set down anew: retelling must stay short, and so must copying.
const INPUTS_PER_CHECKPOINT: usize = 64;

/// Something the model was told.
#[derive(Clone, Debug)]
pub(super) enum Input {
    Boot(Timestamp),
    Command(Timestamp, Command),
    Timeout(Timestamp),
}

/// A model that was, and everything it was told since.
#[derive(Clone, Debug)]
pub(super) struct History {
    /// All its records are durable.
    base: Model,
    inputs: Vec<Input>,
    /// A later one, after so many of the inputs, that takes the base's place when its records are durable too.
    next: Option<(usize, Model)>,
}

impl History {
    pub(super) fn new(model: &Model) -> Self {
        Self { base: model.clone(), inputs: Vec::new(), next: None }
    }

    /// The model has just been told this.
    pub(super) fn note(&mut self, model: &mut Model, input: Input) {
        self.inputs.push(input);
        if self.next.is_none() && self.inputs.len() >= INPUTS_PER_CHECKPOINT {
            // What it has to say is no part of the past.
            let said = std::mem::take(&mut model.said);
            self.next = Some((self.inputs.len(), model.clone()));
            model.said = said;
        }
    }

    pub(super) fn durable(&mut self, durable: u64) {
        if let Some((told, model)) = self.next.take_if(|(_, model)| model.records <= durable) {
            self.inputs.drain(..told);
            self.base = model;
        }
    }

    /// Everything is durable: from here on the story begins with the model as it is.
    pub(super) fn set_down(&mut self, model: &mut Model) {
        if self.inputs.is_empty() {
            return;
        }
        let said = std::mem::take(&mut model.said);
        *self = Self::new(model);
        model.said = said;
    }

    pub(super) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self { base, inputs, next } = self;
        if !inputs.is_empty() {
            // Without them it is the model itself.
            base.canonical(out)?;
        }
        write!(out, "{inputs:?} ")?;
        let Some((told, model)) = next else { return Ok(()) };
        write!(out, "{told} ")?;
        model.canonical(out)
    }

    /// The model as it is when exactly `survived` of its records were ever written.
    pub(super) fn roll_back(&mut self, model: &Model, survived: u64) -> Model {
        assert!(survived <= model.records, "{survived} records survived of {}", model.records);
        self.durable(survived);
        let mut base = self.base.clone();
        base.fuel = survived.checked_sub(base.records).expect("what is durable survives");
        // Where the fuel ends the story ends.
        let _ = self.inputs.iter().try_for_each(|input| base.run(input));
        assert_eq!(base.records, survived, "the story retold has as many records as survived");
        base.forget_volatile();
        *self = Self::new(&base);
        base
    }
}
