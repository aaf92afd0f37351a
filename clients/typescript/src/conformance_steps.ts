/** The handlers of the conformance runner: lists of steps. */

import { sleep } from "./backoff.js";
import type { Json } from "./canonical.js";
import { camel } from "./camel.js";
import { Permanent, Retry } from "./errors.js";
import { Outputs, type Message, type OutputMessage } from "./messages.js";
import type { Context, Handler } from "./handler.js";

export interface HandlerStep {
  do: string;
  [field: string]: unknown;
}

type Step = (fields: HandlerStep, run: Run) => Promise<unknown> | void;

/** One run of the steps for a message. */
interface Run {
  message: Message;
  context: Context;
  worker: string;
  ledger: string;
  /** What the handler will return, as far as the steps have said it. */
  result: unknown;
  outputs: OutputMessage[];
}

const STEPS: Record<string, Step> = {
  effect: ({ name }, run) => recordEffect(String(filled(name, run)), run),
  side_effect: ({ name, args, ms }, run) => {
    const filledName = String(filled(name, run));
    return run.context.sideEffect(filledName, filled(args ?? null, run) as Json, async ({ signal }) => {
      if (ms !== undefined) await sleep(ms as number, signal);
      await recordEffect(filledName, run);
    });
  },
  sleep: ({ ms }, { context }) => sleep(ms as number, context.signal),
  block: ({ ms }) => {
    const end = Date.now() + (ms as number);
    while (Date.now() < end);
  },
  stubborn: ({ ms }) => sleep(ms as number),
  fail: (fields, run) => fail(fields, run),
  not_json: (_, run) => {
    run.result = () => undefined;
  },
  return: ({ value }, run) => {
    if (value !== undefined) run.result = filled(value, run);
  },
  outputs: ({ messages }, run) => {
    run.outputs.push(
      ...(messages as object[]).map((message) => camel(filled(message, run)) as unknown as OutputMessage),
    );
  },
  exit: () => {
    process.kill(process.pid, "SIGKILL");
    // The signal arrives in a moment; nothing may happen until then.
    for (;;);
  },
};

/** A handler that does the steps in order. */
export function stepsHandler(steps: readonly HandlerStep[], worker: string, ledger: string): Handler {
  const handler = async (message: Message, context: Context): Promise<unknown> => {
    const run: Run = { message, context, worker, ledger, result: { done: keyOf(message) }, outputs: [] };
    for (const fields of steps) {
      const step = STEPS[fields.do];
      if (step === undefined) throw new Permanent(`unknown step ${fields.do}`);
      await step(fields, run);
    }
    return run.outputs.length === 0 ? run.result : new Outputs(run.result as Json, ...run.outputs);
  };
  // A step may return what is no JSON, on purpose.
  return handler as Handler;
}

function fail(fields: HandlerStep, run: Run): void {
  const { kind, attempts, delay_ms: delayMs } = fields;
  if (attempts !== undefined && run.message.attempts > (attempts as number)) return;
  const text = String(filled(fields["text"] ?? "failed", run));
  if (kind === "permanent") throw new Permanent(text);
  if (kind === "retry") throw new Retry(text, delayMs === undefined ? {} : { delayMs: delayMs as number });
  throw new Error(text);
}

async function recordEffect(name: string, { message, worker, ledger, context }: Run): Promise<void> {
  const body = JSON.stringify({ name, message: message.id, attempt: message.attempts, worker });
  const headers = { "content-type": "application/json" };
  const url = `${ledger.replace(/\/+$/, "")}/effect`;
  const answer = await fetch(url, { method: "POST", body, headers, signal: context.signal });
  await answer.arrayBuffer();
  if (!answer.ok) throw new Error(`the ledger answered ${answer.status}`);
}

function keyOf(message: Message): string {
  return message.idempotencyKey || message.id;
}

/** A value with the placeholders of its texts filled in. */
function filled(value: unknown, run: Run): unknown {
  const { message } = run;
  if (typeof value === "string") {
    const texts: Record<string, string> = {
      message: message.id,
      key: keyOf(message),
      attempt: String(message.attempts),
    };
    return value.replace(/\{(message|key|attempt)\}/g, (_, name: string) => texts[name] ?? "");
  }
  if (Array.isArray(value)) return value.map((item) => filled(item, run));
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, filled(member, run)]));
}
