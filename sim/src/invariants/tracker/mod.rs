//! The tracker: what clients requested and observed, what follows from it, and the calls of all checks about it. The
//! checks themselves are in the parent module.

mod after_crash;
mod commands;
mod completions;
mod deliveries;
pub(super) mod effect_model;
mod effects;
mod fairness;
pub(super) mod model;
mod names;
mod outputs;
pub(super) mod recount;
mod replies;
mod state;
pub(crate) mod wall_model;
mod white_box;

pub(crate) use self::state::Tracker;
