/** What a handler is given and gives, and what the deliveries of one worker share. */

import type { Camel } from "./camel.js";
import type { Json } from "./canonical.js";
import type { EffectScope } from "./claims.js";
import type { Client } from "./client.js";
import type { DriftqError } from "./errors.js";
import type { Tracer, WorkerEvent } from "./events.js";
import type { Message, Outputs } from "./messages.js";
import type { SideEffectCall } from "./side_effects.js";
import type { Decision, Store } from "./store.js";
import type * as wire from "./wire.js";

/** What a handler gets beside the message. */
export interface Context {
  /** Aborted when the lease is lost, the deadline has passed or the worker stops. A result after that is discarded. */
  readonly signal: AbortSignal;
  /** The number of this delivery, from 1 on. */
  readonly attempt: number;
  /**
   * Runs `fn` once for this message, `name` and `args`, whatever happens: a later call returns what the first returned.
   * What `fn` returns has to be JSON; nothing counts as null.
   */
  sideEffect<T extends Json>(name: string, args: Json, fn: (call: SideEffectCall) => T | Promise<T>): Promise<T>;
  sideEffect(name: string, args: Json, fn: (call: SideEffectCall) => void | Promise<void>): Promise<null>;
}

/** Returns the result, `Outputs`, or nothing; throws `Retry`, `Permanent` or anything else. */
export type Handler = (
  message: Message,
  context: Context,
) => Json | Outputs | void | undefined | Promise<Json | Outputs | void | undefined>;

/** What the deliveries of a worker share. */
export interface DeliveryHost {
  readonly client: Client;
  readonly store: Store;
  readonly handler: Handler;
  readonly owner: string;
  readonly leaseMs: number;
  /** The scope of effects; undefined for none. */
  readonly scope: EffectScope | undefined;
  readonly retryDelayMs: number | undefined;
  readonly perKeyOrder: boolean;
  readonly tracer: Tracer | undefined;
  /** Whether the worker stops: what has not begun is released. */
  readonly stopping: AbortSignal;
  begin(effect: Camel<wire.Begin>, onRetry: (error: DriftqError) => void): Promise<Decision>;
  complete(line: string, traceparent: string | undefined): Promise<void>;
  emit(event: WorkerEvent): void;
  onBlocked(ms: number): void;
}
