/**
 * The connection to a broker behind one or several URLs: which URL is asked, which requests are repeated and when, and
 * what an answer means.
 */

import type { IncomingHttpHeaders, OutgoingHttpHeaders } from "node:http";
import { performance } from "node:perf_hooks";
import { pauseMs, RETRY_AFTER_MS_MAX, sleep } from "./backoff.js";
import { DriftqError, errorOfRefusal, misuse, protocolError, type ErrorBody } from "./errors.js";
import { ExchangeFailed, Transport, type HttpAnswer, type HttpStream } from "./transport.js";
import { API_VERSION, USER_AGENT } from "./version.js";

export interface ConnectionOptions {
  /** One or several base URLs of the broker. */
  urls: string | readonly string[];
  /** Sent as `Authorization: Bearer …`; never logged. */
  key?: string | undefined;
  /** Bound of one request; default 30 s. Streams have none. */
  timeoutMs?: number | undefined;
  /** How long one call is retried; default 60 s. */
  retryForMs?: number | undefined;
  /** Certificates to trust instead of the system's, in PEM. */
  ca?: string | Buffer | (string | Buffer)[] | undefined;
}

/** What a caller of a single request may set. */
export interface CallOptions {
  signal?: AbortSignal | undefined;
  timeoutMs?: number | undefined;
  retryForMs?: number | undefined;
}

export interface ApiRequest extends CallOptions {
  method: string;
  /** From `/v1/` on, with the query. */
  path: string;
  body?: string | undefined;
  contentType?: string;
  headers?: Record<string, string> | undefined;
  /** Whether the request cannot double, so that it is repeated also where it may have been carried out. */
  repeatable: boolean;
  /** Told before each repetition. */
  onRetry?: ((error: DriftqError) => void) | undefined;
}

export const JSON_TYPE = "application/json";
export const NDJSON_TYPE = "application/x-ndjson";

const TIMEOUT_MS = 30_000;
const RETRY_FOR_MS = 60_000;

/** A stream and the scheme and authority of its URL. */
export type OpenedStream = HttpStream & { origin: string };

/** A failed try: the error if it was the last one, and what the rules of repetition need. */
interface FailedTry {
  error: DriftqError;
  /** Whether another try is allowed. */
  again: boolean;
  /** Whether the next try goes to the next URL. */
  nextUrl: boolean;
  partial?: Buffer | undefined;
}

/** The answer so far of a request that was cut, by the error it ended with. */
const partialAnswers = new WeakMap<DriftqError, Buffer>();

/** What had arrived of the answer to a batch, where its error is that of an answer cut short. */
export function partialAnswer(error: DriftqError): Buffer | undefined {
  return partialAnswers.get(error);
}

export class Connection {
  readonly #urls: readonly URL[];
  readonly #key: string | undefined;
  readonly #timeoutMs: number;
  /** How long a call is retried unless it says otherwise. */
  readonly retryForMs: number;
  readonly #transport: Transport;
  /** The index of the URL that requests go to. */
  #preferred = 0;
  /** URLs whose version has been compared. */
  readonly #verified = new Set<string>();
  readonly #listeners = new Set<(error: DriftqError) => void>();

  constructor(options: ConnectionOptions) {
    this.#urls = baseUrls(options.urls);
    this.#key = checkedKey(options.key);
    this.#timeoutMs = positive("timeoutMs", options.timeoutMs ?? TIMEOUT_MS);
    this.retryForMs = notNegative("retryForMs", options.retryForMs ?? RETRY_FOR_MS);
    this.#transport = new Transport(options.ca);
  }

  /** Calls the listener before each repetition of any request. Returns what removes it. */
  onRetry(listener: (error: DriftqError) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  close(): void {
    this.#transport.close();
  }

  /** Sends a request, repeats it where the rules allow it, and returns an answer whose status is 2xx. */
  async request(request: ApiRequest): Promise<HttpAnswer> {
    const retryForMs = request.retryForMs ?? this.retryForMs;
    const end = performance.now() + retryForMs;
    for (let n = 0; ; n += 1) {
      request.signal?.throwIfAborted();
      const url = this.#urls[this.#preferred] as URL;
      const outcome = await this.#try(url, request);
      if (!("error" in outcome)) return outcome;
      const { error, again, partial } = outcome;
      if (outcome.nextUrl) this.#leave(url);
      const pause = pauseMs(n, error.retryAfterMs);
      if (!again || performance.now() + pause > end) {
        if (partial !== undefined) partialAnswers.set(error, partial);
        throw error;
      }
      request.onRetry?.(error);
      for (const listener of this.#listeners) listener(error);
      await sleep(pause, request.signal);
    }
  }

  /** Opens a stream with one try. The stream's status is 2xx. */
  async open(path: string, contentType: string, signal: AbortSignal | undefined): Promise<OpenedStream> {
    const url = this.#urls[this.#preferred] as URL;
    const request: ApiRequest = { method: "GET", path, repeatable: true, signal };
    try {
      await this.#verifyVersion(url, request);
      let opened = await this.#transport.open(url, this.#http(url, request, true));
      this.#noteLeader(opened.headers);
      const redirected = opened.status === 307 ? this.#redirection(url, opened.headers) : undefined;
      if (redirected !== undefined) {
        opened.stream.destroy();
        const target = { ...this.#http(redirected.base, request, redirected.known), target: redirected.target };
        opened = await this.#transport.open(redirected.base, target);
      }
      if (opened.status < 200 || opened.status > 299) {
        const body = await collect(opened);
        throw refusal({ status: opened.status, headers: opened.headers, body }, true);
      }
      const type = opened.headers["content-type"] ?? "";
      if (!type.startsWith(contentType)) {
        const body = await collect(opened);
        throw protocolError(`a stream of ${contentType}`, type || "no content type", body, opened.status);
      }
      return { ...opened, origin: url.origin };
    } catch (thrown) {
      const failed = this.#failed(url, thrown, request);
      if (failed.nextUrl) this.#leave(url);
      throw failed.error;
    }
  }

  async #try(url: URL, request: ApiRequest): Promise<HttpAnswer | FailedTry> {
    try {
      await this.#verifyVersion(url, request);
    } catch (thrown) {
      // The request itself was not sent: whatever it is, it cannot double.
      return this.#failed(url, thrown, { ...request, repeatable: true });
    }
    try {
      const answer = await this.#exchange(url, request);
      return answer.status >= 200 && answer.status <= 299
        ? answer
        : this.#failed(url, refusal(answer, request.repeatable), request);
    } catch (thrown) {
      return this.#failed(url, thrown, request);
    }
  }

  /** One exchange; a redirection to the leader is followed once. */
  async #exchange(url: URL, request: ApiRequest): Promise<HttpAnswer> {
    const answer = await this.#transport.exchange(url, this.#http(url, request, true));
    this.#noteLeader(answer.headers);
    const redirected = answer.status === 307 ? this.#redirection(url, answer.headers) : undefined;
    if (redirected === undefined) return answer;
    const http = { ...this.#http(redirected.base, request, redirected.known), target: redirected.target };
    return this.#transport.exchange(redirected.base, http);
  }

  #http(url: URL, request: ApiRequest, withKey: boolean) {
    const headers: OutgoingHttpHeaders = { "user-agent": USER_AGENT, accept: "*/*", ...request.headers };
    if (withKey && this.#key !== undefined) headers["authorization"] = `Bearer ${this.#key}`;
    if (request.body !== undefined) {
      headers["content-type"] = request.contentType ?? JSON_TYPE;
      headers["content-length"] = Buffer.byteLength(request.body);
    }
    return {
      method: request.method,
      target: url.pathname === "/" ? request.path : url.pathname + request.path,
      headers,
      body: request.body,
      timeoutMs: request.timeoutMs ?? this.#timeoutMs,
      signal: request.signal,
    };
  }

  /** Compares the API of a server once, before the first request to its URL. */
  async #verifyVersion(url: URL, asked: ApiRequest): Promise<void> {
    if (this.#verified.has(url.href)) return;
    const { signal, timeoutMs } = asked;
    const request: ApiRequest = { method: "GET", path: "/v1/version", repeatable: true, signal, timeoutMs };
    const answer = await this.#exchange(url, request);
    if (answer.status < 200 || answer.status > 299) throw refusal(answer, true);
    const version = parseObject(answer, "the version of a DriftQ server");
    if (typeof version["version"] !== "string") {
      throw protocolError("the version of a DriftQ server", "none", answer.body, answer.status);
    }
    // Servers that do not name their API have v1, the first one.
    const api = version["api"] ?? API_VERSION;
    if (api !== API_VERSION) {
      const message = `this client speaks API ${API_VERSION}, the broker ${version["version"]} has API ${String(api)}`;
      throw new DriftqError({ kind: "protocol", message });
    }
    this.#verified.add(url.href);
  }

  #failed(url: URL, thrown: unknown, request: ApiRequest): FailedTry {
    if (thrown instanceof DriftqError) {
      if (thrown.kind === "protocol") nameUrl(thrown, url);
      const { kind, status } = thrown;
      const again = kind === "overloaded" || kind === "unavailable" || (status === 503 && request.repeatable);
      return { error: thrown, again, nextUrl: status === 503 };
    }
    if (!(thrown instanceof ExchangeFailed)) throw thrown;
    const { phase, partial, cause } = thrown;
    const message = `${url.origin}: ${thrown.message}`;
    if (phase === "tls") {
      return { error: new DriftqError({ kind: "tls", message, cause }), again: false, nextUrl: true };
    }
    if (phase === "connect") {
      return { error: new DriftqError({ kind: "unavailable", message, cause }), again: true, nextUrl: true };
    }
    if (phase === "http") {
      const expected = `${url.origin}: expected an HTTP server: ${thrown.message}`;
      return { error: new DriftqError({ kind: "protocol", message: expected, cause }), again: false, nextUrl: false };
    }
    const fields = { kind: "unknown" as const, message, retryIsSafe: request.repeatable, cause };
    const arrived = partial !== undefined && partial.status === 200 ? partial.body : undefined;
    return { error: new DriftqError(fields), again: request.repeatable, nextUrl: true, partial: arrived };
  }

  /** Goes on with the next URL, unless another request has done so already. */
  #leave(url: URL): void {
    if (this.#urls[this.#preferred] === url) this.#preferred = (this.#preferred + 1) % this.#urls.length;
  }

  #noteLeader(headers: IncomingHttpHeaders): void {
    const hint = headers["driftq-leader"];
    if (typeof hint === "string") this.#prefer(hint);
  }

  #prefer(text: string): URL | undefined {
    const wanted = URL.canParse(text) ? withoutSlash(new URL(text)).href : undefined;
    const index = this.#urls.findIndex((url) => url.href === wanted);
    if (index >= 0) this.#preferred = index;
    return this.#urls[index];
  }

  #redirection(from: URL, headers: IncomingHttpHeaders): { base: URL; target: string; known: boolean } | undefined {
    const { location } = headers;
    if (location === undefined || !URL.canParse(location, from.href)) return undefined;
    const base = new URL(location, from.href);
    if (base.protocol !== "http:" && base.protocol !== "https:") return undefined;
    const index = this.#urls.findIndex((url) => url.origin === base.origin);
    if (index >= 0) this.#preferred = index;
    return { base, target: base.pathname + base.search, known: index >= 0 };
  }
}

/** Adds the URL that gave an answer to the message of its error. */
function nameUrl(error: DriftqError, url: URL): void {
  if (!error.message.startsWith(url.origin)) error.message = `${url.origin}: ${error.message}`;
}

async function collect(opened: HttpStream): Promise<Buffer> {
  const chunks: Buffer[] = [];
  try {
    for await (const chunk of opened.stream) chunks.push(chunk as Buffer);
  } catch {
    // A refusal that is cut short is still a refusal.
  }
  return Buffer.concat(chunks);
}

/** The statuses that say enough by themselves, also where a proxy has answered in the broker's place. */
const TELLING_STATUSES: ReadonlySet<number> = new Set([401, 403, 429, 503]);

function refusal(answer: HttpAnswer, repeatable: boolean): DriftqError {
  const { status, headers, body } = answer;
  const retryAfterMs = retryAfter(headers["retry-after"]);
  const parsed = isJson(headers) ? tryParse(body) : undefined;
  if (parsed !== undefined && typeof parsed["error"] === "string") {
    return errorOfRefusal(status, parsed as ErrorBody, repeatable, retryAfterMs);
  }
  if (TELLING_STATUSES.has(status)) return errorOfRefusal(status, {}, repeatable, retryAfterMs);
  const type = headers["content-type"] ?? "no content type";
  return protocolError("an answer of a DriftQ server", `status ${status} with ${type}`, body, status);
}

/** The object in an answer; `expected` is for the message of the error. */
export function parseObject(answer: HttpAnswer, expected: string): Record<string, unknown> {
  const { status, headers, body } = answer;
  if (!isJson(headers)) throw protocolError(expected, headers["content-type"] ?? "no content type", body, status);
  const parsed = tryParse(body);
  if (parsed === undefined) throw protocolError(expected, "no JSON object", body, status);
  return parsed;
}

function isJson(headers: IncomingHttpHeaders): boolean {
  return (headers["content-type"] ?? "").startsWith(JSON_TYPE);
}

function tryParse(body: Buffer): Record<string, unknown> | undefined {
  try {
    const parsed: unknown = JSON.parse(body.toString("utf8"));
    if (typeof parsed === "object" && parsed !== null && !Array.isArray(parsed))
      return parsed as Record<string, unknown>;
  } catch {
    // Told by the caller.
  }
  return undefined;
}

function retryAfter(header: string | undefined): number | undefined {
  const seconds = Number(header);
  return header !== undefined && seconds >= 0 ? Math.min(seconds * 1_000, RETRY_AFTER_MS_MAX) : undefined;
}

function baseUrls(urls: string | readonly string[]): URL[] {
  const list = typeof urls === "string" ? [urls] : urls;
  if (list.length === 0) throw misuse("`urls` is empty");
  return list.map((text) => {
    if (typeof text !== "string" || !URL.canParse(text)) throw misuse(`${JSON.stringify(text)} is no URL`);
    const url = new URL(text);
    if (url.protocol !== "http:" && url.protocol !== "https:")
      throw misuse(`${text} does not begin with http:// or https://`);
    if (url.username !== "" || url.password !== "") throw misuse("a base URL has no user and no password; use `key`");
    if (url.search !== "" || url.hash !== "") throw misuse(`${text} has a query or a fragment`);
    return withoutSlash(url);
  });
}

function withoutSlash(url: URL): URL {
  url.pathname = url.pathname.replace(/\/+$/, "");
  return url;
}

function checkedKey(key: string | undefined): string | undefined {
  if (key === undefined) return undefined;
  if (typeof key !== "string" || !/^[\x21-\x7e]+$/.test(key)) throw misuse("`key` has characters that no key has");
  return key;
}

export function positive(name: string, value: number): number {
  if (!(Number.isFinite(value) && value > 0)) throw misuse(`\`${name}\` is ${value}, not a number above 0`);
  return value;
}

export function notNegative(name: string, value: number): number {
  if (!(Number.isFinite(value) && value >= 0)) throw misuse(`\`${name}\` is ${value}, not a number from 0 on`);
  return value;
}
