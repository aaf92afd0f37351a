/** Produces the lines of standard input, in batches, each at most once. */

import { createInterface } from "node:readline";
import { Client, DriftqError, idempotencyKey } from "driftq";

const client = new Client({ urls: process.env["DRIFTQ_URL"] ?? "http://127.0.0.1:8080" });
const topic = process.argv[2] ?? "lines";
const job = process.argv[3] ?? "import-1";
await client.createTopic(topic);

const producer = client.producer({ lingerMs: 5 });
let number = 0;
for await (const line of createInterface({ input: process.stdin })) {
  if (line === "") continue;
  number += 1;
  // Run again after a crash, the job produces none of its lines twice.
  producer.produce(topic, line, { idempotencyKey: idempotencyKey(job, number) }).catch((error: unknown) => {
    console.error(error instanceof DriftqError ? `${error.kind}: ${error.message}` : error);
    process.exitCode = 1;
  });
}
await producer.close();
client.close();
