/** A real broker for tests that need one; they are skipped in one line where there is none. */

import { randomBytes } from "node:crypto";
import type { Client } from "../src/index.js";
import { findDriftqd, startBroker, type BrokerOptions, type TestBroker } from "../src/testing.js";
import { cleanUp } from "./stub.js";

/** For the options of a test: skips it where there is no broker. */
export const needsBroker = { skip: findDriftqd() === undefined && "no driftqd: set DRIFTQD, or build it" };

/** A broker and a client of it, until the end of the test. */
export async function broker(options: BrokerOptions = {}): Promise<{ broker: TestBroker; client: Client }> {
  const started = await startBroker(options);
  const client = started.client({ retryForMs: 10_000 });
  cleanUp(async () => {
    client.close();
    await started.stop();
  });
  return { broker: started, client };
}

export function unique(name: string): string {
  return `${name}-${randomBytes(4).toString("hex")}`;
}
