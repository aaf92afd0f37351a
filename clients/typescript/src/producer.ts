/** A producer that joins messages into batches by itself. */

import { Batcher, type LineAnswer } from "./batcher.js";
import { notNegative, positive, type Connection } from "./connection.js";
import { misuse, protocolError } from "./errors.js";
import { produceBody, type ProduceOptions, type Value } from "./messages.js";

/** Where a message is stored. */
export interface Produced {
  partition: number;
  offset: number;
  /** Whether an earlier produce with the same idempotency key has stored it, the first try of this call included. */
  duplicate: boolean;
  /** Whether every group of the topic is done with its identity: it is delivered to none of them. */
  alreadyDone: boolean;
  /** Set where the message is stored without the decision of the broker's router. */
  routing?: "set_aside" | "failed";
}

export interface ProducerOptions {
  /** How long a batch waits for more messages; default 0. */
  lingerMs?: number | undefined;
  /** Messages that wait or are on the wire before `produce` waits; default 10,000. */
  maxPending?: number | undefined;
  /** How long a message is retried; default that of the client. */
  retryForMs?: number | undefined;
}

const MAX_PENDING = 10_000;

export class Producer {
  readonly #batcher: Batcher;
  readonly #maxPending: number;
  #pending = 0;
  #closed = false;
  readonly #room: (() => void)[] = [];
  readonly #idle: (() => void)[] = [];

  /** Made by `client.producer()`. */
  constructor(connection: Connection, options: ProducerOptions & { retryForMs: number }) {
    this.#maxPending = positive("maxPending", options.maxPending ?? MAX_PENDING);
    const lingerMs = notNegative("lingerMs", options.lingerMs ?? 0);
    this.#batcher = new Batcher(connection, "/v1/produce", { lingerMs, retryForMs: options.retryForMs });
  }

  /** Produces one message. Resolves once it is stored; waits for room first where too many are pending. */
  async produce(
    topic: string,
    value: Value,
    options: ProduceOptions & { signal?: AbortSignal | undefined } = {},
  ): Promise<Produced> {
    const { signal, traceparent, idempotencyKey } = options;
    const line = JSON.stringify(produceBody(topic, value, options));
    while (this.#pending >= this.#maxPending && !this.#closed) await this.#waitForRoom(signal);
    if (this.#closed) throw misuse("the producer is closed");
    this.#pending += 1;
    try {
      const repeatable = idempotencyKey !== undefined && idempotencyKey !== "";
      return produced(await this.#batcher.send({ line, repeatable, traceparent, signal }));
    } finally {
      this.#pending -= 1;
      this.#room.shift()?.();
      if (this.#pending === 0) for (const wake of this.#idle.splice(0)) wake();
    }
  }

  /** Resolves when every message handed over so far has been answered. */
  async flush(): Promise<void> {
    if (this.#pending > 0) await new Promise<void>((resolve) => this.#idle.push(resolve));
  }

  /** Takes no further messages, and resolves when those handed over have been answered. */
  async close(): Promise<void> {
    this.#closed = true;
    for (const wake of this.#room.splice(0)) wake();
    await this.flush();
  }

  #waitForRoom(signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const wake = (): void => {
        signal?.removeEventListener("abort", onAbort);
        resolve();
      };
      const onAbort = (): void => {
        this.#room.splice(this.#room.indexOf(wake), 1);
        reject(signal?.reason as Error);
      };
      signal?.addEventListener("abort", onAbort, { once: true });
      this.#room.push(wake);
    });
  }
}

/** The answer to a produce, alone or in a batch. */
export function produced(answer: LineAnswer): Produced {
  const { partition, offset, duplicate, already_done: alreadyDone, routing } = answer;
  if (typeof partition !== "number" || typeof offset !== "number") {
    throw protocolError("partition and offset of a message", "an answer without", JSON.stringify(answer), 200);
  }
  const remark = routing === "set_aside" || routing === "failed" ? { routing: routing as "set_aside" | "failed" } : {};
  return { partition, offset, duplicate: duplicate === true, alreadyDone: alreadyDone === true, ...remark };
}
