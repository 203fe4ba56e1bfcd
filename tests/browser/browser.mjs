// A headless Chromium for a test in Python. Each line of standard input is JSON: {script, given}; `script` is the body
// of an async function of (page, context, seen, given). Each answer is a line of JSON: {value} or {error}.
//
//   seen.errors     what the console and uncaught exceptions said
//   seen.foreign    requests to another host than the page's own

import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [modules, executablePath, profile] = process.argv.slice(2);
const { chromium } = createRequire(`${modules}/`)("playwright-core");

const context = await chromium.launchPersistentContext(profile, {
  executablePath,
  args: [
    ...["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"],
    ...["--disable-background-networking", "--disable-component-update", "--disable-sync"],
  ],
  viewport: { width: 1280, height: 900 },
});
const seen = { errors: [], foreign: [] };
const page = context.pages()[0] ?? (await context.newPage());
page.on("console", (message) => message.type() === "error" && seen.errors.push(message.text()));
page.on("pageerror", (error) => seen.errors.push(String(error)));
context.on("request", (request) => {
  const { protocol, hostname } = new URL(request.url());
  if (protocol === "file:" && request.isNavigationRequest()) return; // a report that is opened from disk
  if (protocol !== "data:" && hostname !== "127.0.0.1") seen.foreign.push(request.url());
});

const AsyncFunction = (async () => {}).constructor;
console.log(JSON.stringify({ value: "ready" }));
for await (const line of createInterface({ input: process.stdin })) {
  const { script, given } = JSON.parse(line);
  try {
    const value = await new AsyncFunction("page", "context", "seen", "given", script)(page, context, seen, given);
    console.log(JSON.stringify({ value: value ?? null }));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error.stack ?? error) }));
  }
}
await context.close();
