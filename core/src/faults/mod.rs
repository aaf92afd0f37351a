//! Seams at which a simulation makes a broker misbehave on purpose.
//!
//! A check that has never failed proves nothing, so the simulator plants known bugs and requires its checks to find
//! each of them. A bug enters by the type parameter `F: Faults` of [`Pipeline`](crate::Pipeline) and
//! [`Broker`](crate::Broker), never by a cargo feature. Production code calls a *seam*: a method whose default body is
//! the correct behaviour. [`NoFaults`] overrides none of them and costs nothing; [`Planted`] overrides them for one
//! bug.
//!
//! To add a bug: one row in `catalogue.rs`, and one arm in the seam it needs: `planted.rs` for decisions and outputs,
//! `requests.rs` for limits and commands, `records.rs` for applying and replaying records, `files.rs` for the files of
//! the log, `storage.rs` for the storage. Seams around the broker (limits, commands, job results, storage) are called
//! by the simulator alone.

mod catalogue;
mod files;
mod planted;
mod records;
mod requests;
mod seams;
mod storage;

pub use self::catalogue::Fault;
pub use self::planted::Planted;
use self::seams::Seams;
pub use self::storage::TamperedStorage;

/// How a broker deviates from correct behaviour. Sealed: the choices are [`NoFaults`] and [`Planted`].
pub trait Faults: Seams {}

impl<T: Seams> Faults for T {}

/// Correct behaviour; the default wherever a type parameter asks for [`Faults`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFaults;

impl Seams for NoFaults {}
