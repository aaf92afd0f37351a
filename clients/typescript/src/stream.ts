/** Streams of deliveries that reconnect by themselves. */

import { performance } from "node:perf_hooks";
import { pauseMs, sleep } from "./backoff.js";
import { NDJSON_TYPE, positive, type Connection } from "./connection.js";
import { DriftqError, protocolError } from "./errors.js";
import { LineSplitter } from "./lines.js";
import { Message, parseItem } from "./messages.js";
import { randomOwner } from "./owner.js";
import { withQuery } from "./paths.js";
import type { Item } from "./wire.js";

export interface ConsumeOptions {
  /** The name that leases are held under; default host, process id and a random part. */
  owner?: string | undefined;
  leaseMs?: number | undefined;
  /** The most live leases that the stream may hold; default that of the broker. */
  prefetch?: number | undefined;
  /** Where a new group starts. */
  from?: "earliest" | "latest" | undefined;
  releaseOnDisconnect?: boolean | undefined;
  ephemeral?: boolean | undefined;
  /** The stream ends after so many messages. */
  max?: number | undefined;
  /** The stream ends when nothing has come for so long. */
  waitMs?: number | undefined;
  signal?: AbortSignal | undefined;
  /** Told of each connection and of its end. */
  onState?: ((state: StreamState) => void) | undefined;
}

export type StreamState = { event: "connected" } | { event: "disconnected"; error: DriftqError };

/** The broker writes a blank line every 15 s: a stream that is silent for so long is cut. */
const SILENCE_MS = 45_000;
/** How long a stream that is closed in order may take to end. */
const CLOSE_MS_MAX = 1_000;
/** A line has one message: 16 MiB of payload, in which every byte may be escaped with six. */
const LINE_BYTES_MAX = 128 * 1024 * 1024;

/** Errors that another try cannot mend. */
const FINAL_KINDS: ReadonlySet<string> = new Set([
  "invalid",
  "unauthenticated",
  "permission_denied",
  "not_found",
  "conflict",
  "misuse",
]);
/** The same, until the first connection: a proxy in trouble answers like a wrong URL. */
const FINAL_AT_FIRST: ReadonlySet<string> = new Set(["tls", "protocol"]);

export interface StreamSettings extends ConsumeOptions {
  topic: string;
  group: string;
  owner: string;
  /** Ends the stream in order: what the broker has sent by then is still delivered. `signal` ends it at once. */
  closing?: AbortSignal | undefined;
  /** Only for tests: how long a stream may be silent. */
  silenceMs?: number;
}

/** Messages as they are delivered; see `Client.consume`. */
export async function* consume(
  connection: Connection,
  topic: string,
  group: string,
  options: ConsumeOptions,
): AsyncGenerator<Message, void, undefined> {
  const owner = options.owner ?? randomOwner();
  for await (const item of deliveries(connection, { ...options, topic, group, owner })) {
    yield new Message(topic, group, owner, item);
  }
}

/**
 * The items of a stream, across connections. Ends as `max` or `waitMs` say; rejects with the reason of the signal, or
 * with an error that no other try can mend.
 */
export async function* deliveries(
  connection: Connection,
  settings: StreamSettings,
): AsyncGenerator<Item, void, undefined> {
  const { signal, closing } = settings;
  /** Ends what is not a stream yet. */
  const interrupt = signal ?? closing;
  if (settings.leaseMs !== undefined) positive("leaseMs", settings.leaseMs);
  const bounded = settings.max !== undefined || settings.waitMs !== undefined;
  let left = settings.max;
  let connected = false;
  for (let failures = 0; ; failures += 1) {
    let error: DriftqError;
    try {
      const { stream, origin } = await connection.open(streamPath(settings, left), NDJSON_TYPE, interrupt);
      connected = true;
      settings.onState?.({ event: "connected" });
      for await (const item of readItems(stream, origin, settings)) {
        failures = 0;
        yield item;
        if (left !== undefined) left -= 1;
      }
      if (bounded || left === 0 || closing?.aborted) return;
      error = new DriftqError({ kind: "unavailable", message: "the broker has ended the stream" });
    } catch (thrown) {
      signal?.throwIfAborted();
      if (closing?.aborted) return;
      if (!(thrown instanceof DriftqError)) throw thrown;
      if (FINAL_KINDS.has(thrown.kind) || (!connected && FINAL_AT_FIRST.has(thrown.kind))) throw thrown;
      error = thrown;
    }
    settings.onState?.({ event: "disconnected", error });
    if (left === 0) return;
    try {
      await sleep(pauseMs(failures, error.retryAfterMs), interrupt);
    } catch (aborted) {
      if (closing?.aborted) return;
      throw aborted;
    }
  }
}

function streamPath(settings: StreamSettings, max: number | undefined): string {
  return withQuery("/v1/consume", {
    topic: settings.topic,
    group: settings.group,
    owner: settings.owner,
    lease_ms: settings.leaseMs,
    prefetch: settings.prefetch,
    from: settings.from,
    release_on_disconnect: settings.releaseOnDisconnect,
    ephemeral: settings.ephemeral,
    max,
    wait_ms: settings.waitMs,
  });
}

type Readable = Awaited<ReturnType<Connection["open"]>>["stream"];

/** The items of one connection. A line that is cut is dropped; the end of the stream is the end of the items. */
async function* readItems(
  stream: Readable,
  origin: string,
  settings: StreamSettings,
): AsyncGenerator<Item, void, undefined> {
  const { signal, closing, silenceMs = SILENCE_MS } = settings;
  const splitter = new LineSplitter(LINE_BYTES_MAX);
  // While the reader is busy nothing is read: that silence is not the broker's.
  let readingSince: number | undefined = performance.now();
  const silence = setInterval(() => {
    if (readingSince === undefined || performance.now() - readingSince < silenceMs) return;
    stream.destroy(new Error(`nothing came for ${silenceMs} ms`));
  }, silenceMs / 3);
  const onAbort = (): void => void stream.destroy(signal?.reason as Error);
  signal?.addEventListener("abort", onAbort, { once: true });
  let closeTimer: NodeJS.Timeout | undefined;
  const onClosing = (): void => {
    // The broker ends the stream of a client that has closed its side, and what it has sent before arrives.
    stream.socket.end();
    closeTimer = setTimeout(() => stream.destroy(), CLOSE_MS_MAX);
  };
  closing?.addEventListener("abort", onClosing, { once: true });
  try {
    signal?.throwIfAborted();
    if (closing?.aborted) onClosing();
    for await (const chunk of stream) {
      readingSince = undefined;
      for (const line of splitter.push(chunk as Buffer)) yield parseItem(line);
      readingSince = performance.now();
    }
  } catch (thrown) {
    signal?.throwIfAborted();
    if (thrown instanceof DriftqError) throw thrown;
    if (thrown instanceof RangeError) throw protocolError("a message in a line", thrown.message, "");
    const why = thrown instanceof Error && thrown.message !== "aborted" ? `: ${thrown.message}` : "";
    throw new DriftqError({ kind: "unavailable", message: `${origin}: the stream was cut${why}`, cause: thrown });
  } finally {
    clearInterval(silence);
    clearTimeout(closeTimer);
    signal?.removeEventListener("abort", onAbort);
    closing?.removeEventListener("abort", onClosing);
    stream.destroy();
  }
}
