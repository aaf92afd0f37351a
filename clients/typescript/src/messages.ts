/** Messages as workers get them, and as producers and handlers give them. */

import { canonicalJson, type Json } from "./canonical.js";
import { camel, type Camel } from "./camel.js";
import { misuse, protocolError } from "./errors.js";
import type { Envelope, Item, ItemEnvelope, Produce, Routing, StoredItem } from "./wire.js";

/** A payload: text, bytes, or any JSON value, which is encoded canonically. */
export type Value = string | Uint8Array | { json: Json };

/** What may be said of a message beside its payload. */
export interface ProduceOptions {
  key?: string | undefined;
  partitionOverride?: number | undefined;
  idempotencyKey?: string | undefined;
  tenant?: string | undefined;
  /** 0 to 9; the highest is delivered first. */
  priority?: number | undefined;
  delayMs?: number | undefined;
  /** RFC 3339. */
  deliverAt?: Date | string | undefined;
  /** RFC 3339. */
  deadline?: Date | string | undefined;
  labels?: Record<string, string> | undefined;
  retryPolicy?: { maxAttempts?: number; backoffMs?: number; maxBackoffMs?: number } | undefined;
  targetTopic?: string | undefined;
  runId?: string | undefined;
  stepId?: string | undefined;
  parentStepId?: string | undefined;
  /** Of the W3C; passed on to the worker as the parent of its span. */
  traceparent?: string | undefined;
}

/** A message that a handler gives to the next step. */
export interface OutputMessage extends Omit<ProduceOptions, "traceparent"> {
  topic: string;
  value: Value;
}

/** What a handler returns to complete its message with messages for the next step. */
export class Outputs {
  readonly messages: readonly OutputMessage[];

  constructor(
    readonly result: Json | undefined,
    ...messages: OutputMessage[]
  ) {
    this.messages = messages;
  }
}

/** The body of a produce. */
export function produceBody(topic: string, value: Value, options: ProduceOptions): Produce {
  const envelope = envelopeOf(options);
  const body = {
    topic: wellFormed("the topic", topic),
    ...(options.key === undefined ? {} : { key: wellFormed("the key", options.key) }),
    ...(envelope === undefined ? {} : { envelope }),
  };
  const payload = payloadOf(value);
  return typeof payload === "string" ? { ...body, value: payload } : { ...body, value_base64: payload.base64 };
}

function payloadOf(value: Value): string | { base64: string } {
  if (typeof value === "string") return wellFormed("the value", value);
  if (value instanceof Uint8Array) return bytesAsText(value) ?? { base64: Buffer.from(value).toString("base64") };
  if (typeof value === "object" && value !== null && "json" in value) return canonicalJson(value.json);
  throw misuse("a value is a text, bytes or { json }");
}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function bytesAsText(bytes: Uint8Array): string | undefined {
  try {
    return utf8.decode(bytes);
  } catch {
    return undefined;
  }
}

function wellFormed(name: string, text: string): string {
  if (typeof text !== "string") throw misuse(`${name} is a ${typeof text}, not a text`);
  if (!text.isWellFormed()) throw misuse(`${name} has a lone surrogate`);
  return text;
}

function envelopeOf(options: ProduceOptions): Envelope | undefined {
  const { retryPolicy: policy } = options;
  const envelope: { [Name in keyof Envelope]?: Envelope[Name] | undefined } = {
    run_id: options.runId,
    step_id: options.stepId,
    parent_step_id: options.parentStepId,
    tenant_id: options.tenant,
    idempotency_key: options.idempotencyKey,
    target_topic: options.targetTopic,
    partition_override: options.partitionOverride,
    deadline: timeText("deadline", options.deadline),
    priority: options.priority,
    deliver_at: timeText("deliverAt", options.deliverAt),
    labels: options.labels,
    delay_ms: options.delayMs,
  };
  if (policy !== undefined) {
    envelope.retry_policy = {
      ...(policy.maxAttempts === undefined ? {} : { max_attempts: policy.maxAttempts }),
      ...(policy.backoffMs === undefined ? {} : { backoff_ms: policy.backoffMs }),
      ...(policy.maxBackoffMs === undefined ? {} : { max_backoff_ms: policy.maxBackoffMs }),
    };
  }
  const given = Object.entries(envelope).filter(([, field]) => field !== undefined);
  if (given.some(([, field]) => typeof field === "number" && !Number.isFinite(field))) {
    throw misuse("a number of the envelope is not finite");
  }
  return given.length === 0 ? undefined : (Object.fromEntries(given) as Envelope);
}

/** A time as RFC 3339. */
export function timeText(name: string, time: Date | string | undefined): string | undefined {
  if (!(time instanceof Date)) return time;
  if (Number.isNaN(time.getTime())) throw misuse(`\`${name}\` is an invalid date`);
  return time.toISOString();
}

const RFC3339 = /^(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d):(\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)$/;

/** Milliseconds since 1970 of an RFC 3339 time; undefined if it is none. A leap second is the second before it. */
export function timeMs(text: string): number | undefined {
  const [, date, minute, second, fraction = "", offset] = RFC3339.exec(text) ?? [];
  if (date === undefined || second === undefined || offset === undefined) return undefined;
  const leap = second === "60";
  const millis = leap ? ".999" : `.${fraction.slice(1, 4).padEnd(3, "0")}`;
  const ms = Date.parse(`${date}T${minute}:${leap ? "59" : second}${millis}${offset.toUpperCase()}`);
  return Number.isNaN(ms) ? undefined : ms;
}

/** What a message is wherever it is seen: delivered, peeked at, dead. */
abstract class Content {
  readonly topic: string;
  readonly partition: number;
  readonly offset: number;
  readonly key: string;
  readonly producedAt: string;
  /** Whether the payload was damaged on the broker's disk: key and value are empty then. */
  readonly lost: boolean;
  /** How often it has been redriven from dead letters. */
  readonly redrives: number;
  /** The `traceparent` it was produced with. */
  readonly traceparent: string | undefined;
  readonly routing: Routing | undefined;
  readonly #value: string | undefined;
  readonly #base64: string | undefined;
  readonly #envelope: ItemEnvelope | undefined;

  constructor(topic: string, item: StoredItem) {
    this.topic = topic;
    this.partition = item.partition;
    this.offset = item.offset;
    this.key = item.key;
    this.producedAt = item.produced_at;
    this.lost = item.lost === true;
    this.redrives = item.redrives ?? 0;
    this.traceparent = item.trace;
    this.routing = item.routing;
    this.#value = item.value;
    this.#base64 = item.value_base64;
    this.#envelope = item.envelope;
  }

  /** `topic/partition/offset`. */
  get id(): string {
    return `${this.topic}/${this.partition}/${this.offset}`;
  }

  /** The payload as text; bytes that are not UTF-8 are replaced, use `bytes` for those. */
  get text(): string {
    return this.#value ?? Buffer.from(this.#base64 ?? "", "base64").toString("utf8");
  }

  get bytes(): Uint8Array {
    return this.#value === undefined ? Buffer.from(this.#base64 ?? "", "base64") : Buffer.from(this.#value, "utf8");
  }

  /** The payload as JSON. Throws a `SyntaxError` where it is none. */
  json<T = Json>(): T {
    return JSON.parse(this.text) as T;
  }

  /** All that was said of the message when it was produced, and the history of a dead letter. */
  get envelope(): Camel<ItemEnvelope> {
    return camel(this.#envelope ?? {});
  }

  /** Empty where there is none. */
  get idempotencyKey(): string {
    return this.#envelope?.idempotency_key ?? "";
  }

  /** Empty for the default tenant. */
  get tenant(): string {
    return this.#envelope?.tenant_id ?? "";
  }

  get deadline(): string | undefined {
    return this.#envelope?.deadline;
  }
}

/** A message that is looked at without being delivered. */
export class PeekedMessage extends Content {}

/** One delivery of a message. */
export class Message extends Content {
  /** The number of this delivery, from 1 on. */
  readonly attempts: number;
  readonly failures: number;
  /** Why the attempt before this one failed; empty where there was none. */
  readonly lastError: string;
  readonly leaseToken: string;
  readonly leaseUntil: string;

  constructor(
    topic: string,
    readonly group: string,
    readonly owner: string,
    item: Item,
  ) {
    super(topic, item);
    this.attempts = item.attempts;
    this.failures = item.failures;
    this.lastError = item.last_error;
    this.leaseToken = item.lease_token;
    this.leaseUntil = item.lease_until;
  }
}

/** The item in a line of a stream. */
export function parseItem(line: string): Item {
  let item: unknown;
  try {
    item = JSON.parse(line);
  } catch {
    throw protocolError("a message in a line", "no JSON", line);
  }
  const { partition, offset, lease_token: token, attempts } = (item ?? {}) as Partial<Record<keyof Item, unknown>>;
  const numbers = typeof partition === "number" && typeof offset === "number" && typeof attempts === "number";
  if (!numbers || typeof token !== "string") throw protocolError("a message in a line", "another object", line);
  return item as Item;
}
