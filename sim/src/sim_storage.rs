//! The storage under a world's log: the simulated disk, or real files beside it.

use driftq_core::faults::Faults;
use driftq_core::log::{Recovered, RecoveryError, Storage};
use driftq_core::pipeline::inspect_start_with;
use driftq_core::state::State;

use crate::actions::{Damage, Loss};
use crate::disk::Disk;

/// A storage that can crash, with the simulated disk as the model of what a crash keeps.
pub trait SimStorage: Storage {
    /// The model.
    fn model(&self) -> &Disk;

    /// The model, to inject faults.
    fn model_mut(&mut self) -> &mut Disk;

    /// The process or the machine crashes; what is left can be opened again.
    fn crash(&mut self, loss: Loss);

    /// The medium is damaged while nothing uses it. Returns whether anything changed.
    fn damage(&mut self, damage: Damage) -> bool;

    /// All damage is undone.
    fn heal(&mut self);

    /// What recovery would find. Changes nothing.
    ///
    /// # Errors
    /// Why recovery would refuse.
    fn inspect_recovery(&self, faults: &impl Faults) -> Result<(State, Recovered), RecoveryError>;
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

    fn damage(&mut self, damage: Damage) -> bool {
        Disk::damage(self, damage).is_some()
    }

    fn heal(&mut self) {
        Disk::heal(self);
    }

    fn inspect_recovery(&self, faults: &impl Faults) -> Result<(State, Recovered), RecoveryError> {
        inspect_start_with(&mut faults.storage(&mut self.clone()), None, faults)
    }
}
