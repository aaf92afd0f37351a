/** Names that leases are held under. */

import { randomBytes } from "node:crypto";
import { hostname } from "node:os";

const HOST_BYTES_MAX = 128;

/** A name that no other worker has: host, process id and a random part. */
export function randomOwner(): string {
  const host =
    hostname()
      .replace(/[^A-Za-z0-9.-]/g, "-")
      .slice(0, HOST_BYTES_MAX) || "host";
  return `${host}-${process.pid}-${randomBytes(4).toString("hex")}`;
}
