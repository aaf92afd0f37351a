/** A self-signed certificate of 127.0.0.1, made by `openssl` where there is one. */

import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export function selfSigned(): { key: string; cert: string } | undefined {
  const folder = mkdtempSync(join(tmpdir(), "driftq-tls-"));
  try {
    const key = join(folder, "key.pem");
    const cert = join(folder, "cert.pem");
    const request = [
      "req",
      "-x509",
      "-nodes",
      "-days",
      "2",
      "-subj",
      "/CN=stub",
      "-addext",
      "subjectAltName=IP:127.0.0.1",
    ];
    const curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", key, "-out", cert];
    execFileSync("openssl", [...request, ...curve], { stdio: "ignore" });
    return { key: readFileSync(key, "utf8"), cert: readFileSync(cert, "utf8") };
  } catch {
    return undefined;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
