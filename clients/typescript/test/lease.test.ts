/** Heartbeats, lost leases and the end of a worker, against a stub. */

import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { Client, type Handler } from "../src/index.js";
import { Heartbeat } from "../src/heartbeat.js";
import { cleanUp, deferred, itemLine, within, type Answerer } from "./stub.js";
import { delivery, start, succeed, waitFor } from "./worker_stub.js";

const LEASE_MS = 300;
const refuse: Answerer = (_, answer) => answer.refuse(409, "FAILED_PRECONDITION", "stale lease");

/** A handler that ends when it is cancelled, with the reason. */
const untilCancelled: Handler = (_, { signal }) =>
  new Promise((_resolve, reject) => {
    if (signal.aborted) reject(signal.reason as Error);
    signal.addEventListener("abort", () => reject(signal.reason as Error));
  });

/** A handler that ignores its signal until the test says so. */
function stubborn(): { handler: Handler; end: () => void } {
  const { promise, resolve } = deferred();
  return { handler: () => promise, end: () => resolve() };
}

test("heartbeat_prolongs_delivery_and_effect_every_third_of_the_lease", async () => {
  const { handler, end } = stubborn();
  const run = await start(handler, { options: { leaseMs: LEASE_MS } });
  const begun = performance.now();
  await run.stub.asked("/v1/idempotency/renew", 6);
  const elapsed = performance.now() - begun;
  assert.ok(elapsed >= 5 * (LEASE_MS / 3), `${elapsed}`);
  end();
  await run.on("completed");
  assert.deepEqual(run.stub.to("/v1/extend")[0]?.json(), { ...delivery(run.worker.owner), lease_ms: LEASE_MS });
  const { scope, key, lease_token: token } = run.stub.to("/v1/idempotency/renew")[0]?.json() ?? {};
  assert.deepEqual([(scope as { kind: string }).kind, key, token], ["consume", "key-1", "effect-token"]);
});

test("refused_heartbeat_cancels_the_handler_and_discards_its_result", async () => {
  for (const path of ["extend", "idempotency/renew"]) {
    let why: unknown;
    const handler: Handler = async (message, context) => {
      try {
        await untilCancelled(message, context);
      } catch (error) {
        why = error;
      }
      return "a result nobody wants";
    };
    const run = await start(handler, { options: { leaseMs: 1_500 }, answers: { [path]: refuse } });
    await run.on("received");
    const received = performance.now();
    await run.on("lease_lost");
    assert.ok(performance.now() - received < 1_200, "it was lost when it ran out, not when it was refused");
    await within(
      waitFor(() => why !== undefined),
      "the cancellation",
    );
    run.worker.stop();
    await within(run.ended, "the end");
    assert.equal(String(why), "AbortError: lease lost");
    assert.deepEqual(run.worker.summary, { completed: 0, failed: 0, lost: 1 });
    assert.equal(run.stub.to("/v1/complete").length + run.stub.to("/v1/nack").length, 0);
  }
});

test("lease_that_no_heartbeat_prolonged_for_its_whole_length_is_lost", async () => {
  const run = await start(untilCancelled, { options: { leaseMs: LEASE_MS }, answers: { extend: () => undefined } });
  await run.on("received");
  const received = performance.now();
  await run.on("lease_lost");
  const elapsed = performance.now() - received;
  assert.ok(elapsed > LEASE_MS * 0.8 && elapsed < LEASE_MS * 4, `${elapsed}`);
});

test("heartbeat_survives_errors_that_say_nothing_of_the_lease", async () => {
  const { handler, end } = stubborn();
  const run = await start(handler, {
    options: { leaseMs: 600 },
    answers: {
      extend: (seen, answer, n) => {
        if (n % 3 === 0) answer.drop();
        else if (n % 3 === 1) answer.refuse(503, "UNAVAILABLE", "m");
        else succeed("extend", seen, answer);
      },
    },
  });
  await run.stub.asked("/v1/extend", 9);
  end();
  await run.on("completed");
});

test("handler_that_ignores_its_cancellation_is_reported_and_keeps_its_slot", async () => {
  const { handler, end } = stubborn();
  let begun = 0;
  const run = await start(
    (message, context) => {
      begun += 1;
      return message.offset === 1 ? handler(message, context) : untilCancelled(message, context);
    },
    {
      lines: [itemLine(1), itemLine(2)],
      options: { leaseMs: LEASE_MS, concurrency: 1 },
      answers: { "idempotency/renew": refuse },
    },
  );
  await run.on("handler_stuck");
  assert.equal(begun, 1);
  end();
  await within(
    waitFor(() => begun === 2),
    "the second handler",
  );
});

test("handler_that_blocks_the_event_loop_beyond_the_lease_has_lost_it", async () => {
  const handler: Handler = async () => {
    const end = Date.now() + 2 * LEASE_MS;
    while (Date.now() < end);
    return "too late";
  };
  const run = await start(handler, { options: { leaseMs: LEASE_MS } });
  await run.on("lease_lost");
  const blocked = await run.on("loop_blocked");
  assert.ok("ms" in blocked && blocked.ms > LEASE_MS && blocked.ms < 20 * LEASE_MS);
  assert.equal(run.events.filter(({ event }) => event === "loop_blocked").length, 1);
  run.worker.stop();
  await within(run.ended, "the end");
  assert.equal(run.stub.to("/v1/complete").length, 0);
});

test("handler_that_blocks_for_less_than_the_lease_completes", async () => {
  const handler: Handler = () => {
    const end = Date.now() + 300;
    while (Date.now() < end);
    return "in time";
  };
  const run = await start(handler, { options: { leaseMs: 3_000 } });
  await run.on("completed");
});

test("waiting_message_is_kept_alive_and_dropped_once_its_lease_is_lost", async () => {
  const { handler, end } = stubborn();
  const begun: number[] = [];
  const run = await start(
    (message, context) => {
      begun.push(message.offset);
      return message.offset === 1 ? handler(message, context) : null;
    },
    {
      lines: [itemLine(1), itemLine(2), itemLine(3)],
      options: { leaseMs: LEASE_MS, concurrency: 1 },
      answers: { extend: (seen, answer, n) => (seen.json()["offset"] === 2 ? refuse : succeedExtend)(seen, answer, n) },
    },
  );
  await run.on("lease_lost");
  await within(
    waitFor(() => run.stub.to("/v1/extend").filter((seen) => seen.json()["offset"] === 3).length >= 4),
    "heartbeats",
  );
  end();
  await within(
    waitFor(() => run.worker.summary.completed === 2),
    "the others",
  );
  assert.deepEqual(begun, [1, 3]);
});

const succeedExtend: Answerer = (seen, answer) => succeed("extend", seen, answer);

test("stop_releases_what_has_not_begun_and_lets_handlers_finish", async () => {
  const { handler, end } = stubborn();
  const lines = [itemLine(1), itemLine(2), itemLine(3)];
  const run = await start(handler, { lines, options: { concurrency: 1, graceMs: 10_000 } });
  await run.on("began");
  run.worker.stop();
  await run.stub.asked("/v1/release", 2);
  assert.deepEqual(
    run.stub.to("/v1/release").map((seen) => seen.json()["offset"]),
    [2, 3],
  );
  end();
  assert.deepEqual(await within(run.ended, "the end"), { completed: 1, failed: 0, lost: 0 });
});

test("handler_still_running_after_the_grace_is_cancelled_recorded_and_released", async () => {
  const run = await start(untilCancelled, { options: { graceMs: 50 } });
  await run.on("began");
  run.worker.stop();
  await within(run.ended, "the end");
  assert.deepEqual(
    run
      .sent()
      .slice(1)
      .map(([path, body]) => [path, body["status"], body["last_error"]]),
    [
      ["idempotency/finish", "FAILED_RETRYABLE", "shutdown"],
      ["release", undefined, undefined],
    ],
  );
});

test("result_of_a_handler_that_ends_after_its_cancellation_still_counts_while_the_lease_runs", async () => {
  const handler: Handler = (_, { signal }) =>
    new Promise((resolve) => signal.addEventListener("abort", () => setTimeout(() => resolve("done"), 20)));
  const run = await start(handler, { options: { graceMs: 20 } });
  await run.on("began");
  run.worker.stop();
  assert.deepEqual(await within(run.ended, "the end"), { completed: 1, failed: 0, lost: 0 });
});

test("stop_does_not_wait_for_a_stubborn_handler_longer_than_its_lease", async () => {
  const { handler, end } = stubborn();
  const run = await start(handler, { options: { graceMs: 20, leaseMs: LEASE_MS } });
  await run.on("began");
  run.worker.stop();
  assert.deepEqual(await within(run.ended, "the end"), { completed: 0, failed: 0, lost: 1 });
  assert.equal(run.stub.to("/v1/release").length, 0);
  end();
});

test("signal_of_run_stops_the_worker_also_before_it_has_begun", async () => {
  const client = new Client({ urls: "http://127.0.0.1:9" });
  cleanUp(() => client.close());
  const stopped = client.worker("t", "g", () => null).run({ signal: AbortSignal.abort() });
  assert.deepEqual(await within(stopped, "the end"), { completed: 0, failed: 0, lost: 0 });
  const waiting = client.worker("t", "g", () => null).run({ signal: AbortSignal.timeout(100) });
  assert.deepEqual(await within(waiting, "the end"), { completed: 0, failed: 0, lost: 0 });
});

test("heartbeat_counts_from_the_sending_of_the_last_one_that_succeeded", async () => {
  const lost = deferred<number>();
  let beats = 0;
  const started = performance.now();
  const heartbeat = new Heartbeat({
    leaseMs: 300,
    since: started,
    // The second is answered late, all others never.
    beat: async () => {
      beats += 1;
      if (beats > 1) await new Promise(() => undefined);
      await new Promise((resolve) => setTimeout(resolve, 150));
    },
    onLost: () => lost.resolve(performance.now()),
    onBlocked: () => undefined,
  });
  const at = await within(lost.promise, "the loss");
  heartbeat.end();
  // Sent after 100 ms, answered after 250 ms: lost 300 ms after it was sent, not after it was answered.
  assert.ok(at - started >= 395 && at - started < 540, `${at - started}`);
});

test("timer_that_is_early_does_not_end_the_watch_over_a_lease", async () => {
  const { promise: passed, resolve } = deferred();
  setTimeout(resolve, 150);
  mock.timers.enable({ apis: ["setTimeout"] });
  cleanUp(() => mock.timers.reset());
  let lost = 0;
  const heartbeat = new Heartbeat({
    leaseMs: 100,
    since: performance.now(),
    beat: () => Promise.resolve(),
    onLost: () => (lost += 1),
    onBlocked: () => undefined,
  });
  heartbeat.expire();
  // The timer fires, and the clock has not moved.
  mock.timers.tick(100);
  assert.equal(lost, 0);
  await passed;
  mock.timers.tick(100);
  assert.equal(lost, 1);
});
