//! The broker as a program, over real sockets: what it answers, what it refuses, and how it takes what nobody should send.
#![allow(unreachable_pub)]

mod ask;
mod batch;
mod complete;
mod consume;
mod durable;
mod effects;
mod faults;
mod groups;
mod guide;
mod hostile;
mod letters;
mod produce;
mod rig;
mod settle;
mod slow;
mod smoke;
mod stalls;
mod status;
mod steps;
mod stops;
mod topics;
