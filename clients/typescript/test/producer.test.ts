import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, DriftqError, type Produced, type ProducerOptions } from "../src/index.js";
import { cleanUp, deferred, Stub, withVersion, within, type Answer, type Answerer, type Seen } from "./stub.js";

function producerOf(url: string, options: ProducerOptions = {}) {
  const client = new Client({ urls: url, retryForMs: 5_000 });
  cleanUp(() => client.close());
  return client.producer(options);
}

/** Stores each message at the offset that its value says. */
function store(seen: Seen, answer: Answer): void {
  const isBatch = seen.headers["content-type"] === "application/x-ndjson";
  const stored = (body: Record<string, unknown>) => ({ partition: 0, offset: Number(body["value"]) });
  if (isBatch) answer.ndjson(seen.lines().map((line) => ({ status: 200, ...stored(line) })));
  else answer.json(200, { status: "produced", ...stored(seen.json()) });
}

const offsets = (results: readonly Produced[]): number[] => results.map(({ offset }) => offset);
const upTo = (count: number): number[] => Array.from({ length: count }, (_, n) => n);

test("messages_that_wait_while_a_batch_is_on_the_wire_are_the_next_batch", async () => {
  const held = deferred();
  const stub = await Stub.start(
    withVersion(async (seen, answer, n) => {
      if (n === 0) await held.promise;
      store(seen, answer);
    }),
  );
  const producer = producerOf(stub.url);
  const first = producer.produce("t", "0");
  await within(
    new Promise<void>((resolve) => {
      const look = (): void => void (stub.to("/v1/produce").length === 1 ? resolve() : setImmediate(look));
      look();
    }),
    "the first request",
  );
  const others = upTo(50)
    .slice(1)
    .map((n) => producer.produce("t", String(n)));
  held.resolve();
  assert.deepEqual(offsets(await within(Promise.all([first, ...others]), "all")), upTo(50));
  const [alone, batch, ...more] = stub.to("/v1/produce");
  assert.equal(alone?.headers["content-type"], "application/json");
  assert.equal(batch?.lines().length, 49);
  assert.equal(more.length, 0);
});

test("batch_has_at_most_a_thousand_lines_and_a_mebibyte", async () => {
  const stub = await Stub.start(withVersion(store));
  const producer = producerOf(stub.url);
  await within(Promise.all(upTo(2_500).map((n) => producer.produce("t", String(n)))), "all");
  assert.ok(stub.to("/v1/produce").every((seen) => seen.lines().length <= 1_000));
  const large = producerOf(stub.url);
  const key = "k".repeat(300 * 1024);
  stub.requests.length = 0;
  await within(Promise.all(upTo(7).map((n) => large.produce("t", String(n), { key }))), "all");
  assert.deepEqual(
    stub.to("/v1/produce").map((seen) => seen.body.trim().split("\n").length),
    [3, 3, 1],
  );
  assert.ok(stub.to("/v1/produce").every((seen) => Buffer.byteLength(seen.body) <= 1024 * 1024));
});

test("lines_are_answered_one_by_one", async () => {
  const stub = await Stub.start(
    withVersion((seen, answer) =>
      answer.ndjson(
        seen
          .lines()
          .map(({ value }) =>
            value === "bad"
              ? { status: 404, error: "NOT_FOUND", message: "no topic" }
              : { status: 200, partition: 1, offset: 5, duplicate: true },
          ),
      ),
    ),
  );
  const producer = producerOf(stub.url);
  const [good, bad] = await Promise.allSettled([producer.produce("t", "good"), producer.produce("t", "bad")]);
  assert.deepEqual(good, {
    status: "fulfilled",
    value: { partition: 1, offset: 5, duplicate: true, alreadyDone: false },
  });
  assert.equal(bad.status === "rejected" && (bad.reason as DriftqError).kind, "not_found");
});

test("refused_line_is_sent_again_alone", async () => {
  for (const refusal of [
    { status: 429, error: "RESOURCE_EXHAUSTED", message: "m", retry_after_ms: 1 },
    { status: 503, error: "UNAVAILABLE", message: "m", committed: "no" },
  ]) {
    const stub = await Stub.start(
      withVersion((seen, answer, n) => {
        if (n > 0) store(seen, answer);
        else
          answer.ndjson(
            seen
              .lines()
              .map(({ value }, index) =>
                index === 1 ? refusal : { status: 200, partition: 0, offset: Number(value) },
              ),
          );
      }),
    );
    const producer = producerOf(stub.url);
    const results = await within(Promise.all(upTo(3).map((n) => producer.produce("t", String(n)))), "all");
    assert.deepEqual(offsets(results), [0, 1, 2]);
    assert.equal(stub.to("/v1/produce")[1]?.json()["value"], "1");
  }
});

const cutAfterOne: Answerer = (_, answer) =>
  answer.cut("application/x-ndjson", '{"status":200,"partition":0,"offset":0}\n{"status":200,"part');

test("batch_that_is_cut_is_repeated_only_if_every_line_has_a_key", async () => {
  const stub = await Stub.start(withVersion((seen, answer, n) => (n === 0 ? cutAfterOne : store)(seen, answer, n)));
  const producer = producerOf(stub.url);
  const results = await within(
    Promise.all(upTo(3).map((n) => producer.produce("t", String(n), { idempotencyKey: `k${n}` }))),
    "all",
  );
  assert.deepEqual(offsets(results), [0, 1, 2]);
  assert.equal(stub.to("/v1/produce").length, 2);
});

test("lines_behind_a_cut_without_keys_are_of_unknown_outcome", async () => {
  const stub = await Stub.start(withVersion(cutAfterOne));
  const producer = producerOf(stub.url);
  const keys = [undefined, undefined, "k2"];
  const results = await Promise.allSettled(
    keys.map((idempotencyKey, n) => producer.produce("t", String(n), { idempotencyKey })),
  );
  assert.equal(stub.to("/v1/produce").length, 1);
  assert.deepEqual(
    results.map((result) =>
      result.status === "fulfilled" ? result.value.offset : [result.reason.kind, result.reason.retryIsSafe],
    ),
    [0, ["unknown", false], ["unknown", true]],
  );
});

test("produce_waits_while_too_many_are_pending", async () => {
  const held = deferred();
  const stub = await Stub.start(
    withVersion(async (seen, answer) => {
      await held.promise;
      store(seen, answer);
    }),
  );
  const producer = producerOf(stub.url, { maxPending: 2 });
  const first = [producer.produce("t", "0"), producer.produce("t", "1")];
  const abort = new AbortController();
  const aborted = producer.produce("t", "2", { signal: abort.signal });
  const waiting = producer.produce("t", "3");
  abort.abort(new Error("no longer wanted"));
  await assert.rejects(aborted, /no longer wanted/);
  held.resolve();
  assert.deepEqual(offsets(await within(Promise.all([...first, waiting]), "all")), [0, 1, 3]);
  assert.ok(stub.to("/v1/produce").every((seen) => seen.body.trim().split("\n").length <= 2));
});

test("flush_and_close_wait_for_every_answer", async () => {
  const stub = await Stub.start(withVersion(store));
  const producer = producerOf(stub.url, { lingerMs: 30 });
  let answered = 0;
  for (const n of upTo(10)) void producer.produce("t", String(n)).then(() => (answered += 1));
  await within(producer.flush(), "the flush");
  assert.equal(answered, 10);
  assert.equal(stub.to("/v1/produce").length, 1);
  await within(producer.close(), "the close");
  await assert.rejects(producer.produce("t", "v"), { kind: "misuse" });
});

test("messages_of_different_traces_do_not_share_a_batch", async () => {
  const stub = await Stub.start(withVersion(store));
  const producer = producerOf(stub.url);
  const traces = ["00-a", "00-a", "00-b", undefined, undefined];
  await within(Promise.all(traces.map((traceparent, n) => producer.produce("t", String(n), { traceparent }))), "all");
  assert.deepEqual(
    stub.to("/v1/produce").map((seen) => [seen.headers["traceparent"], seen.body.trim().split("\n").length]),
    [
      ["00-a", 2],
      ["00-b", 1],
      [undefined, 2],
    ],
  );
});

test("payloads_and_options_are_those_of_the_wire", async () => {
  const stub = await Stub.start(withVersion((_, answer) => answer.json(200, { partition: 0, offset: 0 })));
  const producer = producerOf(stub.url);
  await producer.produce("t", Buffer.from("text"));
  await producer.produce("t", new Uint8Array([0xff, 0x00]));
  await producer.produce(
    "t",
    { json: { b: 1, a: [true] } },
    {
      key: "k",
      partitionOverride: 3,
      idempotencyKey: "i",
      tenant: "acme",
      priority: 9,
      deliverAt: new Date(0),
      deadline: "2030-01-01T00:00:00Z",
      labels: { "a-b": "C_d", camelCase: "x" },
      retryPolicy: { maxAttempts: 5, backoffMs: 10, maxBackoffMs: 20 },
      targetTopic: "u",
      traceparent: "00-x",
    },
  );
  const [text, bytes, full] = stub.to("/v1/produce");
  assert.deepEqual(text?.json(), { topic: "t", value: "text" });
  assert.deepEqual(bytes?.json(), { topic: "t", value_base64: "/wA=" });
  assert.equal(full?.headers["traceparent"], "00-x");
  assert.deepEqual(full?.json(), {
    topic: "t",
    key: "k",
    value: '{"a":[true],"b":1}',
    envelope: {
      tenant_id: "acme",
      idempotency_key: "i",
      target_topic: "u",
      partition_override: 3,
      deadline: "2030-01-01T00:00:00Z",
      priority: 9,
      deliver_at: "1970-01-01T00:00:00.000Z",
      labels: { "a-b": "C_d", camelCase: "x" },
      retry_policy: { max_attempts: 5, backoff_ms: 10, max_backoff_ms: 20 },
    },
  });
});

test("value_that_cannot_be_sent_is_misuse_and_sends_nothing", async () => {
  const stub = await Stub.start(withVersion(store));
  const producer = producerOf(stub.url);
  const values: unknown[] = [{ json: NaN }, { json: () => 1 }, "\ud800", 5, null, undefined, { other: 1 }];
  for (const value of values) await assert.rejects(producer.produce("t", value as string), { kind: "misuse" });
  await assert.rejects(producer.produce("t", "v", { priority: NaN }), { kind: "misuse" });
  await assert.rejects(producer.produce("t", "v", { deadline: new Date(NaN) }), { kind: "misuse" });
  assert.equal(stub.requests.length, 0);
});
