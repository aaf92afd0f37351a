/** Side effects of handlers, against a stub. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { DriftqError, idempotencyKey, Permanent, requestHash } from "../src/index.js";
import { itemLine, within, type Answerer } from "./stub.js";
import { EXECUTE, raise, replay, start, succeed } from "./worker_stub.js";

const LEASE_MS = 300;
const refuse: Answerer = (_, answer) => answer.refuse(409, "FAILED_PRECONDITION", "stale lease");

const TASK = { kind: "task", id: "t:g:key-1" };

test("side_effect_runs_once_and_stores_what_it_returned", async () => {
  const calls: unknown[] = [];
  const run = await start(async (_, context) => {
    const result = await context.sideEffect("mail", { to: "a@b" }, (call) => {
      calls.push([call.attempt, call.idempotencyKey]);
      return { sent: 1, nothing: undefined };
    });
    return { result };
  });
  await run.on("completed");
  const [, begin, finish, complete] = run.sent();
  assert.equal(begin?.[1]["key"], idempotencyKey("mail", requestHash({ to: "a@b" })));
  assert.deepEqual(begin?.[1]["scope"], TASK);
  assert.deepEqual([finish?.[1]["status"], finish?.[1]["result"]], ["SUCCEEDED", { sent: 1 }]);
  assert.deepEqual(complete?.[1]["result"], { result: { sent: 1 } });
  assert.equal(calls.length, 1);
});

/** Answers begins of side effects as said, others with EXECUTE. */
function sideBegins(answerer: Answerer): Record<string, Answerer> {
  let n = 0;
  return {
    "idempotency/begin": (seen, answer) => {
      const kind = (seen.lines()[0]?.["scope"] as { kind: string }).kind;
      if (kind === "task") return answerer(seen, answer, n++);
      succeed("idempotency/begin", seen, answer);
      return undefined;
    },
  };
}

test("side_effect_that_is_stored_is_returned_without_running", async () => {
  const run = await start((_, context) => context.sideEffect("mail", null, () => assert.fail("it ran")), {
    answers: sideBegins((_, answer) => answer.json(200, replay("SUCCEEDED", { result: { sent: 7 } }))),
  });
  await run.on("completed");
  assert.deepEqual(run.sent().at(-1)?.[1]["result"], { sent: 7 });
});

test("side_effect_that_failed_for_good_fails_for_good_again", async () => {
  const run = await start((_, context) => context.sideEffect("mail", null, () => assert.fail("it ran")), {
    answers: sideBegins((_, answer) => answer.json(200, replay("FAILED_FINAL", { last_error: "no such address" }))),
  });
  await run.on("failed");
  assert.equal(run.sent().at(-1)?.[1]["last_error"], "no such address");
  assert.equal(run.sent().at(-1)?.[1]["status"], "FAILED_FINAL");
});

test("failure_of_a_side_effect_is_stored_and_raised", async () => {
  for (const [error, status] of [
    [new Permanent("no such address"), "FAILED_FINAL"],
    [new Error("busy"), "FAILED_RETRYABLE"],
  ] as const) {
    const run = await start((_, context) => context.sideEffect("mail", null, () => raise(error)));
    await run.on("failed");
    assert.deepEqual(
      run
        .sent()
        .filter(([path]) => path === "idempotency/finish")
        .map(([, body]) => body["status"]),
      [status, status],
    );
  }
});

test("side_effect_in_progress_elsewhere_is_waited_for", async () => {
  const run = await start((_, context) => context.sideEffect("mail", null, () => assert.fail("it ran")), {
    answers: sideBegins((_, answer, n) => {
      if (n > 1) answer.json(200, replay("SUCCEEDED", { result: "theirs" }));
      else answer.refuse(409, "FAILED_PRECONDITION", "m", { decision: "IN_PROGRESS", retry_after_ms: 50 });
    }),
  });
  await run.on("completed");
  assert.equal(run.sent().at(-1)?.[1]["result"], "theirs");
});

test("side_effect_is_not_waited_for_beyond_the_lease_of_its_message", async () => {
  const run = await start((_, context) => context.sideEffect("mail", null, () => assert.fail("it ran")), {
    options: { leaseMs: LEASE_MS },
    answers: {
      ...sideBegins((_, answer) =>
        answer.refuse(409, "FAILED_PRECONDITION", "m", { decision: "IN_PROGRESS", retry_after_ms: 60_000 }),
      ),
      extend: refuse,
    },
  });
  await run.on("lease_lost");
  run.worker.stop();
  await within(run.ended, "the end");
});

test("side_effect_has_heartbeats_of_its_own_and_is_cancelled_when_it_loses_its_lease", async () => {
  let why: unknown;
  const run = await start(
    (_, context) =>
      context.sideEffect("mail", null, async ({ signal }) => {
        await new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve()));
        why = signal.reason;
      }),
    {
      options: { leaseMs: LEASE_MS },
      answers: {
        "idempotency/renew": (seen, answer, n) => {
          const kind = (seen.json()["scope"] as { kind: string }).kind;
          if (kind === "task") return refuse(seen, answer, n);
          succeed("idempotency/renew", seen, answer);
          return undefined;
        },
      },
    },
  );
  const failed = await run.on("failed");
  assert.ok(why instanceof DriftqError && why.kind === "stale_lease");
  assert.match("error" in failed ? String(failed.error) : "", /lease of the side effect is lost/);
});

test("side_effect_whose_grant_came_after_a_whole_lease_is_renewed_before_it_runs", async () => {
  const renewed: string[] = [];
  let before: string[] = [];
  const run = await start(
    (_, context) =>
      context.sideEffect("mail", null, () => {
        before = [...renewed];
      }),
    {
      options: { leaseMs: LEASE_MS },
      answers: {
        ...sideBegins((_, answer) => {
          setTimeout(() => answer.json(200, { ...EXECUTE, lease_token: "late-token" }), LEASE_MS + LEASE_MS / 3);
        }),
        "idempotency/renew": (seen, answer) => {
          renewed.push(String(seen.json()["lease_token"]));
          succeed("idempotency/renew", seen, answer);
        },
      },
    },
  );
  await run.on("completed");
  assert.ok(before.includes("late-token"), "renewed before it ran");
  const finish = run.sent().find(([path]) => path === "idempotency/finish");
  assert.deepEqual([finish?.[1]["lease_token"], finish?.[1]["status"]], ["late-token", "SUCCEEDED"]);
});

test("result_of_a_side_effect_that_is_no_json_is_a_permanent_failure", async () => {
  const run = await start((_, context) => context.sideEffect("mail", null, () => NaN));
  await run.on("failed");
  assert.match(String(run.sent().at(-1)?.[1]["last_error"]), /result of the side effect: \$ is NaN/);
});

test("message_without_key_has_side_effects_under_its_place", async () => {
  const run = await start((_, context) => context.sideEffect("mail", null, () => undefined), {
    lines: [itemLine(5, { envelope: { tenant_id: "acme" } })],
  });
  await run.on("completed");
  assert.deepEqual(run.sent()[0]?.[1]["scope"], { kind: "task", id: "t:g:0%3A5" });
  assert.equal(run.sent()[0]?.[1]["tenant_id"], "acme");
});
