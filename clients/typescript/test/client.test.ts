// Against a real loktd: LOKTD names its program.

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { createSocket } from "node:dgram";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { connect, createServer as createTCP, type AddressInfo, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";

import * as lokt from "../src/index.js";

const loktd = process.env["LOKTD"] ?? "";
// A machine may stand still for a second and more: what has to last lives for 8 s at least, and deadlines are far off.
const ttlMs = 8000;
const withServer = { skip: loktd === "" ? "LOKTD does not name a loktd" : false };

/**
 * A port that nobody gets who does not ask for it: the system gives connections, and who asks for any port, those above. A socket for
 * datagrams has its number as long as this program lives, lest another test choose it.
 */
async function freePort(): Promise<number> {
  for (;;) {
    const port = 10_000 + Math.floor(Math.random() * 22_000);
    const mark = createSocket("udp4");
    const marked = await new Promise<boolean>((resolve) => mark.once("error", () => resolve(false)).bind(port, "127.0.0.1", () => resolve(true)));
    mark.unref();
    if (!marked) continue; // another test's
    const s = createTCP();
    const free = await new Promise<boolean>((resolve) => s.once("error", () => resolve(false)).listen(port, "127.0.0.1", () => resolve(true)));
    if (!free) { // somebody else's
      mark.close();
      continue;
    }
    s.close();
    await once(s, "close");
    return port;
  }
}

/** A loktd on a port of its own, which can be killed and started again. */
class Server implements AsyncDisposable {
  readonly dir = mkdtempSync(join(tmpdir(), "lokt-"));
  #process: ChildProcess | undefined;
  private constructor(readonly port: number, readonly args: string[]) {}

  static async start(...args: string[]): Promise<Server> {
    const s = new Server(await freePort(), args);
    await s.start();
    return s;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  async start(): Promise<void> {
    const env = Object.fromEntries(Object.entries(process.env).filter(([k]) => !k.startsWith("LOKT")));
    const args = ["--listen", `127.0.0.1:${this.port}`, "--store", `sqlite:${this.dir}/db`, ...this.args];
    this.#process = spawn(loktd, args, { env, stdio: "ignore" });
    for (let i = 0; i < 600; i++) {
      const s = connect(this.port, "127.0.0.1");
      const up = await new Promise<boolean>((resolve) => s.once("connect", () => resolve(true)).once("error", () => resolve(false)));
      s.destroy();
      if (up) return;
      await pause(50);
    }
    throw new Error("loktd does not answer");
  }

  async kill(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    const p = this.#process!;
    if (p.exitCode === null && p.signalCode === null) {
      p.kill(signal);
      await once(p, "exit");
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill("SIGTERM");
    rmSync(this.dir, { recursive: true });
  }
}

/** Waits for what must come. */
async function until(seen: () => boolean | Promise<boolean>): Promise<void> {
  for (const end = Date.now() + 30_000; !(await seen()); await pause(20)) assert(Date.now() < end, "it does not come");
}

const renewed = async (client: lokt.Lokt): Promise<boolean> => {
  const [holder] = (await client.show("db")).holders as { renewals?: number }[];
  return (holder?.renewals ?? 0) > 0;
};

/** Passes connections on to a server until it is cut; then nothing comes through, in silence. */
async function proxy(port: number): Promise<{ url: string; cut(): void; [Symbol.dispose](): void }> {
  let isCut = false;
  const sockets = new Set<Socket>();
  const s = createTCP((client) => {
    const server = connect(port, "127.0.0.1");
    for (const [a, b] of [[client, server], [server, client]] as const) {
      sockets.add(a);
      a.on("data", (data) => isCut || b.write(data));
      a.on("close", () => b.destroy());
      a.on("error", () => b.destroy());
    }
  }).listen(0, "127.0.0.1");
  await once(s, "listening");
  return {
    url: `http://127.0.0.1:${(s.address() as AddressInfo).port}`,
    cut: () => void (isCut = true),
    [Symbol.dispose]: () => {
      s.close();
      for (const socket of sockets) socket.destroy();
    },
  };
}

test("one holder at a time, first come first served", withServer, async () => {
  await using server = await Server.start();
  const client = new lokt.Lokt({ server: server.url });
  const order: number[] = [];
  let inside = 0;
  let most = 0;
  const work = async (i: number): Promise<void> => {
    await using _ = await client.lock("db", { ttlMs });
    most = Math.max(most, ++inside);
    order.push(i);
    await pause(20);
    inside--;
  };
  const first = await client.lock("db");
  const all: Promise<void>[] = [];
  for (let i = 0; i < 8; i++) {
    all.push(work(i));
    while ((await client.show("db")).queue.length <= i) await pause(10);
  }
  await first.release();
  await Promise.all(all);
  assert.deepEqual([most, order], [1, [0, 1, 2, 3, 4, 5, 6, 7]]);
});

test("a refusal says who is in the way, and a wait that is over leaves nothing behind", withServer, async () => {
  await using server = await Server.start();
  const ana = new lokt.Lokt({ server: server.url, owner: "ana" });
  await using _ = await ana.lock("db");
  const bob = new lokt.Lokt({ server: server.url, owner: "bob" });
  const refused = await bob.lock("db", { wait: 300 }).catch((e: unknown) => e);
  assert(refused instanceof lokt.HeldError);
  assert.equal(refused.holders[0]?.owner.id, "ana");
  assert.equal(await bob.tryLock("db"), undefined);
  await assert.rejects(bob.lock("db", { signal: AbortSignal.timeout(300) }), { name: "TimeoutError" });
  assert.deepEqual((await bob.show("db")).queue, []);
});

test("a lease is renewed, and tokens rise", withServer, async () => {
  await using server = await Server.start();
  const client = new lokt.Lokt({ server: server.url });
  const first = await client.lock("db", { ttlMs });
  await until(() => renewed(client));
  first.check();
  assert.equal((await client.show("db")).holders[0]?.id, lokt.publicId(first.id));
  await first.release();
  assert.equal(first.signal.aborted, false);
  await using second = await client.lock("db");
  assert(second.token > first.token);
});

test("a job that was waited for is held when it comes", withServer, async () => {
  await using server = await Server.start("--lease-ttl", "8s");
  const client = new lokt.Lokt({ server: server.url });
  const worker = new lokt.Worker(client, async () => void (await pause(ttlMs / 2)));
  const working = worker.run();
  await pause((ttlMs * 3) / 4); // its request waits, and for as long its lease does not last
  const job = await client.jobs.wait(await client.jobs.submit(), { signal: AbortSignal.timeout(60_000) });
  assert.deepEqual([job.state, job.attempt], ["completed", 1]);
  worker.drain();
  await working;
});

test("a lock that is taken away aborts the signal of its holder", withServer, async () => {
  await using server = await Server.start();
  const client = new lokt.Lokt({ server: server.url });
  const told = await client
    .guard("db", async (_, signal) => {
      await client.forceRelease("db");
      await pause(30_000, undefined, { signal });
    }, { ttlMs })
    .catch((e: unknown) => e);
  assert(told instanceof lokt.LostError);
});

test("who is asked to leave says that it has heard", withServer, async () => {
  await using server = await Server.start();
  const lease = await new lokt.Lokt({ server: server.url }).lock("db", { ttlMs: 24_000 });
  const begun = Date.now();
  const claim = { lease_id: "of-bob", owner: { id: "bob" }, priority: 9, preempt_ms: 5000, wait_ms: 60_000, ttl_ms: 60_000 };
  const answer = await fetch(`${server.url}/v1/locks/db/leases`, { method: "POST", body: JSON.stringify(claim), headers: { "content-type": "application/json" } });
  const took = Date.now() - begun;
  assert.equal(answer.status, 200);
  assert.equal(lease.state, "lost", "the lock was another's before its holder had lost it");
  assert(took < 22_000, `it took ${took} ms: the next renewal is due after 12 s at most, and who is silent has 24`);
});

test("who may hold for so long has lost it before the next has it, also after a wait", withServer, async () => {
  await using server = await Server.start();
  const client = new lokt.Lokt({ server: server.url });
  const first = await client.lock("db", { ttlMs });
  const waiting = client.lock("db", { ttlMs: 60_000, maxHoldMs: 12_000 });
  await until(async () => (await client.show("db")).queue.length === 1);
  await pause(4000); // more than a quarter of what it may hold: when it began is not known well enough
  await first.release();
  const second = await waiting;
  assert(second.remaining() > 5000);
  const third = await client.lock("db", { ttlMs });
  assert.equal(second.state, "lost");
  assert.equal((second.signal.reason as Error).name, "LostError");
  await Promise.all([second.release(), third.release()]);
});

test("a partition is doubt first, and loss before others may enter", withServer, async () => {
  await using server = await Server.start();
  using far = await proxy(server.port);
  const lease = await new lokt.Lokt({ server: far.url, timeoutMs: 1000 }).lock("db", { ttlMs });
  const near = new lokt.Lokt({ server: server.url });
  far.cut();
  await until(() => lease.state === "in doubt");
  await using _ = await near.lock("db", { wait: 30_000 });
  assert.equal(lease.state, "lost");
});

test("a server that is killed and started again loses neither lease nor job", withServer, async () => {
  await using server = await Server.start("--lease-ttl", "8s");
  const client = new lokt.Lokt({ server: server.url });
  await using lease = await client.lock("db", { ttlMs });
  let end = (): void => undefined;
  const again = new Promise<void>((resolve) => (end = resolve));
  const worker = new lokt.Worker(client, async () => void (await again));
  const working = worker.run();
  const id = await client.jobs.submit({ max_attempts: 3 });
  while ((await client.jobs.get(id)).state !== "running") await pause(50);
  await server.kill();
  await pause(300);
  await server.start();
  end();
  const job = await client.jobs.wait(id, { signal: AbortSignal.timeout(60_000) });
  assert.deepEqual([job.state, job.attempt], ["completed", 1]);
  await until(() => renewed(client));
  await until(() => lease.state === "held"); // and not in doubt any more
  worker.drain();
  await working;
});

test("jobs are run, their failures kept, and who is cancelled is told", withServer, async () => {
  await using server = await Server.start("--lease-ttl", "8s");
  const client = new lokt.Lokt({ server: server.url });
  const told: unknown[] = [];
  const worker = new lokt.Worker(client, async (job, signal) => {
    job.progress(0.5, { at: 1 });
    if (job.payload["long"]) {
      await pause(30_000, undefined, { signal }).catch(() => undefined);
      told.push((signal.reason as lokt.StoppedError).why);
      throw signal.reason;
    }
    if (job.payload["n"] === 13) throw new TypeError("unlucky");
    return (job.payload["n"] as number) + 1;
  }, { concurrency: 4 });
  const working = worker.run();
  const ids: string[] = [];
  for (let n = 10; n < 15; n++) ids.push(await client.jobs.submit({ payload: { n } }));
  const ended = await Promise.all(ids.map((id) => client.jobs.wait(id)));
  assert.deepEqual(ended.map((j) => j.state), ["completed", "completed", "completed", "failed", "completed"]);
  assert.equal(ended[0]?.result, 11);
  assert.equal((ended[3]?.error as { message: string }).message, "unlucky");
  const long = await client.jobs.submit({ payload: { long: true }, locks: ["db"] });
  while ((await client.jobs.get(long)).state !== "running") await pause(50);
  await client.jobs.cancel(long);
  assert.equal((await client.jobs.wait(long)).state, "cancelled");
  const robbed = await client.jobs.submit({ payload: { long: true }, locks: ["db"] });
  while ((await client.jobs.get(robbed)).state !== "running") await pause(50);
  await client.forceRelease("db");
  assert.equal((await client.jobs.wait(robbed)).state, "failed");
  assert.deepEqual(told, ["cancelled", "lock lost"]);
  worker.drain();
  await working;
});

/** A fetch that has `answer` answer instead, if it does. */
function answering(answer: (path: string, init: RequestInit) => Promise<object | undefined>): typeof fetch {
  return async (url, init) => {
    const said = await answer(new URL(String(url)).pathname, init ?? {});
    return said === undefined ? fetch(url, init) : said instanceof Response ? said : Response.json(said);
  };
}

// Promise S-254.
test("a job is told of its loss, and of the end of its maximum runtime, while a heartbeat waits for its answer", withServer, async () => {
  await using server = await Server.start("--lease-ttl", "8s");
  const told: Record<string, string> = {};
  let all = (): void => undefined;
  const both = Promise.race([new Promise<void>((resolve) => (all = resolve)), pause(40_000, undefined, { ref: false })]);
  const silent = answering(async (path) => void (path.endsWith("/leases/heartbeat") && (await both)));
  const client = new lokt.Lokt({ server: server.url, fetch: silent });
  const worker = new lokt.Worker(client, async (job, signal) => {
    await pause(30_000, undefined, { signal }).catch(() => undefined);
    told[job.type] = signal.aborted ? (signal.reason as lokt.StoppedError).why : "not told";
    if (Object.keys(told).length === 2) all();
    throw signal.reason;
  }, { concurrency: 2 });
  const ids = [await client.jobs.submit({ type: "long" }), await client.jobs.submit({ type: "short", max_runtime_s: 4 })];
  const working = worker.run();
  const ended = await Promise.all(ids.map((id) => client.jobs.wait(id)));
  await both;
  assert.deepEqual(told, { long: "lost", short: "out of time" });
  assert.deepEqual(ended.map((j) => j.code), ["lease_expired", "max_runtime_exceeded"]);
  worker.drain();
  await working;
});

// Promise S-254.
test("a job whose request has waited may run as long as the server says", withServer, async () => {
  await using server = await Server.start();
  const client = new lokt.Lokt({ server: server.url });
  const worker = new lokt.Worker(client, async (_, signal) => signal.aborted);
  const working = worker.run();
  await pause(4500);
  assert.equal((await client.jobs.wait(await client.jobs.submit({ max_runtime_s: 4 }))).result, false);
  worker.drain();
  await working;
});

// Promise S-255.
test("what one job tells wrongly harms no other", withServer, async () => {
  await using server = await Server.start("--lease-ttl", "16s"); // what is large takes its time
  const client = new lokt.Lokt({ server: server.url });
  let sent = (): void => undefined;
  const bad = new Promise<void>((resolve) => (sent = resolve));
  const worker = new lokt.Worker(client, async (job, signal) => {
    if (job.type === "good") {
      await bad;
      for (const before = job.deadline; job.deadline === before; await pause(20)) job.signal.throwIfAborted();
      return "done";
    }
    const circular: lokt.Json[] = [];
    circular.push(circular);
    for (const value of [10n, circular, () => 1, NaN, { left: Infinity }]) assert.throws(() => job.progress(0.5, value as lokt.Json));
    job.progress(NaN);
    await assert.rejects(async () => {
      for (; ; await pause(100, undefined, { signal })) job.progress(0.5, "x".repeat(2 << 20)); // until the server has refused it
    }, lokt.InvalidError);
    job.progress(0.5, "small");
    sent();
    return "done";
  }, { concurrency: 2 });
  const working = worker.run();
  const ids = [await client.jobs.submit({ type: "good" }), await client.jobs.submit({ type: "bad" })];
  assert.deepEqual((await Promise.all(ids.map((id) => client.jobs.wait(id)))).map((j) => j.result ?? j), ["done", "done"]);
  worker.drain();
  await working;
});

// Promise S-255.
test("each of very many jobs is kept", async () => {
  let jobs = 0;
  const kept = new Set<string>();
  const server = answering(async (path, init) => {
    const { lease_ids } = JSON.parse(String(init.body)) as { lease_ids: string[] };
    if (path.endsWith("/leases/request")) {
      const id = `j${++jobs}`;
      return { denied: false, lease: { lease_id: id, job_id: id, token: 1, attempt: 1, lease_ttl_s: 60 }, job: { job_id: id, type: "t", payload: {} } };
    }
    if (path.endsWith("/complete")) return { ok: true, applied: true };
    while (jobs < 1001) await pause(20);
    assert(lease_ids.length <= 1000);
    for (const id of lease_ids) kept.add(id);
    if (kept.size === 1001) end();
    return { leases: lease_ids.map((lease_id) => ({ lease_id, ok: true })), heartbeat_interval_s: 0.1 };
  });
  let end = (): void => undefined;
  const ended = new Promise<void>((resolve) => (end = resolve));
  const worker = new lokt.Worker(new lokt.Lokt({ server: "http://x:1", fetch: server }), async () => {
    if (jobs === 1001) worker.drain();
    await ended;
  }, { concurrency: 1001 });
  const late = setTimeout(() => end(), 30_000);
  await worker.run();
  clearTimeout(late);
  assert.equal(kept.size, 1001);
});

// Promise S-255.
test("a result outlives answers that say nothing about it", withServer, async () => {
  await using server = await Server.start();
  const failures = [new Response("<html>", { status: 404 }), Response.json({ detail: "internal" }, { status: 500 }), new Response("", { status: 502 })];
  const client = new lokt.Lokt({ server: server.url, fetch: answering(async (path) => (path.endsWith("/complete") ? failures.pop() : undefined)) });
  const worker = new lokt.Worker(client, async () => 7);
  const working = worker.run();
  const job = await client.jobs.wait(await client.jobs.submit());
  assert.deepEqual([job.state, job.result, failures], ["completed", 7, []]);
  worker.drain();
  await working;
});

test("a worker that is refused says so", withServer, async () => {
  const dir = mkdtempSync(join(tmpdir(), "lokt-"));
  writeFileSync(join(dir, "tokens"), "");
  await using server = await Server.start("--tokens", join(dir, "tokens"));
  const worker = new lokt.Worker(new lokt.Lokt({ server: server.url }), async () => undefined);
  const hangs = pause(30_000, "hangs", { ref: false });
  for (let i = 0; i < 2; i++) assert(await Promise.race([worker.run().catch((e: unknown) => e), hangs]) instanceof lokt.AuthError);
  rmSync(dir, { recursive: true });
});

test("a worker that runs already is not run again beside that", withServer, async () => {
  await using server = await Server.start();
  const client = new lokt.Lokt({ server: server.url });
  const worker = new lokt.Worker(client, async () => undefined);
  const ran = worker.run();
  await assert.rejects(worker.run(), /runs already/);
  worker.drain();
  await ran;
  await worker.run();
});

test("a worker goes on when there is no token for the moment", withServer, async () => {
  await using server = await Server.start();
  let failures = 0;
  const token = (): string => {
    if (failures-- > 0) throw new Error("the vault is away");
    return "";
  };
  const client = new lokt.Lokt({ server: server.url, token });
  const worker = new lokt.Worker(client, async () => {
    failures = 4;
    return "done";
  });
  const ran = worker.run();
  const { jobs } = new lokt.Lokt({ server: server.url });
  const job = await jobs.wait(await jobs.submit(), { signal: AbortSignal.timeout(60_000) });
  worker.drain();
  await ran;
  assert.equal(job.result, "done");
});

test("a worker that cannot wait at the server waits itself", async () => {
  const asked: number[] = [];
  const full = answering(async () => {
    if (asked.push(performance.now()) === 3) worker.drain();
    return { denied: true, reason: "", code: "queue_empty", retry_after_ms: 400 };
  });
  const worker = new lokt.Worker(new lokt.Lokt({ server: "http://x:1", fetch: full }), async () => undefined);
  await worker.run();
  assert(asked[2]! - asked[0]! > 700);
});

test("the same key is the same job", withServer, async () => {
  await using server = await Server.start();
  const { jobs } = new lokt.Lokt({ server: server.url });
  const spec = { payload: { a: 1 }, idempotency_key: "k" };
  assert.equal(await jobs.submit(spec), await jobs.submit(spec));
  await assert.rejects(jobs.submit({ ...spec, payload: { a: 2 } }), lokt.ConflictError);
  const all = [];
  for await (const job of jobs.list({ state: "queued" })) all.push(job);
  assert.equal(all.length, 1);
});

test("a release that failed can be called again", withServer, async () => {
  await using server = await Server.start();
  let cut = true;
  const broken: typeof fetch = async (url, init) => {
    if (cut && init?.method === "DELETE") throw new TypeError("fetch failed");
    return fetch(url, init);
  };
  const client = new lokt.Lokt({ server: server.url, timeoutMs: 5000, fetch: broken });
  const lease = await client.lock("db", { ttlMs: 60_000 });
  await assert.rejects(lease.release(), lokt.UnavailableError);
  assert.equal((await client.show("db")).holders.length, 1);
  cut = false;
  await lease.release();
  assert.deepEqual([lease.state, (await client.show("db")).holders], ["released", []]);
});

test("freezes and events", withServer, async () => {
  await using server = await Server.start();
  const client = new lokt.Lokt({ server: server.url });
  await client.freeze("db", { ttlMs: 30_000, reason: "release day" });
  const frozen = await client.lock("db", { wait: false }).catch((e: unknown) => e);
  assert(frozen instanceof lokt.HeldError && frozen.code === "frozen" && frozen.freeze?.reason === "release day");
  await client.unfreeze("db");
  await (await client.lock("db")).release();
  const types: string[] = [];
  for await (const e of client.events({ after: 0, name: "db" })) {
    types.push(e.type);
    if (e.type === "release") break;
  }
  assert.deepEqual(types, ["freeze", "freeze-deny", "unfreeze", "acquire", "release"]);
});

test("a token that is replaced is used with the next request", async () => {
  const tokens = ["first", "", "next\n"]; // the first is looked at only
  const sent: unknown[] = [];
  const client = new lokt.Lokt({
    server: "http://x", token: () => tokens.shift()!, fetch: (_, init) => {
      sent.push(new Headers(init?.headers).get("authorization"));
      return Promise.resolve(Response.json({ name: "x", now: "2026-11-28T12:00:00Z", holders: [] }));
    },
  });
  await client.about();
  await client.about();
  assert.deepEqual(sent, [null, "Bearer next"]);
});

test("bad input gets one clear error", async () => {
  for (const server of ["", "127.0.0.1:7117", "ftp://x", "http://h:99999", "http://h/path"]) {
    assert.throws(() => new lokt.Lokt({ server }), lokt.InvalidError, server);
  }
  assert.throws(() => new lokt.Lokt({ server: "http://x", token: "a\r\nb: c" }), lokt.InvalidError);
  for (const name of ["", ".", "..", undefined as unknown as string]) {
    await assert.rejects(new lokt.Lokt({ server: "http://x" }).lock(name), lokt.InvalidError, name);
  }
  const port = await freePort();
  const begun = performance.now();
  await assert.rejects(new lokt.Lokt({ server: `http://127.0.0.1:${port}` }).lock("x", { wait: 1000 }), (e: unknown) => {
    return e instanceof lokt.UnavailableError && e.message.includes("refused");
  });
  assert(performance.now() - begun < 20_000);
  const other = createServer((_, answer) => answer.end("<html>hello</html>")).listen(0, "127.0.0.1");
  await once(other, "listening");
  const at = `127.0.0.1:${(other.address() as AddressInfo).port}`;
  await assert.rejects(new lokt.Lokt({ server: `http://${at}` }).about(), lokt.IncompatibleError);
  await assert.rejects(new lokt.Lokt({ server: `https://${at}`, timeoutMs: 30_000 }).about(), /TLS/);
  other.close();
  other.closeAllConnections();
});

test("names, tokens and bodies that are refused say why", withServer, async () => {
  await using server = await Server.start();
  const client = new lokt.Lokt({ server: server.url });
  for (const name of ["", "a/b", "..", "x".repeat(300), "ü"]) {
    await assert.rejects(client.lock(name, { wait: false }), lokt.LoktError, name);
  }
  await assert.rejects(client.jobs.submit({ priority: "urgent" as "high" }), lokt.InvalidError);
  await assert.rejects(client.jobs.get("no-such-job"), lokt.NotFoundError);
});
