import assert from "node:assert/strict";
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { findDriftqd, startBroker, withBroker, type TestBroker } from "../src/testing.js";
import { broker, needsBroker } from "./broker.js";
import { cleanUp, within } from "./stub.js";

test("durable_broker_keeps_its_messages_over_a_crash", needsBroker, async () => {
  const { broker: server, client } = await broker({ durable: true });
  await client.createTopic("t");
  await client.produce("t", "v");
  const before = server.url;
  await server.kill();
  await server.restart();
  assert.equal(server.url, before);
  assert.equal((await client.peek("t", { partition: 0, offset: 0 }))[0]?.text, "v");
});

test("broker_that_does_not_start_is_told_with_its_log", async () => {
  const folder = mkdtempSync(join(tmpdir(), "driftq-fake-"));
  cleanUp(() => rmSync(folder, { recursive: true, force: true }));
  const program = join(folder, "driftqd");
  writeFileSync(program, "#!/bin/sh\necho cannot bind >&2\nexit 3\n");
  chmodSync(program, 0o755);
  await assert.rejects(startBroker({ program }), /ended with 3/);
  await assert.rejects(startBroker({ program: join(folder, "missing") }), /ENOENT/);
});

test("program_named_by_the_environment_is_preferred", () => {
  const before = process.env["DRIFTQD"];
  try {
    process.env["DRIFTQD"] = "/some/driftqd";
    assert.equal(findDriftqd(), "/some/driftqd");
  } finally {
    if (before === undefined) delete process.env["DRIFTQD"];
    else process.env["DRIFTQD"] = before;
  }
});

/** Sends messages over a lossy network; resolves with how many the topic has. */
async function produced(server: TestBroker, count: number): Promise<number> {
  const client = server.client({ timeoutMs: 5_000 });
  cleanUp(() => client.close());
  await client.createTopic("t");
  for (let n = 0; n < count; n += 1) await client.produce("t", `${n}`, { idempotencyKey: `n-${n}` });
  return (await client.describeTopic("t")).partitions[0]?.messages ?? 0;
}

test("same_seed_plays_the_same_faults_and_keyed_messages_are_stored_once", needsBroker, async () => {
  const lists = [];
  for (let run = 0; run < 2; run += 1) {
    const { broker: server } = await broker({ chaos: "seed=42,duplicate=0.3,drop-reply=0.3" });
    assert.equal(await within(produced(server, 30), "the messages"), 30);
    const faults = await server.faults();
    lists.push(faults);
    assert.deepEqual(await server.faults((faults.at(-1)?.n ?? 0) - 1), faults.slice(-1));
  }
  assert.deepEqual(lists[0], lists[1]);
  assert.deepEqual(new Set(lists[0]?.map(({ fault }) => fault)), new Set(["duplicate", "drop-reply"]));
});

test("failure_under_faults_shows_seed_and_faults", needsBroker, async (context) => {
  const shown = context.mock.method(console, "error", () => undefined);
  const failing = withBroker({ chaos: "seed=7,drop-reply=1" }, (server) => fetch(`${server.url}/v1/topics`));
  await assert.rejects(failing, TypeError);
  const [text] = shown.mock.calls[0]?.arguments as [string];
  assert.match(text, /chaos "seed=7,drop-reply=1" and played \d+ faults\n {2}#1 drop-reply: GET \/v1\/topics \(body /);
  await assert.rejects(
    withBroker({ memory: true }, () => assert.fail("without faults")),
    /without faults/,
  );
  assert.equal(shown.mock.callCount(), 1);
});

test("faults_of_a_broker_that_has_ended_are_described_without_an_error", needsBroker, async () => {
  const { broker: server } = await broker({ chaos: "seed=7" });
  await server.kill();
  assert.match(await server.describeFaults(), /faults cannot be read/);
});

test("broker_without_faults_has_none_to_list", needsBroker, async () => {
  const { broker: server } = await broker({ memory: true });
  assert.deepEqual([await server.faults(), await server.describeFaults()], [[], ""]);
});

test("folder_and_faults_exclude_each_other", async () => {
  const started = startBroker({ program: "unused", durable: true, chaos: "seed=1" });
  await assert.rejects(started, { kind: "misuse" });
});

test("settings_in_the_environment_do_not_reach_the_broker", needsBroker, async () => {
  process.env["DRIFTQ_LOG_FORMAT"] = "no such format";
  cleanUp(() => void delete process.env["DRIFTQ_LOG_FORMAT"]);
  const { broker: server } = await broker();
  assert.match(server.url, /^http:/);
});
