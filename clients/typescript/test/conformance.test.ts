/** The adapter of the conformance runner, as a process. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { broker, needsBroker } from "./broker.js";
import { cleanUp, Stub, within } from "./stub.js";

type Fields = Record<string, unknown>;

/** The adapter and a way to ask it. */
async function adapter() {
  const child = spawn(process.execPath, [join(process.cwd(), "build", "src", "conformance.js")], {
    stdio: ["pipe", "pipe", "ignore"],
  });
  cleanUp(() => void child.kill("SIGKILL"));
  const lines = createInterface({ input: child.stdout });
  const waiting = new Map<number, (answer: Fields) => void>();
  const first = once(lines, "line");
  let asked = 0;
  lines.on("line", (line) => {
    const answer = JSON.parse(line) as Fields & { id?: number };
    if (answer.id !== undefined) waiting.get(answer.id)?.(answer);
  });
  const hello = JSON.parse(((await within(first, "the first line")) as [string])[0]) as Fields;
  const ask = (op: string, fields: Fields = {}): Promise<Fields> => {
    asked += 1;
    const id = asked;
    const answered = new Promise<Fields>((resolve) => waiting.set(id, resolve));
    child.stdin.write(`${JSON.stringify({ id, op, ...fields })}\n`);
    return within(answered, op);
  };
  const ok = async (op: string, fields: Fields = {}): Promise<Fields> => {
    const { ok: result, error } = await ask(op, fields);
    assert.ok(result !== undefined, `${op}: ${JSON.stringify(error)}`);
    return result as Fields;
  };
  return { child, hello, ask, ok };
}

async function ledger(): Promise<{ url: string; effects: () => Fields[] }> {
  const stub = await Stub.start((_, answer) => answer.empty());
  return { url: stub.url, effects: () => stub.to("/effect").map((seen) => seen.json()) };
}

test("adapter_answers_what_needs_no_broker", async () => {
  const { hello, ask, ok, child } = await adapter();
  assert.deepEqual(hello, { adapter: "typescript", contract: 1 });
  assert.equal(await ok("idempotency_key", { parts: ["a b", 1, true] }), "a%20b:1:true");
  assert.match(String(await ok("request_hash", { value_json: '{"b":1,"a":2}' })), /^[0-9a-f]{64}$/);
  for (const [op, fields] of [
    ["request_hash", { value_json: "9007199254740993" }],
    ["request_hash", { value_json: "{" }],
    ["idempotency_key", { parts: [] }],
    ["connect", { urls: ["nowhere"] }],
    ["produce", { topic: "t", value: "v" }],
    ["unknown", {}],
  ] as const) {
    const { error } = await ask(op, fields);
    assert.deepEqual(
      [(error as Fields)["kind"], (error as Fields)["status"], (error as Fields)["retry_is_safe"]],
      ["misuse", 0, false],
    );
  }
  const exited = once(child, "exit");
  child.stdin.end();
  assert.deepEqual(await within(exited, "the end"), [0, null]);
});

test("adapter_runs_workers_with_handlers_of_steps", needsBroker, async () => {
  const { broker: server } = await broker();
  const { url, effects } = await ledger();
  const { ask, ok, child } = await adapter();
  await ok("connect", { urls: [server.url], retry_for_ms: 5_000 });
  assert.deepEqual(await ok("create_topic", { topic: "t", partitions: 2 }), { partitions: 2 });
  await ok("create_topic", { topic: "u" });
  const produced = await ok("produce", {
    topic: "t",
    value: "v",
    key: "k",
    idempotency_key: "a",
    labels: { x_y: "z" },
  });
  assert.deepEqual(Object.keys(produced).sort(), ["already_done", "duplicate", "offset", "partition"]);
  const { results } = await ok("produce_many", {
    topic: "t",
    messages: [{ value: "w", idempotency_key: "b" }, { value: "" }],
  });
  const [good, bad] = results as Fields[];
  assert.ok(good?.["ok"] !== undefined && (bad?.["error"] as Fields)["kind"] === "invalid");
  const handler = [
    { do: "effect", name: "{key}" },
    { do: "side_effect", name: "mail", args: { to: "{key}" } },
    { do: "sleep", ms: 5 },
    { do: "fail", kind: "panic", attempts: 1, text: "attempt {attempt}" },
    { do: "return", value: { for: "{message}" } },
    { do: "outputs", messages: [{ topic: "u", value: "{key}", idempotency_key: "u-{key}" }] },
  ];
  await ok("worker_start", { worker: "w", topic: "t", group: "g", handler, ledger: url, lease_ms: 5_000 });
  const seen: Fields[] = [];
  const completed = async (): Promise<void> => {
    while (seen.filter(({ event }) => event === "completed").length < 2) {
      seen.push(...((await ok("worker_events", { worker: "w" }))["events"] as Fields[]));
    }
  };
  await within(completed(), "both messages");
  assert.deepEqual(await ok("worker_stop", { worker: "w" }), { completed: 2, failed: 2, lost: 0 });
  const names = effects().map(({ name, attempt }) => `${String(name)} ${String(attempt)}`);
  assert.deepEqual(names.sort(), ["a 1", "a 2", "b 1", "b 2", "mail 1", "mail 1"]);
  const identity = { scope: { kind: "consume", topic: "t", group: "g" }, key: "a" };
  const effect = await ok("effect", { action: "get", identity });
  assert.equal(effect["status"], "SUCCEEDED");
  assert.match(JSON.stringify(effect["result"]), /^\{"for":"t\/\d\/\d"\}$/);
  const missing = await ask("worker_start", { worker: "x", topic: "none", group: "g", handler: [], ledger: url });
  assert.equal((missing["error"] as Fields)["kind"], "not_found");
  const exited = once(child, "exit");
  // Whether it is answered before the crash does not matter.
  child.stdin.write(
    `${JSON.stringify({ op: "worker_start", worker: "y", topic: "u", group: "g", handler: [{ do: "exit" }] })}\n`,
  );
  assert.deepEqual(await within(exited, "the crash"), [null, "SIGKILL"]);
});
