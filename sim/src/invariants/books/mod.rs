//! The bookkeeping: what was asked, what was seen, what follows from it. Whether it is good is for the laws to say.

mod aftermath;
mod answers;
pub(super) mod deliveries;
pub(super) mod effects;
mod inside;
pub(super) mod ledger;
pub(super) mod observer;
mod steps;
