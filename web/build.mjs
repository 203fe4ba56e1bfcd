// Makes gpushare/dashboard/static/ from src/. The same sources and the same lock file make the same bytes.
// An argument names another folder to write to.

import { copyFile, mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = resolve(process.argv[2] ?? join(here, "../gpushare/dashboard/static"));
const BUNDLED = ["preact", "uplot"];

await mkdir(out, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: out,
  bundle: true,
  minify: true,
  charset: "utf8",
  format: "esm",
  target: ["chrome116", "firefox124", "safari17.4"],
  legalComments: "none", // LICENSES.txt has them in full
  jsx: "automatic",
  jsxImportSource: "preact",
});
for (const name of ["index.html", "icon.svg"]) await copyFile(join(here, "src", name), join(out, name));
const licenses = await Promise.all(
  BUNDLED.map(async (name) => {
    const folder = join(here, "node_modules", name);
    const { version } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    return `${name} ${version}\n\n${(await readFile(join(folder, "LICENSE"), "utf8")).trim()}\n`;
  }),
);
await writeFile(join(out, "LICENSES.txt"), `app.js and app.css contain:\n\n${licenses.join("\n---\n\n")}`);
