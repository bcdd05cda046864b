// The steps of the action, against a real loktd: LOKTD names its program.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { createSocket } from "node:dgram";
import { once } from "node:events";
import { copyFileSync, existsSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { createServer as createHTTP } from "node:http";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";

const here = new URL(".", import.meta.url).pathname;
const linux = { skip: process.platform === "linux" ? false : "the system has no /proc" };
const dir = mkdtempSync(join(tmpdir(), "lokt-action-"));

/** What a runner tells a step. */
function told(job, script) {
  const state = Object.fromEntries(
    readFileSync(job.state, "utf8").split("\n").filter(Boolean).map((l) => [`STATE_${l.slice(0, l.indexOf("="))}`, l.slice(l.indexOf("=") + 1)]),
  );
  const env = {
    PATH: process.env.PATH, GITHUB_STATE: job.state, GITHUB_OUTPUT: job.output, GITHUB_REPOSITORY: "ana/site", GITHUB_RUN_ID: job.name,
    ...(script === "post.mjs" ? state : {}),
  };
  for (const [k, v] of Object.entries(job.inputs)) env[`INPUT_${k.toUpperCase()}`] = v;
  return env;
}

/** Runs a step as a runner does. */
function step(job, script) {
  const r = spawnSync(process.execPath, [join(here, script)], { env: told(job, script), encoding: "utf8", timeout: 60_000 });
  return { code: r.status, out: r.stdout + r.stderr };
}

/** The same beside what this program serves. */
async function stepAside(job, script, said = () => {}) {
  const child = spawn(process.execPath, [join(here, script)], { env: told(job, script), stdio: ["ignore", "pipe", "inherit"] });
  let out = "";
  child.stdout.on("data", (part) => said((out += part)));
  const [code] = await once(child, "close");
  return { code, out };
}

function job(name, inputs) {
  const j = { name, inputs, state: join(dir, `${name}.state`), output: join(dir, `${name}.output`) };
  writeFileSync(j.state, "");
  writeFileSync(j.output, "");
  return j;
}

/**
 * A port that nobody gets who does not ask for it: the system gives connections, and who asks for any port, those above. A socket for
 * datagrams has its number as long as this program lives, lest another test choose it.
 */
async function freePort() {
  for (;;) {
    const port = 10_000 + Math.floor(Math.random() * 22_000);
    const mark = createSocket("udp4");
    const marked = await new Promise((resolve) => mark.once("error", () => resolve(false)).bind(port, "127.0.0.1", () => resolve(true)));
    mark.unref();
    if (!marked) continue; // another test's
    const s = createServer();
    const free = await new Promise((resolve) => s.once("error", () => resolve(false)).listen(port, "127.0.0.1", () => resolve(true)));
    if (!free) { // somebody else's
      mark.close();
      continue;
    }
    s.close();
    await once(s, "close");
    return port;
  }
}

async function loktd(...args) {
  const port = await freePort();
  const env = Object.fromEntries(Object.entries(process.env).filter(([k]) => !k.startsWith("LOKT")));
  const daemon = spawn(process.env.LOKTD, ["--listen", `127.0.0.1:${port}`, "--store", "memory:", ...args], { env, stdio: "ignore" });
  for (let up = false; !up; await pause(20)) {
    const c = connect(port, "127.0.0.1");
    up = await new Promise((resolve) => c.once("connect", () => resolve(true)).once("error", () => resolve(false)));
    c.destroy();
  }
  return { url: `http://127.0.0.1:${port}`, stop: () => daemon.kill() };
}

const holders = async (url, name = "deploy") => (await (await fetch(`${url}/v1/locks/${name}`)).json()).holders;

/** Waits for the keeper's first renewal. */
async function renewed(url, name) {
  for (const end = Date.now() + 30_000; !((await holders(url, name))[0]?.renewals > 0); await pause(100)) assert(Date.now() < end, "it is not renewed");
}

test("a lock is renewed, excludes another job, and is given back", async (t) => {
  const server = await loktd();
  t.after(() => server.stop());
  const a = job("1", { server: server.url, name: "deploy", ttl: "12", timeout: "0" });
  const b = job("2", { server: server.url, name: "deploy", ttl: "12", timeout: "0" });
  const took = step(a, "main.mjs");
  assert.equal(took.code, 0, took.out);
  assert.match(readFileSync(a.output, "utf8"), /^token=1\nlease-id=L-/);
  await renewed(server.url);
  const refused = step(b, "main.mjs");
  assert.equal(refused.code, 1);
  assert.match(refused.out, /::error title=lokt::lock deploy could not be had: .*ana\/site/);
  assert.equal(step(b, "post.mjs").code, 0);
  assert.equal((await holders(server.url)).length, 1);
  assert.match(step(a, "post.mjs").out, /Released lock deploy/);
  assert.equal((await holders(server.url)).length, 0);
});

test("a job that waits gets the lock, and says for whom it waits", async (t) => {
  const server = await loktd();
  t.after(() => server.stop());
  const a = job("3", { server: server.url, name: "deploy", ttl: "12", timeout: "0" });
  assert.equal(step(a, "main.mjs").code, 0);
  const b = job("4", { server: server.url, name: "deploy", ttl: "8", timeout: "60" });
  let releasing;
  const took = await stepAside(b, "main.mjs", (out) => {
    if (out.includes("Waiting for lock deploy, held by ana/site")) releasing ??= stepAside(a, "post.mjs");
  });
  await releasing;
  assert.equal(took.code, 0, took.out);
  assert(releasing, took.out);
  assert.match(readFileSync(b.output, "utf8"), /token=2/);
  step(b, "post.mjs");
});

test("a job that is cancelled while it waits leaves nothing behind", async (t) => {
  const server = await loktd();
  t.after(() => server.stop());
  const a = job("5", { server: server.url, name: "deploy", ttl: "30", timeout: "0" });
  assert.equal(step(a, "main.mjs").code, 0);
  const b = job("6", { server: server.url, name: "deploy", ttl: "30", timeout: "60" });
  const env = { PATH: process.env.PATH, GITHUB_STATE: b.state, GITHUB_OUTPUT: b.output };
  for (const [k, v] of Object.entries(b.inputs)) env[`INPUT_${k.toUpperCase()}`] = v;
  const waiting = spawn(process.execPath, [join(here, "main.mjs")], { env, stdio: "ignore" });
  while ((await (await fetch(`${server.url}/v1/locks/deploy`)).json()).queue.length === 0) await pause(20);
  waiting.kill("SIGKILL");
  await once(waiting, "exit");
  assert.equal(step(b, "post.mjs").code, 0);
  assert.equal((await (await fetch(`${server.url}/v1/locks/deploy`)).json()).queue.length, 0);
  step(a, "post.mjs");
});

test("a lock that was lost fails the job at its end", async (t) => {
  const server = await loktd();
  t.after(() => server.stop());
  const a = job("7", { server: server.url, name: "deploy", ttl: "12", timeout: "0" });
  assert.equal(step(a, "main.mjs").code, 0);
  await fetch(`${server.url}/v1/locks/deploy/leases?owner=root&force=true`, { method: "DELETE" });
  const post = step(a, "post.mjs");
  assert.equal(post.code, 1);
  assert.match(post.out, /was lost before the job ended/);
});

// Promise S-282.
test("a lock that was lost fails the job, though a copy of its claim was granted since", async (t) => {
  const server = await loktd();
  t.after(() => server.stop());
  const a = job("12", { server: server.url, name: "deploy", ttl: "12", timeout: "0" });
  assert.equal(step(a, "main.mjs").code, 0);
  const leases = `${server.url}/v1/locks/deploy/leases`;
  await fetch(`${leases}?owner=root&force=true`, { method: "DELETE" });
  const claim = { lease_id: /^id=(.*)$/m.exec(readFileSync(a.state, "utf8"))[1], owner: { id: "github" }, strict: true, ttl_ms: 12_000 };
  const copy = await fetch(leases, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(claim) });
  assert.equal(copy.status, 200);
  const post = step(a, "post.mjs");
  assert.equal(post.code, 1);
  assert.match(post.out, /was lost before the job ended/);
});

/** Passes requests on to a server, but those to renew that `sick` has something else for: [body, status], or undefined for silence. */
async function proxy(t, url, sick, slow = 0) {
  const s = createHTTP(async (request, answer) => {
    let sent = "";
    for await (const part of request) sent += part;
    if (request.url.endsWith("/leases")) answer.end = ((end) => async (text) => (await pause(slow), end.call(answer, text)))(answer.end);
    if (request.url.endsWith("/heartbeat") && sick.length > 0) {
      const said = sick.shift();
      return said && answer.writeHead(said[1], { "content-type": "application/json" }).end(said[0]);
    }
    const { "content-type": type, "lokt-lease": lease, "lokt-cancels": cancels } = request.headers;
    const headers = Object.fromEntries(Object.entries({ "content-type": type, "lokt-lease": lease, "lokt-cancels": cancels }).filter(([, v]) => v));
    const got = await fetch(url + request.url, { method: request.method, headers, ...(sent && { body: sent }) });
    answer.writeHead(got.status, { "content-type": got.headers.get("content-type") }).end(await got.text());
  }).listen(0, "127.0.0.1");
  await once(s, "listening");
  t.after(() => (s.close(), s.closeAllConnections()));
  return `http://127.0.0.1:${s.address().port}`;
}

// Promise S-264.
test("what a proxy answers ends no lease, nor does its silence", async (t) => {
  const server = await loktd();
  t.after(() => server.stop());
  const pages = [["{}", 200], ['{"code":"not_found"}', 404], ['{"detail":"Not Found"}', 404], ["<html>", 200], ["<html>", 502]];
  await Promise.all([pages, [undefined]].map(async (said, i) => {
    const name = `deploy-${i}`;
    const sick = [];
    const a = job(`10-${i}`, { server: await proxy(t, server.url, sick), name, ttl: "12", timeout: "0" });
    const took = await stepAside(a, "main.mjs");
    assert.equal(took.code, 0, took.out);
    sick.push(...said); // from here on: a claim that took long is renewed at once
    for (const end = Date.now() + 30_000; sick.length > 0; await pause(100)) assert(Date.now() < end, "it is not renewed");
    await renewed(server.url, name);
    assert.match((await stepAside(a, "post.mjs")).out, new RegExp(`Released lock ${name}`));
  }));
});

test("a keeper goes on as long as it is in doubt, and ends when the lock is lost", async (t) => {
  const server = await loktd();
  t.after(() => server.stop());
  const sick = [];
  const a = job("11", { server: await proxy(t, server.url, sick), name: "deploy", ttl: "6", timeout: "0" });
  assert.equal((await stepAside(a, "main.mjs")).code, 0);
  sick.push(...Array(400).fill(["<html>", 200])); // from here on: a claim that took long is renewed at once
  const keeper = Number(/keeper=(.*)/.exec(readFileSync(a.state, "utf8"))[1]);
  const lives = () => {
    try {
      return process.kill(keeper, 0);
    } catch {
      return false;
    }
  };
  while ((await holders(server.url)).length > 0) await pause(100);
  await pause(2000); // of its own clock, too, the lock's time is over
  assert(lives());
  sick.length = 0;
  for (const end = Date.now() + 30_000; lives(); await pause(100)) assert(Date.now() < end, "the keeper goes on");
  assert.match((await stepAside(a, "post.mjs")).out, /was lost before the job ended/);
});

test("bad inputs and servers get one clear error, and the token is masked", async () => {
  for (const [inputs, why] of [
    [{ server: "", name: "x" }, /server must be a URL/],
    [{ server: "ftp://x", name: "x" }, /server must be a URL/],
    [{ server: "http://127.0.0.1:9", name: "" }, /name is empty/],
    [{ server: "http://127.0.0.1:9", name: "x", ttl: "1" }, /ttl is in seconds/],
    [{ server: "http://127.0.0.1:9", name: "x", ttl: "Infinity" }, /ttl is in seconds/],
    [{ server: "http://127.0.0.1:9/x", name: "x" }, /server must be a URL/],
    [{ server: "http://a b", name: "x" }, /server must be a URL/],
    [{ server: "http://127.0.0.1:9", name: ".." }, /name has a character/],
    [{ server: "http://127.0.0.1:9", name: "x", token: "a\nb" }, /^::add-mask::a%0Ab\n::error title=lokt::token has a character that a header may not have\n$/],
  ]) {
    const r = step(job("8", inputs), "main.mjs");
    assert.equal(r.code, 1);
    assert.match(r.out, why);
  }
  assert.match(step(job("9", { server: "ftp://x", name: "x", token: "secret" }), "main.mjs").out, /^::add-mask::secret\n/);
});

// Promise S-358.
test("a name is no way to tell the steps or the runner anything", async (t) => {
  const a = job("13", { server: "http://127.0.0.1:9", name: "x\nservers=http://evil\nkeeper=1" });
  assert.equal(step(a, "main.mjs").code, 1);
  assert.equal(readFileSync(a.state, "utf8"), "");
  const server = await loktd();
  t.after(() => server.stop());
  const metadata = { run: "x\n::stop-commands::y" };
  const claim = JSON.stringify({ lease_id: "a".repeat(32), owner: { id: "eve" }, ttl_ms: 60_000, metadata });
  await fetch(`${server.url}/v1/locks/deploy/leases`, { method: "POST", headers: { "content-type": "application/json" }, body: claim });
  assert.match(step(job("14", { server: server.url, name: "deploy", timeout: "1" }), "main.mjs").out, /Waiting for lock deploy, held by eve.*: x ::stop-commands::y\n/);
});

// Promise S-359.
test("a grant that comes after its time to live is none", async (t) => {
  const server = await loktd();
  t.after(() => server.stop());
  const a = job("15", { server: await proxy(t, server.url, [], 6000), name: "deploy", ttl: "3", timeout: "0" });
  const took = await stepAside(a, "main.mjs");
  assert.equal(took.code, 1, took.out);
  assert.doesNotMatch(took.out, /Holding/);
});

// Promise S-359.
test("a runner that vanishes frees the lock", linux, async (t) => {
  const server = await loktd();
  t.after(() => server.stop());
  const a = job("16", { server: server.url, name: "deploy", ttl: "12", timeout: "0" });
  const worker = join(dir, "Runner.Worker");
  if (!existsSync(worker)) copyFileSync("/bin/sh", worker);
  const runner = spawn(worker, ["-c", `"${process.execPath}" "${join(here, "main.mjs")}"; read x`], { env: told(a, "main.mjs"), stdio: ["pipe", "ignore", "inherit"] });
  for (const end = Date.now() + 30_000; !/^keeper=/m.test(readFileSync(a.state, "utf8")); await pause(50)) assert(Date.now() < end, "it takes no lock");
  await renewed(server.url, "deploy");
  runner.kill("SIGKILL");
  for (const end = Date.now() + 60_000; (await holders(server.url)).length > 0; await pause(100)) assert(Date.now() < end, "it is renewed for ever");
});
