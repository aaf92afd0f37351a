/** `sideEffect`: a function that runs once for each identity, whatever happens to the message it belongs to. */

import { performance } from "node:perf_hooks";
import { RETRY_AFTER_MS_MAX, sleep } from "./backoff.js";
import { canonicalJson, idempotencyKey, requestHash, type Json } from "./canonical.js";
import type { Identity } from "./claims.js";
import { DriftqError, errorText, Permanent } from "./errors.js";
import { Heartbeat } from "./heartbeat.js";
import type { Message } from "./messages.js";
import type { Store } from "./store.js";

/** What the function of a side effect gets. */
export interface SideEffectCall {
  /** The same at every try of this side effect: pass it on to what is called. */
  idempotencyKey: string;
  /** The number of this grant, from 1 on. */
  attempt: number;
  /** Aborted when the message is cancelled, or the lease of the side effect is lost. */
  signal: AbortSignal;
}

export interface SideEffectHost {
  store: Store;
  owner: string;
  leaseMs: number;
  onBlocked: (ms: number) => void;
}

interface Grant {
  attempt: number;
  leaseToken: string;
  /** Its lease does not begin earlier. */
  since: number;
}

const WAIT_MS_MIN = 10;
/** A grant that was on its way for more than this part of its lease is renewed before it is used. */
const LATE_PART = 1 / 3;

/**
 * Runs `fn` unless it has run for these arguments before; then returns what it returned, or throws `Permanent` again.
 * Nothing is returned as null.
 */
export async function sideEffect(
  host: SideEffectHost,
  message: Message,
  signal: AbortSignal,
  name: string,
  args: Json,
  fn: (call: SideEffectCall) => unknown,
): Promise<Json> {
  const messageKey = message.idempotencyKey || `${message.partition}:${message.offset}`;
  const task = idempotencyKey(message.topic, message.group, messageKey);
  const key = idempotencyKey(name, requestHash(args));
  const identity: Identity = { scope: { kind: "task", id: task }, key };
  if (message.tenant !== "") identity.tenantId = message.tenant;
  const begun = await begin(host, identity, signal);
  if ("result" in begun) return begun.result;
  return run(host, identity, begun, signal, fn, idempotencyKey(task, key));
}

/** Waits for the grant, or for the result of another. */
async function begin(host: SideEffectHost, identity: Identity, signal: AbortSignal): Promise<Grant | { result: Json }> {
  const { store, owner, leaseMs } = host;
  for (;;) {
    signal.throwIfAborted();
    const since = performance.now();
    const decision = await store.begin({ ...identity, owner, leaseMs }, { signal });
    switch (decision.decision) {
      case "EXECUTE":
        return inTime(host, identity, { ...decision, since }, signal);
      case "RETRYABLE": {
        const grant = await store.reacquire({ ...identity, owner, leaseMs }, { signal });
        return inTime(host, identity, { ...grant, since }, signal);
      }
      case "REPLAY":
        if (decision.status === "FAILED_FINAL") throw new Permanent(decision.lastError);
        return { result: decision.result };
      case "IN_PROGRESS":
        await sleep(Math.min(Math.max(decision.retryAfterMs, WAIT_MS_MIN), RETRY_AFTER_MS_MAX), signal);
    }
  }
}

/** A grant whose begin was repeated, or answered late, may be near its end, or past it: it is renewed before it is used. */
async function inTime(
  { store, leaseMs }: SideEffectHost,
  identity: Identity,
  { attempt, leaseToken, since }: Grant,
  signal: AbortSignal,
): Promise<Grant> {
  let standsSince = since;
  while (performance.now() - standsSince > leaseMs * LATE_PART) {
    standsSince = performance.now();
    await store.renew({ ...identity, leaseToken, leaseMs }, { signal });
  }
  return { attempt, leaseToken, since: standsSince };
}

async function run(
  host: SideEffectHost,
  identity: Identity,
  grant: Grant,
  signal: AbortSignal,
  fn: (call: SideEffectCall) => unknown,
  outsideKey: string,
): Promise<Json> {
  const { store, leaseMs } = host;
  const { attempt, leaseToken, since } = grant;
  const abort = new AbortController();
  const onAbort = (): void => abort.abort(signal.reason);
  signal.addEventListener("abort", onAbort, { once: true });
  const lost = new DriftqError({ kind: "stale_lease", message: "the lease of the side effect is lost" });
  const heartbeat = new Heartbeat({
    leaseMs,
    since,
    beat: (call) => store.renew({ ...identity, leaseToken, leaseMs }, call),
    onLost: () => abort.abort(lost),
    onBlocked: host.onBlocked,
  });
  const finish = async (outcome: {
    status: "SUCCEEDED" | "FAILED_FINAL" | "FAILED_RETRYABLE";
    result?: Json;
    lastError?: string;
  }) => {
    // It has happened: that is recorded also where the message belongs to another worker by now.
    if (heartbeat.lost) throw lost;
    await store.finish({ ...identity, leaseToken, ...outcome });
  };
  try {
    let value: unknown;
    try {
      value = await fn({ idempotencyKey: outsideKey, attempt, signal: abort.signal });
    } catch (error) {
      const status = error instanceof Permanent ? "FAILED_FINAL" : "FAILED_RETRYABLE";
      await finish({ status, lastError: errorText(error) });
      throw error;
    }
    let text: string;
    try {
      text = canonicalJson(value ?? null);
    } catch (error) {
      const reason = `the result of the side effect: ${(error as Error).message}`;
      await finish({ status: "FAILED_FINAL", lastError: errorText(new Permanent(reason)) });
      throw new Permanent(reason);
    }
    // What the caller gets is what a later call will get.
    const result = JSON.parse(text) as Json;
    await finish({ status: "SUCCEEDED", result });
    return result;
  } finally {
    heartbeat.end();
    signal.removeEventListener("abort", onAbort);
  }
}
