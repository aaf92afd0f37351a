/** A worker on a stub broker that delivers some messages and answers as a test says. */

import { Client, type Handler, type Worker, type WorkerEvent, type WorkerOptions } from "../src/index.js";
import { cleanUp, itemLine, Stub, withVersion, within, type Answer, type Answerer, type Seen } from "./stub.js";

export const EXECUTE = {
  decision: "EXECUTE",
  attempt: 1,
  lease_token: "effect-token",
  lease_until: "2030-01-01T00:00:00.000Z",
  status: "IN_PROGRESS",
  status_v1: "PENDING",
  idempotent: true,
};
export const replay = (status: string, more: object = {}) => ({
  decision: "REPLAY",
  status,
  status_v1: "COMMITTED",
  response_code: 0,
  result: null,
  last_error: "",
  ...more,
});
export const EFFECT = { scope: { kind: "consume", topic: "t", group: "g" }, key: "key-1" };
export const delivery = (owner: string) => ({
  topic: "t",
  group: "g",
  partition: 0,
  offset: 1,
  owner,
  lease_token: "token-1",
});

export interface Run {
  stub: Stub;
  worker: Worker;
  events: WorkerEvent[];
  /** Resolves at the first event of a name. */
  on: (event: WorkerEvent["event"]) => Promise<WorkerEvent>;
  ended: Promise<unknown>;
  /** The path behind `/v1/` and the body of each request but the stream. */
  sent: () => [string, Record<string, unknown>][];
}

/** Starts a worker on a stub that delivers `lines`, and answers as `answers` says or with success. */
export async function start(
  handler: Handler,
  setup: { lines?: string[]; answers?: Record<string, Answerer>; options?: WorkerOptions; retryForMs?: number } = {},
): Promise<Run> {
  const { lines = [itemLine(1)], answers = {}, options = {}, retryForMs = 2_000 } = setup;
  const stub = await Stub.start(
    withVersion((seen, answer, n) => {
      const path = seen.path.slice("/v1/".length);
      const own = answers[path];
      if (own !== undefined) return own(seen, answer, n);
      if (path === "consume") {
        if (n === 0) answer.stream(...lines);
        else answer.stream();
        return undefined;
      }
      succeed(path, seen, answer);
      return undefined;
    }),
  );
  const client = new Client({ urls: stub.url, retryForMs });
  const events: WorkerEvent[] = [];
  const waiting: [string, (event: WorkerEvent) => void][] = [];
  const onEvent = (event: WorkerEvent): void => {
    events.push(event);
    for (const [name, resolve] of waiting) if (name === event.event) resolve(event);
  };
  const worker = client.worker("t", "g", handler, { leaseMs: 10_000, graceMs: 50, ...options, onEvent });
  const ended = worker.run();
  ended.catch(() => undefined);
  cleanUp(async () => {
    worker.stop(0);
    await within(ended, "the end of the worker").catch(() => undefined);
    client.close();
  });
  return {
    stub,
    worker,
    events,
    ended,
    on: (name) => {
      const seen = events.find(({ event }) => event === name);
      if (seen !== undefined) return Promise.resolve(seen);
      return within(new Promise((resolve) => waiting.push([name, resolve])), `the event ${name}`);
    },
    sent: () =>
      stub.requests
        .filter(({ path }) => path !== "/v1/consume" && path !== "/v1/version")
        .flatMap(({ path, lines: each }) =>
          each().map((body): [string, Record<string, unknown>] => [path.slice(4), body]),
        ),
  };
}

export function succeed(path: string, seen: Seen, answer: Answer): void {
  const bodies: Record<string, object> = {
    "idempotency/begin": EXECUTE,
    "idempotency/reacquire": EXECUTE,
    "idempotency/finish": { ok: true },
    "idempotency/renew": { lease_until: "x" },
    extend: { lease_until: "x" },
    complete: { produced: [] },
  };
  const body = bodies[path];
  if (body === undefined) answer.empty();
  else if (seen.headers["content-type"] !== "application/x-ndjson") answer.json(200, body);
  else answer.ndjson(seen.lines().map(() => ({ effect_status: "IN_PROGRESS", ...body, status: 200 })));
}

export function raise(error: unknown): never {
  throw error;
}

/** Resolves once a condition holds. */
export async function waitFor(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 5));
}
