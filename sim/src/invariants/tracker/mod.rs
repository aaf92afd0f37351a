//! The bookkeeping: what was asked, what was seen, what follows from it. Whether it is good is for the laws to say.

mod after_crash;
mod completions;
pub(super) mod deliveries;
pub(super) mod effects;
pub(super) mod model;
pub(super) mod observer;
mod replies;
mod white_box;
