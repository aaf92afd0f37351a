//! What must always be true, and who watches that it is.

pub(crate) mod aftermath;
pub(crate) mod deliveries;
pub(crate) mod inside;
pub(crate) mod ledger;
pub(crate) mod observer;
pub mod verdict;
