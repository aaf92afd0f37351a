/** A server that answers as a test says, misbehaving on purpose where it should, and a few tools of tests. */

import { once } from "node:events";
import * as http from "node:http";
import * as https from "node:https";
import type { AddressInfo, Socket } from "node:net";
import { afterEach } from "node:test";

export interface Seen {
  method: string;
  path: string;
  query: URLSearchParams;
  headers: http.IncomingHttpHeaders;
  body: string;
  /** The body as one JSON object. */
  json: () => Record<string, unknown>;
  /** The body of a batch. */
  lines: () => Record<string, unknown>[];
}

/** Answers one request. `n` counts the requests to the same path from 0 on. */
export type Answerer = (seen: Seen, answer: Answer, n: number) => void | Promise<void>;

export class Answer {
  constructor(readonly response: http.ServerResponse) {}

  json(status: number, body: unknown, headers: http.OutgoingHttpHeaders = {}): void {
    this.response.writeHead(status, { "content-type": "application/json; charset=utf-8", ...headers });
    this.response.end(JSON.stringify(body));
  }

  refuse(
    status: number,
    error: string,
    message: string,
    more: object = {},
    headers: http.OutgoingHttpHeaders = {},
  ): void {
    this.json(status, { error, message, ...more }, headers);
  }

  empty(status = 204): void {
    this.response.writeHead(status).end();
  }

  text(status: number, type: string, body: string): void {
    this.response.writeHead(status, { "content-type": type }).end(body);
  }

  ndjson(lines: readonly unknown[]): void {
    this.text(200, "application/x-ndjson", lines.map((line) => `${JSON.stringify(line)}\n`).join(""));
  }

  /** Begins a stream of lines and leaves it open. */
  stream(...lines: string[]): http.ServerResponse {
    this.response.writeHead(200, { "content-type": "application/x-ndjson; charset=utf-8" });
    this.response.flushHeaders();
    for (const line of lines) this.response.write(line);
    return this.response;
  }

  /** Announces a longer answer than it sends, then closes the connection. */
  cut(type: string, part: string): void {
    this.response.writeHead(200, { "content-type": type, "content-length": Buffer.byteLength(part) + 100 });
    this.response.write(part, () => this.drop());
  }

  /** Closes the connection without an answer. */
  drop(): void {
    this.response.socket?.destroy();
  }
}

const cleanups: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean();
});

/** Runs after the test, also if it fails. */
export function cleanUp(clean: () => Promise<void> | void): void {
  cleanups.push(clean);
}

export class Stub {
  readonly requests: Seen[] = [];
  readonly #counts = new Map<string, number>();
  #waiting: { path: string; count: number; resolve: () => void }[] = [];

  private constructor(
    private readonly server: http.Server,
    readonly url: string,
  ) {}

  /** Starts a server on a free port, until the end of the test. */
  static async start(answerer: Answerer, tls?: { key: string; cert: string }): Promise<Stub> {
    const server = tls === undefined ? http.createServer() : https.createServer(tls);
    const sockets = new Set<Socket>();
    server.on("connection", (socket: Socket) => {
      sockets.add(socket);
      socket.on("error", () => undefined).on("close", () => sockets.delete(socket));
    });
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    const { port } = server.address() as AddressInfo;
    const stub = new Stub(server, `${tls === undefined ? "http" : "https"}://127.0.0.1:${port}`);
    server.on("request", (request: http.IncomingMessage, response: http.ServerResponse) => {
      void stub.#handle(request, new Answer(response), answerer);
    });
    cleanUp(() => {
      server.close();
      for (const socket of sockets) socket.destroy();
    });
    return stub;
  }

  /** The requests to a path. */
  to(path: string): Seen[] {
    return this.requests.filter((seen) => seen.path === path);
  }

  /** Resolves once a path has been asked for so often. */
  async asked(path: string, count = 1): Promise<void> {
    if (this.to(path).length >= count) return;
    await within(new Promise<void>((resolve) => this.#waiting.push({ path, count, resolve })), `${count} × ${path}`);
  }

  async #handle(request: http.IncomingMessage, answer: Answer, answerer: Answerer): Promise<void> {
    const chunks: Buffer[] = [];
    try {
      for await (const chunk of request) chunks.push(chunk as Buffer);
    } catch {
      return;
    }
    const url = new URL(request.url ?? "/", "http://stub");
    const body = Buffer.concat(chunks).toString("utf8");
    const seen: Seen = {
      method: request.method ?? "",
      path: url.pathname,
      query: url.searchParams,
      headers: request.headers,
      body,
      json: () => JSON.parse(body) as Record<string, unknown>,
      lines: () =>
        body
          .trim()
          .split("\n")
          .map((line) => JSON.parse(line) as Record<string, unknown>),
    };
    this.requests.push(seen);
    const n = this.#counts.get(seen.path) ?? 0;
    this.#counts.set(seen.path, n + 1);
    await answerer(seen, answer, n);
    this.#waiting = this.#waiting.filter((waiting) => {
      if (this.to(waiting.path).length < waiting.count) return true;
      waiting.resolve();
      return false;
    });
  }

  /** Takes no further connections. */
  close(): void {
    this.server.close();
  }
}

/** A broker whose version is right; the rest is for the test. */
export function withVersion(answerer: Answerer): Answerer {
  return (seen, answer, n) => {
    if (seen.path !== "/v1/version") return answerer(seen, answer, n);
    answer.json(200, { version: "0.1.0", commit: "unknown", wal_enabled: true });
    return undefined;
  };
}

/** A port of this machine that refuses connections. */
export async function refusingUrl(): Promise<string> {
  const server = http.createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return `http://127.0.0.1:${port}`;
}

const WAIT_MS_MAX = 20_000;

/** A promise with a bound, so that a test that waits for nothing fails by name. */
export async function within<T>(promise: Promise<T>, what: string, ms = WAIT_MS_MAX): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`waited ${ms} ms for ${what}`)), ms);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** A promise that the test settles. */
export function deferred<T = void>(): { promise: Promise<T>; resolve: (value: T) => void } {
  let resolve!: (value: T) => void;
  const promise = new Promise<T>((settle) => (resolve = settle));
  return { promise, resolve };
}

/** One line of a stream. */
export function itemLine(offset: number, more: object = {}): string {
  return `${JSON.stringify({
    partition: 0,
    offset,
    attempts: 1,
    key: "",
    value: `value ${offset}`,
    last_error: "",
    lease_token: `token-${offset}`,
    lease_until: "2030-01-01T00:00:00.000Z",
    failures: 0,
    produced_at: "2030-01-01T00:00:00.000Z",
    envelope: { idempotency_key: `key-${offset}` },
    ...more,
  })}\n`;
}
