/** A worker: one stream of deliveries, so many handlers at a time, and an end that leaves no lease behind. */

import { performance } from "node:perf_hooks";
import { Batcher, type LineRequest } from "./batcher.js";
import { longTimeout } from "./backoff.js";
import type { Camel } from "./camel.js";
import type { EffectScope } from "./claims.js";
import type { Client } from "./client.js";
import { notNegative, positive } from "./connection.js";
import { Delivery } from "./delivery.js";
import { misuse, type DriftqError } from "./errors.js";
import { eventSink, type Log, type Tracer, type WorkerEvent } from "./events.js";
import type { DeliveryHost, Handler } from "./handler.js";
import { Message } from "./messages.js";
import { randomOwner } from "./owner.js";
import { Scheduler } from "./scheduler.js";
import { BrokerStore, beginLine, decisionOf, inProgress, type Decision } from "./store.js";
import { deliveries } from "./stream.js";
import type * as wire from "./wire.js";

export interface WorkerOptions {
  /** Handlers at a time, and the prefetch of the stream; default 16. */
  concurrency?: number | undefined;
  /** Lease of delivery and effect; default 30 s. */
  leaseMs?: number | undefined;
  /** Where effects are remembered; default `consume`. `none`: nowhere, so that they happen at least once. */
  scope?: "consume" | "tenant" | "none" | Exclude<EffectScope, { kind: "consume" }> | undefined;
  /** Messages of one key are handled one after the other. An empty key is none. */
  perKeyOrder?: boolean | undefined;
  /** How long a stop waits for handlers; default 10 s. */
  graceMs?: number | undefined;
  /** The name that leases are held under. One per worker. */
  owner?: string | undefined;
  /** Delay of the next try where the error names none. */
  retryDelayMs?: number | undefined;
  /** Where a new group starts; default `earliest`. */
  from?: "earliest" | "latest" | undefined;
  onEvent?: ((event: WorkerEvent) => void) | undefined;
  tracer?: Tracer | undefined;
  log?: Log | undefined;
}

/** How many messages a worker has ended in which way. */
export interface WorkerSummary {
  completed: number;
  failed: number;
  lost: number;
}

const CONCURRENCY = 16;
const LEASE_MS = 30_000;
const GRACE_MS = 10_000;
/** What the broker holds leases between. */
const LEASE_MS_MIN = 100;
const LEASE_MS_MAX = 43_200_000;
/** A begin or complete that waits for an answer for so long does not hold back those after it. */
const STALL_MS = 50;

export class Worker {
  readonly owner: string;
  readonly #client: Client;
  readonly #topic: string;
  readonly #group: string;
  readonly #concurrency: number;
  readonly #graceMs: number;
  readonly #from: "earliest" | "latest" | undefined;
  readonly #host: DeliveryHost;
  readonly #emit: (event: WorkerEvent) => void;
  readonly #scheduler: Scheduler<Delivery>;
  /** Everything that is leased or whose handler has not ended. */
  readonly #open = new Set<Delivery>();
  /** The lease tokens of what is open. */
  readonly #tokens = new Set<string>();
  readonly #summary: WorkerSummary = { completed: 0, failed: 0, lost: 0 };
  readonly #stop = new AbortController();
  #stopGraceMs: number | undefined;
  #blockedUntil = 0;
  #started = false;

  /** Made by `client.worker()`. */
  constructor(client: Client, topic: string, group: string, handler: Handler, options: WorkerOptions) {
    this.#client = client;
    this.#topic = topic;
    this.#group = group;
    this.owner = options.owner ?? randomOwner();
    this.#concurrency = options.concurrency ?? CONCURRENCY;
    if (!Number.isInteger(this.#concurrency) || this.#concurrency < 1)
      throw misuse("`concurrency` is no whole number above 0");
    this.#graceMs = notNegative("graceMs", options.graceMs ?? GRACE_MS);
    this.#from = options.from;
    const leaseMs = positive("leaseMs", options.leaseMs ?? LEASE_MS);
    if (leaseMs < LEASE_MS_MIN || leaseMs > LEASE_MS_MAX) {
      throw misuse(`\`leaseMs\` is ${leaseMs}, not between ${LEASE_MS_MIN} and ${LEASE_MS_MAX}`);
    }
    this.#emit = eventSink(options.onEvent, options.log);
    this.#scheduler = new Scheduler(this.#concurrency);
    this.#host = this.#makeHost(handler, Math.round(leaseMs), options);
  }

  get summary(): Readonly<WorkerSummary> {
    return { ...this.#summary };
  }

  /**
   * Handles messages until the signal is aborted or `stop` is called. Resolves when this worker holds no lease. Rejects
   * with an error that no other try can mend, such as a key that is refused, after it has ended what it had begun.
   */
  async run(options: { signal?: AbortSignal | undefined } = {}): Promise<WorkerSummary> {
    if (this.#started) throw misuse("a worker runs once");
    this.#started = true;
    const { signal } = options;
    const onAbort = (): void => this.#stop.abort();
    signal?.addEventListener("abort", onAbort, { once: true });
    if (signal?.aborted) this.#stop.abort();
    const forget = this.#client.connection.onRetry((error) => this.#emit({ event: "request_retried", error }));
    try {
      await this.#read();
    } finally {
      this.#stop.abort();
      await this.#shutDown();
      forget();
      signal?.removeEventListener("abort", onAbort);
    }
    return this.summary;
  }

  /** Ends `run`. The grace is that of the options unless it is given. */
  stop(graceMs?: number): void {
    if (graceMs !== undefined) this.#stopGraceMs = notNegative("graceMs", graceMs);
    this.#stop.abort();
  }

  async #read(): Promise<void> {
    const settings = {
      topic: this.#topic,
      group: this.#group,
      owner: this.owner,
      leaseMs: this.#host.leaseMs,
      prefetch: this.#concurrency,
      from: this.#from,
      closing: this.#stop.signal,
      onState: (state: WorkerEvent & { event: "connected" | "disconnected" }) => {
        if (state.event === "disconnected" && state.error.kind === "protocol") {
          this.#emit({ event: "protocol", error: state.error });
        }
        this.#emit(state);
      },
    };
    for await (const item of deliveries(this.#client.connection, settings)) {
      this.#receive(new Message(this.#topic, this.#group, this.owner, item));
    }
  }

  #receive(message: Message): void {
    // The line of a delivery can come twice.
    if (this.#tokens.has(message.leaseToken)) return;
    this.#tokens.add(message.leaseToken);
    const delivery = new Delivery(this.#host, message);
    this.#open.add(delivery);
    void delivery.ended.then((end) => {
      if (end !== "released") this.#summary[end] += 1;
      this.#open.delete(delivery);
      this.#tokens.delete(message.leaseToken);
    });
    this.#scheduler.add(delivery);
  }

  /** The stream is closed. Releases what has not begun, waits for the rest, and cancels it after the grace. */
  async #shutDown(): Promise<void> {
    const released = this.#scheduler.drain().map((delivery) => delivery.release());
    const clear = longTimeout(this.#stopGraceMs ?? this.#graceMs, () => {
      for (const delivery of this.#open) delivery.cancel();
    });
    await Promise.all([...released, ...[...this.#open].map((delivery) => delivery.held)]);
    clear();
  }

  #makeHost(handler: Handler, leaseMs: number, options: WorkerOptions): DeliveryHost {
    const client = this.#client;
    const batching = { stallMs: STALL_MS, retryForMs: client.connection.retryForMs };
    const begins = new Batcher(client.connection, "/v1/idempotency/begin", batching);
    const completes = new Batcher(client.connection, "/v1/complete", batching);
    const { retryDelayMs } = options;
    return {
      client,
      store: new BrokerStore(client),
      handler,
      owner: this.owner,
      leaseMs,
      scope: this.#scope(options.scope ?? "consume"),
      retryDelayMs: retryDelayMs === undefined ? undefined : Math.round(notNegative("retryDelayMs", retryDelayMs)),
      perKeyOrder: options.perKeyOrder ?? false,
      tracer: options.tracer,
      stopping: this.#stop.signal,
      begin: (effect, onRetry) => begin(begins, effect, onRetry),
      complete: async (line, traceparent) => {
        const request = { line, traceparent, repeatable: true };
        // A trace is a header: a batch cannot have one for each of its steps.
        await (traceparent === undefined ? completes.send(request) : completes.sendAlone(request));
      },
      emit: this.#emit,
      onBlocked: (ms) => this.#blocked(ms),
    };
  }

  #scope(scope: NonNullable<WorkerOptions["scope"]>): EffectScope | undefined {
    if (scope === "none") return undefined;
    if (scope === "consume") return { kind: "consume", topic: this.#topic, group: this.#group };
    return scope === "tenant" ? { kind: "tenant" } : scope;
  }

  /** Many heartbeats are late at once: one event for each time that the loop stood still. */
  #blocked(ms: number): void {
    const now = performance.now();
    if (now - ms < this.#blockedUntil) return;
    this.#blockedUntil = now;
    this.#emit({ event: "loop_blocked", ms: Math.round(ms) });
  }
}

async function begin(
  begins: Batcher,
  effect: Camel<wire.Begin>,
  onRetry: (error: DriftqError) => void,
): Promise<Decision> {
  const request: LineRequest = { line: beginLine(effect), repeatable: true, onRetry };
  try {
    return decisionOf(await begins.send(request));
  } catch (error) {
    return inProgress(error);
  }
}
