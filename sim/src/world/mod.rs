//! A world: one real broker core on a simulated disk and clock, with simulated clients.
//!
//! A world [executes](World::apply) one [`Action`](crate::actions::Action) after another and draws no random numbers:
//! the same actions give the same world, byte for byte. After every action the [invariants](crate::invariants) are
//! checked.
//!
//! | file | content |
//! |---|---|
//! | `state` | the [`World`] |
//! | `execute` | actions, commands and timeouts |
//! | `command`, `values` | requests resolved to broker commands |
//! | `outputs` | replies and deliveries, on their way to the clients |
//! | `network` | the clients and the requests in transit |
//! | `io`, `job` | the driver that performs the pipeline's I/O |
//! | `crash`, `damage`, `probe` | crashes, recovery, damage |
//! | `reads`, `call_payloads` | reads of payloads |
//! | `room` | the space of the log |
//! | `drain` | the end of a run |
//! | `coverage`, `counters`, `tap`, `fingerprint` | what is recorded about a world |

mod call_payloads;
mod command;
mod counters;
mod coverage;
mod crash;
mod damage;
mod drain;
mod execute;
mod fingerprint;
mod io;
mod job;
mod network;
mod outputs;
mod probe;
mod reads;
mod room;
mod state;
mod tap;
mod values;

pub use self::call_payloads::CallPayloads;
pub use self::counters::Counters;
pub use self::fingerprint::Fingerprint;
pub use self::network::{EffectRun, HeldDelivery, HeldGrant, Network};
pub use self::state::{Checks, World};
pub use self::tap::TapEvent;
pub(crate) use self::values::LENGTHS_FROM;
pub use self::values::{START_TIME, identity as effect_identity};
