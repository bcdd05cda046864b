// Takes the lock, and leaves a process behind that renews it.
import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

import { ask, fail, holds, input, lease, line, locks, mask, output, publicId, Refused, save } from "./lokt.mjs";

const servers = input("server").split(",").map((s) => s.trim().replace(/\/+$/, "")).filter(Boolean);
const name = input("name");
const token = input("token");
const ttl = Number(input("ttl") || 60) * 1000;
const timeout = Number(input("timeout") || 0) * 1000;
mask(token);
const isServer = (s) => /^https?:\/\/[^/?#\s]+$/.test(s) && URL.canParse(s);
if (servers.length === 0 || !servers.every(isServer)) fail("server must be a URL, http:// or https://, without a path");
if (!name) fail("name is empty: give the name of the lock");
// It may come from whoever opened an issue, and what the steps hand to each other is told in lines.
if (!/^(?!\.\.?$)[\w.-]+$/.test(name)) fail("name has a character other than A-Z a-z 0-9 . _ -, or is . or ..");
if (!/^[\x20-\x7e]*$/.test(token)) fail("token has a character that a header may not have");
if (!(ttl >= 3000 && ttl < Infinity)) fail("ttl is in seconds, and at least 3");
if (!(timeout >= 0)) fail("timeout is in seconds, and not negative");

const env = process.env;
const id = randomBytes(16).toString("hex");
const operation = randomBytes(8).toString("hex"); // with which a copy of the claim that comes late can be called off
mask(id);
// Before anything is claimed: the post step must know what to give back, whatever ends this one.
for (const [k, v] of Object.entries({ servers: servers.join(","), name, id, operation })) save(k, v);

const run = `${env.GITHUB_SERVER_URL ?? ""}/${env.GITHUB_REPOSITORY ?? ""}/actions/runs/${env.GITHUB_RUN_ID ?? ""}`;
const claim = {
  lease_id: id,
  owner: { id: env.GITHUB_REPOSITORY || "github", session: `${env.GITHUB_RUN_ID ?? ""}/${env.GITHUB_JOB ?? ""}`, host: env.RUNNER_NAME ?? "" },
  strict: true,
  attended: true,
  ttl_ms: ttl,
  metadata: { workflow: env.GITHUB_WORKFLOW ?? "", actor: env.GITHUB_ACTOR ?? "", run },
};
const end = performance.now() + timeout;
let told = false;
let asked;

/** The process of the runner, if it can be found; it lives as long as the job. */
function runner() {
  try {
    for (let pid = process.ppid; pid > 1; ) {
      const [, comm, parent] = /^\d+ \((.*)\) \S+ (\d+)/s.exec(readFileSync(`/proc/${pid}/stat`, "utf8"));
      if (comm === "Runner.Worker") return pid;
      pid = Number(parent);
    }
  } catch {
    // there is no such directory
  }
}

try {
  for (;;) {
    const wait = Math.max(Math.min(end - performance.now(), ttl / 3, 30_000), 0);
    const body = () => {
      asked = performance.now();
      return timeout === 0 ? claim : wait > 0 ? { ...claim, wait_ms: Math.ceil(wait), stay: true } : { ...claim, wait_ms: 1 };
    };
    const { status, body: got } = await ask(servers, token, "POST", locks(name), {
      body, wait, headers: { "lokt-operation": operation }, good: (b) => holds(b?.holder, name, id) || (b?.queued && b.id === publicId(id)),
    });
    if (status !== 202) {
      if (performance.now() - asked > ttl / 4) { // it may be over already
        const renewal = { leases: [{ name, lease_id: id }] };
        await ask(servers, token, "POST", "/v1/leases/heartbeat", { body: renewal, patience: ttl / 2, good: (b) => holds(b?.leases?.[0]?.holder, name, id) });
      }
      console.log(`Holding lock ${name}, fencing token ${got.holder.token}`);
      output("token", got.holder.token);
      save("fence", got.holder.token);
      output("lease-id", publicId(id));
      break;
    }
    if (!told) {
      const { body: lock } = await ask(servers, token, "GET", `/v1/locks/${encodeURIComponent(name)}`, { good: (b) => Array.isArray(b?.holders) });
      const [who] = lock.holders;
      if (who) console.log(`Waiting for lock ${name}, held by ${line(who.owner.id)} since ${line(who.held_since)}${who.metadata?.run ? `: ${line(who.metadata.run)}` : ""}`);
      told = true;
    }
  }
} catch (e) {
  await ask(servers, token, "DELETE", lease(name, id), { headers: { "lokt-lease": id, "lokt-cancels": operation }, patience: 3000, good: (b) => Array.isArray(b?.released) }).catch(() => undefined);
  fail(e instanceof Refused && ["held", "frozen"].includes(e.code) ? `lock ${name} could not be had: ${e.message}` : e.message);
}

const keeper = spawn(process.execPath, [fileURLToPath(new URL("keep.mjs", import.meta.url))], {
  detached: true,
  stdio: "ignore",
  env: { ...env, LOKT_KEEP: JSON.stringify({ servers, name, id, ttl, runner: runner() }), LOKT_KEEP_TOKEN: token },
});
save("keeper", keeper.pid);
keeper.unref();
