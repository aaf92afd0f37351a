//! Rollback: recent inputs, kept as long as a crash may undo them.
//!
//! A crash keeps a prefix of the log, which may end in the middle of one command. The model is rebuilt by replaying
//! inputs on a checkpoint until the surviving number of records is written.

use std::fmt;

use super::model::{Input, Model};

/// The number of inputs between checkpoints: replaying must stay short, and so must copying.
const INPUTS_PER_CHECKPOINT: usize = 64;

/// A checkpoint and the inputs since.
#[derive(Clone, Debug)]
pub(super) struct InputHistory {
    /// The checkpoint; all its records are durable.
    base: Model,
    inputs: Vec<Input>,
    /// A later checkpoint with its number of inputs. It replaces the base once its records are durable.
    next: Option<(usize, Model)>,
}

impl InputHistory {
    pub(super) fn new(model: &Model) -> Self {
        Self { base: model.clone(), inputs: Vec::new(), next: None }
    }

    /// Records an input that the model has executed.
    pub(super) fn note(&mut self, model: &mut Model, input: Input) {
        self.inputs.push(input);
        if self.next.is_none() && self.inputs.len() >= INPUTS_PER_CHECKPOINT {
            // Expected outputs are not part of a checkpoint.
            let outputs = std::mem::take(&mut model.outputs);
            self.next = Some((self.inputs.len(), model.clone()));
            model.outputs = outputs;
        }
    }

    pub(super) fn durable(&mut self, durable: u64) {
        if let Some((count, model)) = self.next.take_if(|(_, model)| model.records <= durable) {
            self.inputs.drain(..count);
            self.base = model;
        }
    }

    /// Everything is durable: the current model becomes the checkpoint.
    pub(super) fn checkpoint(&mut self, model: &mut Model) {
        if self.inputs.is_empty() {
            return;
        }
        let outputs = std::mem::take(&mut model.outputs);
        *self = Self::new(model);
        model.outputs = outputs;
    }

    pub(super) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self { base, inputs, next } = self;
        if !inputs.is_empty() {
            // Without inputs the base equals the model.
            base.canonical(out)?;
        }
        write!(out, "{inputs:?} ")?;
        let Some((count, model)) = next else { return Ok(()) };
        write!(out, "{count} ")?;
        model.canonical(out)
    }

    /// The model after exactly `survived` records.
    pub(super) fn roll_back(&mut self, model: &Model, survived: u64) -> Model {
        assert!(survived <= model.records, "{survived} records survived of {}", model.records);
        self.durable(survived);
        let mut base = self.base.clone();
        base.records_left = survived.checked_sub(base.records).expect("durable records survive a crash");
        // The replay ends where the log ends.
        let _ = self.inputs.iter().try_for_each(|input| {
            if let Input::Timeout(.., waiting) | Input::Damaged(.., waiting) = input {
                base.outputs = waiting.iter().cloned().collect();
            }
            base.run(input)
        });
        assert_eq!(base.records, survived, "the replay writes exactly the surviving records");
        base.forget_volatile();
        *self = Self::new(&base);
        base
    }
}
