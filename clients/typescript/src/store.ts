/** The idempotency store: effects that must not happen twice. */

import { camel, snake, type Camel } from "./camel.js";
import type { Identity } from "./claims.js";
import type { Client } from "./client.js";
import type { CallOptions } from "./connection.js";
import { DriftqError } from "./errors.js";
import type * as wire from "./wire.js";

/** The effect runs elsewhere, under a live lease. */
export interface InProgress {
  decision: "IN_PROGRESS";
  retryAfterMs: number;
}

export type Decision = Camel<wire.Execute> | Camel<wire.Replay> | Camel<wire.Retryable> | InProgress;

/** Where the broker does not say how long to wait. */
const RETRY_AFTER_MS = 1_000;

/**
 * What remembers effects. An effect is executed under an `EXECUTE` alone, which no store grants after `SUCCEEDED` or
 * `FAILED_FINAL`, nor while another holder's lease runs.
 */
export interface Store {
  begin(effect: Camel<wire.Begin>, call?: CallOptions): Promise<Decision>;
  /** Ends an effect. Only the newest grant can: any other is an error of kind `stale_lease`. */
  finish(effect: Camel<wire.Finish>, call?: CallOptions): Promise<void>;
  /** Grants an effect again that failed retryably, or whose lease ran out. */
  reacquire(effect: Camel<wire.Reacquire>, call?: CallOptions): Promise<Camel<wire.Execute>>;
  renew(effect: Camel<wire.Renew>, call?: CallOptions): Promise<Camel<wire.LeaseExtended>>;
  /** The record of an effect; undefined where there is none. */
  get(identity: Identity, call?: CallOptions): Promise<Camel<wire.Effect> | undefined>;
  /** Forgets an effect; one that is not known is forgotten already. */
  forget(identity: Identity, call?: CallOptions): Promise<void>;
}

/** The store that is part of the broker. */
export class BrokerStore implements Store {
  constructor(private readonly client: Client) {}

  async begin(effect: Camel<wire.Begin>, call: CallOptions = {}): Promise<Decision> {
    try {
      return await this.client.beginEffect(effect, call);
    } catch (error) {
      return inProgress(error);
    }
  }

  finish(effect: Camel<wire.Finish>, call: CallOptions = {}): Promise<void> {
    return this.client.finishEffect(effect, call);
  }

  reacquire(effect: Camel<wire.Reacquire>, call: CallOptions = {}): Promise<Camel<wire.Execute>> {
    return this.client.reacquireEffect(effect, call);
  }

  renew(effect: Camel<wire.Renew>, call: CallOptions = {}): Promise<Camel<wire.LeaseExtended>> {
    return this.client.renewEffect(effect, call);
  }

  async get(identity: Identity, call: CallOptions = {}): Promise<Camel<wire.Effect> | undefined> {
    try {
      return await this.client.getEffect(identity, call);
    } catch (error) {
      if (error instanceof DriftqError && error.kind === "not_found") return undefined;
      throw error;
    }
  }

  async forget(identity: Identity, call: CallOptions = {}): Promise<void> {
    try {
      await this.client.forgetEffect(identity, call);
    } catch (error) {
      if (!(error instanceof DriftqError && error.kind === "not_found")) throw error;
    }
  }
}

/** The decision in a refusal, where it has one; throws any other error. */
export function inProgress(error: unknown): InProgress {
  if (!(error instanceof DriftqError && error.kind === "in_progress")) throw error;
  return { decision: "IN_PROGRESS", retryAfterMs: error.retryAfterMs ?? RETRY_AFTER_MS };
}

/** The line of a begin in a batch. */
export function beginLine(effect: Camel<wire.Begin>): string {
  return JSON.stringify(snake(effect));
}

/** The decision in the answer to a begin, alone or in a batch, where `status` is that of HTTP. */
export function decisionOf(answer: Record<string, unknown>): Decision {
  const { effect_status: effectStatus, ...others } = answer;
  const wireDecision = effectStatus === undefined ? others : { ...others, status: effectStatus };
  return camel(wireDecision) as Decision;
}
