/** What requests are about: a delivery, or an effect; and the bodies that carry a result. */

import { canonicalJson, type Json } from "./canonical.js";
import { snake, type Camel } from "./camel.js";
import type { Query } from "./paths.js";
import type * as wire from "./wire.js";

/** One delivery, as all requests that settle it name it. A `Message` is one. */
export interface Claim {
  topic: string;
  group: string;
  partition: number;
  offset: number;
  owner: string;
  /** Without it the broker compares the owner alone, and the request is not repeated where it may have been done. */
  leaseToken?: string | undefined;
}

export type Identity = Camel<wire.Identity>;
export type EffectScope = Camel<wire.Scope>;

/** The body of a complete. */
export function completeLine(
  claim: Claim,
  step: { result?: Json | undefined; produce: readonly wire.Produce[]; deadLetter?: boolean; lastError?: string },
): string {
  const { result, produce, deadLetter, lastError } = step;
  const body = snake({ ...claimFields(claim), deadLetter, lastError });
  if (produce.length > 0) body["produce"] = produce;
  return withResult(body, result);
}

/** A body with a result: canonical JSON, so that the same result has the same text at every try. */
export function withResult(body: Record<string, unknown>, result: Json | undefined): string {
  const text = JSON.stringify(body);
  return result === undefined ? text : `${text.slice(0, -1)},"result":${canonicalJson(result)}}`;
}

/** The fields of a claim alone: a `Message` has others. */
export function claimFields(claim: Claim): Claim {
  const { topic, group, partition, offset, owner, leaseToken } = claim;
  return { topic, group, partition, offset, owner, leaseToken };
}

export function identityQuery(identity: Identity): Query {
  const { tenantId, scope, key } = identity;
  return { tenant_id: tenantId, ...scope, key };
}
