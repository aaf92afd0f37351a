import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { canonicalJson, DriftqError, idempotencyKey, requestHash, type Json } from "../src/index.js";

// Tests run from the package's folder.
const VECTORS = join(process.cwd(), "..", "conformance", "vectors");

function vectors<T>(name: string): T[] | undefined {
  const path = join(VECTORS, name);
  if (!existsSync(path)) return undefined;
  return JSON.parse(readFileSync(path, "utf8")) as T[];
}

function misuse(pattern: RegExp) {
  return (error: unknown): boolean =>
    error instanceof DriftqError && error.kind === "misuse" && pattern.test(error.message);
}

const keys = vectors<{ parts: never[]; key?: string; error?: string }>("idempotency_keys.json");
test("keys_equal_shared_vectors", { skip: keys === undefined && "no vectors in ../conformance/vectors" }, () => {
  for (const { parts, key, error } of keys ?? []) {
    if (error !== undefined) assert.throws(() => idempotencyKey(...parts), misuse(/./), JSON.stringify(parts));
    else assert.equal(idempotencyKey(...parts), key, JSON.stringify(parts));
  }
});

const hashes = vectors<{ json: string; canonical?: string; hash?: string; error?: string }>("request_hashes.json");
test("hashes_equal_shared_vectors", { skip: hashes === undefined && "no vectors in ../conformance/vectors" }, () => {
  for (const { json, canonical, hash, error } of hashes ?? []) {
    if (error !== undefined) {
      assert.throws(() => requestHash(JSON.parse(json)), misuse(/./), json);
    } else {
      assert.equal(canonicalJson(JSON.parse(json)), canonical, json);
      assert.equal(requestHash(JSON.parse(json)), hash, json);
    }
  }
});

test("canonical_form_sorts_by_utf16_and_escapes_as_little_as_possible", () => {
  const value = { "\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\u{1f600}": 5, "\u0080": 6, "\u00f6": 7 };
  assert.equal(canonicalJson(value), '{"\\r":2,"1":4,"\u0080":6,"ö":7,"€":1,"😀":5,"\ufb33":3}');
  assert.equal(
    canonicalJson('\u0000\b\t\n\f\r\u001f"\\/\u007f\u2028'),
    '"\\u0000\\b\\t\\n\\f\\r\\u001f\\"\\\\/\u007f\u2028"',
  );
  assert.equal(canonicalJson([-0, 1e-7, 333333333.3333333, 4.5, 0.002]), "[0,1e-7,333333333.3333333,4.5,0.002]");
  assert.equal(canonicalJson({ b: undefined, a: [[], {}] }), '{"a":[[],{}]}');
});

test("numbers_are_written_as_the_platform_writes_them", () => {
  const view = new DataView(new ArrayBuffer(8));
  let compared = 0;
  while (compared < 20_000) {
    randomBytes(8).forEach((byte, index) => view.setUint8(index, byte));
    const number = view.getFloat64(0);
    const text = JSON.stringify(number);
    if (!Number.isFinite(number) || (Number.isInteger(number) && !Number.isSafeInteger(number))) continue;
    assert.equal(canonicalJson(number), text);
    assert.equal(Number(canonicalJson(number)), number === 0 ? 0 : number);
    compared += 1;
  }
  for (let n = 0; n < 2_000; n += 1) assert.equal(canonicalJson(n / 8 - 100), JSON.stringify(n / 8 - 100));
});

test("integers_are_exact_up_to_their_bound_and_misuse_beyond_it", () => {
  assert.equal(canonicalJson(Number.MAX_SAFE_INTEGER), "9007199254740991");
  assert.equal(canonicalJson(Number.MIN_SAFE_INTEGER), "-9007199254740991");
  assert.throws(() => canonicalJson(2 ** 53), misuse(/\$ is the integer 9007199254740992/));
  assert.throws(() => canonicalJson({ a: [-(2 ** 53)] }), misuse(/\$\.a\[0\]/));
  assert.throws(() => canonicalJson(1n), misuse(/a bigint/));
  assert.throws(() => idempotencyKey(2 ** 53), misuse(/part 0/));
  for (const text of ["9007199254740993", "9007199254740992.0", "1E30", "1e400"]) {
    assert.throws(() => requestHash(JSON.parse(text)), misuse(/beyond|Infinity/), text);
  }
});

test("value_that_is_no_json_is_misuse_with_its_path", () => {
  const cycle: Record<string, unknown> = {};
  cycle["self"] = { again: cycle };
  class Order {
    total = 1;
  }
  const cases: [unknown, RegExp][] = [
    [NaN, /^\$ is NaN/],
    [{ a: { b: [1, Infinity] } }, /^\$\.a\.b\[1\] is Infinity/],
    [[() => 1], /^\$\[0\] is a function/],
    [{ s: Symbol("s") }, /\$\.s is a symbol/],
    [undefined, /^\$ is undefined/],
    [[undefined], /^\$\[0\] is undefined/],
    [[, 1], /^\$\[0\] is undefined/],
    [cycle, /^\$\.self\.again is a cycle/],
    [{ at: new Date(0) }, /\$\.at is an object of class Date/],
    [new Map(), /class Map/],
    [new Order(), /class Order/],
    [{ "a b": new Uint8Array(1) }, /^\$\["a b"\] is bytes/],
    ["\ud800", /lone surrogate/],
    [{ "\udfff": 1 }, /lone surrogate/],
    [Promise.resolve(), /class Promise/],
  ];
  for (const [value, pattern] of cases) assert.throws(() => canonicalJson(value), misuse(pattern));
  let deep: Json = [];
  for (let n = 0; n < 100_000; n += 1) deep = [deep];
  assert.throws(() => canonicalJson(deep), misuse(/nested deeper/));
});

test("same_object_twice_is_no_cycle", () => {
  const shared = { a: 1 };
  assert.equal(canonicalJson([shared, shared, { shared }]), '[{"a":1},{"a":1},{"shared":{"a":1}}]');
});

test("key_of_parts_escapes_everything_but_unreserved_bytes", () => {
  assert.equal(idempotencyKey("orders/eu", 7, true, "a:b%c"), "orders%2Feu:7:true:a%3Ab%25c");
  assert.equal(idempotencyKey("A-Z.a_z~0", "!'()*", "ü", ""), "A-Z.a_z~0:%21%27%28%29%2A:%C3%BC:");
  assert.equal(idempotencyKey(-0, -5), "0:-5");
  assert.equal(idempotencyKey("x".repeat(255)).length, 255);
  assert.match(idempotencyKey("x".repeat(256)), /^sha256:[0-9a-f]{64}$/);
  assert.throws(() => idempotencyKey(), misuse(/needs a part/));
  assert.throws(() => idempotencyKey(""), misuse(/needs a part/));
  for (const part of [1.5, NaN, null, undefined, {}, 1n, "\ud800"]) {
    assert.throws(() => idempotencyKey("a", part as never), misuse(/part 1/), String(part));
  }
});

test("hash_is_that_of_the_canonical_bytes", () => {
  assert.equal(requestHash({}), "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
  assert.equal(requestHash({ b: 1, a: "ü" }), requestHash({ a: "ü", b: 1 }));
});
