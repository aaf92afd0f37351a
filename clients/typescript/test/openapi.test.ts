/** The types of `wire.ts` and the routes of the client, compared with the OpenAPI document of the broker. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { Client } from "../src/index.js";
import { cleanUp, Stub } from "./stub.js";
import { declarations, type Schema } from "./openapi_types.js";

const ROOT = process.cwd();
const DOCUMENT = join(ROOT, "..", "..", "server", "src", "openapi.json");
const needsDocument = { skip: !existsSync(DOCUMENT) && "no ../../server/src/openapi.json" };

interface Document {
  paths: Record<string, Record<string, unknown>>;
  components: { schemas: Record<string, Schema> };
}

function document(): Document {
  return JSON.parse(readFileSync(DOCUMENT, "utf8")) as Document;
}

/** Schemas that have no type of their own here, and why. */
const WITHOUT_TYPE = new Set([
  // Texts and numbers.
  "Name",
  "TopicName",
  "Time",
  "TextMap",
  "EffectKey",
  "JsonValue",
  "RetentionMs",
  "RetentionBytes",
  // Written as `MessageRef` and `Claim` without a token.
  "ExpireLease",
  "AckCumulative",
  // Read by `decisionOf`, `settle` and the batcher.
  "BegunLine",
  "FinishedLine",
  "AckLine",
  // Read by tests of a broker with faults, not by the client.
  "Chaos",
  "PlayedFault",
  // Of keys, tenants and the audit.
  "KeyId",
  "Grant",
  "CreateKey",
  "KeyInfo",
  "KeyCreated",
  "KeyPage",
  "KeyRef",
  "BindKey",
  "TenantRef",
  "Tenant",
  "TenantCreated",
  "AuditEntry",
  "AuditPage",
]);
/** Routes that the client has no method for: what tests of a broker with faults ask it, and what administrators do. */
const WITHOUT_METHOD = new Set([
  "GET /v1/chaos",
  "GET /v1/keys",
  "POST /v1/keys",
  "DELETE /v1/keys",
  "DELETE /v1/keys/{id}",
  "POST /v1/keys/bind",
  "GET /v1/tenants",
  "POST /v1/tenants",
  "DELETE /v1/tenants",
  "GET /v1/audit",
]);
const OTHER_NAMES: Record<string, string> = { Error: "Refusal" };

test("wire_types_equal_the_schemas_of_the_broker", needsDocument, () => {
  const { schemas } = document().components;
  const names = Object.keys(schemas).filter((name) => !WITHOUT_TYPE.has(name));
  const checks = names.map(
    (name) => `export const ${name}_is_equal: Equal<Schema.${name}, wire.${OTHER_NAMES[name] ?? name}> = true;`,
  );
  const source = [
    'import type { Json } from "../src/canonical.js";',
    'import type * as wire from "../src/wire.js";',
    `declare namespace Schema { ${declarations(schemas)} }`,
    // One object type for each intersection, so that types are the same if their properties are.
    "type Flat<T> = T extends readonly (infer I)[] ? Flat<I>[]",
    "  : T extends object ? { [K in keyof T]: Flat<T[K]> } : T;",
    "type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;",
    "type Equal<A, B> = Same<Flat<A>, Flat<B>>;",
    ...checks,
  ].join("\n");
  const folder = mkdtempSync(join(ROOT, "build", "openapi-"));
  cleanUp(() => rmSync(folder, { recursive: true, force: true }));
  writeFileSync(join(folder, "check.ts"), source.replaceAll('"../src/', '"../../src/'));
  writeFileSync(
    join(folder, "tsconfig.json"),
    JSON.stringify({
      extends: "../../tsconfig.json",
      compilerOptions: { noEmit: true, rootDir: "../..", declaration: false },
      include: ["check.ts"],
    }),
  );
  const require = createRequire(join(ROOT, "package.json"));
  const manifest = require.resolve("typescript/package.json");
  const compiler = join(dirname(manifest), (require(manifest) as { bin: { tsc: string } }).bin.tsc);
  try {
    execFileSync(process.execPath, [compiler, "-p", folder], { encoding: "utf8" });
  } catch (error) {
    const text = readFileSync(join(folder, "check.ts"), "utf8").split("\n");
    const lines = [...(error as { stdout: string }).stdout.matchAll(/check\.ts\((\d+),/g)];
    assert.fail(`not equal:\n${lines.map(([, line]) => text[Number(line) - 1]).join("\n")}`);
  }
  assert.ok(names.length > 30);
});

test("client_has_a_method_for_every_route", needsDocument, async () => {
  const stub = await Stub.start((seen, answer) => {
    if (seen.path === "/v1/version") answer.json(200, { version: "x" });
    else answer.refuse(400, "INVALID_ARGUMENT", "m");
  });
  const client = new Client({ urls: stub.url });
  cleanUp(() => client.close());
  const effect = { scope: { kind: "job" as const, id: "j" }, key: "k" };
  const claim = { topic: "t", group: "g", partition: 0, offset: 0, owner: "o", leaseToken: "x" };
  const calls: (() => Promise<unknown>)[] = [
    () => client.health(),
    () => client.ready(),
    () => client.version(),
    () => client.config(),
    () => client.digest(),
    () => client.openapi(),
    () => client.metrics(),
    () => client.listTopics(),
    () => client.createTopic("t"),
    () => client.describeTopic("t"),
    () => client.changeTopic("t", {}),
    () => client.deleteTopic("t"),
    () => client.purgeTopic("t"),
    () => client.produce("t", "v"),
    () => client.consume("t", "g").next(),
    () => client.ack(claim),
    () => client.nack(claim),
    () => client.ackCumulative(claim),
    () => client.extend(claim, 1),
    () => client.release(claim),
    () => client.complete(claim),
    () => client.listGroups("t"),
    () => client.createGroup("t", "g"),
    () => client.deleteGroup("t", "g"),
    () => client.seekGroup("t", "g", "latest"),
    () => client.pauseGroup("t", "g"),
    () => client.resumeGroup("t", "g"),
    () => client.expireLease(claim),
    () => client.peek("t", { partition: 0, offset: 0 }),
    () => client.redrive("t", { all: true }),
    () => client.beginEffect({ ...effect, owner: "o" }),
    () => client.finishEffect({ ...effect, leaseToken: "x", status: "SUCCEEDED" }),
    () => client.reacquireEffect({ ...effect, owner: "o" }),
    () => client.renewEffect({ ...effect, leaseToken: "x" }),
    () => client.getEffect(effect),
    () => client.forgetEffect(effect),
    () => client.listEffects(),
  ];
  for (const call of calls) await call().catch(() => undefined);
  const asked = new Set(stub.requests.map(({ method, path }) => `${method} ${path}`));
  const routes = Object.entries(document().paths).flatMap(([path, methods]) =>
    Object.keys(methods)
      .filter((method) => ["get", "post", "patch", "delete", "put"].includes(method))
      .map((method) => `${method.toUpperCase()} ${path.replace("{topic}", "t")}`),
  );
  assert.deepEqual([...asked].sort(), routes.filter((route) => !WITHOUT_METHOD.has(route)).sort());
});
