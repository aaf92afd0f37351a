/** Paths and queries of requests. */

import { misuse } from "./errors.js";

export type Query = Record<string, string | number | boolean | undefined>;

/** A path with those parameters that are given. */
export function withQuery(path: string, query: Query): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== undefined) parameters.set(name, String(value));
  const text = parameters.toString();
  return text === "" ? path : `${path}?${text}`;
}

export function topicPath(topic: string): string {
  if (!topic.isWellFormed()) throw misuse("the topic has a lone surrogate");
  return `/v1/topics/${encodeURIComponent(topic)}`;
}
