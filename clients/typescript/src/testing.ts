/** A broker for tests: `startBroker` runs a `driftqd` of its own on a free port, and removes all of it afterwards. */

import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { accessSync, constants, existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { delimiter, dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { Client } from "./client.js";
import type { ConnectionOptions } from "./connection.js";
import { misuse } from "./errors.js";

export interface BrokerOptions {
  /** The program; default what `findDriftqd` finds. */
  program?: string | undefined;
  /** More arguments of `driftqd serve`. */
  args?: readonly string[] | undefined;
  /** Keep a log, so that `restart` and `kill` lose nothing; default false. */
  durable?: boolean | undefined;
  /** Keep a log in memory, as with `driftqd --memory`; default false. */
  memory?: boolean | undefined;
  /**
   * Simulate the faults of a network and crashes, the same for the same requests:
   * `"seed=42,duplicate=0.2,drop-reply=0.1"`. Implies `memory`.
   */
  chaos?: string | undefined;
}

/** A fault that the broker has played, as `GET /v1/chaos` lists it. */
export interface PlayedFault {
  /** Its number, from 1 on. */
  n: number;
  fault: "duplicate" | "drop-reply" | "expire" | "delay" | "restart" | "reorder";
  /** The method, path and query of the request that suffered it. */
  request?: string;
  digest?: string;
  occurrence?: number;
  /** The delivery that suffered it. */
  delivery?: { topic: string; group: string; partition: number; offset: number; attempts: number };
  detail: { of?: string; ms?: number; line?: number };
}

const START_MS_MAX = 30_000;
const STOP_MS_MAX = 10_000;
const FAULTS_MS_MAX = 5_000;
/** How many faults `describeFaults` shows, the newest ones. */
const DESCRIBED_MAX = 100;
const ADDRESS = /listening on (http:\/\/[^\s"]+)/;

/** The path of a `driftqd`: that of DRIFTQD, of PATH or of a clone's target folder; undefined if there is none. */
export function findDriftqd(): string | undefined {
  const told = process.env["DRIFTQD"];
  if (told !== undefined && told !== "") return told;
  const name = process.platform === "win32" ? "driftqd.exe" : "driftqd";
  const onPath = (process.env["PATH"] ?? "").split(delimiter).map((folder) => join(folder, name));
  return [...onPath, ...targetFolders().map((folder) => join(folder, name))].find(isProgram);
}

/** The target folders of the clone that this file or the working directory is in. */
function targetFolders(): string[] {
  const folders: string[] = [];
  for (const start of [dirname(fileURLToPath(import.meta.url)), process.cwd()]) {
    for (let folder = start; folder !== dirname(folder); folder = dirname(folder)) {
      if (!existsSync(join(folder, "Cargo.toml"))) continue;
      folders.push(join(folder, "target", "release"), join(folder, "target", "debug"));
    }
  }
  return folders;
}

function isProgram(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

/** A running broker. Use it with `await using`, or call `stop`. */
export class TestBroker implements AsyncDisposable {
  #process: ChildProcess | undefined;
  #url = "";
  #log: string[] = [];

  private constructor(
    private readonly program: string,
    private readonly args: readonly string[],
    private readonly folder: string,
    /** The faults that it simulates. */
    readonly chaos: string | undefined,
  ) {}

  /** See `startBroker`. */
  static async start(options: BrokerOptions): Promise<TestBroker> {
    const program = options.program ?? findDriftqd();
    if (program === undefined) throw misuse("no driftqd found: set DRIFTQD, or build it with `cargo build`");
    const { durable = false, memory = false, chaos, args = [] } = options;
    if (durable && (memory || chaos !== undefined))
      throw misuse("`durable` writes to a folder; `memory` and `chaos` need a log in memory");
    const folder = await mkdtemp(join(tmpdir(), "driftq-test-"));
    let storage = [memory ? "--memory" : "--no-wal"];
    if (durable) storage = ["--data-dir", join(folder, "data")];
    else if (chaos !== undefined) storage = ["--memory", "--chaos", chaos];
    const broker = new TestBroker(program, ["serve", ...storage, ...args], folder, chaos);
    try {
      await broker.#spawn("127.0.0.1:0");
    } catch (error) {
      await broker.stop();
      throw error;
    }
    return broker;
  }

  get url(): string {
    return this.#url;
  }

  /** What it has written to standard error. */
  get log(): string {
    return this.#log.join("\n");
  }

  client(options: Partial<ConnectionOptions> = {}): Client {
    return new Client({ urls: this.#url, ...options });
  }

  /**
   * The faults that the broker has played, those with a number above `after`; the newest 10,000, and none without
   * `chaos`.
   */
  async faults(after = 0): Promise<PlayedFault[]> {
    if (this.chaos === undefined) return [];
    const signal = AbortSignal.timeout(FAULTS_MS_MAX);
    const answer = await fetch(`${this.#url}/v1/chaos?after=${after}`, { signal });
    return ((await answer.json()) as { played: PlayedFault[] }).played;
  }

  /** The seed and the newest faults as text, for the report of a failed test; empty without `chaos`. */
  async describeFaults(): Promise<string> {
    if (this.chaos === undefined) return "";
    const settings = JSON.stringify(this.chaos);
    let faults: PlayedFault[];
    try {
      faults = await this.faults();
    } catch (error) {
      return `the broker simulated chaos ${settings}; its faults cannot be read: ${String(error)}`;
    }
    const lines = [`the broker simulated chaos ${settings} and played ${faults.length} faults`];
    if (faults.length > DESCRIBED_MAX) lines.push(`  (${faults.length - DESCRIBED_MAX} older ones are not shown)`);
    return [...lines, ...faults.slice(-DESCRIBED_MAX).map((fault) => `  ${faultText(fault)}`)].join("\n");
  }

  /** Ends the process at once, as a crash does. */
  async kill(): Promise<void> {
    await this.#end("SIGKILL");
  }

  /** Starts it again on the same port after `kill`. Without `durable` it has forgotten everything. */
  async restart(): Promise<void> {
    await this.#end("SIGTERM");
    await this.#spawn(new URL(this.#url).host);
  }

  /** Ends it and removes its files. */
  async stop(): Promise<void> {
    await this.#end("SIGTERM");
    await rm(this.folder, { recursive: true, force: true });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  async #spawn(address: string): Promise<void> {
    // Settings of the broker in the environment of the test are for another one.
    const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("DRIFTQ")));
    const child = spawn(this.program, [...this.args, "--addr", address], { env, stdio: ["ignore", "ignore", "pipe"] });
    this.#process = child;
    this.#url = await new Promise<string>((resolve, reject) => {
      const failed = (why: string): void => reject(new Error(`${this.program} ${why}\n${this.log}`));
      const timer = setTimeout(() => failed(`did not listen within ${START_MS_MAX} ms`), START_MS_MAX);
      child.on("error", (error) => failed(error.message));
      child.on("exit", (code) => failed(`ended with ${code}`));
      createInterface({ input: child.stderr }).on("line", (line) => {
        this.#log.push(line);
        const url = ADDRESS.exec(line)?.[1];
        if (url === undefined) return;
        clearTimeout(timer);
        resolve(url);
      });
    });
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const child = this.#process;
    this.#process = undefined;
    if (child?.pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const exited = once(child, "exit");
    child.kill(signal);
    const timer = setTimeout(() => child.kill("SIGKILL"), STOP_MS_MAX);
    await exited;
    clearTimeout(timer);
  }
}

function faultText({ n, fault, request, digest, occurrence, delivery, detail }: PlayedFault): string {
  const details = Object.entries(detail).map(([name, value]) => ` ${name}=${value}`);
  const place =
    delivery === undefined
      ? `${request} (body ${digest}, occurrence ${occurrence})`
      : `${delivery.topic}/${delivery.partition}/${delivery.offset} to ${delivery.group}, attempt ${delivery.attempts}`;
  return `#${n} ${fault}: ${place}${details.join("")}`;
}

/** Starts a broker that keeps nothing after its end, on a free port of this machine. */
export function startBroker(options: BrokerOptions = {}): Promise<TestBroker> {
  return TestBroker.start(options);
}

/**
 * Runs a test with a broker and stops it. If the test fails and the broker simulates faults, the seed and the faults
 * are written to standard error.
 */
export async function withBroker<T>(options: BrokerOptions, test: (broker: TestBroker) => T | Promise<T>): Promise<T> {
  const broker = await startBroker(options);
  try {
    return await test(broker);
  } catch (error) {
    if (broker.chaos !== undefined) console.error(await broker.describeFaults());
    throw error;
  } finally {
    await broker.stop();
  }
}
