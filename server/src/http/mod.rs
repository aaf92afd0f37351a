//! HTTP: turns requests into commands of the broker, and its replies into responses.
//!
//! From the socket inwards, each layer uses only those below it:
//!
//! * [`connection`] accepts sockets, within the [`address_limit`], and lets hyper serve them, with [`handshake`],
//!   [`transport`], [`timeouts`], [`socket`], [`gated_waker`] and [`unsent`] between the two;
//! * [`service`] handles one request: [`guard`] checks its head, [`routes`] finds its handler, [`authentication`] its
//!   sender, [`request_body`] receives its body, within the [`body_budget`];
//! * one handler per family of requests: [`produce`], [`batch`], [`consume`], [`settle`], [`complete`],
//!   [`idempotency`], [`topics`], [`groups`], [`dlq`], [`keys`], [`tenants`], [`audit`], [`status`]. A handler parses
//!   its fields, submits a command to the driver, waits for the reply and writes it as JSON. It decides nothing itself;
//! * [`api`] is what handlers share; [`requester`] is who sends a request and what the names in it mean; [`fields`],
//!   [`message_fields`], [`claim_fields`], [`connection_names`], [`plain_json`] and [`query`] are the requests' fields;
//!   [`response`], [`response_body`] and [`error`] are what handlers return.

mod address_limit;
mod api;
mod audit;
mod authentication;
mod batch;
mod body_budget;
mod claim_fields;
mod complete;
pub(crate) mod connection;
mod connection_names;
mod consume;
mod dlq;
mod effect_list;
mod error;
mod fields;
mod gated_waker;
mod groups;
mod guard;
mod handshake;
mod head;
mod idempotency;
mod keys;
mod message_fields;
mod plain_json;
mod produce;
mod query;
mod request_body;
mod request_id;
pub(crate) mod request_parsers;
mod requester;
mod response;
mod response_body;
mod routes;
mod service;
mod settle;
mod socket;
mod status;
mod tenants;
mod timeouts;
mod topics;
mod transport;
mod unsent;

pub(crate) use self::api::{Api, Shared};
pub(crate) use self::service::Service;
pub(crate) use self::status::render_metrics;
