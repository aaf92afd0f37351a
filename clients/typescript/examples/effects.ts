/** Effects that happen once: the parts of the page on effects that differ in TypeScript. Asserts what it shows. */

import assert from "node:assert/strict";
import { Client, Permanent, Retry, idempotencyKey, requestHash } from "driftq";
import type { Context, Message, SideEffectCall } from "driftq";

type Order = { id: string; cents: number };
type Receipt = { receipt: number; cents: number };

const receipts = new Map<string, Receipt>();
let calls = 0;

/** Stands for a payment provider that takes idempotency keys; its first answer is lost. */
async function post(order: Order, idempotencyKey: string, _signal: AbortSignal): Promise<[number, Receipt]> {
  calls += 1;
  const receipt = receipts.get(idempotencyKey) ?? { receipt: receipts.size + 1, cents: order.cents };
  receipts.set(idempotencyKey, receipt);
  if (calls === 1) throw new TypeError("the connection was lost");
  return [200, receipt];
}

async function charge(order: Order, call: SideEffectCall) {
  // An error that is not caught here is recorded, and the message is delivered again.
  const [status, receipt] = await post(order, call.idempotencyKey, call.signal);
  if (status === 429 || status >= 500) throw new Retry(`the provider answered ${status}`, { delayMs: 1_000 });
  if (status >= 400) throw new Permanent(`the provider answered ${status}`);
  return receipt;
}

async function handleOrder(message: Message, context: Context) {
  const order = message.json<Order>();
  return context.sideEffect("charge", order, (call) => charge(order, call));
}

/** Keys and hashes. `JSON.stringify` gives one value several texts, and several values one. */
function keysAndHashes(): void {
  const request = { customer: "Zoé", cents: 950 };
  assert.equal(requestHash(request), "e665e76db193946ee198c1ccf28fb530969d665a60dc9aa7f97f4089475d74df");
  const reordered = { cents: 950, customer: "Zoé" };
  assert.notEqual(JSON.stringify(reordered), JSON.stringify(request));
  assert.equal(requestHash(reordered), requestHash(request));
  assert.equal(JSON.stringify({ cents: NaN }), JSON.stringify({ cents: null }));
  assert.throws(() => requestHash({ cents: NaN }), /\$\.cents/);
  assert.equal(idempotencyKey("a:b", "c"), "a%3Ab:c");
}

keysAndHashes();
const client = new Client({ urls: process.env["DRIFTQ_URL"] ?? "http://127.0.0.1:8080" });
await client.createTopic("orders");
const order = { id: "o-7", cents: 950 };
for (let copy = 0; copy < 2; copy += 1) {
  await client.produce("orders", { json: order }, { idempotencyKey: idempotencyKey("order", order.id) });
}
const done = new AbortController();
const worker = client.worker("orders", "workers", handleOrder, {
  onEvent: ({ event }) => {
    if (event === "completed") done.abort();
  },
});
const giveUp = AbortSignal.timeout(60_000);
const summary = await worker.run({ signal: AbortSignal.any([done.signal, giveUp]) });
client.close();
assert.deepEqual([summary.completed, calls, receipts.size], [1, 2, 1]);
console.log("ok");
