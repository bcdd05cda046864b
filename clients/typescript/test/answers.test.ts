// Against what is no loktd: proxies and others that answer in its place.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { syncBuiltinESMExports } from "node:module";
import type { AddressInfo } from "node:net";
import os from "node:os";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";

import * as lokt from "../src/index.js";

interface Said {
  status: number;
  body: unknown;
  media?: string;
}

/** A holder, as a loktd tells of it. */
function own(name: string, leaseId: string, more: object = {}): object {
  const times = { acquired_at: "2026-11-28T12:00:00Z", expires_at: "2026-11-28T12:00:20Z" };
  return { name, id: lokt.publicId(leaseId), token: 7, ttl_ms: 20_000, ...times, ...more };
}

type Ask = { lease_id: string; leases?: [{ name: string; lease_id: string }] };

/** A client of a server that answers every request with what `say` returns for its method, path and body. */
async function answering(
  say: (method: string, path: string, body: Ask) => Said | Promise<Said>, timeoutMs = 30_000,
): Promise<{ client: lokt.Lokt; [Symbol.dispose](): void }> {
  const server = createServer(async (request, answer) => {
    let sent = "";
    for await (const part of request) sent += String(part);
    const said = await say(request.method!, request.url!, JSON.parse(sent || "{}") as Ask);
    answer.writeHead(said.status, { "content-type": said.media ?? "application/json" });
    answer.end(typeof said.body === "string" ? said.body : JSON.stringify(said.body));
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const client = new lokt.Lokt({ server: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, owner: "ana", timeoutMs });
  return {
    client,
    [Symbol.dispose]: () => {
      server.close();
      server.closeAllConnections();
    },
  };
}

const successes: Said[] = [
  { status: 200, body: {} },
  { status: 200, body: { status: "ok" } },
  { status: 200, body: "<html>welcome</html>", media: "text/html" },
  { status: 200, body: "null" },
  { status: 200, body: [] },
  { status: 202, body: {} },
  { status: 202, body: { queued: true } },
  { status: 200, body: { holder: {}, leases: [{}] } },
  { status: 200, body: { holder: own("db", "another's"), leases: [{ holder: own("db", "another's") }] } },
  { status: 200, body: { holder: [], leases: {}, released: "yes", ok: "yes", name: "x" } },
];
const errors: Said[] = [
  { status: 404, body: { detail: "Not Found" } },
  { status: 404, body: { detail: "not_found" } },
  { status: 410, body: { detail: "lease_not_found" } },
  { status: 404, body: { code: "not_found" } },
  { status: 404, body: { code: "lease_not_found", error: { code: 404 } } },
  { status: 404, body: { type: "about:blank", title: "Not Found", status: 404, code: "not_found" } },
  { status: 410, body: { type: "about:blank", status: 410, code: "not_found", lock: "db" } },
  { status: 403, body: { code: "not_owner" } },
  { status: 403, body: { code: "forbidden", message: "log in" } },
  { status: 409, body: { code: "held" } },
  { status: 422, body: { detail: ["no"] } },
  { status: 400, body: { code: "invalid" } },
  { status: 404, body: '"not found"' },
  { status: 404, body: "<html>no such page</html>", media: "text/html" },
];

// Promise S-241.
test("what a proxy answers grants nothing and ends nothing", async () => {
  let now: Said;
  using at = await answering(() => now, 1000); // no answer in time is as good
  const { client } = at;
  for (now of [...successes, ...errors]) {
    const asks: Record<string, () => Promise<unknown>> = {
      lock: () => client.lock("db", { wait: false }),
      wait: () => client.lock("db", { wait: 200 }),
      force: () => client.forceRelease("db"),
      freeze: () => client.freeze("db", { ttlMs: 1000 }),
      unfreeze: () => client.unfreeze("db"),
      show: () => client.show("db"),
      list: () => client.list(),
      submit: () => client.jobs.submit(),
      cancel: () => client.jobs.cancel("j"),
      get: () => client.jobs.get("j"),
    };
    for (const [what, ask] of Object.entries(asks)) {
      await assert.rejects(ask, (e) => e instanceof lokt.IncompatibleError || e instanceof lokt.UnavailableError, `${what}: ${JSON.stringify(now)}`);
    }
  }
});

// Promise S-361.
test("who hears of a grant when it is over asks again", async () => {
  const claimed: string[] = [];
  using at = await answering(async (method, _, body) => {
    if (method === "DELETE") return { status: 200, body: { released: [] } };
    if (body.leases !== undefined) return { status: 404, body: { type: "about:blank", status: 404, code: "not_found", lock: "db", detail: "gone" } };
    if (claimed.push(body.lease_id) === 1) await pause(5100); // more than a quarter of the time to live
    return { status: 200, body: { holder: own("db", body.lease_id) } };
  });
  const lease = await at.client.lock("db", { ttlMs: 20_000 });
  assert.deepEqual(claimed.slice(1), [lease.id]);
  await lease.release();
});

test("what was waited for is held when it comes", async () => {
  const asked: string[] = [];
  using at = await answering(async (method, path, body) => {
    asked.push(path.split("/")[2]!);
    if (method === "DELETE") return { status: 200, body: { released: [] } };
    if (body.leases !== undefined) return { status: 200, body: { leases: [{ holder: own("db", body.leases[0].lease_id) }] } };
    await pause(5100); // more than a quarter of the time to live: when it began is not known well enough
    return { status: 200, body: { holder: own("db", body.lease_id) } };
  });
  await (await at.client.lock("db", { ttlMs: 20_000 })).release();
  assert.deepEqual(asked, ["locks", "leases", "locks"]);
});

// Promise S-241.
test("a lease outlives answers that are not loktd's", async () => {
  const answers = new Map([...successes.slice(0, 3), ...errors].map((said, i) => [`lock-${i}`, said]));
  let sick = true;
  using at = await answering((method, path, body) => {
    if (method === "DELETE") return { status: 200, body: { released: [] } };
    if (body.leases === undefined) {
      return { status: 200, body: { holder: own(path.split("/")[3]!, body.lease_id, { heartbeat_in_ms: 20 }) } };
    }
    const [lease] = body.leases;
    return sick ? answers.get(lease.name)! : { status: 200, body: { leases: [{ holder: own(lease.name, lease.lease_id) }] } };
  });
  const leases = await Promise.all([...answers.keys()].map((name) => at.client.lock(name, { ttlMs: 20_000 })));
  for (const want of ["in doubt", "held"]) {
    for (const lease of leases) {
      for (const end = Date.now() + 15_000; lease.state !== want && Date.now() < end; ) await pause(10);
      assert.equal(lease.state, want, JSON.stringify(answers.get(lease.name)));
    }
    sick = false;
  }
  await Promise.all(leases.map((lease) => lease.release()));
});

// Promise S-12.
test("a lease is relied on for its time to live at most", async () => {
  using at = await answering((method, _, body) => {
    if (method === "DELETE") return { status: 200, body: { released: [] } };
    return { status: 200, body: { holder: own("db", body.lease_id, { expires_at: "2026-11-28T13:00:20Z" }) } };
  });
  const lease = await at.client.lock("db", { ttlMs: 20_000 });
  assert(lease.remaining() < 20_000);
  await lease.release();
});

// Promise S-282.
test("a lease ends with its grant, though a copy of its claim is granted later", async () => {
  using at = await answering((method, _, body) => {
    if (method === "DELETE") return { status: 200, body: { released: [] } };
    if (body.leases === undefined) return { status: 200, body: { holder: own("db", body.lease_id, { heartbeat_in_ms: 20 }) } };
    return { status: 200, body: { leases: [{ holder: own("db", body.leases[0].lease_id, { token: 9 }) }] } };
  });
  const lease = await at.client.lock("db", { ttlMs: 20_000 });
  for (const end = Date.now() + 15_000; lease.state !== "lost" && Date.now() < end; ) await pause(10);
  assert.equal(lease.state, "lost");
  await lease.release();
});

test("who finds a full queue is told at once", async () => {
  const asked: string[] = [];
  using at = await answering((method) => {
    asked.push(method);
    return { status: 429, body: { type: "about:blank", title: "Lock is full", status: 429, code: "full", detail: "lock is full" } };
  });
  await assert.rejects(at.client.lock("db"), lokt.FullError);
  assert.deepEqual(asked, ["POST"]);
});

// Promise S-240.
test("an answer without an end is not read to its end", async () => {
  let sent = 0;
  const endless = new ReadableStream<Uint8Array>({
    pull: (c) => ((sent += 1 << 20) > 200 << 20 ? c.close() : c.enqueue(new Uint8Array(1 << 20).fill(32))),
  });
  const client = new lokt.Lokt({ server: "http://lokt.example", fetch: async () => new Response(endless) });
  await assert.rejects(client.about(), /longer than 64 MiB/);
  assert(sent < 100 << 20, `${sent} bytes were read`);
});

// Promise S-242.
// On Bun and Deno nobody can put another function in the place of a system module's.
const fixed = "Bun" in globalThis || "Deno" in globalThis;
test("a lease is over when the machine has slept through its time, and not because somebody sets the clock", { skip: fixed }, async () => {
  using at = await answering((method, _, body) => {
    if (method === "DELETE") return { status: 200, body: { released: [] } };
    return { status: 200, body: { holder: own("db", body.lease_id) } };
  });
  const [lease, wall, up] = [await at.client.lock("db", { ttlMs: 20_000 }), Date.now, os.uptime];
  try {
    Date.now = () => wall() + 3_600_000;
    assert.equal(lease.state, "held");
    Date.now = () => wall() - 3_600_000; // and nothing of the sleep is seen there
    os.uptime = () => up() + 30;
    syncBuiltinESMExports();
    assert.equal(lease.state, "lost");
  } finally {
    [Date.now, os.uptime] = [wall, up];
    syncBuiltinESMExports();
  }
});

// Promise S-263.
test("a worker goes on through pages of a proxy, and drains through them", async () => {
  const pages: Said[] = [
    ...[...successes, ...errors].filter(({ body }) => (body as { detail?: string }).detail !== "not_found"), // which loktd says, too
    { status: 500, body: { detail: "internal" } },
    { status: 200, body: { denied: false, lease: {}, job: {} } },
    { status: 200, body: { denied: true } },
  ];
  const asked: (string | undefined)[] = [];
  const done: unknown[] = [];
  using at = await answering((_, path, sent) => {
    const body = sent as Ask & { request_id?: string; result?: unknown };
    if (path.endsWith("/heartbeat")) return { status: 200, body: { leases: [] } };
    if (path.endsWith("/complete")) {
      done.push(body.result);
      return { status: 200, body: { applied: true } };
    }
    asked.push(body.request_id);
    if (asked.length <= pages.length || done.length > 0) return pages[asked.length % pages.length]!;
    const lease = { lease_id: "l", job_id: "j", attempt: 1, token: 1, lease_ttl_s: 60 };
    return { status: 200, body: { denied: false, lease, job: { job_id: "j", type: "t", payload: {} } } };
  });
  const worker = new lokt.Worker(at.client, async () => "done");
  const random = Math.random;
  Math.random = () => -0.49; // pauses are short
  try {
    const working = worker.run();
    let over = false;
    void working.finally(() => (over = true)).catch(() => undefined);
    for (const end = Date.now() + 30_000; asked.length < pages.length + 9 && !over && Date.now() < end; ) await pause(10);
    worker.drain();
    await working;
  } finally {
    Math.random = random;
  }
  const granted = pages.length + 1;
  assert.deepEqual(done, ["done"]);
  assert.equal(new Set(asked.slice(0, granted)).size, 1, "the lease of a lost answer is not looked for");
  assert.equal(new Set(asked.slice(granted)).size, 1);
  assert(asked.length >= granted + 8);
});

// Promise S-263.
test("a worker that drains while it waits ends, whatever a proxy answers then", async () => {
  for (const said of successes) {
    let waiting = (): void => undefined;
    const waits = new Promise<void>((resolve) => (waiting = resolve));
    using at = await answering(async (_, __, body) => {
      if ((body as { wait_ms?: number }).wait_ms === undefined) return said;
      waiting();
      return new Promise(() => undefined);
    });
    const worker = new lokt.Worker(at.client, async () => assert.fail("there is no job"));
    const working = worker.run();
    await waits;
    worker.drain();
    await working;
  }
});

// Promise S-255.
test("a result that somebody in between refuses fails the attempt in the end", async () => {
  const sent: string[] = [];
  let late = 0;
  const now = performance.now;
  using at = await answering((_, path, body) => {
    if (path.endsWith("/leases/heartbeat")) {
      const { lease_ids: ids } = body as Ask & { lease_ids: string[] };
      return { status: 200, body: { leases: ids.map((lease_id) => ({ lease_id, ok: true })), heartbeat_interval_s: 0.05 } };
    }
    if (path.endsWith("/complete")) {
      const { status } = body as Ask & { status: string };
      sent.push(status);
      late += 3000;
      if (status === "failed") worker.drain();
      return { status: 200, body: status === "failed" ? { applied: true } : "<html>" };
    }
    const lease = { lease_id: "l", job_id: "j", attempt: 1, token: 1, lease_ttl_s: 20 };
    return { status: 200, body: { denied: false, lease, job: { job_id: "j", type: "t", payload: {} } } };
  });
  const worker = new lokt.Worker(at.client, async () => "done");
  try {
    performance.now = () => now.call(performance) + late;
    await worker.run();
  } finally {
    performance.now = now;
  }
  assert.equal(sent.pop(), "failed");
  assert(sent.length > 10 && sent.length <= 20 && sent.every((status) => status === "completed"), String(sent.length));
});

test("requests that fail together at one server all ask the next", async () => {
  const send: typeof fetch = (url, init) =>
    String(url).startsWith("http://away.")
      ? new Promise((_, no) => init!.signal!.addEventListener("abort", () => no(init!.signal!.reason as Error)))
      : Promise.resolve(new Response('{"version":"1"}', { headers: { "content-type": "application/json" } }));
  const client = new lokt.Lokt({ server: "http://away.example:1,http://there.example:1", timeoutMs: 500, fetch: send });
  assert.deepEqual(await Promise.all([client.about(), client.about()]), [{ version: "1" }, { version: "1" }]);
});

test("a time limit that no timer has is the longest that it has", { timeout: 60_000 }, async () => {
  using at = await answering(async () => (await pause(100), { status: 200, body: { version: "1" } }), Infinity);
  assert.deepEqual(await at.client.about(), { version: "1" });
});

test("a glance at a lease does not ask the system for its uptime each time", { skip: fixed }, async () => {
  using at = await answering((method, _, body) => ({ status: 200, body: method === "DELETE" ? { released: [] } : { holder: own("db", body.lease_id) } }));
  const [lease, up] = [await at.client.lock("db", { ttlMs: 20_000 }), os.uptime];
  let asked = 0;
  os.uptime = () => (asked++, up());
  syncBuiltinESMExports();
  try {
    for (let i = 0; i < 10_000; i++) lease.check();
  } finally {
    os.uptime = up;
    syncBuiltinESMExports();
  }
  assert(asked < 5000, `${asked} times`);
  await lease.release();
});

test("many wait with one signal, and Node warns of nothing", async () => {
  let sent = 0;
  using at = await answering(async (method) => {
    if (method === "DELETE") return { status: 200, body: { released: [] } };
    sent++;
    await pause(60_000, undefined, { ref: false });
    return { status: 200, body: {} };
  }, 60_000);
  const warned: string[] = [];
  const note = (w: Error): number => warned.push(w.name);
  process.on("warning", note);
  const all = new AbortController();
  const waits = Array.from({ length: 30 }, (_, i) => at.client.lock(`db${i}`, { signal: all.signal }));
  const ended = Promise.allSettled(waits);
  while (sent < waits.length) await pause(10);
  all.abort(new Error("enough"));
  for (const wait of await ended) assert(wait.status === "rejected" && /enough/.test(String(wait.reason)), JSON.stringify(wait));
  await pause(10);
  process.off("warning", note);
  assert.deepEqual(warned, []);
});

// Promise S-354.
test("an error that cannot be told as it is fails the attempt", { timeout: 60_000 }, async () => {
  const errors: unknown[] = [Object.create(null), new Error("no file '\udcff'"), new Error("x".repeat(20_000_000)), new Error(`${"x".repeat(3999)}🔑`)];
  const results: (lokt.Json | void)[] = [NaN, { x: [Infinity] }];
  const told: { status: string; error: { message: string } }[] = [];
  using at = await answering((_, path, body) => {
    if (path.endsWith("/complete")) {
      told.push(body as unknown as (typeof told)[0]);
      return { status: 200, body: { applied: true } };
    }
    const lease = { lease_id: "l", job_id: "j", attempt: 1, token: 1, lease_ttl_s: 20 };
    return { status: 200, body: { denied: false, lease, job: { job_id: "j", type: "t", payload: {} } } };
  });
  const worker = new lokt.Worker(at.client, async () => {
    if (errors.length + results.length === 1) worker.drain();
    if (errors.length > 0) throw errors.shift();
    return results.shift()!;
  });
  await worker.run();
  assert.deepEqual(told.map((t) => t.status), Array(6).fill("failed"));
  assert.deepEqual(told.slice(0, 2).map((t) => t.error.message), ["it cannot be told", "no file '\\udcff'"]);
  assert(told.every((t) => t.error.message.length <= 4010));
});

// Promise S-357.
test("numbers that JSON has not are refused, and nothing is asked for", async () => {
  let asked = 0;
  using at = await answering((_m, _p, body) => (asked++, { status: 200, body: { holder: own("db", body.lease_id), freeze: { owner: { id: "ana" } } } }));
  for (const bad of [NaN, Infinity]) {
    await assert.rejects(at.client.lock("db", { ttlMs: bad }), RangeError);
    await assert.rejects(at.client.lock("db", { maxHoldMs: bad }), lokt.InvalidError);
    await assert.rejects(at.client.lock("db", { slots: bad }), lokt.InvalidError);
    await assert.rejects(at.client.freeze("db", { ttlMs: bad }), Number.isNaN(bad) ? RangeError : lokt.InvalidError);
    await assert.rejects(at.client.jobs.submit({ payload: { n: [bad] } }), lokt.InvalidError);
  }
  await assert.rejects(at.client.freeze("db", { ttlMs: 0 }), RangeError);
  await assert.rejects(at.client.lock("db", { wait: NaN }), RangeError);
  await assert.rejects(at.client.lock("\ud800"), lokt.InvalidError);
  for (const timeoutMs of [NaN, 0, -1]) assert.throws(() => new lokt.Lokt({ server: "http://x", timeoutMs }), lokt.InvalidError);
  for (const concurrency of [NaN, 0]) assert.throws(() => new lokt.Worker(at.client, async () => null, { concurrency }), RangeError);
  assert.equal(asked, 0);
});

// Promise S-330.
test("who waits goes on when the server is not trusted for a moment", async () => {
  let sick = 0;
  using at = await answering((method, _, body) => {
    if (method === "DELETE") return { status: 200, body: { released: [] } };
    sick = 3;
    return body.lease_id === first ? { status: 200, body: { holder: own("db", first) } } : ((first = body.lease_id), { status: 202, body: { id: lokt.publicId(first) } });
  });
  let first = "";
  const doubtful: typeof fetch = (url, init) => {
    if (sick-- > 0) return Promise.reject(new TypeError("fetch failed", { cause: Object.assign(new Error("expired"), { code: "CERT_HAS_EXPIRED" }) }));
    return fetch(url, init);
  };
  const client = new lokt.Lokt({ server: at.client.transport.server, fetch: doubtful });
  const lease = await client.lock("db");
  await lease.release();
  sick = 1;
  await assert.rejects(new lokt.Lokt({ server: at.client.transport.server, fetch: doubtful }).about(), /TLS/);
});

// Promise S-355.
test("a lease that was lost is released in silence", async () => {
  using at = await answering((_m, _p, body) => {
    if (body.leases !== undefined) return { status: 404, body: { type: "about:blank", status: 404, code: "not_found", lock: "db", detail: "gone" } };
    return body.lease_id === undefined ? { status: 503, body: {} } : { status: 200, body: { holder: own("db", body.lease_id, { heartbeat_in_ms: 20 }) } };
  });
  const lease = await at.client.lock("db", { ttlMs: 20_000 });
  while (lease.state !== "lost") await pause(20);
  await lease.release();
});

// Promise S-352.
test("an answer that drips takes no longer than one may", { timeout: 60_000 }, async () => {
  const server = createServer((_, answer) => {
    const dripping = setInterval(() => answer.write(" "), 50);
    answer.on("close", () => clearInterval(dripping));
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const client = new lokt.Lokt({ server: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, timeoutMs: 300 });
  await assert.rejects(client.about(), /no answer in time/);
  server.close();
  server.closeAllConnections();
});

test("an answer that takes too long is told as such, whatever fetch throws then", { timeout: 60_000 }, async () => {
  const slow = async (_: unknown, init?: RequestInit) =>
    new Response(
      new ReadableStream({
        start: (body) => init!.signal!.addEventListener("abort", () => body.error(new DOMException("The operation was aborted.", "AbortError"))),
      }),
    );
  const client = new lokt.Lokt({ server: "http://127.0.0.1:1", timeoutMs: 100, fetch: slow as typeof fetch });
  await assert.rejects(client.about(), /no answer in time/);
});
