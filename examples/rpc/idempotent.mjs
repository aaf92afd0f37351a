/**
 * Requests with an `Idempotency-Key`: the effect of each happens once, and each copy of it gets the same answer.
 *
 * `idempotent(store, options)` makes middleware out of handlers `(body, call) => ({ status, body })`. The same as
 * `idempotent.py`, for Express.
 */

import { DriftqError, requestHash } from "driftq";

const DAY_MS = 24 * 60 * 60 * 1_000;
const RETRY_AFTER_MS = 1_000;
const ERROR_CHARS_MAX = 1_000;
/** Of errors of the store: another copy of the request has taken it over, or has ended it. */
const TAKEN_OVER = new Set(["stale_lease", "conflict", "not_found"]);

/** Thrown by a handler: the request was refused for good. Its copies get the same answer. */
export class Rejected extends Error {
  constructor(status, reason) {
    super(reason);
    this.answer = { status, body: { error: reason } };
  }
}

/**
 * @param {import("driftq").Store} store
 * @param {{ owner: string, callerOf: (request: object) => string, leaseMs?: number, keepMs?: number }} options
 *   `callerOf` says who sends a request: a caller must not be able to use the keys of another.
 */
export function idempotent(store, { owner, callerOf, leaseMs = 30_000, keepMs = DAY_MS }) {
  async function answerTo(request, handler) {
    const key = request.get("idempotency-key");
    if (!key) return { status: 400, body: { error: "the header Idempotency-Key is required" } };
    const method = `${request.method} ${request.path}`;
    const identity = { scope: { kind: "rpc", principal: callerOf(request), method }, key };
    try {
      const decision = await begun(identity, request.body);
      switch (decision.decision) {
        case "EXECUTE":
          return await executed(identity, decision, request.body, handler);
        case "REPLAY":
          if (decision.resultLost) {
            return { status: 500, body: { error: "the request was handled; its answer has been lost" } };
          }
          return { status: decision.responseCode, body: decision.result, headers: { "idempotent-replayed": "true" } };
        default:
          return later("the same request is being handled", decision.retryAfterMs);
      }
    } catch (error) {
      return answerToError(error);
    }
  }

  /** Asks whether to run the request. One that failed, or whose server died, is run again by this copy of it. */
  async function begun(identity, body) {
    const decision = await store.begin({
      ...identity,
      owner,
      leaseMs,
      requestHash: requestHash(body),
      expiresAt: new Date(Date.now() + keepMs).toISOString(),
    });
    return decision.decision === "RETRYABLE" ? store.reacquire({ ...identity, owner, leaseMs }) : decision;
  }

  /** Runs the handler under a grant, and ends the effect with what it answers. */
  async function executed(identity, { leaseToken, attempt }, body, handler) {
    const lost = new AbortController();
    const heartbeat = setInterval(async () => {
      try {
        await store.renew({ ...identity, leaseToken, leaseMs });
      } catch (error) {
        // Another try follows any other error. If none succeeds before the lease ends, `finish` is refused.
        if (TAKEN_OVER.has(error.kind)) lost.abort(error);
      }
    }, leaseMs / 3);
    let answer;
    let outcome = { status: "SUCCEEDED" };
    try {
      answer = await handler(body, { key: identity.key, attempt, signal: lost.signal });
    } catch (error) {
      answer = error instanceof Rejected ? error.answer : unavailable("the request failed; send it again");
      const status = error instanceof Rejected ? "FAILED_FINAL" : "FAILED_RETRYABLE";
      outcome = { status, lastError: String(error).slice(0, ERROR_CHARS_MAX) };
    } finally {
      clearInterval(heartbeat);
    }
    // With a lease that was lost, the answer is not to be given: another copy may have another one.
    lost.signal.throwIfAborted();
    await store.finish({ ...identity, leaseToken, ...outcome, responseCode: answer.status, result: answer.body });
    return answer;
  }

  return (handler) => async (request, response) => {
    const { status, body, headers = {} } = await answerTo(request, handler);
    response.status(status).set(headers).json(body);
  };
}

function answerToError(error) {
  if (!(error instanceof DriftqError)) throw error;
  if (TAKEN_OVER.has(error.kind)) return later("the request was taken over; its outcome is not known yet");
  if (error.kind === "invalid" || error.kind === "misuse") {
    return { status: error.status || 400, body: { error: error.message } };
  }
  return unavailable("the store of effects is not available", error.retryAfterMs);
}

/** Asks the caller to send the same request again. */
function later(reason, retryAfterMs) {
  return { status: 409, body: { error: reason }, headers: retryAfter(retryAfterMs) };
}

/** The request may have been carried out or not; its key makes it safe to send it again. */
function unavailable(reason, retryAfterMs) {
  return { status: 503, body: { error: reason }, headers: retryAfter(retryAfterMs) };
}

function retryAfter(ms = RETRY_AFTER_MS) {
  return { "retry-after": String(Math.max(1, Math.ceil(ms / 1_000))) };
}
