/** Pauses between tries, and waits that an `AbortSignal` ends. */

const FIRST_PAUSE_MS = 50;
const PAUSE_MS_MAX = 5_000;
/** A broker that asks for more than this is not waited for longer. */
export const RETRY_AFTER_MS_MAX = 60_000;

/** Full jitter: evenly from 0 to min(5 s, 50 ms · 2^n), for the n-th pause from 0 on; never shorter than asked for. */
export function pauseMs(n: number, retryAfterMs = 0, random: () => number = Math.random): number {
  const bound = Math.min(PAUSE_MS_MAX, FIRST_PAUSE_MS * 2 ** Math.min(n, 30));
  return Math.max(random() * bound, Math.min(retryAfterMs, RETRY_AFTER_MS_MAX));
}

/** Waits; rejects with the reason of the signal as soon as it is aborted. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason as Error);
      return;
    }
    const onAbort = (): void => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    }, ms);
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}

/** The longest time that a timer of the platform can wait. */
const TIMER_MS_MAX = 2 ** 31 - 1;

/** A timeout that may lie further ahead than the platform's timers reach. Returns what clears it. */
export function longTimeout(ms: number, callback: () => void): () => void {
  let timer: NodeJS.Timeout;
  const arm = (left: number): void => {
    timer = setTimeout(
      () => (left > TIMER_MS_MAX ? arm(left - TIMER_MS_MAX) : callback()),
      Math.min(left, TIMER_MS_MAX),
    );
  };
  arm(Math.max(0, ms));
  return () => clearTimeout(timer);
}
