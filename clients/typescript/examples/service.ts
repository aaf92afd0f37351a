/** A service whose callers send an idempotency key: a request that is repeated gets the first answer. */

import { createServer } from "node:http";
import { BrokerStore, Client, DriftqError, requestHash } from "driftq";

const client = new Client({ urls: process.env["DRIFTQ_URL"] ?? "http://127.0.0.1:8080" });
const store = new BrokerStore(client);

async function charge(
  caller: string,
  key: string,
  request: { cents: number },
): Promise<{ status: number; body: unknown }> {
  const identity = { scope: { kind: "rpc" as const, principal: caller, method: "POST /charges" }, key };
  const begun = await store.begin({ ...identity, owner: "payments-1", requestHash: requestHash(request) });
  switch (begun.decision) {
    case "EXECUTE": {
      const result = { charged: request.cents };
      await store.finish({ ...identity, leaseToken: begun.leaseToken, status: "SUCCEEDED", result, responseCode: 201 });
      return { status: 201, body: result };
    }
    case "REPLAY":
      return { status: begun.responseCode, body: begun.result };
    case "RETRYABLE":
    case "IN_PROGRESS":
      return { status: 409, body: { error: "the same request is being handled" } };
  }
}

createServer((request, response) => {
  const chunks: Buffer[] = [];
  request.on("data", (chunk: Buffer) => chunks.push(chunk));
  request.on("end", () => {
    const key = String(request.headers["idempotency-key"] ?? "");
    charge("shop", key, JSON.parse(Buffer.concat(chunks).toString("utf8")) as { cents: number })
      .catch((error: unknown) => ({
        // The key was used for another request.
        status: error instanceof DriftqError && error.status === 422 ? 422 : 500,
        body: { error: String(error) },
      }))
      .then(({ status, body }) =>
        response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body)),
      );
  });
}).listen(8081);
