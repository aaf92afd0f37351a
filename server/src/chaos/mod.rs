//! Faults that a network and a crashing broker can cause, simulated in front of the real broker: `--chaos`.
//!
//! Clients are served by a [`Gateway`] on the broker's address, which passes each request on to the broker over a
//! loopback connection. The broker itself is unchanged and knows nothing of it, so that a broker without `--chaos` pays
//! nothing, and every guarantee of the broker holds for clients that keep the contract.
//!
//! From the socket inwards:
//!
//! * [`gateway`] accepts connections and cuts them when the broker crashes;
//! * [`exchange`] passes a request on and plays its faults; [`batch`] does so for batches, [`deliveries`] for the lines
//!   of a stream;
//! * [`state`] is what they share: [`draw`] decides which faults are played, by a hash and nothing else, of what is
//!   known by [`occurrences`]; [`played`] lists them; [`arrivals`] and [`outage`] are the order of requests and the
//!   crashes;
//! * [`upstream`] has the connections to the broker; [`body`] and [`lines`] are leaves.

mod arrivals;
mod batch;
mod body;
mod deliveries;
mod draw;
mod exchange;
mod gateway;
mod lines;
mod occurrences;
mod outage;
mod played;
mod state;
mod upstream;

pub(crate) use self::gateway::Gateway;
