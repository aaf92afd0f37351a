//! The wire protocols of other brokers, as far as they are used here: bytes in, answers out, without I/O. What is not
//! an answer of the protocol is an error.

pub(crate) mod amqp;
pub(crate) mod beanstalk;
pub(crate) mod nats;
pub(crate) mod postgres;
pub(crate) mod resp;
