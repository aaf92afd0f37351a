/** Writes the schemas of an OpenAPI document as TypeScript types, as far as the broker's document needs. */

export interface Schema {
  $ref?: string;
  type?: string | string[];
  const?: unknown;
  enum?: unknown[];
  oneOf?: Schema[];
  allOf?: Schema[];
  items?: Schema;
  required?: string[];
  properties?: Record<string, Schema>;
  additionalProperties?: boolean | Schema;
}

const SCALARS: Record<string, string> = {
  string: "string",
  integer: "number",
  number: "number",
  boolean: "boolean",
  null: "null",
};

/** Declarations of all schemas, each under its own name. */
export function declarations(schemas: Record<string, Schema>): string {
  return Object.entries(schemas)
    .map(([name, schema]) => `export type ${name} = ${typeText(schema)};`)
    .join("\n");
}

/** The type of a schema. `JsonValue` and other schemas without a type are any JSON. */
export function typeText(schema: Schema): string {
  if (schema.$ref !== undefined) return schema.$ref.split("/").at(-1) ?? "never";
  const parts: string[] = [];
  if (schema.allOf !== undefined) parts.push(...schema.allOf.map(typeText));
  if (schema.oneOf !== undefined)
    parts.push(`(${schema.oneOf.map((one) => typeText(inherit(one, schema))).join(" | ")})`);
  else if (schema.properties !== undefined) parts.push(objectText(schema));
  if (parts.length > 0) return parts.join(" & ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum !== undefined) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (Array.isArray(schema.type)) return schema.type.map((type) => typeText({ ...schema, type })).join(" | ");
  if (schema.type === "array") return `(${typeText(schema.items ?? {})})[]`;
  if (schema.type === "object") {
    const { additionalProperties: others } = schema;
    return `Record<string, ${typeof others === "object" ? typeText(others) : "Json"}>`;
  }
  return schema.type === undefined ? "Json" : (SCALARS[schema.type] ?? "never");
}

/** An alternative that only says what is required takes its properties from the schema it stands in. */
function inherit(one: Schema, whole: Schema): Schema {
  if (one.$ref !== undefined || one.properties !== undefined || whole.properties === undefined) return one;
  const required = [...(whole.required ?? []), ...(one.required ?? [])];
  const alternatives = new Set((whole.oneOf ?? []).flatMap((other) => other.required ?? []));
  const properties = Object.fromEntries(
    Object.entries(whole.properties).filter(([name]) => !alternatives.has(name) || one.required?.includes(name)),
  );
  return { type: "object", required, properties };
}

function objectText(schema: Schema): string {
  const fields = Object.entries(schema.properties ?? {}).map(([name, property]) => {
    const optional = schema.required?.includes(name) === true ? "" : "?";
    return `${JSON.stringify(name)}${optional}: ${typeText(property)}`;
  });
  return `{ ${fields.join("; ")} }`;
}
