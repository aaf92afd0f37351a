/** The client: one method for each route of the broker. */

import type { Json } from "./canonical.js";
import { camel, snake, type Camel } from "./camel.js";
import { claimFields, completeLine, identityQuery, withResult, type Claim, type Identity } from "./claims.js";
import { Connection, parseObject, type ApiRequest, type CallOptions, type ConnectionOptions } from "./connection.js";
import { protocolError } from "./errors.js";
import type { Handler } from "./handler.js";
import {
  PeekedMessage,
  produceBody,
  type Message,
  type OutputMessage,
  type ProduceOptions,
  type Value,
} from "./messages.js";
import { topicPath, withQuery, type Query } from "./paths.js";
import { Producer, produced, type Produced, type ProducerOptions } from "./producer.js";
import { consume, type ConsumeOptions } from "./stream.js";
import type * as wire from "./wire.js";
import { Worker, type WorkerOptions } from "./worker.js";

/** What of an answer must be there, by name and type. */
type Shape = Record<string, "string" | "number" | "boolean" | "object">;

export class Client {
  readonly #connection: Connection;

  /** Sends nothing; the first request compares the version of the API. */
  constructor(options: ConnectionOptions) {
    this.#connection = new Connection(options);
  }

  /** Closes the connections. Requests on their way fail; streams end by their own signals. */
  close(): void {
    this.#connection.close();
  }

  /** For the parts of this package that send requests of their own. */
  get connection(): Connection {
    return this.#connection;
  }

  // Operation

  async health(call: CallOptions = {}): Promise<Camel<wire.Status>> {
    return camel(await this.#get<wire.Status>("/v1/healthz", {}, { status: "string" }, call));
  }

  async ready(call: CallOptions = {}): Promise<Camel<wire.Readiness>> {
    return camel(await this.#get<wire.Readiness>("/v1/readyz", {}, { status: "string" }, call));
  }

  async version(call: CallOptions = {}): Promise<Camel<wire.Version>> {
    return camel(await this.#get<wire.Version>("/v1/version", {}, { version: "string" }, call));
  }

  /** The settings in force, with the keys of the broker's configuration file. */
  config(call: CallOptions = {}): Promise<Record<string, Json>> {
    return this.#get("/v1/config", {}, {}, call);
  }

  async digest(call: CallOptions = {}): Promise<Camel<wire.Digest>> {
    return camel(await this.#get<wire.Digest>("/v1/digest", {}, { lsn: "number", digest: "string" }, call));
  }

  openapi(call: CallOptions = {}): Promise<Record<string, Json>> {
    return this.#get("/v1/openapi.json", {}, { openapi: "string" }, call);
  }

  /** The metrics in the text format of Prometheus. */
  async metrics(call: CallOptions = {}): Promise<string> {
    const answer = await this.#connection.request({ ...call, method: "GET", path: "/metrics", repeatable: true });
    return answer.body.toString("utf8");
  }

  // Topics

  async listTopics(page: { limit?: number; after?: string } = {}, call: CallOptions = {}): Promise<string[]> {
    return (await this.#get<{ topics: string[] }>("/v1/topics", page, { topics: "object" }, call)).topics;
  }

  /** Creates a topic, or finds it with the same settings; other settings are a `conflict`. */
  async createTopic(
    name: string,
    settings: Omit<Camel<wire.CreateTopic>, "name"> = {},
    call: CallOptions = {},
  ): Promise<Camel<wire.TopicCreated>> {
    const body = snake({ name, ...settings });
    const shape: Shape = { name: "string", partitions: "number" };
    return camel(await this.#post<wire.TopicCreated>("/v1/topics", body, shape, true, call));
  }

  async describeTopic(topic: string, call: CallOptions = {}): Promise<Camel<wire.TopicInfo>> {
    const shape: Shape = { partitions: "object", groups: "object" };
    return camel(await this.#get<wire.TopicInfo>(topicPath(topic), {}, shape, call));
  }

  /** Changes the retention: what is left out stays, `null` is the broker's default. */
  async changeTopic(
    topic: string,
    change: Camel<wire.ChangeTopic>,
    call: CallOptions = {},
  ): Promise<Camel<wire.TopicChanged>> {
    const body = JSON.stringify(snake(change));
    const request = { ...call, method: "PATCH", path: topicPath(topic), body, repeatable: false };
    return camel(await this.#object<wire.TopicChanged>(request, { name: "string" }));
  }

  /** Deletes a topic with its messages, groups and streams. */
  async deleteTopic(topic: string, call: CallOptions = {}): Promise<void> {
    await this.#connection.request({ ...call, method: "DELETE", path: topicPath(topic), repeatable: false });
  }

  /** Removes all messages of a topic. Returns how many. */
  async purgeTopic(topic: string, call: CallOptions = {}): Promise<number> {
    const request = { ...call, method: "POST", path: `${topicPath(topic)}/purge`, repeatable: false };
    return (await this.#object<{ purged: number }>(request, { purged: "number" })).purged;
  }

  // Messages

  /** Produces one message in a request of its own; see `producer` for many. */
  async produce(topic: string, value: Value, options: ProduceOptions & CallOptions = {}): Promise<Produced> {
    const { signal, timeoutMs, retryForMs, traceparent, idempotencyKey } = options;
    const answer = await this.#object<Record<string, unknown>>(
      {
        method: "POST",
        path: "/v1/produce",
        body: JSON.stringify(produceBody(topic, value, options)),
        headers: traceparent === undefined ? undefined : { traceparent },
        repeatable: idempotencyKey !== undefined && idempotencyKey !== "",
        signal,
        timeoutMs,
        retryForMs,
      },
      { partition: "number", offset: "number" },
    );
    return produced(answer);
  }

  /** A producer that joins messages into batches. */
  producer(options: ProducerOptions = {}): Producer {
    return new Producer(this.#connection, { ...options, retryForMs: options.retryForMs ?? this.#connection.retryForMs });
  }

  /**
   * Messages as they are delivered, without an end unless `max` or `waitMs` sets one. Reconnects by itself. Each
   * message has to be settled by its reader; a `worker` does that, and prolongs leases.
   */
  consume(topic: string, group: string, options: ConsumeOptions = {}): AsyncGenerator<Message, void, undefined> {
    return consume(this.#connection, topic, group, options);
  }

  /** A worker that has not started. */
  worker(topic: string, group: string, handler: Handler, options: WorkerOptions = {}): Worker {
    return new Worker(this, topic, group, handler, options);
  }

  async ack(claim: Claim, call: CallOptions = {}): Promise<void> {
    await this.#settle("/v1/ack", claim, {}, call);
  }

  /** Fails this attempt. `retryable: false` dead-letters the message at once. */
  async nack(
    claim: Claim,
    options: { reason?: string; delayMs?: number; retryable?: boolean } = {},
    call: CallOptions = {},
  ): Promise<void> {
    const { reason, delayMs, retryable } = options;
    await this.#settle("/v1/nack", claim, { reason, delayMs, retryable }, call);
  }

  /** Acks all messages up to an offset whose newest delivery went to the owner. */
  async ackCumulative(claim: Omit<Claim, "leaseToken">, call: CallOptions = {}): Promise<void> {
    await this.#settle("/v1/ack-cumulative", { ...claim, leaseToken: undefined }, {}, call);
  }

  /** Prolongs a lease. Resolves with its new end on the broker's clock. */
  async extend(claim: Claim, leaseMs: number, call: CallOptions = {}): Promise<Camel<wire.LeaseExtended>> {
    const body = snake({ ...claimFields(claim), leaseMs });
    const repeatable = claim.leaseToken !== undefined;
    return camel(await this.#post<wire.LeaseExtended>("/v1/extend", body, { lease_until: "string" }, repeatable, call));
  }

  /** Returns a message without counting a failure. */
  async release(claim: Claim, call: CallOptions = {}): Promise<void> {
    await this.#settle("/v1/release", claim, {}, call);
  }

  /** Finishes a message, stores the result and produces the next messages: all of it or nothing. */
  async complete(
    claim: Claim & { leaseToken: string },
    step: {
      result?: Json | undefined;
      produce?: readonly OutputMessage[];
      deadLetter?: boolean;
      lastError?: string;
    } = {},
    call: CallOptions & { traceparent?: string | undefined } = {},
  ): Promise<Produced[]> {
    const { traceparent, ...options } = call;
    const request: ApiRequest = { ...options, method: "POST", path: "/v1/complete", repeatable: true };
    const { produce = [], ...others } = step;
    const bodies = produce.map(({ topic, value, ...message }) => produceBody(topic, value, message));
    request.body = completeLine(claim, { ...others, produce: bodies });
    request.headers = traceparent === undefined ? undefined : { traceparent };
    const answer = await this.#object<{ produced: Record<string, unknown>[] }>(request, { produced: "object" });
    return answer.produced.map(produced);
  }

  // Groups

  async listGroups(topic: string, call: CallOptions = {}): Promise<wire.Groups> {
    return this.#get<wire.Groups>("/v1/groups", { topic }, { groups: "object" }, call);
  }

  async createGroup(
    topic: string,
    group: string,
    options: { from?: "earliest" | "latest" } = {},
    call: CallOptions = {},
  ): Promise<Camel<wire.GroupCreated>> {
    return this.#post<wire.GroupCreated>("/v1/groups", { topic, group, ...options }, { group: "string" }, false, call);
  }

  async deleteGroup(topic: string, group: string, call: CallOptions = {}): Promise<void> {
    const path = withQuery("/v1/groups", { topic, group });
    await this.#connection.request({ ...call, method: "DELETE", path, repeatable: false });
  }

  async seekGroup(
    topic: string,
    group: string,
    to: "earliest" | "latest" | { offset: number } | { time: string },
    call: CallOptions = {},
  ): Promise<void> {
    await this.#command("/v1/groups/seek", { topic, group, to }, false, call);
  }

  async pauseGroup(topic: string, group: string, call: CallOptions = {}): Promise<void> {
    await this.#command("/v1/groups/pause", { topic, group }, false, call);
  }

  async resumeGroup(topic: string, group: string, call: CallOptions = {}): Promise<void> {
    await this.#command("/v1/groups/resume", { topic, group }, false, call);
  }

  /** Ends the lease of a message now, as if it had run out. */
  async expireLease(ref: Camel<wire.MessageRef>, call: CallOptions = {}): Promise<void> {
    const { topic, group, partition, offset } = ref;
    await this.#command("/v1/groups/expire", { topic, group, partition, offset }, false, call);
  }

  // Looking, and dead letters

  /** What a partition has from an offset on, without delivering it. */
  async peek(
    topic: string,
    from: { partition: number; offset: number; limit?: number },
    call: CallOptions = {},
  ): Promise<PeekedMessage[]> {
    const shape: Shape = { messages: "object" };
    const answer = await this.#get<{ messages: wire.PeekedItem[] }>("/v1/peek", { topic, ...from }, shape, call);
    return answer.messages.map((item) => new PeekedMessage(topic, item));
  }

  /** Makes dead letters into messages of their source topic again. Returns how many. */
  async redrive(
    topic: string,
    which: { offsets: number[]; limit?: number } | { all: true; limit?: number },
    call: CallOptions = {},
  ): Promise<number> {
    const body = { topic, ...which };
    return (await this.#post<{ redriven: number }>("/v1/dlq/redrive", body, { redriven: "number" }, false, call))
      .redriven;
  }

  // The idempotency store

  /** Begins an effect. That it is in progress elsewhere is an error of kind `in_progress`; for a `Store` it is none. */
  async beginEffect(effect: Camel<wire.Begin>, call: CallOptions = {}): Promise<Camel<wire.Begun>> {
    return camel(
      await this.#post<wire.Begun>("/v1/idempotency/begin", snake(effect), { decision: "string" }, true, call),
    );
  }

  async finishEffect(effect: Camel<wire.Finish>, call: CallOptions = {}): Promise<void> {
    const { result, ...others } = effect;
    const body = withResult(snake(others), result);
    await this.#object(
      { ...call, method: "POST", path: "/v1/idempotency/finish", body, repeatable: true },
      { ok: "boolean" },
    );
  }

  async reacquireEffect(effect: Camel<wire.Reacquire>, call: CallOptions = {}): Promise<Camel<wire.Execute>> {
    const shape: Shape = { lease_token: "string" };
    return camel(await this.#post<wire.Execute>("/v1/idempotency/reacquire", snake(effect), shape, false, call));
  }

  async renewEffect(effect: Camel<wire.Renew>, call: CallOptions = {}): Promise<Camel<wire.LeaseExtended>> {
    const shape: Shape = { lease_until: "string" };
    return camel(await this.#post<wire.LeaseExtended>("/v1/idempotency/renew", snake(effect), shape, true, call));
  }

  async getEffect(identity: Identity, call: CallOptions = {}): Promise<Camel<wire.Effect>> {
    return camel(await this.#get<wire.Effect>("/v1/idempotency", identityQuery(identity), { status: "string" }, call));
  }

  async forgetEffect(identity: Identity, call: CallOptions = {}): Promise<void> {
    const path = withQuery("/v1/idempotency", identityQuery(identity));
    await this.#connection.request({ ...call, method: "DELETE", path, repeatable: true });
  }

  async listEffects(
    filter: {
      tenantId?: string;
      kind?: wire.Scope["kind"];
      status?: wire.EffectStatus;
      olderThanMs?: number;
      limit?: number;
      after?: string;
    } = {},
    call: CallOptions = {},
  ): Promise<Camel<wire.EffectPage>> {
    const query = snake(filter) as Record<string, string | number>;
    return camel(await this.#get<wire.EffectPage>("/v1/idempotency/list", query, { records: "object" }, call));
  }

  #get<T>(path: string, query: Query, shape: Shape, call: CallOptions): Promise<T> {
    return this.#object<T>({ ...call, method: "GET", path: withQuery(path, query), repeatable: true }, shape);
  }

  #post<T>(path: string, body: object, shape: Shape, repeatable: boolean, call: CallOptions): Promise<T> {
    return this.#object<T>({ ...call, method: "POST", path, body: JSON.stringify(body), repeatable }, shape);
  }

  async #object<T>(request: ApiRequest, shape: Shape): Promise<T> {
    const answer = await this.#connection.request(request);
    const object = parseObject(answer, "a JSON object");
    for (const [field, type] of Object.entries(shape)) {
      if (typeof object[field] === type && object[field] !== null) continue;
      throw protocolError(`\`${field}\` in the answer`, "an object without", answer.body, answer.status);
    }
    return object as T;
  }

  async #command(path: string, body: object, repeatable: boolean, call: CallOptions): Promise<void> {
    await this.#connection.request({ ...call, method: "POST", path, body: JSON.stringify(body), repeatable });
  }

  #settle(path: string, claim: Claim, more: object, call: CallOptions): Promise<void> {
    const body = snake({ ...claimFields(claim), ...more });
    return this.#command(path, body, claim.leaseToken !== undefined, call);
  }
}
