/** A step of a pipeline: takes orders, and hands on a message to the delivery service. */

import { Client, onTerminate, Outputs, Permanent, Retry } from "driftq";

type Order = { id: string; dish: string };

const DISHES = new Set(["pizza", "pasta"]);

const client = new Client({ urls: (process.env["DRIFTQ_URLS"] ?? "http://127.0.0.1:8080").split(",") });
const worker = client.worker(
  "orders",
  "kitchen",
  async (message, { signal, attempt }) => {
    const order = message.json<Order>();
    if (!DISHES.has(order.dish)) throw new Permanent(`no such dish: ${order.dish}`);
    const answer = await fetch("http://oven.internal/bake", { method: "POST", body: message.text, signal });
    if (answer.status === 503) throw new Retry("the oven is cold", { delayMs: 1_000 * attempt });
    return new Outputs(
      { baked: order.dish },
      {
        topic: "deliveries",
        value: { json: { order: order.id } },
        key: message.key,
        idempotencyKey: `deliver:${order.id}`,
      },
    );
  },
  {
    concurrency: 32,
    perKeyOrder: true,
    log: (level, text, fields) => console.error(level, text, JSON.stringify(fields)),
  },
);
console.log(await worker.run({ signal: onTerminate() }));
client.close();
