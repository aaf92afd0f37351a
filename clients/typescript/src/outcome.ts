/** What a handler's return value means, and how a step is stored so that a replay can do all of it again. */

import { canonicalJson, type Json } from "./canonical.js";
import { misuse } from "./errors.js";
import { Outputs, produceBody } from "./messages.js";
import type { Produce } from "./wire.js";

/** A step that has succeeded: its result, and the next messages as they go to the broker. */
export interface Step {
  result: Json | undefined;
  produce: readonly Produce[];
}

/** Version of the stored form of a step with outputs. */
const STORED_VERSION = 1;
const STORED_FIELDS = "driftq,produce,result";

/** The step that a handler returned. Throws `misuse` where its result or an output is no JSON, with the place. */
export function stepOf(value: unknown): Step {
  const result = value instanceof Outputs ? value.result : (value as Json | undefined);
  const messages = value instanceof Outputs ? value.messages : [];
  const produce = messages.map(({ topic, value: payload, ...options }, index) =>
    explained(`output ${index}`, () => produceBody(topic, payload, options)),
  );
  if (result !== undefined) explained("the result", () => canonicalJson(result));
  return { result, produce };
}

function explained<T>(what: string, make: () => T): T {
  try {
    return make();
  } catch (error) {
    throw misuse(`${what}: ${error instanceof Error ? error.message : String(error)}`);
  }
}

/** What the store keeps of a step: its result, and where there are outputs, both. */
export function storedResult(step: Step): Json | undefined {
  const { result, produce } = step;
  if (produce.length === 0) return result;
  return { driftq: STORED_VERSION, result: result ?? null, produce: produce as readonly Json[] };
}

/** The step in a stored result. */
export function takeApart(stored: Json): Step {
  if (typeof stored === "object" && stored !== null && !Array.isArray(stored)) {
    const fields = stored as { readonly [name: string]: Json | undefined };
    const { driftq, result, produce } = fields;
    if (driftq === STORED_VERSION && Array.isArray(produce) && Object.keys(fields).sort().join() === STORED_FIELDS) {
      return { result: writable(result), produce: produce as readonly Produce[] };
    }
  }
  return { result: writable(stored), produce: [] };
}

/**
 * A stored result as it is sent again; nothing for null. One that this client cannot write as it was, such as with an
 * integer beyond 2^53, is left out: the store has it already.
 */
function writable(result: Json | undefined): Json | undefined {
  if (result === null || result === undefined) return undefined;
  try {
    canonicalJson(result);
    return result;
  } catch {
    return undefined;
  }
}
