// Compiles the package. Where it is installed from a folder, npm runs this without the compiler in place: it is
// installed into this folder first.
import { execFileSync } from "node:child_process";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const require = createRequire(join(root, "package.json"));

function compiler() {
  try {
    const manifest = require.resolve("typescript/package.json");
    require.resolve("@types/node/package.json");
    return join(dirname(manifest), require(manifest).bin.tsc);
  } catch {
    return undefined;
  }
}

if (compiler() === undefined) {
  const npm = process.platform === "win32" ? "npm.cmd" : "npm";
  const quiet = ["--ignore-scripts", "--include=dev", "--no-audit", "--no-fund"];
  // The settings of the npm that runs this must not reach the inner one: prefix and global name another folder.
  const env = Object.fromEntries(
    Object.entries(process.env).filter(
      ([name]) => !/^npm_config_(local_prefix|global|prefix|omit|save.*)$/i.test(name),
    ),
  );
  execFileSync(npm, ["install", "--no-save", ...quiet], { cwd: root, env, stdio: "inherit" });
}
execFileSync(process.execPath, [compiler(), "-p", "tsconfig.json"], { cwd: root, stdio: "inherit" });
