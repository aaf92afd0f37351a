/** What a worker tells of itself: events for metrics and logs, and spans. None of it has keys or payloads. */

import type { DriftqError, ErrorKind } from "./errors.js";

/** `message` is `topic/partition/offset`. */
export type WorkerEvent =
  | { event: "connected" }
  | { event: "disconnected"; error: DriftqError }
  /** A line of the stream that is no message; the stream reconnects. */
  | { event: "protocol"; error: DriftqError }
  | { event: "received"; message: string; attempt: number }
  | { event: "began"; message: string; attempt: number; decision: string }
  /** From receipt to the answer of the broker. */
  | { event: "completed"; message: string; attempt: number; seconds: number }
  | { event: "failed"; message: string; attempt: number; kind: FailureKind; error: string }
  | { event: "lease_lost"; message: string; attempt: number }
  | { event: "released"; message: string; attempt: number }
  /** A handler goes on, a whole lease after it was cancelled because its lease was lost. */
  | { event: "handler_stuck"; message: string; attempt: number }
  /** The event loop stood still, so that heartbeats were late. */
  | { event: "loop_blocked"; ms: number }
  | { event: "request_retried"; error: DriftqError };

/** How a handler failed, or why its outcome could not be reported. */
export type FailureKind = "retry" | "permanent" | "deadline" | "shutdown" | ErrorKind;

export type Log = (
  level: "debug" | "info" | "warn" | "error",
  message: string,
  fields: Record<string, unknown>,
) => void;

/** One run of a handler, as tracing wants to know it. */
export interface Span {
  name: "driftq.handle";
  /** The parent, if the message was produced with one. */
  traceparent: string | undefined;
  attributes: Record<string, string | number>;
}

/** Opens a span around `run`, and returns or throws what it does. */
export type Tracer = <T>(span: Span, run: () => Promise<T>) => Promise<T>;

const LEVELS: Record<WorkerEvent["event"], Parameters<Log>[0]> = {
  connected: "info",
  disconnected: "warn",
  protocol: "warn",
  received: "debug",
  began: "debug",
  completed: "debug",
  failed: "warn",
  lease_lost: "warn",
  released: "debug",
  handler_stuck: "warn",
  loop_blocked: "warn",
  request_retried: "info",
};

/** What the log says of an event; of others it says their name. */
const TEXTS: Partial<Record<WorkerEvent["event"], string>> = {
  connected: "the stream is connected",
  disconnected: "the stream is disconnected and opened again",
  protocol: "the stream has a line that is no message and is opened again",
  failed: "an attempt has failed",
  lease_lost: "the lease is lost, and the result of its handler is discarded",
  handler_stuck: "a handler ignores its cancellation and keeps its slot",
  loop_blocked: "a handler blocks the event loop, so that heartbeats are late",
  request_retried: "a request is repeated",
};

/** Passes events on. What a hook throws is its own mistake and stops nothing. */
export function eventSink(onEvent: ((event: WorkerEvent) => void) | undefined, log: Log | undefined) {
  return (event: WorkerEvent): void => {
    try {
      onEvent?.(event);
      if (log !== undefined) {
        const { event: name, ...fields } = event;
        log(LEVELS[name], `driftq: ${TEXTS[name] ?? name}`, { event: name, ...loggable(fields) });
      }
    } catch {
      // A hook must not fail a message.
    }
  };
}

function loggable(fields: Record<string, unknown>): Record<string, unknown> {
  const error = fields["error"];
  if (!(error instanceof Error)) return fields;
  const { kind, status, code } = error as DriftqError;
  return { ...fields, error: error.message, kind, status, code };
}
