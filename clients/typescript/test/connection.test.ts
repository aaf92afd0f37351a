import assert from "node:assert/strict";
import { test } from "node:test";
import { inspect } from "node:util";
import { Client, DriftqError, type ErrorKind } from "../src/index.js";
import { selfSigned } from "./certificate.js";
import { cleanUp, refusingUrl, Stub, withVersion, within, type Answerer } from "./stub.js";

const IMPATIENT = { retryForMs: 0 };
const CLAIM = { topic: "t", group: "g", partition: 0, offset: 0, owner: "o", leaseToken: "T" };

function client(urls: string | string[], options: object = {}): Client {
  const made = new Client({ urls, retryForMs: 5_000, ...options });
  cleanUp(() => made.close());
  return made;
}

/** The error that a promise rejects with. */
async function failure(promise: Promise<unknown>): Promise<DriftqError> {
  const error = await within(
    promise.then(
      () => assert.fail("it did not fail"),
      (thrown: unknown) => thrown,
    ),
    "the failure",
  );
  assert.ok(error instanceof DriftqError, inspect(error));
  return error;
}

test("each_refusal_has_its_kind", async () => {
  const cases: [number, object, ErrorKind, boolean][] = [
    [400, { error: "INVALID_ARGUMENT", message: "m" }, "invalid", false],
    [401, { error: "UNAUTHENTICATED", message: "m" }, "unauthenticated", false],
    [403, { error: "PERMISSION_DENIED", message: "m" }, "permission_denied", false],
    [404, { error: "NOT_FOUND", message: "m" }, "not_found", false],
    [405, { error: "METHOD_NOT_ALLOWED", message: "m" }, "invalid", false],
    [409, { error: "ALREADY_EXISTS", message: "m" }, "conflict", false],
    [409, { error: "FAILED_PRECONDITION", message: "stale lease" }, "stale_lease", false],
    [409, { error: "FAILED_PRECONDITION", message: "not owner" }, "stale_lease", false],
    [
      409,
      { error: "FAILED_PRECONDITION", message: "m", decision: "IN_PROGRESS", retry_after_ms: 70 },
      "in_progress",
      true,
    ],
    [413, { error: "PAYLOAD_TOO_LARGE", message: "m" }, "invalid", false],
    [422, { error: "IDEMPOTENCY_MISMATCH", message: "m" }, "invalid", false],
    [429, { error: "RESOURCE_EXHAUSTED", message: "m", retry_after_ms: 70 }, "overloaded", true],
    [500, { error: "INTERNAL", message: "m" }, "unknown", false],
    [503, { error: "UNAVAILABLE", message: "m", committed: "no" }, "unavailable", true],
    [503, { error: "UNAVAILABLE", message: "m", committed: "unknown" }, "unknown", false],
    [503, { error: "UNAVAILABLE", message: "m" }, "unknown", false],
    [507, { error: "STORAGE_FULL", message: "m" }, "storage_full", true],
  ];
  for (const [status, body, kind, safe] of cases) {
    const stub = await Stub.start(withVersion((_, answer) => answer.json(status, body)));
    const error = await failure(client(stub.url, IMPATIENT).produce("t", "v"));
    assert.deepEqual(
      [error.kind, error.status, error.retryIsSafe, error.code],
      [kind, status, safe, (body as { error: string }).error],
    );
    assert.equal(error.retryAfterMs, (body as { retry_after_ms?: number }).retry_after_ms);
    assert.equal(stub.to("/v1/produce").length, 1);
  }
});

test("error_of_unknown_outcome_is_safe_to_retry_only_for_requests_that_cannot_double", async () => {
  const stub = await Stub.start(withVersion((_, answer) => answer.drop()));
  const broker = client(stub.url, IMPATIENT);
  const without = await failure(broker.produce("t", "v"));
  assert.deepEqual([without.kind, without.status, without.retryIsSafe], ["unknown", 0, false]);
  const withKey = await failure(broker.produce("t", "v", { idempotencyKey: "k" }));
  assert.deepEqual([withKey.kind, withKey.retryIsSafe], ["unknown", true]);
});

/** Fails the first request to a path in a way, then answers it. */
function failsOnce(path: string, way: Answerer, then: Answerer): Answerer {
  return withVersion((seen, answer, n) => (seen.path === path && n === 0 ? way : then)(seen, answer, n));
}

const LOST_WAYS: [string, Answerer][] = [
  ["drop", (_, answer) => answer.drop()],
  ["cut", (_, answer) => answer.cut("application/json", '{"status":')],
  ["503", (_, answer) => answer.refuse(503, "UNAVAILABLE", "m")],
];

test("requests_that_cannot_double_are_repeated_after_a_lost_answer", async () => {
  const effect = { scope: { kind: "tenant" as const }, key: "k" };
  const calls: [string, (broker: Client) => Promise<unknown>, object][] = [
    ["/v1/produce", (c) => c.produce("t", "v", { idempotencyKey: "k" }), { partition: 0, offset: 1 }],
    ["/v1/ack", (c) => c.ack(CLAIM), {}],
    ["/v1/nack", (c) => c.nack(CLAIM, { reason: "r" }), {}],
    ["/v1/extend", (c) => c.extend(CLAIM, 1_000), { lease_until: "x" }],
    ["/v1/release", (c) => c.release(CLAIM), {}],
    ["/v1/complete", (c) => c.complete(CLAIM), { produced: [] }],
    ["/v1/idempotency/begin", (c) => c.beginEffect({ ...effect, owner: "o" }), { decision: "EXECUTE" }],
    [
      "/v1/idempotency/finish",
      (c) => c.finishEffect({ ...effect, leaseToken: "T", status: "SUCCEEDED" }),
      { ok: true },
    ],
    ["/v1/idempotency/renew", (c) => c.renewEffect({ ...effect, leaseToken: "T" }), { lease_until: "x" }],
    ["/v1/idempotency", (c) => c.forgetEffect(effect), {}],
    ["/v1/topics", (c) => c.createTopic("t"), { name: "t", partitions: 1 }],
    ["/v1/topics/t", (c) => c.describeTopic("t"), { partitions: [], groups: [] }],
  ];
  for (const [name, way] of LOST_WAYS) {
    for (const [path, call, body] of calls) {
      const stub = await Stub.start(failsOnce(path, way, (_, answer) => answer.json(200, body)));
      await within(call(client(stub.url)), `${path} after ${name}`);
      assert.equal(stub.to(path).length, 2, `${path} after ${name}`);
    }
  }
});

test("requests_that_may_double_are_not_repeated_after_a_lost_answer", async () => {
  const { leaseToken: _, ...claim } = CLAIM;
  const calls: [string, (broker: Client) => Promise<unknown>][] = [
    ["/v1/produce", (c) => c.produce("t", "v")],
    ["/v1/ack", (c) => c.ack(claim)],
    ["/v1/nack", (c) => c.nack(claim)],
    ["/v1/topics/t/purge", (c) => c.purgeTopic("t")],
    ["/v1/dlq/redrive", (c) => c.redrive("t", { all: true })],
    ["/v1/idempotency/reacquire", (c) => c.reacquireEffect({ scope: { kind: "tenant" }, key: "k", owner: "o" })],
  ];
  for (const [name, way] of LOST_WAYS) {
    for (const [path, call] of calls) {
      const stub = await Stub.start(withVersion(way));
      const error = await failure(call(client(stub.url)));
      assert.equal(error.kind, "unknown", `${path} after ${name}`);
      assert.equal(stub.to(path).length, 1, `${path} after ${name}`);
    }
  }
});

test("request_on_a_connection_that_others_have_used_counts_as_sent", async () => {
  const stub = await Stub.start(
    withVersion((seen, answer) =>
      seen.json()["value"] === "lost" ? answer.drop() : answer.json(200, { partition: 0, offset: 0 }),
    ),
  );
  const broker = client(stub.url);
  // More than there are connections: the last ones wait for one.
  const values = [...Array.from({ length: 150 }, () => "stored"), "lost"];
  const results = await within(Promise.allSettled(values.map((value) => broker.produce("t", value))), "all");
  assert.equal(results.filter(({ status }) => status === "rejected").length, 1);
  assert.equal(stub.to("/v1/produce").filter((seen) => seen.json()["value"] === "lost").length, 1);
});

test("any_request_is_repeated_after_429_and_503_that_says_it_was_not_committed", async () => {
  for (const [status, more] of [
    [429, {}],
    [503, { committed: "no" }],
  ] as const) {
    const refuse: Answerer = (_, answer) => answer.refuse(status, "BUSY", "m", more);
    const stub = await Stub.start(
      failsOnce("/v1/produce", refuse, (_, answer) => answer.json(200, { partition: 0, offset: 7 })),
    );
    const stored = await within(client(stub.url).produce("t", "v"), "the produce");
    assert.deepEqual(stored, { partition: 0, offset: 7, duplicate: false, alreadyDone: false });
  }
});

test("pause_is_no_shorter_than_retry_after", async () => {
  const refuse: Answerer = (_, answer) => answer.refuse(429, "RESOURCE_EXHAUSTED", "m", {}, { "retry-after": "1" });
  const stub = await Stub.start(
    failsOnce("/v1/produce", refuse, (_, answer) => answer.json(200, { partition: 0, offset: 7 })),
  );
  const start = performance.now();
  await within(client(stub.url).produce("t", "v"), "the produce");
  assert.ok(performance.now() - start >= 990);
});

test("call_that_would_wait_longer_than_it_may_fails_at_once", async () => {
  const refuse: Answerer = (_, answer) => answer.refuse(429, "RESOURCE_EXHAUSTED", "m", {}, { "retry-after": "30" });
  const stub = await Stub.start(withVersion(refuse));
  const error = await failure(client(stub.url).produce("t", "v"));
  assert.deepEqual([error.kind, error.retryAfterMs, stub.to("/v1/produce").length], ["overloaded", 30_000, 1]);
});

test("next_url_is_used_after_a_refused_connection_and_kept", async () => {
  const stub = await Stub.start(withVersion((_, answer) => answer.json(200, { topics: ["t"] })));
  const broker = client([await refusingUrl(), stub.url]);
  let retried = 0;
  broker.connection.onRetry(() => (retried += 1));
  assert.deepEqual(await within(broker.listTopics(), "topics"), ["t"]);
  assert.deepEqual(await within(broker.listTopics(), "topics"), ["t"]);
  assert.equal(retried, 1);
});

test("unreachable_broker_is_unavailable_and_safe_to_retry", async () => {
  const error = await failure(client(await refusingUrl(), { retryForMs: 100 }).produce("t", "v"));
  assert.deepEqual([error.kind, error.status, error.retryIsSafe], ["unavailable", 0, true]);
  const unnamed = await failure(client("http://no-such-host.invalid", IMPATIENT).produce("t", "v"));
  assert.equal(unnamed.kind, "unavailable");
});

test("leader_named_by_an_answer_is_asked_from_then_on", async () => {
  const leader = await Stub.start(withVersion((_, answer) => answer.json(200, { topics: ["leader"] })));
  const follower = await Stub.start(
    withVersion((_, answer) => answer.json(200, { topics: ["follower"] }, { "driftq-leader": leader.url })),
  );
  const broker = client([follower.url, leader.url]);
  assert.deepEqual(await broker.listTopics(), ["follower"]);
  assert.deepEqual(await broker.listTopics(), ["leader"]);
});

test("leader_that_is_none_of_the_urls_is_ignored", async () => {
  const foreign = await Stub.start(withVersion((_, answer) => answer.json(200, { topics: ["foreign"] })));
  const stub = await Stub.start(
    withVersion((_, answer) => answer.json(200, { topics: ["own"] }, { "driftq-leader": foreign.url })),
  );
  const broker = client(stub.url);
  await broker.listTopics();
  assert.deepEqual(await broker.listTopics(), ["own"]);
  assert.equal(foreign.requests.length, 0);
});

test("redirection_is_followed_once_and_without_the_key_to_a_foreign_host", async () => {
  const known = await Stub.start(withVersion((_, answer) => answer.json(200, { topics: ["known"] })));
  const foreign = await Stub.start(withVersion((_, answer) => answer.json(200, { topics: ["foreign"] })));
  for (const [target, others, key] of [
    [known, [known.url], "Bearer secret"],
    [foreign, [], undefined],
  ] as const) {
    const stub = await Stub.start(
      withVersion((seen, answer) => answer.json(307, {}, { location: `${target.url}${seen.path}` })),
    );
    const broker = client([stub.url, ...others], { key: "secret" });
    await broker.listTopics();
    assert.equal(target.to("/v1/topics").at(-1)?.headers.authorization, key);
  }
  const loop = await Stub.start(withVersion((seen, answer) => answer.json(307, {}, { location: seen.path })));
  const error = await failure(client(loop.url).listTopics());
  assert.equal(error.kind, "protocol");
  assert.equal(loop.to("/v1/topics").length, 2);
});

test("other_version_of_the_api_is_a_protocol_error_that_names_both", async () => {
  const stub = await Stub.start((_, answer) => answer.json(200, { version: "9.0.0", api: "v2" }));
  const error = await failure(client(stub.url).produce("t", "v"));
  assert.equal(error.kind, "protocol");
  assert.match(error.message, /API v1.*API v2/);
  assert.deepEqual(
    stub.requests.map((seen) => seen.path),
    ["/v1/version"],
  );
});

test("server_that_is_no_broker_is_a_protocol_error_that_shows_its_answer", async () => {
  const page = `<html>${"x".repeat(500)}</html>`;
  const stub = await Stub.start((_, answer) => answer.text(404, "text/html", page));
  const error = await failure(client(`${stub.url}/some/where`).listTopics());
  assert.equal(error.kind, "protocol");
  assert.match(error.message, /^http:.*: expected .*, got status 404 with text\/html: <html>x+$/);
  assert.ok(error.message.length < 300);
  assert.equal(stub.requests[0]?.path, "/some/where/v1/version");
  const other = await Stub.start((_, answer) => answer.json(200, { hello: "world" }));
  assert.equal((await failure(client(other.url).listTopics())).kind, "protocol");
});

test("answer_that_is_no_json_or_lacks_a_field_is_a_protocol_error", async () => {
  const answers: Answerer[] = [
    (_, answer) => answer.text(200, "application/json", "{"),
    (_, answer) => answer.text(200, "application/json", "[]"),
    (_, answer) => answer.text(200, "text/plain", '{"partition":0,"offset":0}'),
    (_, answer) => answer.json(200, { partition: 0 }),
    (_, answer) => answer.json(200, { partition: "0", offset: 0 }),
  ];
  for (const answerer of answers) {
    const stub = await Stub.start(withVersion(answerer));
    const error = await failure(client(stub.url).produce("t", "v", { idempotencyKey: "k" }));
    assert.equal(error.kind, "protocol");
    assert.equal(stub.to("/v1/produce").length, 1);
  }
});

test("wrong_key_is_told_once_and_the_right_one_is_never_shown", async () => {
  for (const [status, kind] of [
    [401, "unauthenticated"],
    [403, "permission_denied"],
  ] as const) {
    const stub = await Stub.start((_, answer) => answer.empty(status));
    const broker = client(stub.url, { key: "very-secret" });
    const error = await failure(broker.produce("t", "v"));
    assert.equal(error.kind, kind);
    assert.equal(stub.requests.length, 1);
    assert.equal(stub.requests[0]?.headers.authorization, "Bearer very-secret");
    const shown = inspect([broker, broker.connection, error], { depth: 9, showHidden: true }) + JSON.stringify(broker);
    assert.ok(!shown.includes("very-secret"));
  }
});

test("request_names_client_and_contract", async () => {
  const stub = await Stub.start(withVersion((_, answer) => answer.json(200, { topics: [] })));
  await client(stub.url).listTopics();
  assert.match(stub.requests[0]?.headers["user-agent"] ?? "", /^driftq-typescript\/\d+\.\d+\.\d+ contract\/1$/);
});

test("slow_answer_is_a_timeout_of_unknown_outcome", async () => {
  const stub = await Stub.start(withVersion(() => undefined));
  const error = await failure(client(stub.url, { timeoutMs: 100 }).produce("t", "v"));
  assert.deepEqual([error.kind, error.message], ["unknown", `${stub.url}: no answer within 100 ms`]);
});

test("aborted_call_rejects_with_the_reason_of_its_signal", async () => {
  const stub = await Stub.start(withVersion(() => undefined));
  const abort = new AbortController();
  const call = client(stub.url).produce("t", "v", { signal: abort.signal });
  await stub.asked("/v1/produce");
  abort.abort(new Error("enough"));
  await assert.rejects(call, /enough/);
  const early = client(stub.url).listTopics({}, { signal: AbortSignal.abort(new Error("never mind")) });
  await assert.rejects(early, /never mind/);
  const waiting = client(await refusingUrl(), { retryForMs: 60_000 });
  const later = waiting.listTopics({}, { signal: AbortSignal.timeout(50) });
  await assert.rejects(later, { name: "TimeoutError" });
});

test("options_that_cannot_be_right_are_misuse", () => {
  const cases: object[] = [
    { urls: [] },
    { urls: "127.0.0.1:8080" },
    { urls: "ftp://host" },
    { urls: "http://user:secret@host" },
    { urls: "http://host?x=1" },
    { urls: "http://host", key: "a\nb" },
    { urls: "http://host", timeoutMs: 0 },
    { urls: "http://host", retryForMs: NaN },
  ];
  for (const options of cases) {
    assert.throws(
      () => new Client(options as { urls: string }),
      { name: "DriftqError", kind: "misuse" },
      JSON.stringify(options),
    );
  }
});

const tls = selfSigned();
test("certificate_decides_over_tls", { skip: tls === undefined && "no openssl to make a certificate" }, async () => {
  const stub = await Stub.start(
    withVersion((_, answer) => answer.json(200, { topics: ["t"] })),
    tls,
  );
  const refused = await failure(client(stub.url).listTopics());
  assert.deepEqual([refused.kind, refused.retryIsSafe], ["tls", false]);
  assert.equal(stub.requests.length, 0);
  assert.deepEqual(await client(stub.url, { ca: tls?.cert }).listTopics(), ["t"]);
  const wrongName = client(stub.url.replace("127.0.0.1", "localhost"), { ca: tls?.cert });
  assert.equal((await failure(wrongName.listTopics())).kind, "tls");
  const plain = await Stub.start(withVersion((_, answer) => answer.json(200, { topics: [] })));
  assert.equal((await failure(client(plain.url.replace("http:", "https:")).listTopics())).kind, "tls");
});
