/** The worker against a stub that answers each request as a test says: order and content of what it sends. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, Outputs, Permanent, Retry, type Handler } from "../src/index.js";
import { deferred, itemLine, Stub, withVersion, within, type Answerer } from "./stub.js";
import { delivery, EFFECT, raise, replay, start, succeed, waitFor } from "./worker_stub.js";

test("handler_result_completes_the_message_after_begin", async () => {
  const run = await start((message) => ({ got: message.text, json: { b: 1, a: 2 } }));
  await run.on("completed");
  assert.deepEqual(run.sent(), [
    [
      "idempotency/begin",
      {
        ...EFFECT,
        owner: run.worker.owner,
        lease_ms: 10_000,
        delivery: { partition: 0, offset: 1, lease_token: "token-1" },
      },
    ],
    ["complete", { ...delivery(run.worker.owner), result: { got: "value 1", json: { a: 2, b: 1 } } }],
  ]);
  assert.deepEqual(run.worker.summary, { completed: 1, failed: 0, lost: 0 });
  assert.equal(run.stub.to("/v1/consume")[0]?.query.get("prefetch"), "16");
});

test("delivery_whose_line_comes_twice_is_handled_once", async () => {
  let handled = 0;
  const line = itemLine(1);
  const run = await start(() => void (handled += 1), { lines: [line, line] });
  await run.on("completed");
  await run.worker.stop();
  await within(run.ended, "the end of the worker");
  assert.equal(handled, 1);
  assert.deepEqual(
    run.sent().map(([path]) => path),
    ["idempotency/begin", "complete"],
  );
});

test("handler_that_returns_nothing_completes_without_result", async () => {
  const run = await start(() => undefined);
  await run.on("completed");
  assert.deepEqual(run.sent()[1], ["complete", delivery(run.worker.owner)]);
});

test("outputs_go_with_the_completion", async () => {
  const line = itemLine(1, { trace: "00-trace" });
  const next = { topic: "u", value: { json: { n: 1 } }, key: "k", idempotencyKey: "i", delayMs: 5 };
  const run = await start(() => new Outputs("r", next, { topic: "v", value: "x" }), { lines: [line] });
  await run.on("completed");
  assert.deepEqual(run.sent()[1]?.[1]["produce"], [
    { topic: "u", key: "k", value: '{"n":1}', envelope: { idempotency_key: "i", delay_ms: 5 } },
    { topic: "v", value: "x" },
  ]);
  assert.equal(run.sent()[1]?.[1]["result"], "r");
  assert.equal(run.stub.to("/v1/complete")[0]?.headers["traceparent"], "00-trace");
});

test("completions_of_different_traces_do_not_wait_for_each_other", async () => {
  const count = 64;
  const lines = Array.from({ length: count }, (_, n) => itemLine(n, { trace: `00-trace-${n}`, envelope: {} }));
  const all = deferred();
  let arrived = 0;
  const complete: Answerer = async (seen, answer) => {
    assert.match(seen.headers["traceparent"] as string, /^00-trace-\d+$/);
    arrived += 1;
    if (arrived === count) all.resolve();
    // None is answered before all are there.
    await all.promise;
    succeed("complete", seen, answer);
  };
  const since = performance.now();
  const run = await start(() => new Outputs(1, { topic: "u", value: "x" }), {
    lines,
    answers: { complete },
    options: { concurrency: count },
  });
  await run.on("completed");
  // One after the other would go out each time that the one before has had no answer for 50 ms.
  assert.ok(performance.now() - since < (count - 1) * 50, "they went out together");
});

test("message_without_key_or_scope_none_is_not_begun", async () => {
  for (const setup of [{ lines: [itemLine(1, { envelope: {} })] }, { options: { scope: "none" as const } }]) {
    const run = await start(() => null, setup);
    await run.on("completed");
    assert.deepEqual(
      run.sent().map(([path]) => path),
      ["complete"],
    );
  }
});

test("other_scope_is_finished_before_the_message_is_completed", async () => {
  const line = itemLine(1, { envelope: { idempotency_key: "key-1", tenant_id: "acme" } });
  const scope = { kind: "job" as const, id: "j" };
  const run = await start(() => new Outputs(7, { topic: "u", value: "x" }), { lines: [line], options: { scope } });
  await run.on("completed");
  const [begin, finish, complete] = run.sent();
  assert.deepEqual(begin?.[1], { scope, key: "key-1", tenant_id: "acme", owner: run.worker.owner, lease_ms: 10_000 });
  const stored = { driftq: 1, result: 7, produce: [{ topic: "u", value: "x" }] };
  assert.deepEqual(finish, [
    "idempotency/finish",
    { scope, key: "key-1", tenant_id: "acme", lease_token: "effect-token", status: "SUCCEEDED", result: stored },
  ]);
  assert.deepEqual(complete?.[1], { ...delivery(run.worker.owner), result: 7, produce: [{ topic: "u", value: "x" }] });
});

test("replay_of_success_completes_with_what_is_stored_and_skips_the_handler", async () => {
  const produce = [{ topic: "u", value: "x", envelope: { idempotency_key: "i" } }];
  for (const [result, expected] of [
    [{ paid: true }, { result: { paid: true } }],
    [null, {}],
    [
      { driftq: 1, result: "r", produce },
      { result: "r", produce },
    ],
    [{ driftq: 1, result: null, produce }, { produce }],
    [{ driftq: 1, result: "r" }, { result: { driftq: 1, result: "r" } }],
    [{ id: 2 ** 60 }, {}],
  ] as const) {
    const run = await start(() => assert.fail("the handler ran"), {
      answers: { "idempotency/begin": (_, answer) => answer.json(200, replay("SUCCEEDED", { result })) },
    });
    await run.on("completed");
    assert.deepEqual(run.sent()[1], ["complete", { ...delivery(run.worker.owner), ...expected }]);
  }
});

test("replay_of_final_failure_dead_letters_and_skips_the_handler", async () => {
  const run = await start(() => assert.fail("the handler ran"), {
    answers: {
      "idempotency/begin": (_, answer) => answer.json(200, replay("FAILED_FINAL", { last_error: "no such dish" })),
    },
  });
  await run.on("failed");
  const nack = { ...delivery(run.worker.owner), reason: "no such dish", retryable: false };
  assert.deepEqual(run.sent()[1], ["nack", nack]);
});

test("nothing_is_sent_for_a_lease_that_was_lost_before_its_begin_was_answered", async () => {
  const LEASE_MS = 300;
  for (const decision of [replay("FAILED_FINAL", { last_error: "no" }), replay("SUCCEEDED")]) {
    const run = await start(() => assert.fail("it ran"), {
      options: { leaseMs: LEASE_MS },
      answers: {
        extend: (_, answer) => answer.refuse(503, "UNAVAILABLE", "m"),
        "idempotency/begin": (_, answer) => {
          setTimeout(() => answer.json(200, decision), 2 * LEASE_MS);
        },
      },
    });
    await run.on("began");
    run.worker.stop();
    await within(run.ended, "the end");
    assert.deepEqual(
      run.sent().filter(([path]) => path !== "extend" && path !== "idempotency/begin"),
      [],
    );
  }
});

test("effect_in_progress_elsewhere_releases_and_pauses_the_slot", async () => {
  let begun = 0;
  const run = await start(() => null, {
    lines: [itemLine(1), itemLine(2)],
    options: { concurrency: 1 },
    answers: {
      "idempotency/begin": (seen, answer) => {
        begun += 1;
        if (begun > 1) return succeed("idempotency/begin", seen, answer);
        answer.refuse(409, "FAILED_PRECONDITION", "in progress", { decision: "IN_PROGRESS", retry_after_ms: 300 });
      },
    },
  });
  const released = await run.on("released");
  const start1 = performance.now();
  const completed = await run.on("completed");
  assert.ok(performance.now() - start1 >= 280);
  assert.deepEqual(
    [released, completed].map((event) => "message" in event && event.message),
    ["t/0/1", "t/0/2"],
  );
});

test("retryable_effect_is_reacquired", async () => {
  const run = await start(() => null, {
    options: { scope: { kind: "rpc", principal: "p", method: "m" } },
    answers: {
      "idempotency/begin": (_, answer) =>
        answer.json(200, {
          decision: "RETRYABLE",
          attempt: 1,
          last_error: "x",
          status: "FAILED_RETRYABLE",
          status_v1: "FAILED",
        }),
    },
  });
  await run.on("completed");
  const paths = ["idempotency/begin", "idempotency/reacquire", "idempotency/finish", "complete"];
  assert.deepEqual(
    run.sent().map(([path]) => path),
    paths,
  );
});

test("stale_delivery_is_dropped_without_another_request", async () => {
  const run = await start(() => assert.fail("the handler ran"), {
    answers: { "idempotency/begin": (_, answer) => answer.refuse(409, "FAILED_PRECONDITION", "stale lease") },
  });
  await run.on("lease_lost");
  assert.deepEqual(
    run.sent().map(([path]) => path),
    ["idempotency/begin"],
  );
  assert.deepEqual(run.worker.summary, { completed: 0, failed: 0, lost: 1 });
});

const FINISH = { ...EFFECT, lease_token: "effect-token" };

test("failures_are_recorded_and_returned_as_the_handler_says", async () => {
  class Broken {
    toString(): string {
      throw new Error("no text");
    }
  }
  const cases: [() => never, string, number | undefined][] = [
    [() => raise(new Retry("later", { delayMs: 250 })), "later", 250],
    [() => raise(new Retry("later")), "later", 1_000],
    [() => raise(new TypeError("x is not a function")), "TypeError: x is not a function", 1_000],
    [() => raise("just a text"), "just a text", 1_000],
    [() => raise(undefined), "undefined", 1_000],
    [() => raise(new Broken()), "an error without a text", 1_000],
    [() => raise(new Error("ü".repeat(5_000))), `Error: ${"ü".repeat(2_044)}`, 1_000],
  ];
  for (const [handler, text, delay] of cases) {
    const run = await start(handler, { options: { retryDelayMs: 1_000 } });
    await run.on("failed");
    assert.deepEqual(run.sent().slice(1), [
      ["idempotency/finish", { ...FINISH, status: "FAILED_RETRYABLE", last_error: text }],
      ["nack", { ...delivery(run.worker.owner), reason: text, ...(delay === undefined ? {} : { delay_ms: delay }) }],
    ]);
  }
});

test("permanent_failure_ends_effect_and_message_in_one_request", async () => {
  const run = await start(() => raise(new Permanent("no such dish")));
  await run.on("failed");
  const letter = { dead_letter: true, delivery: { partition: 0, offset: 1, lease_token: "token-1" } };
  assert.deepEqual(run.sent().slice(1), [
    ["idempotency/finish", { ...FINISH, status: "FAILED_FINAL", last_error: "no such dish", ...letter }],
  ]);
  const without = await start(() => raise(new Permanent("no such dish")), { options: { scope: "none" } });
  await without.on("failed");
  const nack = { ...delivery(without.worker.owner), reason: "no such dish", retryable: false };
  assert.deepEqual(without.sent(), [["nack", nack]]);
});

test("result_that_is_no_json_is_a_permanent_failure_that_names_the_place", async () => {
  const cycle: Record<string, unknown> = {};
  cycle["again"] = cycle;
  const cases: [unknown, RegExp][] = [
    [NaN, /result: \$ is NaN/],
    [{ a: [1, () => 1] }, /result: \$\.a\[1\] is a function/],
    [10n, /bigint/],
    [{ n: 2 ** 60 }, /\$\.n is the integer/],
    [cycle, /\$\.again is a cycle/],
    [Buffer.from("x"), /bytes/],
    [new Outputs(undefined, { topic: "u", value: { json: NaN as never } }), /output 0: \$ is NaN/],
    [new Outputs(undefined, { topic: "u", value: 5 as never }), /output 0: a value is/],
  ];
  for (const [value, pattern] of cases) {
    const run = await start((() => value) as Handler);
    await run.on("failed");
    const [path, body] = run.sent()[1] ?? [];
    assert.deepEqual([path, body?.["status"], body?.["dead_letter"]], ["idempotency/finish", "FAILED_FINAL", true]);
    assert.match(String(body?.["last_error"]), pattern);
    assert.equal(run.sent().length, 2);
  }
});

test("passed_deadline_cancels_the_handler_and_returns_the_message", async () => {
  const deadline = new Date(Date.now() + 200).toISOString();
  const line = itemLine(1, { envelope: { idempotency_key: "key-1", deadline } });
  let why: unknown;
  const run = await start(
    (_, { signal }) =>
      new Promise((_resolve, reject) => {
        signal.addEventListener("abort", () => {
          why = signal.reason;
          reject(new Error("stopped"));
        });
      }),
    { lines: [line] },
  );
  await run.on("failed");
  assert.equal(String(why), "AbortError: deadline exceeded");
  assert.deepEqual(
    run
      .sent()
      .slice(1)
      .map(([path, body]) => [path, body["last_error"] ?? body["reason"]]),
    [
      ["idempotency/finish", "deadline exceeded"],
      ["nack", "deadline exceeded"],
    ],
  );
});

test("completion_is_repeated_after_a_lost_answer", async () => {
  const run = await start(() => 1, {
    answers: { complete: (seen, answer, n) => (n === 0 ? answer.drop() : succeed("complete", seen, answer)) },
  });
  await run.on("completed");
  assert.equal(run.stub.to("/v1/complete").length, 2);
  assert.ok(run.events.some(({ event }) => event === "request_retried"));
});

test("begin_repeated_after_a_lost_answer_does_not_pause_for_its_own_grant", async () => {
  const run = await start(() => null, {
    lines: [itemLine(1), itemLine(2)],
    options: { concurrency: 1 },
    answers: {
      "idempotency/begin": (seen, answer, n) => {
        if (n === 0) answer.drop();
        else if (n > 1) succeed("idempotency/begin", seen, answer);
        else answer.refuse(409, "FAILED_PRECONDITION", "m", { decision: "IN_PROGRESS", retry_after_ms: 60_000 });
      },
    },
  });
  await run.on("released");
  // The slot takes the next message at once.
  await run.on("completed");
});

test("refused_outputs_do_not_run_the_handler_again", async () => {
  const outputs = new Outputs("r", { topic: "nowhere", value: "x" });
  const run = await start(() => outputs, {
    answers: { complete: (_, answer) => answer.refuse(404, "NOT_FOUND", 'topic "nowhere" does not exist') },
  });
  await run.on("failed");
  const stored = { driftq: 1, result: "r", produce: [{ topic: "nowhere", value: "x" }] };
  const [, , finish, nack] = run.sent();
  assert.deepEqual(finish, ["idempotency/finish", { ...FINISH, status: "SUCCEEDED", result: stored }]);
  assert.deepEqual([nack?.[0], nack?.[1]["delay_ms"]], ["nack", 1_000]);
  assert.match(String(nack?.[1]["reason"]), /the step was refused: topic "nowhere"/);
});

test("result_that_the_broker_refuses_is_a_permanent_failure", async () => {
  const run = await start(() => "too long", {
    answers: { complete: (_, answer) => answer.refuse(413, "PAYLOAD_TOO_LARGE", "result over its limit") },
  });
  await run.on("failed");
  assert.deepEqual([run.sent()[2]?.[1]["status"], run.sent()[2]?.[1]["dead_letter"]], ["FAILED_FINAL", true]);
});

test("dead_letter_topic_gets_its_message_back_with_a_delay", async () => {
  const run = await start(() => null);
  run.worker.stop();
  const stub = await Stub.start(
    withVersion((seen, answer) => {
      if (seen.path === "/v1/consume") answer.stream(itemLine(1));
      else succeed(seen.path.slice(4), seen, answer);
    }),
  );
  const client = new Client({ urls: stub.url });
  const worker = client.worker("dlq.t", "g", () => raise(new Permanent("still wrong")));
  const ended = worker.run();
  await stub.asked("/v1/nack");
  worker.stop();
  await within(ended, "the end");
  client.close();
  assert.deepEqual(stub.to("/v1/nack")[0]?.json()["delay_ms"], 60_000);
  assert.equal(stub.to("/v1/idempotency/finish")[0]?.json()["status"], "FAILED_RETRYABLE");
});

test("no_more_handlers_run_at_a_time_than_asked_for", async () => {
  let running = 0;
  let most = 0;
  const lines = Array.from({ length: 40 }, (_, n) => itemLine(n));
  const run = await start(
    async () => {
      running += 1;
      most = Math.max(most, running);
      await new Promise((resolve) => setTimeout(resolve, 5));
      running -= 1;
    },
    { lines, options: { concurrency: 3 } },
  );
  await within(
    waitFor(() => run.worker.summary.completed === 40),
    "all",
  );
  assert.equal(most, 3);
  assert.equal(run.stub.to("/v1/consume")[0]?.query.get("prefetch"), "3");
});

test("messages_of_one_key_are_handled_one_after_the_other", async () => {
  const order: string[] = [];
  const running = new Set<string>();
  const lines = Array.from({ length: 30 }, (_, n) => itemLine(n, { key: n % 5 === 4 ? "" : `k${n % 2}` }));
  const handler: Handler = async (message) => {
    if (message.key !== "") {
      assert.ok(!running.has(message.key));
      running.add(message.key);
      order.push(`${message.key}:${message.offset}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 3));
    running.delete(message.key);
  };
  const run = await start(handler, { lines, options: { perKeyOrder: true, concurrency: 8 } });
  await within(
    waitFor(() => run.worker.summary.completed === 30),
    "all",
  );
  assert.equal(run.worker.summary.failed, 0);
  for (const key of ["k0", "k1"]) {
    const offsets = order.filter((entry) => entry.startsWith(key)).map((entry) => Number(entry.split(":")[1]));
    assert.deepEqual(
      offsets,
      [...offsets].sort((a, b) => a - b),
    );
  }
});

test("wrong_key_ends_the_worker_with_an_error", async () => {
  const run = await start(() => null, { answers: { consume: (_, answer) => answer.empty(401) } });
  await assert.rejects(within(run.ended as Promise<void>, "the end"), { kind: "unauthenticated" });
});

test("span_of_a_run_has_the_parent_and_the_names_of_messaging", async () => {
  const spans: unknown[] = [];
  const run = await start(() => raise(new Error("failed")), {
    lines: [itemLine(1, { trace: "00-parent", attempts: 4 })],
    options: {
      tracer: async (span, body) => {
        const entry: unknown[] = [span];
        spans.push(entry);
        try {
          return await body();
        } catch (error) {
          entry.push(String(error));
          throw error;
        }
      },
    },
  });
  await run.on("failed");
  const attributes = {
    "messaging.system": "driftq",
    "messaging.destination.name": "t",
    "messaging.message.id": "t/0/1",
    "driftq.attempt": 4,
  };
  assert.deepEqual(spans, [[{ name: "driftq.handle", traceparent: "00-parent", attributes }, "Error: failed"]]);
});

test("log_is_structured_and_has_no_payload", async () => {
  const logged: unknown[] = [];
  const held = deferred();
  const run = await start(() => held.promise, {
    lines: [itemLine(1, { value: "very-secret", key: "very-secret" })],
    options: { log: (level, message, fields) => logged.push({ level, message, fields }) },
  });
  held.resolve();
  await run.on("completed");
  assert.ok(logged.length >= 4);
  assert.ok(!JSON.stringify(logged).includes("very-secret"));
});

test("hook_that_throws_stops_nothing", async () => {
  const run = await start(() => null, { options: { log: () => raise(new Error("from the hook")) } });
  await run.on("completed");
});
