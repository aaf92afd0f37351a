/** Errors of the client, and the two that a handler throws to say how its message ends. */

import type { Json } from "./canonical.js";

/** What went wrong, as far as a caller has to tell cases apart. */
export type ErrorKind =
  | "invalid"
  | "unauthenticated"
  | "permission_denied"
  | "not_found"
  | "conflict"
  | "stale_lease"
  | "in_progress"
  | "overloaded"
  | "unavailable"
  | "storage_full"
  | "unknown"
  | "tls"
  | "protocol"
  | "misuse";

export interface DriftqErrorFields {
  kind: ErrorKind;
  message: string;
  /** The HTTP status; 0 where there was no answer. */
  status?: number;
  /** The broker's code, such as `INVALID_ARGUMENT`; empty where there was none. */
  code?: string;
  /** How long the broker asks to wait. */
  retryAfterMs?: number | undefined;
  /** Whether sending the same call again can do no harm. */
  retryIsSafe?: boolean;
  cause?: unknown;
}

/** The only error that calls of this package reject with, apart from the reason of an aborted `AbortSignal`. */
export class DriftqError extends Error {
  override readonly name = "DriftqError";
  readonly kind: ErrorKind;
  readonly status: number;
  readonly code: string;
  readonly retryAfterMs: number | undefined;
  readonly retryIsSafe: boolean;

  constructor(fields: DriftqErrorFields) {
    super(fields.message, fields.cause === undefined ? undefined : { cause: fields.cause });
    this.kind = fields.kind;
    this.status = fields.status ?? 0;
    this.code = fields.code ?? "";
    this.retryAfterMs = fields.retryAfterMs;
    this.retryIsSafe = fields.retryIsSafe ?? SAFE_KINDS.has(fields.kind);
  }

  /** Kind, status, code and message in one line, for logs. */
  override toString(): string {
    const answered = this.status === 0 ? "" : ` (${`${this.status} ${this.code}`.trimEnd()})`;
    return `${this.kind}${answered}: ${this.message}`;
  }
}

const SAFE_KINDS: ReadonlySet<ErrorKind> = new Set(["in_progress", "overloaded", "unavailable", "storage_full"]);

/** Thrown by a handler: this attempt failed, a later one may succeed. */
export class Retry extends Error {
  override readonly name = "Retry";
  readonly delayMs: number | undefined;

  constructor(reason: string, options: { delayMs?: number; cause?: unknown } = {}) {
    super(reason, options.cause === undefined ? undefined : { cause: options.cause });
    this.delayMs = options.delayMs;
  }
}

/** Thrown by a handler: no attempt can succeed. The message is dead-lettered. */
export class Permanent extends Error {
  override readonly name = "Permanent";

  constructor(reason: string, options: { cause?: unknown } = {}) {
    super(reason, options.cause === undefined ? undefined : { cause: options.cause });
  }
}

/** Why a handler was cancelled: the `reason` of its `AbortSignal`. */
export class Cancelled extends Error {
  override readonly name = "AbortError";

  constructor(readonly why: "lease lost" | "deadline exceeded" | "shutdown") {
    super(why);
  }
}

export function misuse(message: string): DriftqError {
  return new DriftqError({ kind: "misuse", message });
}

const PROTOCOL_EXCERPT_BYTES = 200;

/** The answer is not that of a DriftQ server. Names what was expected and what came. */
export function protocolError(expected: string, came: string, body: Uint8Array | string, status = 0): DriftqError {
  const bytes = typeof body === "string" ? Buffer.from(body) : Buffer.from(body.buffer, body.byteOffset, body.length);
  const excerpt = bytes.subarray(0, PROTOCOL_EXCERPT_BYTES).toString("utf8");
  const text = excerpt === "" ? "" : `: ${excerpt}`;
  return new DriftqError({ kind: "protocol", status, message: `expected ${expected}, got ${came}${text}` });
}

const KINDS: Readonly<Record<number, ErrorKind>> = {
  400: "invalid",
  401: "unauthenticated",
  403: "permission_denied",
  404: "not_found",
  405: "invalid",
  409: "conflict",
  413: "invalid",
  422: "invalid",
  429: "overloaded",
  507: "storage_full",
};

/** The body of a refusal, as the broker writes it. */
export interface ErrorBody {
  error?: unknown;
  message?: unknown;
  decision?: unknown;
  committed?: unknown;
  retry_after_ms?: unknown;
  [field: string]: Json | unknown;
}

/**
 * The error of a refused request. `repeatable` says that the request cannot double; `retryAfterMs` is what the header
 * asked for, used where the body does not say it more exactly.
 */
export function errorOfRefusal(
  status: number,
  body: ErrorBody,
  repeatable: boolean,
  retryAfterMs?: number,
): DriftqError {
  const code = typeof body.error === "string" ? body.error : "";
  const message = typeof body.message === "string" ? body.message : `status ${status}`;
  const exact = body.retry_after_ms;
  const wait = typeof exact === "number" && exact >= 0 ? exact : retryAfterMs;
  const fields = { status, code, message, retryAfterMs: wait };
  if (status === 503) {
    return body.committed === "no"
      ? new DriftqError({ ...fields, kind: "unavailable" })
      : new DriftqError({ ...fields, kind: "unknown", retryIsSafe: repeatable });
  }
  if (status === 409) {
    if (body.decision === "IN_PROGRESS") return new DriftqError({ ...fields, kind: "in_progress" });
    if (message === "stale lease" || message === "not owner")
      return new DriftqError({ ...fields, kind: "stale_lease" });
  }
  const kind = KINDS[status] ?? (status >= 500 ? "unknown" : "invalid");
  return new DriftqError({ ...fields, kind, ...(kind === "unknown" ? { retryIsSafe: repeatable } : {}) });
}

/** Longest error text that the broker keeps. */
const ERROR_TEXT_BYTES_MAX = 4096;

/** The text of anything thrown, cut to what the broker keeps of it. */
export function errorText(thrown: unknown): string {
  let text: string;
  try {
    if (thrown instanceof Retry || thrown instanceof Permanent) text = thrown.message;
    else text = String(thrown);
  } catch {
    text = "an error without a text";
  }
  return cutText(text.toWellFormed());
}

function cutText(text: string): string {
  const bytes = Buffer.from(text);
  if (bytes.length <= ERROR_TEXT_BYTES_MAX) return text;
  let end = ERROR_TEXT_BYTES_MAX;
  // A byte 10xxxxxx continues a character: do not cut before one.
  while (end > 0 && ((bytes[end] ?? 0) & 0xc0) === 0x80) end -= 1;
  return bytes.subarray(0, end).toString("utf8");
}
