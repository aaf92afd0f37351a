/** The examples of the README are compiled, and its worker is run. */

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import type { Tracer } from "../src/index.js";
import { findDriftqd } from "../src/testing.js";
import { broker, needsBroker } from "./broker.js";
import { cleanUp, within } from "./stub.js";

const ROOT = process.cwd();

/** Compiles the code of the README into a folder; returns its files, in order. */
function compileExamples(): string[] {
  const text = readFileSync(join(ROOT, "README.md"), "utf8");
  const blocks = [...text.matchAll(/```ts\n(.*?)```/gs)].map(([, block]) => block ?? "");
  assert.ok(blocks.length >= 5);
  const folder = mkdtempSync(join(ROOT, "build", "readme-"));
  cleanUp(() => rmSync(folder, { recursive: true, force: true }));
  blocks.forEach((block, n) => writeFileSync(join(folder, `example${n}.ts`), block));
  const compilerOptions = { rootDir: ".", outDir: "out", declaration: false };
  writeFileSync(
    join(folder, "tsconfig.json"),
    JSON.stringify({ extends: "../../tsconfig.json", compilerOptions, include: ["*.ts"] }),
  );
  const require = createRequire(join(ROOT, "package.json"));
  const manifest = require.resolve("typescript/package.json");
  const compiler = join(dirname(manifest), (require(manifest) as { bin: { tsc: string } }).bin.tsc);
  try {
    execFileSync(process.execPath, [compiler, "-p", folder], { encoding: "utf8" });
  } catch (error) {
    assert.fail((error as { stdout: string }).stdout);
  }
  return blocks.map((_, n) => join(folder, "out", `example${n}.js`));
}

test("worker_of_the_projects_page_is_the_one_that_is_run_here", () => {
  const page = readFileSync(join(ROOT, "..", "..", "README.md"), "utf8");
  const [worker] = /```ts\n.*?```/s.exec(readFileSync(join(ROOT, "README.md"), "utf8")) ?? [];
  assert.ok(worker !== undefined && page.includes(worker));
});

test("tests_of_the_readme_pass", needsBroker, () => {
  assert.ok(existsSync(join(ROOT, "dist", "index.js")), "the package is not compiled");
  const tests = compileExamples().filter((file) => readFileSync(file, "utf8").includes('from "driftq/testing"'));
  assert.equal(tests.length, 2);
  // Without the variable by which node knows that a test runs another one.
  const { NODE_TEST_CONTEXT: _, ...environment } = process.env;
  const env = { ...environment, DRIFTQD: findDriftqd() };
  for (const file of tests) execFileSync(process.execPath, ["--test", file], { encoding: "utf8", env });
});

test("tracer_of_the_readme_runs_the_handler_in_a_span_under_the_parent_of_the_message", async () => {
  const file = compileExamples().find((compiled) => readFileSync(compiled, "utf8").includes("openTelemetry"));
  const { openTelemetry } = (await import(pathToFileURL(file ?? "").href)) as { openTelemetry: (api: object) => Tracer };
  const told: unknown[] = [];
  let active: unknown = "root";
  const span = { recordException: (error: Error) => told.push(error.message), end: () => told.push("end") };
  const tracer = openTelemetry({
    context: {
      active: () => active,
      with: <T>(context: unknown, run: () => T): T => {
        active = context;
        return run();
      },
    },
    propagation: { extract: (context: unknown, carrier: object) => ({ context, ...carrier }) },
    trace: {
      setSpan: (parent: unknown, opened: unknown) => ({ parent, opened }),
      getTracer: () => ({
        startSpan: (name: string, options: object, parent: unknown) => {
          told.push([name, options, parent]);
          return span;
        },
      }),
    },
  });
  const parent = { context: "root", traceparent: "00-parent" };
  const attributes = { "driftq.attempt": 1 };
  const named = { name: "driftq.handle" as const, traceparent: "00-parent", attributes };
  assert.deepEqual(await tracer(named, () => Promise.resolve(active)), { parent, opened: span });
  active = "root";
  await assert.rejects(
    tracer(named, () => Promise.reject(new Error("cold oven"))),
    /cold oven/,
  );
  const opened = ["driftq.handle", { attributes }, parent];
  assert.deepEqual(told, [opened, "end", opened, "cold oven", "end"]);
});

test("worker_of_the_readme_handles_a_message_and_ends_at_sigterm", needsBroker, async () => {
  assert.ok(existsSync(join(ROOT, "dist", "index.js")), "the package is not compiled");
  const [worker] = compileExamples();
  const code = /```ts\n(.*?)```/s.exec(readFileSync(join(ROOT, "README.md"), "utf8"))?.[1] ?? "";
  assert.ok(code.split("\n").filter((line) => line.trim() !== "").length <= 10, "not ten lines any more");
  const { broker: server, client } = await broker();
  await client.createTopic("orders");
  await client.produce("orders", { json: { dish: "pizza" } }, { idempotencyKey: "order-1" });
  const child = spawn(process.execPath, [worker ?? ""], {
    env: { ...process.env, DRIFTQ_URL: server.url },
    stdio: ["ignore", "pipe", "inherit"],
  });
  cleanUp(() => void child.kill("SIGKILL"));
  const [line] = (await within(once(createInterface({ input: child.stdout }), "line"), "the handler")) as [string];
  assert.equal(line, "baking pizza");
  const identity = { scope: { kind: "consume" as const, topic: "orders", group: "kitchen" }, key: "order-1" };
  const done = async (): Promise<void> => {
    while ((await client.getEffect(identity)).status !== "SUCCEEDED")
      await new Promise((resolve) => setTimeout(resolve, 10));
  };
  await within(done(), "the completion");
  assert.deepEqual((await client.getEffect(identity)).result, { baked: "pizza" });
  const exited = once(child, "exit");
  child.kill("SIGTERM");
  assert.deepEqual(await within(exited, "the end"), [0, null]);
});
