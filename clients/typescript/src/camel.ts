/**
 * Names of fields: `snake_case` on the wire, `camelCase` in this package. The types follow the same rule as the values,
 * so that only the wire's own types are written down.
 */

type CamelName<S extends string> = S extends `${infer Head}_${infer Tail}`
  ? `${Head}${Capitalize<CamelName<Tail>>}`
  : S;

/** Fields whose content belongs to the user: their names are not touched. */
type Opaque = "labels" | "meta" | "skipped" | "result";
const OPAQUE: ReadonlySet<string> = new Set<Opaque>(["labels", "meta", "skipped", "result"]);

/** A type of the wire with the names of this package. */
export type Camel<T> = T extends readonly (infer Item)[]
  ? Camel<Item>[]
  : T extends object
    ? {
        [Name in keyof T as Name extends string ? CamelName<Name> : Name]: Name extends Opaque
          ? T[Name]
          : Camel<T[Name]>;
      }
    : T;

const camelNames = new Map<string, string>();
const snakeNames = new Map<string, string>();

/** Names come from the broker: remembered up to a bound. */
const NAMES_MAX = 1_000;

function renamed(names: Map<string, string>, name: string, rename: (name: string) => string): string {
  const known = names.get(name);
  if (known !== undefined) return known;
  const fresh = rename(name);
  if (names.size < NAMES_MAX) names.set(name, fresh);
  return fresh;
}

const toCamel = (name: string): string => name.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
const toSnake = (name: string): string => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

/** An answer of the wire with the names of this package. */
export function camel<T>(wire: T): Camel<T> {
  return convert(wire, (name) => renamed(camelNames, name, toCamel)) as Camel<T>;
}

/** A request with the names of the wire. Fields that are `undefined` are left out. */
export function snake(request: unknown): Record<string, unknown> {
  return convert(request, (name) => renamed(snakeNames, name, toSnake)) as Record<string, unknown>;
}

function convert(value: unknown, rename: (name: string) => string): unknown {
  if (Array.isArray(value)) return value.map((item) => convert(item, rename));
  if (typeof value !== "object" || value === null || value instanceof Date) return value;
  const converted: Record<string, unknown> = {};
  for (const [name, member] of Object.entries(value)) {
    if (member === undefined) continue;
    converted[rename(name)] = OPAQUE.has(name) ? member : convert(member, rename);
  }
  return converted;
}
