// The worker of the pipeline: plan → tool → report. Start as many of them as you like, and kill them when you like.
//
// DRIFTQ_URL names the broker, SERVICE_URL the outside service.

import { setTimeout as sleep } from "node:timers/promises";
import { Client, idempotencyKey, onTerminate, Outputs } from "driftq";

const GROUP = "pipeline";
// Short, so that the messages of a killed worker are soon delivered to another one. Heartbeats prolong it.
const LEASE_MS = 2_000;

const service = process.env.SERVICE_URL;

/** Asks a model what to do. */
async function plan(message, { signal }) {
  const order = message.json();
  const plan = await call("model", message, order, signal);
  return new Outputs(plan, nextStep(message, "tool", { ...order, plan }));
}

/** Charges the customer, and works on. A worker that dies in that work has charged: the next one gets the receipt. */
async function tool(message, { signal, sideEffect }) {
  const order = message.json();
  const receipt = await sideEffect("charge", order, ({ signal }) => call("charge", message, order, signal));
  await sleep(50, undefined, { signal });
  return new Outputs(receipt, nextStep(message, "report", { ...order, receipt }));
}

/** Writes the report. */
function report(message, { signal }) {
  return call("report", message, message.json(), signal);
}

/**
 * Calls the outside service. It gets the message's key: if this worker dies before the answer, the next one asks for
 * the same effect again, and gets the same answer.
 */
async function call(effect, message, order, signal) {
  const answer = await fetch(`${service}/${effect}`, {
    method: "POST",
    headers: {
      "Content-Type": "application/json",
      "Idempotency-Key": message.idempotencyKey,
      traceparent: message.traceparent ?? "",
    },
    body: JSON.stringify(order),
    signal,
  });
  if (!answer.ok) throw new Error(`${effect}: status ${answer.status}`);
  return (await answer.json()).number;
}

/** The message of the next step: same run, same customer, a key of its own. Its trace is that of this message. */
function nextStep(message, topic, order) {
  const { runId, stepId } = message.envelope;
  return {
    topic,
    value: { json: order },
    key: message.key,
    idempotencyKey: idempotencyKey(runId, topic),
    runId,
    stepId: topic,
    parentStepId: stepId,
  };
}

const client = new Client({ urls: process.env.DRIFTQ_URL });
const workers = [
  client.worker("plan", GROUP, plan, { leaseMs: LEASE_MS }),
  // One charge of a customer after the other.
  client.worker("tool", GROUP, tool, { leaseMs: LEASE_MS, perKeyOrder: true }),
  client.worker("report", GROUP, report, { leaseMs: LEASE_MS }),
];
const signal = onTerminate();
await Promise.all(workers.map((worker) => worker.run({ signal })));
client.close();
