// What the steps share: requests to a loktd, and the runner's files and commands.
import { createHash } from "node:crypto";
import { appendFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";

/** An input of the action. */
export const input = (name) => (process.env[`INPUT_${name.toUpperCase()}`] ?? "").trim();

const escaped = (text) => String(text).replaceAll("%", "%25").replaceAll("\r", "%0D").replaceAll("\n", "%0A");

/** Hides a text in all logs of the job. */
export const mask = (text) => text && console.log(`::add-mask::${escaped(text)}`);

/** What others have written, without the line ends by which a runner would take it for its commands. */
export const line = (text) => String(text).replace(/\p{Cc}/gu, " ");

/** Keeps a value for the post step. */
export const save = (name, value) => appendFileSync(process.env.GITHUB_STATE, `${name}=${value}\n`);

/** Hands a value to later steps. */
export const output = (name, value) => appendFileSync(process.env.GITHUB_OUTPUT, `${name}=${value}\n`);

/** Ends the step with an error that the run's page shows. */
export function fail(message) {
  console.log(`::error title=lokt::${escaped(message)}`);
  process.exit(1);
}

export const publicId = (leaseId) => `L-${createHash("sha256").update(leaseId).digest("hex").slice(0, 20)}`;
export const locks = (name) => `/v1/locks/${encodeURIComponent(name)}/leases`;
export const lease = (name, leaseId) => `${locks(name)}/${publicId(leaseId)}`;

/** An answer that is no success; `code` is the server's. */
export class Refused extends Error {
  constructor(body, status) {
    super(body?.detail ?? body?.title ?? `status ${status}`);
    this.code = body?.code ?? "";
  }
}

/** Whether an answer tells that the lease holds the lock. */
export const holds = (holder, name, id) => holder?.name === name && holder.id === publicId(id) && holder.token > 0;

/** Whether an error is a loktd's: a proxy in between has no codes, nor the name of the lock. */
const loktds = (got, status) =>
  got?.type === "about:blank" && got.status === status && got.code && (got.lock || !["held", "frozen", "not_found", "not_owner"].includes(got.code));

/**
 * Sends a request to the first server that answers, again and again for `patience` ms. `body` may be a function, called for each
 * try; `wait` is how long, in ms, the server may take on purpose; `good` says whether an answer is what was asked for.
 */
export async function ask(servers, token, method, path, { body, headers = {}, patience = 30_000, wait = 0, good } = {}) {
  const end = performance.now() + patience;
  for (let n = 0; ; n++) {
    const server = servers[n % servers.length];
    let why;
    try {
      const value = typeof body === "function" ? body() : body;
      const answer = await fetch(server + path, {
        method,
        redirect: "manual",
        signal: AbortSignal.timeout(Math.ceil(wait + Math.min(patience, 10_000))),
        headers: { ...headers, ...(value && { "content-type": "application/json" }), ...(token && { authorization: `Bearer ${token}` }) },
        ...(value && { body: JSON.stringify(value) }),
      });
      const text = await answer.text();
      let got;
      try {
        got = JSON.parse(text);
      } catch {
        throw new Error(`${server} answered with status ${answer.status} and no JSON: is it a loktd?`);
      }
      if (answer.ok && good(got)) return { status: answer.status, body: got };
      if (answer.ok || !loktds(got, answer.status)) throw new Error(`${server} answered with status ${answer.status}, and not as loktd does: is a proxy in between?`);
      const refused = new Refused(got, answer.status);
      if (![429, 502, 503, 504].includes(answer.status) || got.code === "full") throw refused;
      why = refused;
    } catch (e) {
      if (e instanceof Refused) throw e;
      why = new Error(`${server}: ${e.cause?.message ?? e.message}`);
    }
    if (performance.now() >= end) throw why;
    await pause(Math.min(200 * 2 ** Math.min(n, 4), Math.max(end - performance.now(), 1)));
  }
}
