//! The systems that are compared: how each is started, and what its producers and consumers send.

pub(super) mod beanstalkd;
pub(super) mod driftq;
pub(super) mod nats;
pub(super) mod postgres;
pub(super) mod rabbitmq;
pub(super) mod redis;
