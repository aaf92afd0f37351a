/**
 * Canonical JSON (RFC 8785) and what is made of it: the same keys and hashes in every client of the broker.
 *
 * `JSON.stringify` is not used for whole values: it writes NaN as null, leaves functions out and asks `toJSON`, so that
 * two different values would have one hash.
 */

import { createHash } from "node:crypto";
import { misuse } from "./errors.js";

export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json | undefined };

/** Beyond it a value counts as a mistake; the recursion here needs a bound of its own. */
const DEPTH_MAX = 2_000;

/**
 * The canonical JSON of a value. Properties that are `undefined` count as absent. Anything else that is no JSON is
 * `misuse`, with the path to it: NaN, infinities, functions, symbols, bigint, bytes, cycles, lone surrogates, instances
 * of classes, `undefined` in an array, and integers beyond ±(2^53 − 1), however they are written.
 */
export function canonicalJson(value: unknown): string {
  return encode(value, [], new Set());
}

/** Lower-case hex SHA-256 of the canonical JSON of a value. */
export function requestHash(value: unknown): string {
  return sha256(canonicalJson(value));
}

const KEY_BYTES_MAX = 255;

/**
 * One key of several parts: texts, integers and booleans, percent-encoded and joined by `:`. Beyond 255 bytes it is
 * `sha256:` and the hash of it.
 */
export function idempotencyKey(...parts: readonly (string | number | boolean)[]): string {
  if (parts.length === 0 || (parts.length === 1 && parts[0] === "")) throw misuse("an idempotency key needs a part");
  const key = parts.map((part, index) => percentEncode(partText(part, index))).join(":");
  return key.length <= KEY_BYTES_MAX ? key : `sha256:${sha256(key)}`;
}

function partText(part: unknown, index: number): string {
  if (typeof part === "string") {
    if (!part.isWellFormed()) throw misuse(`part ${index} of an idempotency key has a lone surrogate`);
    return part;
  }
  if (typeof part === "boolean") return String(part);
  if (typeof part === "number" && Number.isSafeInteger(part)) return String(part);
  throw misuse(`part ${index} of an idempotency key is ${describe(part)}, not a text, an integer or a boolean`);
}

function percentEncode(text: string): string {
  return encodeURIComponent(text).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
}

function sha256(text: string): string {
  return createHash("sha256").update(text, "utf8").digest("hex");
}

type Path = (string | number)[];

function encode(value: unknown, path: Path, open: Set<object>): string {
  switch (typeof value) {
    case "string":
      return encodeString(value, path);
    case "number":
      return encodeNumber(value, path);
    case "boolean":
      return value ? "true" : "false";
    case "object":
      return value === null ? "null" : encodeObject(value, path, open);
    default:
      throw noJson(value, path);
  }
}

function encodeString(text: string, path: Path): string {
  if (!text.isWellFormed()) throw misuse(`${at(path)} has a lone surrogate`);
  return JSON.stringify(text);
}

function encodeNumber(number: number, path: Path): string {
  if (!Number.isFinite(number)) throw noJson(number, path);
  // Beyond it one number stands for several integers, and other languages write other digits.
  if (Number.isInteger(number) && !Number.isSafeInteger(number)) {
    throw misuse(`${at(path)} is the integer ${number}, beyond ±(2^53 − 1)`);
  }
  return String(number === 0 ? 0 : number);
}

function encodeObject(object: object, path: Path, open: Set<object>): string {
  if (open.has(object)) throw misuse(`${at(path)} is a cycle`);
  if (path.length >= DEPTH_MAX) throw misuse(`the value is nested deeper than ${DEPTH_MAX}`);
  open.add(object);
  const text = Array.isArray(object) ? encodeArray(object, path, open) : encodeMembers(object, path, open);
  open.delete(object);
  return text;
}

function encodeArray(array: readonly unknown[], path: Path, open: Set<object>): string {
  let text = "[";
  for (let index = 0; index < array.length; index += 1) {
    path.push(index);
    text += (index === 0 ? "" : ",") + encode(array[index], path, open);
    path.pop();
  }
  return `${text}]`;
}

function encodeMembers(object: object, path: Path, open: Set<object>): string {
  const prototype: unknown = Object.getPrototypeOf(object);
  if (prototype !== null && Object.getPrototypeOf(prototype) !== null) throw noJson(object, path);
  if (prototype !== null && Object.prototype.toString.call(object) !== "[object Object]") throw noJson(object, path);
  if (Object.getOwnPropertySymbols(object).length > 0) throw noJson(object, path);
  const members = object as Record<string, unknown>;
  let text = "{";
  // The default order of `sort` is that of UTF-16 code units, which RFC 8785 asks for.
  for (const key of Object.keys(members).sort()) {
    const member = members[key];
    if (member === undefined) continue;
    path.push(key);
    text += `${text === "{" ? "" : ","}${encodeString(key, path)}:${encode(member, path, open)}`;
    path.pop();
  }
  return `${text}}`;
}

function noJson(value: unknown, path: Path): Error {
  return misuse(`${at(path)} is ${describe(value)}, which is no JSON`);
}

function describe(value: unknown): string {
  if (typeof value === "number") return String(value);
  if (typeof value === "object" && value !== null) {
    if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer) return "bytes";
    return `an object of class ${value.constructor?.name ?? "unknown"}`;
  }
  return value === null || value === undefined ? String(value) : `a ${typeof value}`;
}

/** The path of a value, such as `$.items[3].price`. */
function at(path: Path): string {
  return path.reduce<string>((text, step) => {
    if (typeof step === "number") return `${text}[${step}]`;
    return /^[A-Za-z_][A-Za-z0-9_]*$/.test(step) ? `${text}.${step}` : `${text}[${JSON.stringify(step)}]`;
  }, "$");
}
