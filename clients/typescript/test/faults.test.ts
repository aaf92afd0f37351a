/** What a user sees of each bad input and fault: the texts of docs/clients-faults.md, all of which are met here. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { once } from "node:events";
import { Client, DriftqError, type Handler, type Log, type WorkerOptions } from "../src/index.js";
import { selfSigned } from "./certificate.js";
import { cleanUp, deferred, itemLine, refusingUrl, Stub, withVersion, within, type Answerer } from "./stub.js";
import { start } from "./worker_stub.js";

const LEASE_MS = 300;

const page = readFileSync(join(process.cwd(), "..", "..", "docs", "clients-faults.md"), "utf8");
/** The text that the page has for TypeScript, by the title of its section. */
const texts = new Map<string, string>();
for (const section of page.split(/^## /m).slice(1)) {
  const text = /^\| TypeScript \| `(.+?)` \|/m.exec(section)?.[1];
  if (text !== undefined) texts.set(section.split("\n")[0] ?? "", text);
}
const met = new Set<string>();

/** Whether a text is the one of the page, in which … stands for anything. */
function assertShown(title: string, text: string): void {
  met.add(title);
  const parts = (texts.get(title) ?? "no such section").split("…").map((part) => part.replace(/[^\w ]/g, "\\$&"));
  assert.match(text, new RegExp(`^${parts.join(".*")}$`, "s"));
}

/** The error of a call. */
async function shown(url: string, options: object = {}): Promise<string> {
  try {
    const client = new Client({ urls: url, retryForMs: 100, ...options });
    cleanUp(() => client.close());
    await within(client.listTopics(), "the error");
  } catch (error) {
    assert.ok(error instanceof DriftqError);
    return String(error);
  }
  return assert.fail("it did not fail");
}

const answering = (answerer: Answerer): Promise<Stub> => Stub.start(answerer);

test("wrong_key", async () => {
  const stub = await answering((_, answer) => answer.refuse(401, "UNAUTHENTICATED", "the key is not known"));
  assertShown("Wrong key", await shown(stub.url, { key: "wrong" }));
});

const tls = selfSigned();
test("certificate_that_is_not_trusted", { skip: tls === undefined && "no openssl" }, async () => {
  const stub = await Stub.start((_, answer) => answer.empty(), tls);
  assertShown("Certificate that is not trusted", await shown(stub.url));
});

test("https_to_a_server_without_tls", async () => {
  const stub = await answering((_, answer) => answer.empty());
  assertShown("https to a server without TLS", await shown(stub.url.replace("http:", "https:")));
});

test("url_without_scheme", async () => {
  assertShown("URL without scheme", await shown("localhost:8080"));
});

test("url_at_which_nothing_listens", async () => {
  assertShown("URL at which nothing listens", await shown(await refusingUrl()));
});

test("url_of_another_server", async () => {
  const stub = await answering((_, answer) => answer.text(404, "text/html", "<html>Welcome</html>"));
  assertShown("URL of another server", await shown(stub.url));
});

test("server_that_speaks_no_http", async () => {
  const server = createServer((socket) => socket.on("error", () => undefined).end("SSH-2.0-OpenSSH_9.9\r\n"));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  cleanUp(() => void server.close());
  const { port } = server.address() as { port: number };
  assertShown("Server that speaks no HTTP", await shown(`http://127.0.0.1:${port}`));
});

test("server_of_another_version", async () => {
  const stub = await answering((_, answer) => answer.json(200, { version: "9.1.0", api: "v2" }));
  assertShown("Server of another version", await shown(stub.url));
});

test("overloaded_for_longer_than_retry_for", async () => {
  const message = "the broker has too many messages";
  const more = { reason: "overloaded", retry_after_ms: 700 };
  const stub = await answering(withVersion((_, answer) => answer.refuse(429, "RESOURCE_EXHAUSTED", message, more)));
  assertShown("429 for longer than `retry_for`", await shown(stub.url));
});

test("unavailable_for_longer_than_retry_for", async () => {
  const recovering: Answerer = (_, answer) =>
    answer.refuse(503, "UNAVAILABLE", "the log is recovering", { committed: "no" });
  assertShown("503 that says it did nothing", await shown((await answering(withVersion(recovering))).url));
});

test("unavailable_that_may_have_done_it", async () => {
  const stub = await answering(withVersion((_, answer) => answer.refuse(503, "UNAVAILABLE", "the log has failed")));
  const client = new Client({ urls: stub.url });
  cleanUp(() => client.close());
  const error: unknown = await client.produce("t", "v").catch((thrown: unknown) => thrown);
  assertShown("503 that may have done it", String(error));
});

/** Runs a worker until it has logged an event; resolves with its log line. */
async function logged(name: string, handler: Handler, setup: Parameters<typeof start>[1] = {}): Promise<string> {
  const line = deferred<string>();
  const log: Log = (level, message, { event, ...fields }) => {
    if (event === name) line.resolve(`${level} ${message} ${JSON.stringify(fields)}`);
  };
  const options: WorkerOptions = { ...setup.options, log };
  await start(handler, { ...setup, options });
  return within(line.promise, `the log of ${name}`);
}

test("stream_cut_in_a_line", async () => {
  const consume: Answerer = (_, answer, n) => {
    if (n > 0) answer.stream();
    else answer.stream(itemLine(1)).write(itemLine(2).slice(0, 40), () => answer.drop());
  };
  const line = await logged("disconnected", () => null, { answers: { consume } });
  assertShown("Stream cut in the middle of a line", line);
});

/** The text that the broker is given for a message whose handler fails. */
async function lastError(handler: Handler): Promise<string> {
  const run = await start(handler);
  await run.on("failed");
  return String(run.sent()[1]?.[1]["last_error"]);
}

test("handler_that_throws", async () => {
  const handler: Handler = () => {
    throw new TypeError("order.dish is undefined");
  };
  assertShown("Handler that panics or raises", await lastError(handler));
});

test("handler_that_returns_no_json", async () => {
  assertShown("Handler that returns no JSON", await lastError(() => ({ prices: [1.5, NaN] })));
});

test("handler_that_blocks_the_event_loop", async () => {
  const handler: Handler = () => {
    const end = Date.now() + 2 * LEASE_MS;
    while (Date.now() < end);
    return null;
  };
  const line = await logged("loop_blocked", handler, { options: { leaseMs: LEASE_MS } });
  assertShown("Handler that blocks the event loop", line);
});

test("handler_that_ignores_its_cancellation", async () => {
  const held = deferred();
  const stale: Answerer = (_, answer) => answer.refuse(409, "FAILED_PRECONDITION", "stale lease");
  const setup = { options: { leaseMs: LEASE_MS }, answers: { extend: stale } };
  const line = await logged("handler_stuck", () => held.promise, setup);
  held.resolve();
  assertShown("Handler that ignores its cancellation", line);
});

test("page_has_no_text_that_is_not_met_here", () => {
  const skipped = tls === undefined ? ["Certificate that is not trusted"] : [];
  assert.deepEqual([...met, ...skipped].sort(), [...texts.keys()].sort());
});
