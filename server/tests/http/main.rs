//! The broker as a program, over real sockets: what it answers, what it refuses, and how it takes what nobody should send.

mod faults;
mod hostile;
#[allow(unreachable_pub, dead_code, reason = "what the rig offers, not every test takes")]
mod rig;
mod smoke;
mod stalls;
mod stops;
