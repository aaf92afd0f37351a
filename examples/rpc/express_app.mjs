/**
 * A service in Express whose charges happen once.
 *
 * DRIFTQ_URL=http://127.0.0.1:8080 PORT=8081 node express_app.mjs
 */

import { setTimeout as pause } from "node:timers/promises";
import { BrokerStore, Client } from "driftq";
import express from "express";
import { idempotent, Rejected } from "./idempotent.mjs";

const CHARGES = "charges";
const client = new Client({ urls: process.env.DRIFTQ_URL ?? "http://127.0.0.1:8080", retryForMs: 5_000 });
await client.createTopic(CHARGES);

const once = idempotent(new BrokerStore(client), {
  owner: `charges-${process.pid}`,
  leaseMs: Number(process.env.LEASE_MS ?? 30_000),
  // Stands for authentication.
  callerOf: (request) => request.get("x-caller") ?? "anonymous",
});

/** Charges a customer. */
async function charge(body, { key, attempt, signal }) {
  const { customer, cents } = body ?? {};
  if (typeof customer !== "string" || !Number.isSafeInteger(cents) || cents <= 0) {
    throw new Rejected(400, "a charge has a customer and a positive number of cents");
  }
  console.log(`charging for ${key}, attempt ${attempt}`);
  // Stands for a payment provider. The key goes along: an attempt after a crash is the same charge there.
  await client.produce(CHARGES, { json: { customer, cents } }, { idempotencyKey: `${customer}:${key}` });
  console.log(`charged for ${key}`);
  await pause(Number(process.env.PROVIDER_MS ?? 0), undefined, { signal });
  return { status: 201, body: { charged: cents } };
}

const app = express();
app.use(express.json());
app.post("/charges", once(charge));
const server = app.listen(Number(process.env.PORT ?? 8081), "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
