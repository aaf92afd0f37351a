/**
 * One delivery from its receipt to its end: begin, run the handler, report the outcome. The order of the requests is
 * what the contract of all clients says; nothing is sent for a lease that is lost.
 */

import { performance } from "node:perf_hooks";
import { longTimeout, RETRY_AFTER_MS_MAX, sleep } from "./backoff.js";
import type { Json } from "./canonical.js";
import { completeLine, type EffectScope, type Identity } from "./claims.js";
import type { CallOptions } from "./connection.js";
import { Cancelled, DriftqError, errorText, Permanent, Retry } from "./errors.js";
import type { FailureKind, WorkerEvent } from "./events.js";
import type { Context, DeliveryHost } from "./handler.js";
import { Heartbeat } from "./heartbeat.js";
import { timeMs, type Message } from "./messages.js";
import { stepOf, storedResult, takeApart, type Step } from "./outcome.js";
import type { Task } from "./scheduler.js";
import { sideEffect, type SideEffectCall } from "./side_effects.js";

interface Grant {
  identity: Identity;
  leaseToken: string;
}

type Ended = { value: unknown } | { error: unknown };
type End = "completed" | "failed" | "lost" | "released";

/** Where the broker refuses outputs, the message waits so long for its next try unless the worker says otherwise. */
const REFUSED_DELAY_MS = 1_000;
/** A message of a dead-letter topic cannot be dead-lettered: it waits so long instead. */
const DEAD_DELAY_MS = 60_000;

export class Delivery implements Task {
  readonly key: string | undefined;
  /** Resolves when this process holds the message no more, at the latest when its lease has run out. */
  readonly held: Promise<void>;
  /** How it ended: known when its outcome is, which may be before its handler ends. */
  readonly ended: Promise<End>;
  readonly #host: DeliveryHost;
  readonly #message: Message;
  readonly #received = performance.now();
  readonly #abort = new AbortController();
  readonly #heartbeat: Heartbeat;
  #letGo!: () => void;
  #tell!: (end: End) => void;
  #end: End | undefined;
  #running = false;
  /** The handler has ended and its outcome is being reported: a heartbeat that is refused cannot cancel it any more. */
  #settling = false;
  #grant: Grant | undefined;
  #stuck: (() => void) | undefined;

  constructor(host: DeliveryHost, message: Message) {
    this.#host = host;
    this.#message = message;
    this.key = host.perKeyOrder && message.key !== "" ? message.key : undefined;
    this.held = new Promise((resolve) => (this.#letGo = resolve));
    this.ended = new Promise((resolve) => (this.#tell = resolve));
    this.#heartbeat = new Heartbeat({
      leaseMs: host.leaseMs,
      since: this.#received,
      beat: (call) => this.#beat(call),
      onLost: () => this.#lost(),
      onBlocked: host.onBlocked,
    });
    this.#emit({ event: "received" });
  }

  /** Handles the message. Resolves when the handler has ended, which may be later than `held`. */
  async run(): Promise<void> {
    let pause = 0;
    try {
      if (this.#heartbeat.lost) return;
      if (this.#host.stopping.aborted) await this.release();
      else pause = await this.#handle();
    } catch (error) {
      this.#requestFailed(error);
    } finally {
      this.#stuck?.();
      this.#finished();
    }
    if (pause > 0) await sleep(Math.min(pause, RETRY_AFTER_MS_MAX), this.#host.stopping).catch(() => undefined);
  }

  /** Cancels the handler at the end of the grace. Its lease is not prolonged any more. */
  cancel(): void {
    this.#cancel("shutdown");
  }

  /** Returns a message whose effect has not begun. */
  async release(): Promise<void> {
    try {
      if (this.#heartbeat.lost) return;
      this.#settling = true;
      await this.#host.client.release(this.#message, { retryForMs: this.#host.leaseMs });
      this.#finish("released");
      this.#emit({ event: "released" });
    } catch (error) {
      this.#requestFailed(error);
    } finally {
      this.#finished();
    }
  }

  /** Returns how long its slot takes no other message. */
  async #handle(): Promise<number> {
    const { idempotencyKey } = this.#message;
    if (this.#host.scope === undefined || idempotencyKey === "") {
      await this.#execute();
      return 0;
    }
    const begun = await this.#begin(this.#host.scope, idempotencyKey);
    if (begun === undefined || this.#heartbeat.lost) return 0;
    if ("pauseMs" in begun) {
      await this.release();
      return begun.pauseMs;
    }
    if ("step" in begun) {
      this.#settling = true;
      await this.#complete(begun.step);
      return 0;
    }
    this.#grant = begun;
    if (this.#host.stopping.aborted) await this.#shutDown();
    else await this.#execute();
    return 0;
  }

  /** Undefined where the message has been settled by the stored failure. */
  async #begin(scope: EffectScope, key: string): Promise<Grant | { step: Step } | { pauseMs: number } | undefined> {
    const { owner, leaseMs, store } = this.#host;
    const { tenant, partition, offset, leaseToken } = this.#message;
    const identity: Identity = { scope, key, ...(tenant === "" ? {} : { tenantId: tenant }) };
    const delivery = scope.kind === "consume" ? { delivery: { partition, offset, leaseToken } } : {};
    let repeated = false;
    const onRetry = (error: DriftqError): void => void (repeated ||= error.kind === "unknown");
    let decision = await this.#host.begin({ ...identity, owner, leaseMs, ...delivery }, onRetry);
    this.#emit({ event: "began", decision: decision.decision });
    if (decision.decision === "RETRYABLE") decision = await store.reacquire({ ...identity, owner, leaseMs });
    switch (decision.decision) {
      case "EXECUTE":
        return { identity, leaseToken: decision.leaseToken };
      case "IN_PROGRESS":
        // After a lost answer it may be our own grant, which a new delivery takes over at once.
        return { pauseMs: repeated ? 0 : decision.retryAfterMs };
      case "REPLAY":
        if (decision.status === "SUCCEEDED") return { step: takeApart(decision.result) };
        if (this.#heartbeat.lost) return undefined;
        this.#settling = true;
        await this.#deadLetter(decision.lastError);
        return undefined;
    }
  }

  async #execute(): Promise<void> {
    const ended = await this.#callHandler();
    // Looks at the clock: a handler that blocked the event loop ends before any timer does.
    if (this.#heartbeat.lost) return;
    this.#settling = true;
    const { reason } = this.#abort.signal as { reason: unknown };
    const why = reason instanceof Cancelled ? reason.why : undefined;
    if (why === "deadline exceeded") return this.#retry("deadline", why);
    if (!("error" in ended)) return this.#succeeded(ended.value);
    const { error } = ended;
    if (why === "shutdown") return this.#shutDown();
    if (error instanceof Permanent) return this.#permanent(errorText(error));
    return this.#retry("retry", errorText(error), error instanceof Retry ? error.delayMs : undefined);
  }

  async #callHandler(): Promise<Ended> {
    const { handler, tracer, store, owner, leaseMs, onBlocked } = this.#host;
    const message = this.#message;
    const { signal } = this.#abort;
    const side = { store, owner, leaseMs, onBlocked };
    const context: Context = {
      signal,
      attempt: message.attempts,
      sideEffect: ((name: string, args: Json, fn: (call: SideEffectCall) => unknown) =>
        sideEffect(side, message, signal, name, args, fn)) as Context["sideEffect"],
    };
    const clearDeadline = this.#watchDeadline();
    this.#running = true;
    try {
      signal.throwIfAborted();
      const run = async (): Promise<unknown> => handler(message, context);
      return { value: await (tracer === undefined ? run() : tracer(this.#span(), run)) };
    } catch (error) {
      return { error };
    } finally {
      this.#running = false;
      clearDeadline?.();
    }
  }

  #watchDeadline(): (() => void) | undefined {
    const { deadline } = this.#message;
    const ms = deadline === undefined ? undefined : timeMs(deadline);
    if (ms === undefined) return undefined;
    // A deadline is a time on the wall, unlike a lease.
    const left = ms - Date.now();
    if (left > 0) return longTimeout(left, () => this.#cancel("deadline exceeded"));
    this.#cancel("deadline exceeded");
    return undefined;
  }

  #cancel(why: Cancelled["why"]): void {
    if (this.#abort.signal.aborted) return;
    // Until the handler has ended the message stays leased, but no longer than its lease: a handler that ignores the
    // signal must not keep it.
    if (this.#running || !this.#settling) this.#heartbeat.expire();
    this.#abort.abort(new Cancelled(why));
  }

  #succeeded(value: unknown): Promise<void> {
    let step: Step;
    try {
      step = stepOf(value);
    } catch (error) {
      return this.#permanent(errorText(new Permanent((error as Error).message)));
    }
    return this.#complete(step);
  }

  async #complete(step: Step): Promise<void> {
    const grant = this.#grant;
    const consume = this.#host.scope?.kind === "consume";
    if (grant !== undefined && !consume && !(await this.#record(grant, step))) return;
    const traceparent = step.produce.length > 0 ? this.#message.traceparent : undefined;
    try {
      await this.#host.complete(completeLine(this.#message, step), traceparent);
    } catch (error) {
      return this.#refused(step, error, grant !== undefined && consume);
    }
    this.#finish("completed");
    this.#emit({ event: "completed", seconds: (performance.now() - this.#received) / 1_000 });
  }

  /** Stores result and outputs. False if the result cannot be stored, and the message has been dead-lettered for it. */
  async #record(grant: Grant, step: Step): Promise<boolean> {
    const { identity, leaseToken } = grant;
    const result = storedResult(step);
    const stored = result === undefined ? {} : { result };
    try {
      await this.#host.store.finish({ ...identity, leaseToken, status: "SUCCEEDED", ...stored });
      return true;
    } catch (error) {
      if (!(error instanceof DriftqError && (error.kind === "invalid" || error.kind === "misuse"))) throw error;
      await this.#permanent(errorText(new Permanent(`the result cannot be stored: ${error.message}`)));
      return false;
    }
  }

  /** The broker did not take the step. What the handler did is recorded, so that it is not done again. */
  async #refused(step: Step, error: unknown, record: boolean): Promise<void> {
    if (!(error instanceof DriftqError) || error.status < 400 || error.status === 503) throw error;
    if (error.kind === "stale_lease") throw error;
    const text = `the step was refused: ${error.message}`;
    if (step.produce.length === 0 && error.kind === "invalid") return this.#permanent(text);
    if (record && this.#grant !== undefined && !(await this.#record(this.#grant, step))) return;
    await this.#nack(text, this.#host.retryDelayMs ?? REFUSED_DELAY_MS);
    this.#failed(error.kind, text);
  }

  async #retry(kind: FailureKind, text: string, delayMs?: number): Promise<void> {
    await this.#recordFailure(text);
    await this.#nack(text, delayMs ?? this.#host.retryDelayMs);
    this.#failed(kind, text);
  }

  async #shutDown(): Promise<void> {
    await this.#recordFailure("shutdown");
    await this.release();
  }

  async #recordFailure(text: string): Promise<void> {
    if (this.#grant === undefined) return;
    const { identity, leaseToken } = this.#grant;
    await this.#host.store.finish({ ...identity, leaseToken, status: "FAILED_RETRYABLE", lastError: text });
  }

  async #permanent(text: string): Promise<void> {
    const grant = this.#grant;
    if (this.#dead) return this.#retry("permanent", text, DEAD_DELAY_MS);
    if (grant !== undefined) {
      const { identity, leaseToken } = grant;
      const { partition, offset } = this.#message;
      const consume = identity.scope.kind === "consume";
      const delivery = { partition, offset, leaseToken: this.#message.leaseToken };
      const letter = consume ? { deadLetter: true, delivery } : {};
      await this.#host.store.finish({ ...identity, leaseToken, status: "FAILED_FINAL", lastError: text, ...letter });
      if (consume) return this.#failed("permanent", text);
    }
    await this.#deadLetter(text);
  }

  async #deadLetter(text: string): Promise<void> {
    if (this.#dead) await this.#nack(text, DEAD_DELAY_MS);
    else await this.#host.client.nack(this.#message, { reason: text, retryable: false });
    this.#failed("permanent", text);
  }

  get #dead(): boolean {
    return this.#message.topic.startsWith("dlq.");
  }

  #nack(reason: string, delayMs: number | undefined): Promise<void> {
    return this.#host.client.nack(this.#message, delayMs === undefined ? { reason } : { reason, delayMs });
  }

  async #beat(call: CallOptions): Promise<void> {
    const { client, store, leaseMs } = this.#host;
    const grant = this.#grant;
    const beats: Promise<unknown>[] = [client.extend(this.#message, leaseMs, call)];
    if (grant !== undefined) {
      beats.push(store.renew({ ...grant.identity, leaseToken: grant.leaseToken, leaseMs }, call));
    }
    await Promise.all(beats);
  }

  #lost(): void {
    if (this.#end !== undefined) return;
    // The outcome on its way is fenced by its token; whether it came in time is for the broker to say.
    if (this.#settling) return this.#letGo();
    this.#finish("lost");
    this.#emit({ event: "lease_lost" });
    this.#abort.abort(new Cancelled("lease lost"));
    this.#letGo();
    if (this.#running) {
      this.#stuck = longTimeout(this.#host.leaseMs, () => this.#emit({ event: "handler_stuck" }));
    }
  }

  /** A request about the message got no answer that helps: the lease runs out, and the message is delivered again. */
  #requestFailed(error: unknown): void {
    if (this.#end !== undefined) return;
    // Told by `#finished`: the message is another worker's, or gone.
    if (error instanceof DriftqError && (error.kind === "stale_lease" || error.status === 404)) return;
    this.#failed(error instanceof DriftqError ? error.kind : "unknown", errorText(error));
  }

  #failed(kind: FailureKind, error: string): void {
    this.#finish("failed");
    this.#emit({ event: "failed", kind, error });
  }

  #finish(end: End): void {
    this.#end ??= end;
    this.#tell(this.#end);
  }

  #finished(): void {
    this.#heartbeat.end();
    if (this.#end === undefined) {
      this.#finish("lost");
      this.#emit({ event: "lease_lost" });
    }
    this.#letGo();
  }

  #span() {
    const { topic, attempts, id, traceparent } = this.#message;
    const attributes = {
      "messaging.system": "driftq",
      "messaging.destination.name": topic,
      "messaging.message.id": id,
      "driftq.attempt": attempts,
    };
    return { name: "driftq.handle" as const, traceparent, attributes };
  }

  #emit(event: DistributiveOmit<Extract<WorkerEvent, { attempt: number }>, "message" | "attempt">): void {
    const { id, attempts } = this.#message;
    this.#host.emit({ ...event, message: id, attempt: attempts } as WorkerEvent);
  }
}

type DistributiveOmit<T, K extends string> = T extends unknown ? Omit<T, K> : never;
