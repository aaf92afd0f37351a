/**
 * Joins requests of one route into batches (NDJSON): what waits while a batch is on the wire is the next batch. A
 * request that waits alone is sent as a single one.
 */

import { performance } from "node:perf_hooks";
import { pauseMs, sleep } from "./backoff.js";
import { NDJSON_TYPE, parseObject, partialAnswer, type Connection } from "./connection.js";
import { DriftqError, errorOfRefusal, protocolError, type ErrorBody } from "./errors.js";

/** The object that answers a line. In a batch its `status` is a number, alone it is that of the route. */
export type LineAnswer = Record<string, unknown>;

export interface LineRequest {
  /** A JSON object without a line end. */
  line: string;
  /** Whether the request cannot double. */
  repeatable: boolean;
  /** Requests are joined only with others of the same header. */
  traceparent?: string | undefined;
  signal?: AbortSignal | undefined;
  /** Told before the request is sent again, alone or with its batch. */
  onRetry?: ((error: DriftqError) => void) | undefined;
}

export interface BatcherOptions {
  linesMax?: number;
  bytesMax?: number;
  /** How long a batch waits for more lines. */
  lingerMs?: number;
  /** A batch without an answer for so long does not hold back the next. Default: it always does. */
  stallMs?: number;
  retryForMs: number;
}

const LINES_MAX = 1_000;
const BYTES_MAX = 1024 * 1024;

interface Waiting extends LineRequest {
  bytes: number;
  resolve: (answer: LineAnswer) => void;
  reject: (error: unknown) => void;
  settled: boolean;
  /** When it was handed over, on the monotonic clock. */
  since: number;
  onAbort?: () => void;
}

export class Batcher {
  readonly #connection: Connection;
  readonly #path: string;
  readonly #options: Required<BatcherOptions>;
  #queue: Waiting[] = [];
  /** Batches on the wire that hold back the next one. */
  #holding = 0;
  #scheduled = false;

  constructor(connection: Connection, path: string, options: BatcherOptions) {
    this.#connection = connection;
    this.#path = path;
    this.#options = { linesMax: LINES_MAX, bytesMax: BYTES_MAX, lingerMs: 0, stallMs: Infinity, ...options };
  }

  /** Sends one request, alone or with others. Resolves with its own answer, rejects with its own error. */
  send(request: LineRequest): Promise<LineAnswer> {
    return new Promise((resolve, reject) => {
      this.#queue.push(waitingFor(request, resolve, reject));
      this.#schedule();
    });
  }

  /** The same for a request that cannot be joined with others: it neither waits for them nor holds them back. */
  sendAlone(request: LineRequest): Promise<LineAnswer> {
    return new Promise((resolve, reject) => {
      void this.#single(waitingFor(request, resolve, reject), this.#options.retryForMs);
    });
  }

  #schedule(): void {
    if (this.#scheduled || this.#holding > 0 || this.#queue.length === 0) return;
    this.#scheduled = true;
    const start = (): void => {
      this.#scheduled = false;
      void this.#flush();
    };
    // With the turn of the event loop, so that requests made in one turn go together.
    if (this.#options.lingerMs > 0) setTimeout(start, this.#options.lingerMs);
    else setImmediate(start);
  }

  async #flush(): Promise<void> {
    const batch = this.#take();
    if (batch.length === 0) return;
    this.#holding += 1;
    let holds = true;
    const release = (): void => {
      if (!holds) return;
      holds = false;
      clearTimeout(timer);
      this.#holding -= 1;
      this.#schedule();
    };
    const timer = Number.isFinite(this.#options.stallMs) ? setTimeout(release, this.#options.stallMs) : undefined;
    try {
      await (batch.length === 1 ? this.#single(batch[0] as Waiting, this.#options.retryForMs) : this.#batch(batch));
    } finally {
      release();
    }
  }

  /** The next batch: from the front of the queue, as much as fits and goes together. */
  #take(): Waiting[] {
    const batch: Waiting[] = [];
    let bytes = 0;
    let read = 0;
    for (const next of this.#queue) {
      const first = batch[0];
      const fits = batch.length < this.#options.linesMax && bytes + next.bytes <= this.#options.bytesMax;
      if (first !== undefined && !(fits && next.traceparent === first.traceparent)) break;
      read += 1;
      // An aborted request has been answered: it is not sent.
      if (next.settled) continue;
      batch.push(next);
      bytes += next.bytes;
    }
    this.#queue = read === this.#queue.length ? [] : this.#queue.slice(read);
    return batch;
  }

  async #single(waiting: Waiting, retryForMs: number): Promise<void> {
    const { line, repeatable, traceparent, signal, onRetry } = waiting;
    try {
      const headers = traceparent === undefined ? undefined : { traceparent };
      const request = {
        method: "POST",
        path: this.#path,
        body: line,
        headers,
        repeatable,
        signal,
        retryForMs,
        onRetry,
      };
      settle(waiting, parseObject(await this.#connection.request(request), "an answer"));
    } catch (error) {
      settle(waiting, undefined, error);
    }
  }

  async #batch(batch: readonly Waiting[]): Promise<void> {
    const traceparent = batch[0]?.traceparent;
    let body: Buffer;
    let cut: DriftqError | undefined;
    try {
      const answer = await this.#connection.request({
        method: "POST",
        path: this.#path,
        body: batch.map((waiting) => `${waiting.line}\n`).join(""),
        contentType: NDJSON_TYPE,
        headers: traceparent === undefined ? undefined : { traceparent },
        repeatable: batch.every((waiting) => waiting.repeatable),
        retryForMs: this.#options.retryForMs,
        onRetry: (error) => batch.forEach((waiting) => waiting.onRetry?.(error)),
      });
      const type = answer.headers["content-type"] ?? "no content type";
      if (!type.startsWith(NDJSON_TYPE)) throw protocolError(NDJSON_TYPE, type, answer.body, answer.status);
      body = answer.body;
    } catch (error) {
      if (!(error instanceof DriftqError)) throw error;
      cut = error;
      body = partialAnswer(error) ?? Buffer.alloc(0);
    }
    this.#answer(batch, body, cut);
  }

  /** Gives each line its answer; those behind the end of a cut answer get its error. */
  #answer(batch: readonly Waiting[], body: Buffer, cut: DriftqError | undefined): void {
    // What follows the last line end is an answer that was cut.
    const lines = body.toString("utf8").split("\n").slice(0, -1);
    batch.forEach((waiting, index) => {
      const line = lines[index];
      const answer = line === undefined ? undefined : parseLine(line);
      if (answer === undefined) settle(waiting, undefined, this.#unanswered(waiting, line, cut));
      else if (typeof answer["status"] === "number" && answer["status"] >= 400) this.#refused(waiting, answer);
      else settle(waiting, answer);
    });
  }

  #unanswered(waiting: Waiting, line: string | undefined, cut: DriftqError | undefined): DriftqError {
    if (line !== undefined) return protocolError("an answer in a line", "no JSON object", line, 200);
    const { kind, status, code, message, retryAfterMs, cause } =
      cut ?? new DriftqError({ kind: "unknown", message: "the answer ends before that of this line" });
    if (kind !== "unknown") return new DriftqError({ kind, status, code, message, retryAfterMs, cause });
    return new DriftqError({ kind, status, code, message, retryAfterMs, retryIsSafe: waiting.repeatable, cause });
  }

  /** A line that was refused for the moment is sent again, alone. */
  #refused(waiting: Waiting, answer: LineAnswer): void {
    const error = errorOfRefusal(answer["status"] as number, answer as ErrorBody, waiting.repeatable);
    const again =
      error.kind === "overloaded" || error.kind === "unavailable" || (error.status === 503 && waiting.repeatable);
    const pause = pauseMs(0, error.retryAfterMs);
    const left = this.#options.retryForMs - (performance.now() - waiting.since) - pause;
    if (!again || left <= 0) {
      settle(waiting, undefined, error);
      return;
    }
    waiting.onRetry?.(error);
    sleep(pause, waiting.signal).then(
      () => this.#single(waiting, left),
      (aborted: unknown) => settle(waiting, undefined, aborted),
    );
  }
}

function waitingFor(
  request: LineRequest,
  resolve: (answer: LineAnswer) => void,
  reject: (error: unknown) => void,
): Waiting {
  request.signal?.throwIfAborted();
  const bytes = Buffer.byteLength(request.line) + 1;
  const waiting: Waiting = { ...request, bytes, resolve, reject, settled: false, since: performance.now() };
  if (request.signal !== undefined) {
    waiting.onAbort = () => settle(waiting, undefined, request.signal?.reason);
    request.signal.addEventListener("abort", waiting.onAbort, { once: true });
  }
  return waiting;
}

function settle(waiting: Waiting, answer: LineAnswer | undefined, error?: unknown): void {
  if (waiting.settled) return;
  waiting.settled = true;
  if (waiting.onAbort !== undefined) waiting.signal?.removeEventListener("abort", waiting.onAbort);
  if (answer === undefined) waiting.reject(error);
  else waiting.resolve(answer);
}

function parseLine(line: string): LineAnswer | undefined {
  try {
    const parsed: unknown = JSON.parse(line);
    if (typeof parsed === "object" && parsed !== null && !Array.isArray(parsed)) return parsed as LineAnswer;
  } catch {
    // Told by the caller.
  }
  return undefined;
}
