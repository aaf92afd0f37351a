/** Client and worker against a real broker. */

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  BrokerStore,
  Outputs,
  Permanent,
  Retry,
  type Handler,
  type Message,
  type WorkerOptions,
} from "../src/index.js";
import type { Client } from "../src/index.js";
import { broker, needsBroker } from "./broker.js";
import { cleanUp, deferred, within } from "./stub.js";
import { waitFor } from "./worker_stub.js";

async function collect(messages: AsyncIterable<Message>): Promise<Message[]> {
  const all: Message[] = [];
  for await (const message of messages) all.push(message);
  return all;
}

/** What a group has in flight. */
async function inFlight(client: Client, topic: string): Promise<number> {
  const { groups } = await client.describeTopic(topic);
  return groups.flatMap((group) => group.partitions).reduce((sum, partition) => sum + partition.inFlight, 0);
}

function run(client: Client, topic: string, handler: Handler, options: WorkerOptions = {}) {
  const worker = client.worker(topic, "g", handler, options);
  const ended = worker.run();
  ended.catch(() => undefined);
  cleanUp(async () => {
    worker.stop(0);
    await within(ended, "the end of the worker").catch(() => undefined);
  });
  return { worker, ended };
}

test("every_route_answers", needsBroker, async () => {
  const { client } = await broker({ durable: true });
  assert.equal((await client.health()).status, "ok");
  assert.equal((await client.ready()).status, "ready");
  assert.equal((await client.version()).walEnabled, true);
  assert.ok((await client.config())["limits"]);
  assert.match((await client.digest()).digest, /^[0-9a-f]{16}$/);
  assert.ok((await client.openapi())["paths"]);
  assert.match(await client.metrics(), /driftq_ready 1/);

  assert.equal((await client.createTopic("a/b c", { partitions: 2, retentionMs: 5_000 })).partitions, 2);
  assert.deepEqual(await client.listTopics(), ["a/b c"]);
  assert.equal((await client.changeTopic("a/b c", { retentionMs: null })).retentionMs, 86_400_000);
  await assert.rejects(client.createTopic("a/b c", { partitions: 3 }), { kind: "conflict" });
  await client.createTopic("t");
  const stored = await client.produce("t", "one", {
    key: "k",
    idempotencyKey: "i",
    labels: { aB: "c_d" },
    tenant: "acme",
  });
  assert.deepEqual(stored, { partition: 0, offset: 0, duplicate: false, alreadyDone: false });
  assert.equal((await client.produce("t", "two", { idempotencyKey: "i", tenant: "acme" })).duplicate, true);
  await client.produce("t", new Uint8Array([0xff]));
  const [first, second] = await client.peek("t", { partition: 0, offset: 0 });
  assert.deepEqual(
    [first?.text, first?.tenant, first?.idempotencyKey, first?.envelope.labels],
    ["one", "acme", "i", { aB: "c_d" }],
  );
  assert.deepEqual([...(second?.bytes ?? [])], [0xff]);

  await client.createGroup("t", "g", { from: "earliest" });
  assert.deepEqual((await client.listGroups("t")).groups, ["g"]);
  const [one, two] = await collect(client.consume("t", "g", { max: 2, waitMs: 5_000 }));
  assert.ok(one !== undefined && two !== undefined);
  assert.ok(Date.parse((await client.extend(one, 60_000)).leaseUntil) > Date.now() + 30_000);
  await client.ack(one);
  await client.nack(two, { reason: "why", delayMs: 0 });
  const [again] = await collect(client.consume("t", "g", { max: 1, waitMs: 5_000 }));
  assert.deepEqual([again?.attempts, again?.lastError], [2, "why"]);
  await client.expireLease({ topic: "t", group: "g", partition: 0, offset: 1 });
  const [third] = await collect(client.consume("t", "g", { max: 1, waitMs: 5_000 }));
  assert.ok(third !== undefined);
  await client.release(third);
  await assert.rejects(client.ack({ ...third, leaseToken: third.leaseToken, owner: "other" }), { kind: "stale_lease" });
  await client.pauseGroup("t", "g");
  await client.resumeGroup("t", "g");
  const [fourth] = await collect(client.consume("t", "g", { max: 1, waitMs: 5_000 }));
  assert.ok(fourth !== undefined);
  const outputs = await client.complete(fourth, {
    result: { r: 1 },
    produce: [{ topic: "a/b c", value: { json: 1 } }],
  });
  assert.equal(outputs.length, 1);
  await client.seekGroup("t", "g", "earliest");
  const [replayed] = await collect(client.consume("t", "g", { max: 1, waitMs: 5_000 }));
  assert.ok(replayed !== undefined);
  await client.nack(replayed, { retryable: false, reason: "no" });
  const [dead] = await client.peek("dlq.t", { partition: 0, offset: 0 });
  assert.deepEqual([dead?.envelope.dlq?.reason, dead?.envelope.dlq?.originalTopic], ["non_retryable", "t"]);
  assert.equal(await client.redrive("t", { all: true }), 1);
  const kept = await client.peek("t", { partition: 0, offset: 0 });
  assert.deepEqual([dead?.redrives, kept.at(-1)?.redrives], [0, 1]);
  await client.ackCumulative({ topic: "t", group: "g", partition: 0, offset: 100, owner: replayed.owner });
  assert.equal(typeof (await client.purgeTopic("t")), "number");
  await client.deleteGroup("t", "g");
  await client.deleteTopic("t");
  await assert.rejects(client.describeTopic("t"), { kind: "not_found", status: 404, code: "NOT_FOUND" });
});

test("store_decides_as_its_contract_says", needsBroker, async () => {
  const { client } = await broker();
  const store = new BrokerStore(client);
  const identity = { scope: { kind: "rpc" as const, principal: "p", method: "m" }, key: "k", tenantId: "acme" };
  const begun = await store.begin({ ...identity, owner: "a", leaseMs: 5_000, requestHash: "h" });
  assert.ok(begun.decision === "EXECUTE" && begun.attempt === 1);
  const other = await store.begin({ ...identity, owner: "b" });
  assert.ok(other.decision === "IN_PROGRESS" && other.retryAfterMs > 0);
  await assert.rejects(client.beginEffect({ ...identity, owner: "b" }), { kind: "in_progress", retryIsSafe: true });
  await assert.rejects(store.begin({ ...identity, owner: "b", requestHash: "other" }), {
    kind: "invalid",
    status: 422,
  });
  await store.renew({ ...identity, leaseToken: begun.leaseToken, leaseMs: 6_000 });
  await assert.rejects(store.finish({ ...identity, leaseToken: "0".repeat(24), status: "SUCCEEDED" }), {
    kind: "stale_lease",
  });
  await store.finish({ ...identity, leaseToken: begun.leaseToken, status: "FAILED_RETRYABLE", lastError: "busy" });
  const failed = await store.begin({ ...identity, owner: "b" });
  assert.ok(failed.decision === "RETRYABLE" && failed.lastError === "busy");
  const again = await store.reacquire({ ...identity, owner: "b" });
  assert.equal(again.attempt, 2);
  const result = { snake_case: 1, camelCase: [2], "": null };
  await store.finish({ ...identity, leaseToken: again.leaseToken, status: "SUCCEEDED", result, responseCode: 201 });
  const replay = await store.begin({ ...identity, owner: "c" });
  assert.ok(replay.decision === "REPLAY" && replay.status === "SUCCEEDED");
  assert.deepEqual([replay.result, replay.responseCode], [result, 201]);
  assert.deepEqual((await store.get(identity))?.result, result);
  const listed = await client.listEffects({ tenantId: "acme", kind: "rpc", limit: 10 });
  assert.deepEqual(
    listed.records.map(({ key, scope }) => [key, scope]),
    [["k", identity.scope]],
  );
  await store.forget(identity);
  await store.forget(identity);
  assert.equal(await store.get(identity), undefined);
});

test("worker_runs_each_effect_once_over_retries_and_stores_its_result", needsBroker, async () => {
  const { client } = await broker();
  await client.createTopic("t");
  await client.createTopic("u");
  const producer = client.producer();
  await Promise.all(
    Array.from({ length: 200 }, (_, n) => producer.produce("t", String(n), { idempotencyKey: `k${n}` })),
  );
  const effects: string[] = [];
  const { worker } = run(client, "t", async (message, context) => {
    await context.sideEffect("charge", { n: message.text }, () => void effects.push(message.text));
    if (Number(message.text) % 7 === 0 && message.attempts === 1) throw new Retry("not yet", { delayMs: 5 });
    if (message.text === "13") throw new Permanent("unlucky");
    return new Outputs({ n: message.text }, { topic: "u", value: message.text, idempotencyKey: `u${message.text}` });
  });
  await within(
    waitFor(() => worker.summary.completed === 199),
    "all",
  );
  assert.equal(new Set(effects).size, 200);
  assert.equal(effects.length, 200);
  assert.equal(worker.summary.failed, 29 + 1);
  const next = await collect(client.consume("u", "g", { max: 199, waitMs: 5_000 }));
  assert.equal(new Set(next.map(({ text }) => text)).size, 199);
  const identity = { scope: { kind: "consume" as const, topic: "t", group: "g" }, key: "k5" };
  assert.deepEqual((await client.getEffect(identity)).result, { n: "5" });
  const [dead] = await client.peek("dlq.t", { partition: 0, offset: 0 });
  assert.equal(dead?.envelope.dlq?.lastError, "unlucky");
  assert.equal((await client.getEffect({ ...identity, key: "k13" })).status, "FAILED_FINAL");
});

test("worker_that_stops_holds_no_lease", needsBroker, async () => {
  const { client } = await broker();
  await client.createTopic("t", { partitions: 4 });
  for (let n = 0; n < 5; n += 1) {
    const producer = client.producer();
    await Promise.all(
      Array.from({ length: 100 }, (_, m) => producer.produce("t", "v", { key: `${m}`, idempotencyKey: `${n}.${m}` })),
    );
    const begun = deferred();
    const options = {
      concurrency: 50,
      graceMs: 0,
      onEvent: ({ event }: { event: string }) => void (event === "began" && begun.resolve()),
    };
    const { worker, ended } = run(
      client,
      "t",
      (_, { signal }) =>
        new Promise((_resolve, reject) => {
          signal.addEventListener("abort", () => reject(signal.reason as Error));
        }),
      options,
    );
    await within(begun.promise, "the first message");
    worker.stop();
    await within(ended, "the end");
    assert.equal(await inFlight(client, "t"), 0);
  }
});

test("stopped_before_its_first_message_a_worker_holds_no_lease", needsBroker, async () => {
  const { client } = await broker();
  await client.createTopic("t");
  const producer = client.producer();
  await Promise.all(
    Array.from({ length: 500 }, (_, n) => producer.produce("t", "v".repeat(2_000), { idempotencyKey: `k${n}` })),
  );
  for (let n = 0; n < 10; n += 1) {
    const connected = deferred();
    const onEvent = ({ event }: { event: string }): void => void (event === "connected" && connected.resolve());
    const { worker, ended } = run(client, "t", () => null, { concurrency: 500, graceMs: 0, onEvent });
    await within(connected.promise, "the connection");
    worker.stop();
    await within(ended, "the end");
    assert.equal(await inFlight(client, "t"), 0);
  }
});

test("worker_survives_a_crash_of_the_broker", needsBroker, async () => {
  const { broker: server, client } = await broker({ durable: true });
  await client.createTopic("t");
  const done = new Set<string>();
  const { worker } = run(client, "t", (message) => void done.add(message.text), { leaseMs: 1_000 });
  const producer = client.producer();
  const produce = (from: number): Promise<unknown> =>
    Promise.all(
      Array.from({ length: 100 }, (_, n) =>
        producer.produce("t", String(from + n), { idempotencyKey: `k${from + n}` }),
      ),
    );
  await produce(0);
  await within(
    waitFor(() => done.size > 10),
    "some messages",
  );
  await server.kill();
  const second = produce(100);
  await server.restart();
  await within(second, "messages after the crash");
  await within(
    waitFor(() => done.size === 200),
    "all messages",
  );
  assert.equal(worker.summary.failed, 0);
});

test("deadline_that_passes_in_a_handler_dead_letters_the_message", needsBroker, async () => {
  const { client } = await broker();
  await client.createTopic("t");
  await client.produce("t", "v", { idempotencyKey: "k", deadline: new Date(Date.now() + 500) });
  run(
    client,
    "t",
    (_, { signal }) =>
      new Promise((_resolve, reject) => {
        signal.addEventListener("abort", () => reject(signal.reason as Error));
      }),
  );
  await within(
    poll(async () => (await client.listTopics()).includes("dlq.t")),
    "the dead letter",
  );
  const [dead] = await client.peek("dlq.t", { partition: 0, offset: 0 });
  assert.equal(dead?.envelope.dlq?.reason, "deadline_exceeded");
});

async function poll(condition: () => Promise<boolean>): Promise<void> {
  while (!(await condition())) await new Promise((resolve) => setTimeout(resolve, 20));
}

test("trace_of_a_message_reaches_the_worker_and_its_outputs", needsBroker, async () => {
  const { client } = await broker();
  await client.createTopic("t");
  await client.createTopic("u");
  const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  await client.produce("t", "v", { traceparent });
  const { worker } = run(client, "t", () => new Outputs(undefined, { topic: "u", value: "x" }));
  await within(
    waitFor(() => worker.summary.completed === 1),
    "the message",
  );
  const [next] = await client.peek("u", { partition: 0, offset: 0 });
  assert.equal(next?.traceparent, traceparent);
});

test("two_workers_of_a_group_share_the_messages", needsBroker, async () => {
  const { client } = await broker();
  await client.createTopic("t");
  const seen: string[] = [];
  const handler: Handler = async (message) => {
    seen.push(message.text);
    await new Promise((resolve) => setTimeout(resolve, 2));
  };
  const workers = [run(client, "t", handler, { concurrency: 4 }), run(client, "t", handler, { concurrency: 4 })];
  const producer = client.producer();
  await Promise.all(
    Array.from({ length: 100 }, (_, n) => producer.produce("t", String(n), { idempotencyKey: `k${n}` })),
  );
  const completed = (): number => workers.reduce((sum, { worker }) => sum + worker.summary.completed, 0);
  await within(
    waitFor(() => completed() === 100),
    "all",
  );
  assert.equal(new Set(seen).size, 100);
  assert.equal(seen.length, 100);
  assert.ok(workers.every(({ worker }) => worker.summary.completed > 0));
});
