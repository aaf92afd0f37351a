import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, type ConsumeOptions, type StreamState } from "../src/index.js";
import { deliveries } from "../src/stream.js";
import { LineSplitter } from "../src/lines.js";
import { cleanUp, itemLine, refusingUrl, Stub, withVersion, within } from "./stub.js";

function clientOf(urls: string | string[]): Client {
  const client = new Client({ urls });
  cleanUp(() => client.close());
  return client;
}

/** Takes messages until there are so many. */
async function take(url: string | string[], count: number, options: ConsumeOptions = {}): Promise<number[]> {
  const offsets: number[] = [];
  const read = async (): Promise<void> => {
    for await (const message of clientOf(url).consume("t", "g", options)) {
      offsets.push(message.offset);
      if (offsets.length === count) return;
    }
  };
  await within(read(), `${count} messages`);
  return offsets;
}

/** The kinds of states in the order told. */
function recorded(): { states: string[]; onState: (state: StreamState) => void } {
  const states: string[] = [];
  return { states, onState: (state) => states.push(state.event === "connected" ? "connected" : state.error.kind) };
}

test("line_that_is_cut_is_dropped_and_the_stream_reconnects", async () => {
  const stub = await Stub.start(
    withVersion((_, answer, n) => {
      if (n > 0) return void answer.stream(itemLine(2));
      answer.stream(itemLine(1)).write(itemLine(2).slice(0, 40), () => answer.drop());
    }),
  );
  const { states, onState } = recorded();
  assert.deepEqual(await take(stub.url, 2, { onState }), [1, 2]);
  assert.deepEqual(states, ["connected", "unavailable", "connected"]);
});

test("stream_that_the_broker_ends_reconnects_with_the_same_owner", async () => {
  const stub = await Stub.start(withVersion((_, answer, n) => void answer.stream(itemLine(n)).end()));
  assert.deepEqual(await take(stub.url, 3), [0, 1, 2]);
  const owners = new Set(stub.to("/v1/consume").map((seen) => seen.query.get("owner")));
  assert.equal(owners.size, 1);
});

test("line_that_is_no_message_ends_the_stream_with_a_protocol_error", async () => {
  for (const line of ["<html>\n", "[1]\n", "null\n", '{"partition":0}\n']) {
    const stub = await Stub.start(withVersion((_, answer, n) => void answer.stream(n === 0 ? line : itemLine(1))));
    const { states, onState } = recorded();
    assert.deepEqual(await take(stub.url, 1, { onState }), [1]);
    assert.deepEqual(states, ["connected", "protocol", "connected"], line);
  }
});

test("blank_lines_are_no_messages", async () => {
  const stub = await Stub.start(
    withVersion((_, answer) => void answer.stream("\n", "\r\n", itemLine(1), "\n", itemLine(2))),
  );
  assert.deepEqual(await take(stub.url, 2), [1, 2]);
});

test("message_in_several_chunks_is_one_message", async () => {
  const line = Buffer.from(itemLine(1, { value: "grüße 😀" }));
  const stub = await Stub.start(
    withVersion(async (_, answer) => {
      const response = answer.stream();
      for (const byte of line) await new Promise((resolve) => response.write(Buffer.of(byte), resolve));
    }),
  );
  for await (const message of clientOf(stub.url).consume("t", "g")) {
    assert.equal(message.text, "grüße 😀");
    assert.equal(Buffer.from(message.bytes).toString(), "grüße 😀");
    break;
  }
});

test("stream_goes_on_at_the_next_url_after_503_and_a_refused_connection", async () => {
  const down = await Stub.start(withVersion((_, answer) => answer.refuse(503, "UNAVAILABLE", "starting")));
  const up = await Stub.start(withVersion((_, answer) => void answer.stream(itemLine(4))));
  assert.deepEqual(await take([await refusingUrl(), down.url, up.url], 1), [4]);
});

test("silent_stream_counts_as_cut_and_a_blank_line_as_life", async () => {
  const stub = await Stub.start(
    withVersion((_, answer, n) => {
      const response = answer.stream(itemLine(n));
      if (n === 0) return;
      const beat = setInterval(() => response.write("\n"), 50);
      response.on("close", () => clearInterval(beat));
      setTimeout(() => response.write(itemLine(9)), 600);
    }),
  );
  const settings = { topic: "t", group: "g", owner: "o", silenceMs: 300 };
  const offsets: number[] = [];
  const read = async (): Promise<void> => {
    for await (const item of deliveries(clientOf(stub.url).connection, settings)) {
      offsets.push(item.offset);
      if (item.offset === 9) return;
    }
  };
  await within(read(), "the last message");
  assert.deepEqual(offsets, [0, 1, 9]);
  assert.equal(stub.to("/v1/consume").length, 2);
});

test("reader_that_takes_its_time_is_not_mistaken_for_a_silent_broker", async () => {
  const stub = await Stub.start(withVersion((_, answer) => void answer.stream(itemLine(1), itemLine(2))));
  const settings = { topic: "t", group: "g", owner: "o", silenceMs: 90 };
  let seen = 0;
  for await (const _ of deliveries(clientOf(stub.url).connection, settings)) {
    seen += 1;
    if (seen === 2) break;
    await new Promise((resolve) => setTimeout(resolve, 300));
  }
  assert.equal(stub.to("/v1/consume").length, 1);
});

test("error_that_no_other_try_can_mend_ends_the_iteration", async () => {
  for (const [status, kind] of [
    [400, "invalid"],
    [401, "unauthenticated"],
    [403, "permission_denied"],
    [404, "not_found"],
  ] as const) {
    const stub = await Stub.start(withVersion((_, answer) => answer.refuse(status, "CODE", "m")));
    await assert.rejects(take(stub.url, 1), { kind, status });
    assert.equal(stub.to("/v1/consume").length, 1);
  }
  const page = await Stub.start(withVersion((_, answer) => answer.text(200, "text/html", "<html>")));
  await assert.rejects(take(page.url, 1), { kind: "protocol" });
});

test("bounds_end_the_stream_and_are_asked_for_again_after_a_cut", async () => {
  const stub = await Stub.start(
    withVersion((_, answer, n) => {
      if (n === 0) answer.stream().write(itemLine(0), () => answer.drop());
      else answer.stream(itemLine(1), itemLine(2)).end();
    }),
  );
  const offsets: number[] = [];
  const options = { max: 3, waitMs: 500, leaseMs: 1_000, prefetch: 5, from: "latest" as const, ephemeral: true };
  for await (const { offset } of clientOf(stub.url).consume("t", "g", options)) offsets.push(offset);
  assert.deepEqual(offsets, [0, 1, 2]);
  const [first, second] = stub.to("/v1/consume").map((seen) => Object.fromEntries(seen.query));
  const { owner: _, ...others } = first ?? {};
  const rest = {
    topic: "t",
    group: "g",
    wait_ms: "500",
    lease_ms: "1000",
    prefetch: "5",
    from: "latest",
    ephemeral: "true",
  };
  assert.deepEqual(others, { ...rest, max: "3" });
  assert.equal(second?.["max"], "2");
});

test("aborted_iteration_rejects_and_closes_its_connection", async () => {
  let closed = (): void => undefined;
  const end = new Promise<void>((resolve) => (closed = resolve));
  const stub = await Stub.start(withVersion((_, answer) => void answer.stream(itemLine(1)).on("close", closed)));
  const abort = new AbortController();
  const read = async (): Promise<void> => {
    for await (const _ of clientOf(stub.url).consume("t", "g", { signal: abort.signal }))
      abort.abort(new Error("enough"));
  };
  await assert.rejects(within(read(), "the end"), /enough/);
  await within(end, "the closed connection");
});

test("lines_are_split_wherever_chunks_end", () => {
  const splitter = new LineSplitter(16);
  const lines = ["ab\nc", "d", "", "\n\n", "ef\ngh\n", "ij"].map((chunk) => splitter.push(Buffer.from(chunk)));
  assert.deepEqual(lines, [["ab"], [], [], ["cd"], ["ef", "gh"], []]);
  assert.throws(() => splitter.push(Buffer.alloc(20, "x")), RangeError);
});
