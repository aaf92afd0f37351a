/** Client and worker of the DriftQ message broker. */

export { canonicalJson, idempotencyKey, requestHash, type Json } from "./canonical.js";
export type { Camel } from "./camel.js";
export type { Claim, EffectScope, Identity } from "./claims.js";
export { Client } from "./client.js";
export type { CallOptions, ConnectionOptions } from "./connection.js";
export { Cancelled, DriftqError, Permanent, Retry, type ErrorKind } from "./errors.js";
export type { FailureKind, Log, Span, Tracer, WorkerEvent } from "./events.js";
export type { Context, Handler } from "./handler.js";
export { Message, Outputs, PeekedMessage, type OutputMessage, type ProduceOptions, type Value } from "./messages.js";
export { Producer, type Produced, type ProducerOptions } from "./producer.js";
export type { SideEffectCall } from "./side_effects.js";
export { onTerminate } from "./terminate.js";
export { BrokerStore, type Decision, type InProgress, type Store } from "./store.js";
export type { ConsumeOptions, StreamState } from "./stream.js";
export { CLIENT_VERSION, CONTRACT } from "./version.js";
export type * as wire from "./wire.js";
export { Worker, type WorkerOptions, type WorkerSummary } from "./worker.js";
