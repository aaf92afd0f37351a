/**
 * Measures a worker against a broker: messages per second of begin + complete, the processor time that this process
 * needs for each, and what an idle worker costs.
 *
 *     npm run bench -- [--messages 40000] [--concurrency 64] [--url http://127.0.0.1:8080] [--idle-s 10]
 */

import { performance } from "node:perf_hooks";
import { parseArgs } from "node:util";
import { Client } from "../src/index.js";
import { startBroker } from "../src/testing.js";

const { values } = parseArgs({
  options: {
    messages: { type: "string", default: "40000" },
    concurrency: { type: "string", default: "64" },
    "idle-s": { type: "string", default: "10" },
    url: { type: "string" },
  },
});
const messages = Number(values.messages);
const concurrency = Number(values.concurrency);
const idleS = Number(values["idle-s"]);

const broker = values.url === undefined ? await startBroker({ args: ["--max-in-flight", "4096"] }) : undefined;
const client = new Client({ urls: values.url ?? (broker?.url as string) });
const topic = `bench-${process.pid}`;
await client.createTopic(topic, { partitions: 4 });

const producer = client.producer();
const produceStart = performance.now();
await Promise.all(
  Array.from({ length: messages }, (_, n) =>
    producer.produce(topic, `order ${n}`, { key: `customer-${n % 100}`, idempotencyKey: `order-${n}` }),
  ),
);
report("produced", messages, performance.now() - produceStart);

let completed = 0;
let finished = (): void => undefined;
const allDone = new Promise<void>((resolve) => (finished = resolve));
const worker = client.worker(topic, "bench", () => ({ done: true }), {
  concurrency,
  onEvent: (event) => {
    if (event.event === "completed") {
      completed += 1;
      if (completed === messages) finished();
    } else if (event.event === "failed" || event.event === "lease_lost") {
      console.error(event);
    }
  },
});
const cpuStart = process.cpuUsage();
const start = performance.now();
const running = worker.run();
await allDone;
const cpu = process.cpuUsage(cpuStart);
report("begin + complete", messages, performance.now() - start);
const cpuMicros = cpu.user + cpu.system;
console.log(
  `processor time: ${(cpuMicros / messages).toFixed(1)} µs per message,`,
  `${perSecond(messages, cpuMicros / 1e3)}/s on one core`,
);

const idleStart = process.cpuUsage();
await new Promise((resolve) => setTimeout(resolve, idleS * 1_000));
const idle = process.cpuUsage(idleStart);
console.log(`idle worker: ${((idle.user + idle.system) / 1e4 / idleS).toFixed(3)} % of one core over ${idleS} s`);

worker.stop();
await running;
await client.deleteTopic(topic);
client.close();
await broker?.stop();

function report(what: string, count: number, ms: number): void {
  console.log(`${what}: ${perSecond(count, ms)} messages/s (${count} in ${(ms / 1e3).toFixed(2)} s)`);
}

function perSecond(count: number, ms: number): number {
  return Math.round((count / ms) * 1e3);
}
