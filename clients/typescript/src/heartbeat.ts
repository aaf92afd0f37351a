/**
 * Keeps a lease: prolongs it every third of it, and knows by the monotonic clock of this process, never by times that
 * the broker tells, when it can no longer be relied on.
 */

import { performance } from "node:perf_hooks";
import type { CallOptions } from "./connection.js";
import { DriftqError } from "./errors.js";

export interface HeartbeatOptions {
  leaseMs: number;
  /** When the lease was received. */
  since: number;
  /** Prolongs the lease, in one try. */
  beat: (call: CallOptions) => Promise<unknown>;
  /** Called once, when the lease is lost. */
  onLost: () => void;
  /** Called when a heartbeat is late because the event loop stood still. */
  onBlocked: (ms: number) => void;
}

/** Between two tries of a heartbeat, as a part of the lease. */
const PAUSE_PART = 1 / 20;
/** A timer that is late by less than this was not blocked. */
const BLOCKED_MS_MIN = 100;

export class Heartbeat {
  readonly #options: HeartbeatOptions;
  /** The lease is ours until this and a lease length. */
  #since: number;
  /** When the timer is due. */
  #due = 0;
  #timer: NodeJS.Timeout | undefined;
  #state: "beating" | "expiring" | "lost" | "ended" = "beating";

  constructor(options: HeartbeatOptions) {
    this.#options = options;
    this.#since = options.since;
    this.#arm(this.#since + options.leaseMs / 3);
  }

  /** Whether the lease is lost. Looks at the clock, which a blocked event loop cannot hide. */
  get lost(): boolean {
    if (this.#state === "beating" || this.#state === "expiring") this.#look();
    return this.#state === "lost";
  }

  /** Sends no more heartbeats; the lease runs out by itself, and is lost then. */
  expire(): void {
    if (this.#state !== "beating") return;
    this.#state = "expiring";
    this.#arm(this.#end);
  }

  /** The lease is given back, or of no interest any more. */
  end(): void {
    clearTimeout(this.#timer);
    if (this.#state !== "lost") this.#state = "ended";
  }

  get #end(): number {
    return this.#since + this.#options.leaseMs;
  }

  #arm(due: number): void {
    clearTimeout(this.#timer);
    this.#due = due;
    this.#timer = setTimeout(
      () => this.#fire(),
      Math.max(0, Math.min(Math.ceil(due - performance.now()), 2 ** 31 - 1)),
    );
  }

  #fire(): void {
    if (this.#look()) return;
    // Timers count whole milliseconds of another clock, and can be early by a part of one.
    if (performance.now() < this.#due) this.#arm(this.#due);
    else if (this.#state === "beating") void this.#beat();
  }

  /** Compares the clock with what is due. Returns whether the lease is lost. */
  #look(): boolean {
    const now = performance.now();
    const late = now - this.#due;
    if (late > Math.max(BLOCKED_MS_MIN, this.#options.leaseMs / 10)) this.#options.onBlocked(late);
    if (now < this.#end) return false;
    this.#lose();
    return true;
  }

  async #beat(): Promise<void> {
    const { leaseMs, beat } = this.#options;
    const sent = performance.now();
    // Until there is an answer the timer watches the end of the lease.
    this.#arm(this.#end);
    try {
      await beat({ timeoutMs: leaseMs / 3, retryForMs: 0 });
      if (this.#state === "beating") {
        this.#since = sent;
        this.#arm(sent + leaseMs / 3);
      } else if (this.#state === "expiring") {
        this.#since = sent;
        this.#arm(this.#end);
      }
    } catch (error) {
      if (this.#state !== "beating") return;
      if (isRefusal(error)) this.#lose();
      else this.#arm(Math.min(performance.now() + leaseMs * PAUSE_PART, this.#end));
    }
  }

  #lose(): void {
    if (this.#state === "lost" || this.#state === "ended") return;
    clearTimeout(this.#timer);
    this.#state = "lost";
    this.#options.onLost();
  }
}

/** The broker has given the lease to another worker, or does not know it. */
function isRefusal(error: unknown): boolean {
  return error instanceof DriftqError && (error.status === 409 || error.status === 404);
}
