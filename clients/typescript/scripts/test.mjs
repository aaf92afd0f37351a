// Compiles the package and its tests, and runs those whose names contain one of the arguments, or all.
import { execFileSync, spawnSync } from "node:child_process";
import { readdirSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const manifest = createRequire(import.meta.url).resolve("typescript/package.json");
const tsc = join(dirname(manifest), createRequire(import.meta.url)(manifest).bin.tsc);
rmSync(join(root, "build"), { recursive: true, force: true });
// First the package, because examples import it by its name.
for (const config of ["tsconfig.json", "tsconfig.test.json"]) {
  execFileSync(process.execPath, [tsc, "-p", config], { cwd: root, stdio: "inherit" });
}
const wanted = process.argv.slice(2);
const files = readdirSync(join(root, "build", "test"))
  .filter((name) => name.endsWith(".test.js") && (wanted.length === 0 || wanted.some((part) => name.includes(part))))
  .map((name) => join("build", "test", name));
const { status } = spawnSync(
  process.execPath,
  ["--enable-source-maps", "--test", "--test-reporter=spec", "--test-timeout=120000", ...files],
  {
    cwd: root,
    stdio: "inherit",
  },
);
process.exit(status ?? 1);
