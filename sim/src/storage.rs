//! What a world's log is written to.

use driftq_core::faults::Faults;
use driftq_core::log::{Recovered, RecoveryError, Storage};
use driftq_core::pipeline::inspect;
use driftq_core::state::State;

use crate::actions::Loss;
use crate::disk::Disk;

/// A storage that can die, and a model of it that says what it then keeps.
pub trait SimStorage: Storage {
    /// What is written and what is durable.
    fn model(&self) -> &Disk;

    /// The same, to make something go wrong with it.
    fn model_mut(&mut self) -> &mut Disk;

    /// The process or the machine dies, and what is left can be opened again.
    fn crash(&mut self, loss: Loss);

    /// What a start would find; nothing is touched.
    ///
    /// # Errors
    /// What it would be refused for.
    fn survey(&self, faults: &impl Faults) -> Result<(State, Recovered), RecoveryError>;
}

impl SimStorage for Disk {
    fn model(&self) -> &Disk {
        self
    }

    fn model_mut(&mut self) -> &mut Disk {
        self
    }

    fn crash(&mut self, loss: Loss) {
        Disk::crash(self, loss);
    }

    fn survey(&self, faults: &impl Faults) -> Result<(State, Recovered), RecoveryError> {
        inspect(&mut self.clone(), None, faults)
    }
}
