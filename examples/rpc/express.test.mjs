/**
 * A request sent many times at once, or again after a kill, has one effect and one answer.
 *
 * Starts a broker and the service: npm test
 */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { BrokerStore } from "driftq";
import { startBroker } from "driftq/testing";
import { idempotent, Rejected } from "./idempotent.mjs";

const COPIES = 20;
const LEASE_MS = 2_000;
const TIMEOUT_MS = 60_000;
const APP = fileURLToPath(new URL("express_app.mjs", import.meta.url));

/** The service, in a process of its own. */
class Service {
  lines = [];
  #reader;
  #child;

  static async start(t, broker, providerMs) {
    const service = new Service();
    const env = { ...process.env, DRIFTQ_URL: broker.url, PORT: "0", LEASE_MS, PROVIDER_MS: providerMs };
    service.#child = spawn(process.execPath, [APP], { env, stdio: ["ignore", "pipe", "inherit"] });
    t.after(() => service.kill());
    service.#reader = createInterface({ input: service.#child.stdout });
    service.#reader.on("line", (line) => service.lines.push(line));
    const line = await service.waitFor("listening on ");
    service.url = line.slice("listening on ".length);
    return service;
  }

  /** Waits for a line that begins so. */
  async waitFor(beginning) {
    const signal = AbortSignal.timeout(TIMEOUT_MS);
    for (;;) {
      const found = this.lines.find((line) => line.startsWith(beginning));
      if (found !== undefined) return found;
      await once(this.#reader, "line", { signal });
    }
  }

  get charging() {
    return this.lines.filter((line) => line.startsWith("charging ")).length;
  }

  async kill() {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const exited = once(this.#child, "exit");
    this.#child.kill("SIGKILL");
    await exited;
  }
}

async function durableBroker(t) {
  const broker = await startBroker({ durable: true });
  const client = broker.client();
  t.after(async () => {
    client.close();
    await broker.stop();
  });
  return { broker, client };
}

const BODY = { customer: "customer-7", cents: 950 };

async function post(url, key, body = BODY, caller = "shop") {
  const headers = { "content-type": "application/json", "x-caller": caller };
  if (key !== undefined) headers["idempotency-key"] = key;
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const response = await fetch(`${url}/charges`, { method: "POST", headers, body: JSON.stringify(body), signal });
  return { status: response.status, body: await response.json(), headers: response.headers };
}

/** Sends a request as a good caller does: again when told to, after the pause asked for. */
async function untilAnswered(url, key) {
  const refused = [];
  const giveUpAt = Date.now() + TIMEOUT_MS;
  for (;;) {
    const reply = await post(url, key);
    if (reply.status !== 409 && reply.status !== 503) return { ...reply, refused };
    refused.push(reply.status);
    assert.ok(Date.now() < giveUpAt, `still refused: ${refused}`);
    await pause(Number(reply.headers.get("retry-after")) * 1_000);
  }
}

async function charges(client) {
  return (await client.peek("charges", { partition: 0, offset: 0 })).length;
}

test("copies_sent_at_once_have_one_effect_and_one_answer", async (t) => {
  const { broker, client } = await durableBroker(t);
  const service = await Service.start(t, broker, 300);
  const answered = await Promise.all(Array.from({ length: COPIES }, () => untilAnswered(service.url, "order-1")));
  for (const { status, body, refused } of answered) {
    assert.deepEqual([status, body], [201, { charged: 950 }]);
    assert.ok(refused.every((code) => code === 409));
  }
  assert.equal(answered.filter(({ headers }) => !headers.has("idempotent-replayed")).length, 1);
  assert.equal(service.charging, 1);
  assert.equal(await charges(client), 1);
});

test("request_sent_again_after_its_server_was_killed_has_one_effect", async (t) => {
  const { broker, client } = await durableBroker(t);
  const killed = await Service.start(t, broker, TIMEOUT_MS);
  const request = assert.rejects(post(killed.url, "order-2"));
  await killed.waitFor("charged for order-2");
  await killed.kill();
  await request;
  await broker.kill();
  await broker.restart();
  const service = await Service.start(t, broker, 0);
  const { status, body, refused } = await untilAnswered(service.url, "order-2");
  assert.deepEqual([status, body], [201, { charged: 950 }]);
  assert.ok(refused.every((code) => code === 409));
  assert.equal(service.charging, 1);
  const again = await post(service.url, "order-2");
  assert.deepEqual([again.status, again.headers.get("idempotent-replayed")], [201, "true"]);
  assert.equal(service.charging, 1);
  assert.equal(await charges(client), 1);
});

test("key_belongs_to_one_request_of_one_caller", async (t) => {
  const { broker, client } = await durableBroker(t);
  const { url } = await Service.start(t, broker, 0);
  const status = async (...request) => (await post(url, ...request)).status;
  assert.equal(await status("order-3"), 201);
  assert.equal(await status("order-3", { ...BODY, cents: 951 }), 422);
  assert.equal(await status("order-3", { cents: 950, customer: "customer-7" }), 201);
  assert.equal(await status("order-3", { ...BODY, customer: "customer-8" }, "market"), 201);
  assert.equal(await status(undefined), 400);
  assert.equal(await status("x".repeat(300)), 400);
  assert.equal(await charges(client), 2);
});

/** The middleware over a broker, called without a server. */
async function middleware(t, leaseMs = 30_000) {
  const { broker, client } = await durableBroker(t);
  const store = new BrokerStore(client);
  const once = idempotent(store, { owner: "test", callerOf: () => "shop", leaseMs });
  const call = async (handler, key, body) => {
    const answer = {};
    const response = {
      status: (status) => Object.assign(response, { code: status }),
      set: (headers) => Object.assign(response, { headers }),
      json: (json) => Object.assign(answer, { status: response.code, headers: response.headers, body: json }),
    };
    await once(handler)({ method: "POST", path: "/charges", body, get: () => key }, response);
    return answer;
  };
  return { broker, client, store, call };
}

test("failed_request_is_run_again_by_its_next_copy_and_a_rejected_one_is_not", async (t) => {
  const { call } = await middleware(t);
  const attempts = [];
  const handler = (body, { attempt }) => {
    attempts.push(attempt);
    if (body === "no") throw new Rejected(402, "no money");
    if (attempt === 1) throw new Error("the bank is busy");
    return { status: 201, body: { charged: body } };
  };
  const failed = await call(handler, "a", 3);
  assert.deepEqual([failed.status, failed.headers], [503, { "retry-after": "1" }]);
  assert.equal((await call(handler, "a", 3)).status, 201);
  for (let copy = 0; copy < 2; copy += 1) {
    const rejected = await call(handler, "b", "no");
    assert.deepEqual([rejected.status, rejected.body], [402, { error: "no money" }]);
  }
  assert.deepEqual(attempts, [1, 2, 1]);
});

test("lease_is_renewed_while_the_handler_runs_and_its_loss_aborts_the_handler", async (t) => {
  const { store, call } = await middleware(t, 300);
  const identity = { scope: { kind: "rpc", principal: "shop", method: "POST /charges" }, key: "a" };
  const slow = async (_, { signal }) => {
    const first = (await store.get(identity)).leaseUntil;
    while ((await store.get(identity)).leaseUntil === first) await pause(20);
    await store.forget(identity);
    await pause(TIMEOUT_MS, undefined, { signal });
  };
  assert.equal((await call(slow, "a", 1)).status, 409);
});

test("request_is_not_run_where_the_store_cannot_be_reached", async (t) => {
  const broker = await startBroker();
  t.after(() => broker.stop());
  const client = broker.client({ retryForMs: 200 });
  t.after(() => client.close());
  await client.version();
  await broker.kill();
  const once = idempotent(new BrokerStore(client), { owner: "test", callerOf: () => "shop" });
  let status;
  const response = { status: (code) => ((status = code), response), set: () => response, json: () => response };
  const never = () => assert.fail("run without a grant");
  await once(never)({ method: "POST", path: "/charges", body: 1, get: () => "a" }, response);
  assert.equal(status, 503);
});
