#!/usr/bin/env node
/** The adapter of this client for the conformance runner: one JSON object per line on stdin and stdout. */

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { idempotencyKey, requestHash } from "./canonical.js";
import { camel, snake } from "./camel.js";
import { Client } from "./client.js";
import { stepsHandler, type HandlerStep } from "./conformance_steps.js";
import { DriftqError, errorText, misuse } from "./errors.js";
import type { WorkerEvent } from "./events.js";
import type { ProduceOptions, Value } from "./messages.js";
import type { Produced } from "./producer.js";
import { CONTRACT } from "./version.js";
import type { Worker, WorkerOptions, WorkerSummary } from "./worker.js";

type Fields = Record<string, unknown>;

interface RunningWorker {
  worker: Worker;
  ended: Promise<WorkerSummary>;
  events: Fields[];
}

/** Events that the runner has not asked for; the oldest are dropped beyond it. */
const EVENTS_MAX = 100_000;

class Adapter {
  #client: Client | undefined;
  readonly #workers = new Map<string, RunningWorker>();

  readonly #operations: Record<string, (fields: Fields) => Promise<unknown> | unknown> = {
    connect: (fields) => this.#connect(fields),
    create_topic: async ({ topic, partitions }) => {
      const settings = partitions === undefined ? {} : { partitions: partitions as number };
      return { partitions: (await this.#connected.createTopic(topic as string, settings)).partitions };
    },
    produce: async (fields) => {
      return producedFields(
        await this.#connected.produce(fields["topic"] as string, valueOf(fields), optionsOf(fields)),
      );
    },
    produce_many: (fields) => this.#produceMany(fields["topic"] as string, fields["messages"] as Fields[]),
    idempotency_key: ({ parts }) => idempotencyKey(...(parts as string[])),
    request_hash: ({ value_json: text }) => requestHash(parseJson(text as string)),
    effect: (fields) => this.#effect(fields),
    worker_start: (fields) => this.#startWorker(fields),
    worker_stop: ({ worker, grace_ms: graceMs }) => this.#stopWorker(worker as string, graceMs as number | undefined),
    worker_events: ({ worker }) => ({ events: this.#worker(worker as string).events.splice(0) }),
  };

  async answer(line: string): Promise<Fields> {
    let id: unknown = null;
    try {
      const { id: given, op, ...fields } = JSON.parse(line) as Fields;
      id = given;
      const operation = this.#operations[op as string];
      if (operation === undefined) throw misuse(`unknown operation ${String(op)}`);
      return { id, ok: (await operation(fields)) ?? {} };
    } catch (error) {
      return { id, error: errorFields(error) };
    }
  }

  /** As at SIGTERM: stops all workers and waits for them. */
  async shutDown(): Promise<void> {
    await Promise.allSettled([...this.#workers.keys()].map((name) => this.#stopWorker(name)));
    this.#client?.close();
  }

  get #connected(): Client {
    if (this.#client === undefined) throw misuse("not connected");
    return this.#client;
  }

  #connect(fields: Fields): void {
    const { urls, key, timeout_ms: timeoutMs, retry_for_ms: retryForMs, ca } = fields;
    const client = new Client({
      urls: urls as string[],
      key: key as string | undefined,
      timeoutMs: timeoutMs as number | undefined,
      retryForMs: retryForMs as number | undefined,
      ca: ca === undefined ? undefined : readFileSync(ca as string),
    });
    this.#client?.close();
    this.#client = client;
  }

  async #produceMany(topic: string, messages: readonly Fields[]): Promise<unknown> {
    const producer = this.#connected.producer();
    const produce = async (fields: Fields): Promise<Fields> => {
      try {
        return { ok: producedFields(await producer.produce(topic, valueOf(fields), optionsOf(fields))) };
      } catch (error) {
        return { error: errorFields(error) };
      }
    };
    return { results: await Promise.all(messages.map(produce)) };
  }

  async #effect(fields: Fields): Promise<unknown> {
    const { action, identity, ...others } = fields;
    const client = this.#connected;
    // Names of both kinds come from the runner: the types are checked by the broker.
    const effect = camel({ ...(identity as Fields), ...others }) as never;
    const given = camel(identity) as never;
    switch (action) {
      case "begin":
        return snake(await client.beginEffect(effect));
      case "finish":
        return client.finishEffect(without(effect, "owner", "leaseMs"));
      case "reacquire":
        return snake(await client.reacquireEffect(effect));
      case "renew":
        return snake(await client.renewEffect(without(effect, "owner")));
      case "get":
        return snake(await client.getEffect(given));
      case "forget":
        return client.forgetEffect(given);
      default:
        throw misuse(`unknown action ${String(action)}`);
    }
  }

  async #startWorker(fields: Fields): Promise<void> {
    const name = fields["worker"] as string;
    if (this.#workers.has(name)) throw misuse(`worker ${name} runs`);
    const events: Fields[] = [];
    let runs = (): void => undefined;
    const running = new Promise<void>((resolve) => (runs = resolve));
    const onEvent = (event: WorkerEvent): void => {
      if (events.push(eventFields(event)) > EVENTS_MAX) events.shift();
      if (event.event === "connected" || event.event === "disconnected") runs();
    };
    const handler = stepsHandler(fields["handler"] as HandlerStep[], name, fields["ledger"] as string);
    const options: WorkerOptions = {
      concurrency: fields["concurrency"] as number | undefined,
      leaseMs: fields["lease_ms"] as number | undefined,
      scope: fields["scope"] as WorkerOptions["scope"],
      perKeyOrder: fields["per_key_order"] as boolean | undefined,
      graceMs: fields["grace_ms"] as number | undefined,
      onEvent,
    };
    const worker = this.#connected.worker(fields["topic"] as string, fields["group"] as string, handler, options);
    const ended = worker.run();
    this.#workers.set(name, { worker, ended, events });
    ended.catch((error: unknown) => console.error(error));
    try {
      await Promise.race([running, ended]);
    } catch (error) {
      this.#workers.delete(name);
      throw error;
    }
  }

  async #stopWorker(name: string, graceMs?: number): Promise<WorkerSummary> {
    const { worker, ended } = this.#worker(name);
    worker.stop(graceMs);
    try {
      return await ended;
    } finally {
      this.#workers.delete(name);
    }
  }

  #worker(name: string): RunningWorker {
    const worker = this.#workers.get(name);
    if (worker === undefined) throw misuse(`no worker ${name}`);
    return worker;
  }
}

function without(fields: never, ...names: string[]): never {
  return Object.fromEntries(Object.entries(fields).filter(([name]) => !names.includes(name))) as never;
}

function producedFields({ partition, offset, duplicate, alreadyDone }: Produced): Fields {
  return { partition, offset, duplicate, already_done: alreadyDone };
}

function valueOf(fields: Fields): Value {
  const { value, value_base64: base64 } = fields;
  return base64 === undefined ? (value as string) : Buffer.from(base64 as string, "base64");
}

function optionsOf(fields: Fields): ProduceOptions {
  const { topic: _topic, value: _value, value_base64: _base64, ...options } = fields;
  return camel(options) as ProduceOptions;
}

function errorFields(error: unknown): Fields {
  if (!(error instanceof DriftqError)) {
    return { kind: "unknown", status: 0, code: "", message: errorText(error), retry_is_safe: false };
  }
  const { kind, status, code, message, retryIsSafe, retryAfterMs } = error;
  return { kind, status, code, message, retry_is_safe: retryIsSafe, retry_after_ms: retryAfterMs };
}

function eventFields(event: WorkerEvent): Fields {
  const fields = { ...event } as Fields;
  const { error } = fields;
  return snake(error instanceof DriftqError ? { ...fields, error: error.message, kind: error.kind } : fields);
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw misuse(`no JSON: ${(error as Error).message}`);
  }
}

async function main(): Promise<void> {
  const adapter = new Adapter();
  const answer = (fields: Fields): void => void process.stdout.write(`${JSON.stringify(fields)}\n`);
  answer({ adapter: "typescript", contract: CONTRACT });
  const lines = createInterface({ input: process.stdin });
  for (const signal of ["SIGTERM", "SIGINT"] as const) process.once(signal, () => lines.close());
  lines.on("line", (line) => {
    if (line.trim() !== "") void adapter.answer(line).then(answer);
  });
  await new Promise<void>((resolve) => lines.once("close", resolve));
  await adapter.shutDown();
  // What is left, such as a handler that ignores its end, must not keep the process.
  process.stdout.write("", () => process.exit(0));
}

await main();
