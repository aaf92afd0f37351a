/**
 * One HTTP exchange with one base URL: no retries, no meaning. Tells apart what the rules of repetition need: whether a
 * byte of the request can have been sent.
 *
 * Built on `node:http`, whose requests cost a fraction of those of the global `fetch`.
 */

import * as http from "node:http";
import * as https from "node:https";
import type { TLSSocket } from "node:tls";

export interface HttpAnswer {
  status: number;
  headers: http.IncomingHttpHeaders;
  body: Buffer;
}

export interface HttpStream {
  status: number;
  headers: http.IncomingHttpHeaders;
  stream: http.IncomingMessage;
}

export interface HttpRequest {
  method: string;
  /** Path and query, with the prefix of the base URL. */
  target: string;
  headers: http.OutgoingHttpHeaders;
  body: string | undefined;
  timeoutMs: number;
  signal: AbortSignal | undefined;
}

/** An exchange that got no complete answer. */
export class ExchangeFailed extends Error {
  constructor(
    /**
     * `connect`: no byte of the request was sent. `tls`: certificate or handshake refused. `http`: the answer is not
     * HTTP. `lost`: anything later.
     */
    readonly phase: "connect" | "tls" | "http" | "lost",
    message: string,
    /** What had arrived of an answer that was cut, and its status. */
    readonly partial: { status: number; body: Buffer } | undefined,
    cause?: unknown,
  ) {
    super(message, { cause });
  }
}

/** The broker closes idle connections after 30 s; one that is used at that moment would be lost. */
const IDLE_CONNECTION_MS = 10_000;
const CONNECTIONS_MAX = 64;
const CERTIFICATE_CODES = /^(CERT_|DEPTH_ZERO_|SELF_SIGNED_|UNABLE_TO_|ERR_TLS_CERT_|HOSTNAME_MISMATCH)/;
const HANDSHAKE_CODES = /^(ERR_TLS_|ERR_SSL_|ERR_OSSL_|EPROTO)/;
/** Codes of the parser but the one of a connection that is cut. */
const NO_HTTP_CODES = /^HPE_(?!INVALID_EOF_STATE)/;

export class Transport {
  readonly #agents: { http: http.Agent; https: https.Agent };
  readonly #ca: string | Buffer | (string | Buffer)[] | undefined;

  constructor(ca?: string | Buffer | (string | Buffer)[]) {
    this.#ca = ca;
    const pool = {
      keepAlive: true,
      maxSockets: CONNECTIONS_MAX,
      timeout: IDLE_CONNECTION_MS,
      scheduling: "lifo" as const,
    };
    this.#agents = { http: new http.Agent(pool), https: new https.Agent(ca === undefined ? pool : { ...pool, ca }) };
  }

  /** Sends one request and collects its answer. */
  exchange(base: URL, request: HttpRequest): Promise<HttpAnswer> {
    return new Promise((resolve, reject) => {
      const chunks: Buffer[] = [];
      let response: http.IncomingMessage | undefined;
      const call = new Call(this.#start(base, request, false), request, (error) => {
        if (!(error instanceof ExchangeFailed)) return reject(error);
        const partial = response && { status: response.statusCode ?? 0, body: Buffer.concat(chunks) };
        // What has begun as HTTP and goes on as something else was damaged on its way.
        const phase = error.phase === "http" && response !== undefined ? "lost" : error.phase;
        reject(new ExchangeFailed(phase, error.message, partial, error.cause));
      });
      call.request.on("response", (incoming) => {
        response = incoming;
        incoming.on("data", (chunk: Buffer) => chunks.push(chunk));
        incoming.on("error", (error) => call.fail(error));
        incoming.on("aborted", () => call.fail(new Error("the answer was cut short")));
        incoming.on("end", () => {
          call.done();
          const body = chunks.length === 1 ? (chunks[0] as Buffer) : Buffer.concat(chunks);
          resolve({ status: incoming.statusCode ?? 0, headers: incoming.headers, body });
        });
      });
      call.request.end(request.body);
    });
  }

  /** Sends one request on a connection of its own and hands over its answer as soon as the head is there. */
  open(base: URL, request: HttpRequest): Promise<HttpStream> {
    return new Promise((resolve, reject) => {
      const call = new Call(this.#start(base, request, true), request, reject);
      call.request.on("response", (stream) => {
        call.done();
        resolve({ status: stream.statusCode ?? 0, headers: stream.headers, stream });
      });
      call.request.end(request.body);
    });
  }

  close(): void {
    this.#agents.http.destroy();
    this.#agents.https.destroy();
  }

  #start(base: URL, request: HttpRequest, ownConnection: boolean): http.ClientRequest {
    const secure = base.protocol === "https:";
    const options: https.RequestOptions = {
      // `hostname` of a URL has brackets around an IPv6 address, a socket wants it without.
      host: base.hostname.replace(/^\[(.*)\]$/, "$1"),
      port: base.port === "" ? (secure ? 443 : 80) : base.port,
      method: request.method,
      path: request.target,
      headers: request.headers,
      agent: ownConnection ? false : secure ? this.#agents.https : this.#agents.http,
    };
    if (secure && ownConnection && this.#ca !== undefined) options.ca = this.#ca;
    return secure ? https.request(options) : http.request(options);
  }
}

/** One request on its way: what ends it early, and how far it had come by then. */
class Call {
  #sent = false;
  #ended = false;
  readonly #timer: NodeJS.Timeout;
  readonly #onAbort: () => void;

  constructor(
    readonly request: http.ClientRequest,
    private readonly wanted: HttpRequest,
    private readonly reject: (error: Error) => void,
  ) {
    const { signal, timeoutMs } = wanted;
    this.#timer = setTimeout(() => this.fail(new Error(`no answer within ${Math.round(timeoutMs)} ms`)), timeoutMs);
    this.#onAbort = () => this.fail(signal?.reason as Error);
    request.on("socket", (socket) => {
      // A socket that another request has left behind is connected; `reusedSocket` does not tell all of those.
      const { encrypted, secureConnecting } = socket as TLSSocket & { secureConnecting?: boolean };
      if (!socket.connecting && secureConnecting !== true) this.#sent = true;
      else socket.once(encrypted ? "secureConnect" : "connect", () => (this.#sent = true));
    });
    request.on("error", (error) => this.fail(error));
    signal?.addEventListener("abort", this.#onAbort, { once: true });
    if (signal?.aborted) this.#onAbort();
  }

  done(): void {
    this.#ended = true;
    clearTimeout(this.#timer);
    this.wanted.signal?.removeEventListener("abort", this.#onAbort);
  }

  fail(error: Error): void {
    if (this.#ended) return;
    this.done();
    const { signal } = this.wanted;
    this.reject(signal?.aborted ? (signal.reason as Error) : this.#classify(error));
    this.request.destroy();
  }

  #classify(error: Error): ExchangeFailed {
    const code = (error as NodeJS.ErrnoException).code ?? "";
    // An AggregateError of several addresses has no message of its own.
    const text = error.message || code || "no connection";
    const failed = (phase: ExchangeFailed["phase"], message: string) =>
      new ExchangeFailed(phase, message, undefined, error);
    if (this.#sent) return NO_HTTP_CODES.test(code) ? failed("http", text) : failed("lost", text);
    if (CERTIFICATE_CODES.test(code)) return failed("tls", `the certificate is refused: ${text}`);
    if (!HANDSHAKE_CODES.test(code)) return failed("connect", text);
    // The text of OpenSSL has places of its sources in several lines.
    const reason = /:SSL routines:[^:]*:([^:]+):/.exec(text)?.[1] ?? text;
    return failed("tls", `the TLS handshake failed: ${reason}`);
  }
}
