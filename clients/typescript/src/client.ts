/** Locks of a loktd. */

import { createHash, randomBytes } from "node:crypto";
import { hostname, userInfo } from "node:os";

import { AuthError, type Freeze, FullError, HeldError, type Holder, InvalidError, NotFoundError, NotOwnerError, type Owner } from "./errors.js";
import { Jobs } from "./jobs.js";
import { Lease, lifeOf } from "./lease.js";
import { clock, insist, segment, Transport } from "./transport.js";

const longestPoll = 30_000; // ms that one request waits for a lock at most
const queueTTL = 30_000; // ms that a claim keeps its place when nobody asks for it

/** What a client may be told. */
export interface ClientOptions {
  /** A URL, or several with commas between them for replicas; `LOKT_SERVER` if absent. */
  server?: string;
  /** A bearer token; `LOKT_SERVER_TOKEN` if absent. A function is asked for it with each request, as one that may expire. */
  token?: string | (() => string);
  /** Who asks; `LOKT_OWNER`, else the user's name, and a session that is this client's own. */
  owner?: string | Owner;
  /** How long a server may take to answer, and for how long one that does not is tried again; 10,000 ms. */
  timeoutMs?: number;
  /** Another `fetch` than the global one, such as one that trusts a certificate's authority of your own. */
  fetch?: typeof fetch;
}

/** How a lock is claimed. */
export interface LockOptions {
  /** Time to live without renewal; 30,000 ms, and at least 1,000. */
  ttlMs?: number;
  /** For how long to wait in the queue: true without end (so by default), false not at all, or ms. */
  wait?: boolean | number;
  /** Share with any number of others that share. */
  shared?: boolean;
  /** Share with others, so that there are at most so many holders. */
  slots?: number;
  /** Place in the queue: higher first. */
  priority?: number;
  /** The most time that renewals may keep it, in ms. */
  maxHoldMs?: number;
  metadata?: Record<string, string>;
  /** Ends the wait; nothing is left behind. */
  signal?: AbortSignal;
}

/** What a server knows about a name. */
export interface LockView {
  name: string;
  token: number;
  revision: string;
  now: string;
  holders: Holder[];
  queue: { id: string; owner: Owner; since: string; until: string; priority?: number }[];
  freeze?: Freeze;
  /** By ID, why a hold or a claim in the queue does not count any more. */
  stale?: Record<string, string>;
}

/** Something that happened to a lock. */
export interface LockEvent {
  seq: number;
  time: string;
  type: string;
  name: string;
  id?: string;
  owner: Owner;
  token?: number;
  extra?: Record<string, string>;
}

interface Answer {
  holder?: Holder;
  queued?: boolean;
  id?: string;
}

/** Locks and jobs of a loktd. One of a program is enough. */
export class Lokt {
  readonly owner: Owner;
  /** Submits jobs and looks at them. */
  readonly jobs: Jobs;
  /** @internal */
  readonly transport: Transport;

  constructor(options: ClientOptions = {}) {
    const env = process.env;
    this.transport = new Transport(
      options.server ?? env["LOKT_SERVER"] ?? "",
      options.token ?? env["LOKT_SERVER_TOKEN"] ?? "",
      options.timeoutMs ?? 10_000,
      options.fetch ?? fetch,
    );
    const given = typeof options.owner === "object" ? options.owner : undefined;
    const id = typeof options.owner === "string" ? options.owner : (env["LOKT_OWNER"] ?? userName());
    const session = env["LOKT_AGENT_ID"] ?? `js-${process.pid}-${randomBytes(4).toString("hex")}`;
    this.owner = given ?? { id, session, host: hostname(), process: { pid: process.pid } };
    this.jobs = new Jobs(this.transport);
  }

  /** What the server is, and who it takes the caller for. */
  async about(): Promise<Record<string, unknown>> {
    return (await this.transport.request<Record<string, unknown>>("GET", "/v1/about")).body;
  }

  /** Takes the lock. Throws HeldError when somebody is in the way, or still is when the wait is over. */
  async lock(name: string, options: LockOptions = {}): Promise<Lease> {
    const ttl = options.ttlMs ?? 30_000;
    if (!(ttl >= 1000 && ttl < Infinity)) throw new RangeError("ttlMs is at least 1000, and not infinite");
    if (Number.isNaN(options.wait)) throw new RangeError("wait is true, false or ms");
    let leaseId = randomBytes(16).toString("hex");
    let operation = randomBytes(8).toString("hex");
    const wait = options.wait ?? true;
    const most = wait === true ? Infinity : wait === false ? 0 : Math.max(wait, 0);
    const poll = Math.min(longestPoll, Math.max(ttl / 3, 1000));
    const claim: Record<string, unknown> = { lease_id: leaseId, owner: this.owner, strict: true, attended: true, ttl_ms: Math.round(ttl) };
    if (options.shared) claim["limit"] = 2 ** 31 - 1;
    else if (options.slots !== undefined && options.slots !== 1) claim["limit"] = options.slots;
    if (options.priority) claim["priority"] = options.priority;
    if ((options.maxHoldMs ?? 0) !== 0) claim["max_hold_ms"] = Math.ceil(options.maxHoldMs!);
    if (options.metadata) claim["metadata"] = options.metadata;
    const begun = clock();
    let asked = begun;
    let reached = false;
    let heard: string | undefined;
    const body = (): unknown => {
      if (wait === false) return claim;
      const left = Math.min(poll, most - (clock() - begun));
      return left <= 0 ? { ...claim, wait_ms: 1 } : { ...claim, wait_ms: Math.max(Math.round(left), 1), stay: true };
    };
    try {
      for (;;) {
        const { status, body: answer } = await this.transport.request<Answer>("POST", `${lockPath(name)}/leases`, {
          body,
          headers: { "lokt-operation": operation },
          wait: wait === false ? 0 : poll,
          patience: wait === false ? this.transport.timeout : Math.min(queueTTL, most),
          signal: options.signal,
          sent: () => void (asked = clock()),
          reached: () => void (reached = true),
        });
        if (status === 202) {
          insist(answer.id === publicId(leaseId), this.transport.server);
          continue;
        }
        let holder = this.#own(answer.holder, name, leaseId);
        if (clock() - asked > (lifeOf(holder) ?? ttl) / 4) { // the request waited: when the hold began is not known well enough
          asked = clock();
          try {
            holder = await this.#renew(name, leaseId, ttl / 2);
          } catch (e) {
            if (!(e instanceof NotFoundError || e instanceof NotOwnerError)) throw e;
            // It is over, as after a sleep of the machine: once more.
            claim["lease_id"] = leaseId = randomBytes(16).toString("hex");
            operation = randomBytes(8).toString("hex");
            continue;
          }
        }
        return new Lease(name, leaseId, holder.token, asked, lifeOf(holder) ?? ttl, {
          renew: async (patience, signal) => {
            const hold = await this.#renew(name, leaseId, patience, signal, heard);
            if (hold.token !== holder.token) {
              throw new NotOwnerError(`the hold of ${JSON.stringify(name)} had ended, and a copy of its claim was granted since`);
            }
            const wanted = hold.yield?.deadline;
            if (wanted === undefined || wanted === heard) return hold;
            heard = wanted; // it is not relied on beyond that from here on, which the server is told at once
            return { ...hold, heartbeat_in_ms: 10 };
          },
          release: (patience) => this.#giveBack(name, leaseId, operation, patience),
        }, holder.heartbeat_in_ms);
      }
    } catch (e) {
      const known = e instanceof HeldError || e instanceof FullError || e instanceof InvalidError || e instanceof AuthError;
      if (reached && !known) await this.#giveBack(name, leaseId, operation, 5000).catch(() => undefined);
      throw e;
    }
  }

  /** Takes the lock if it can be had now, and resolves to undefined if somebody else is in the way. */
  async tryLock(name: string, options: LockOptions = {}): Promise<Lease | undefined> {
    try {
      return await this.lock(name, { ...options, wait: false });
    } catch (e) {
      if (e instanceof HeldError) return undefined;
      throw e;
    }
  }

  /**
   * Holds the lock while `run` runs, whose signal aborts when the lock is lost; then `guard` rejects with the LostError as
   * soon as `run` has settled.
   */
  async guard<T>(name: string, run: (lease: Lease, signal: AbortSignal) => Promise<T>, options: LockOptions = {}): Promise<T> {
    const lease = await this.lock(name, options);
    let result: T;
    try {
      result = await run(lease, lease.signal);
      if (lease.state === "lost") throw lease.signal.reason;
    } catch (e) {
      await lease.release().catch(() => undefined);
      throw lease.signal.aborted ? lease.signal.reason : e;
    }
    await lease.release();
    return result;
  }

  /** Looks at a lock. A name that nobody uses is a free lock. */
  async show(name: string): Promise<LockView> {
    const { body } = await this.transport.request<LockView>("GET", lockPath(name));
    insist(body.name === name, this.transport.server);
    return body;
  }

  /** Lists the locks that are not free, by name. */
  async list(prefix?: string): Promise<LockView[]> {
    const { locks } = (await this.transport.request<{ locks: LockView[] }>("GET", "/v1/locks", { query: { prefix } })).body;
    insist(Array.isArray(locks), this.transport.server);
    return locks;
  }

  /** Ends all holds, or the one with the public ID, whoever's they are. Needs the scope force. */
  async forceRelease(name: string, publicID?: string): Promise<Holder[]> {
    const path = `${lockPath(name)}/leases${publicID === undefined ? "" : `/${segment(publicID)}`}`;
    const x = { query: { ...this.#asker(), force: true } };
    const { released } = (await this.transport.request<{ released: Holder[] }>("DELETE", path, x)).body;
    insist(Array.isArray(released), this.transport.server);
    return released;
  }

  /** Keeps newcomers out for `ttlMs`. Who holds the lock stays. */
  async freeze(name: string, options: { ttlMs: number; reason?: string }): Promise<Freeze> {
    if (!(options.ttlMs > 0)) throw new RangeError("ttlMs is more than 0");
    const body = { owner: this.owner, ttl_ms: Math.ceil(options.ttlMs), reason: options.reason ?? "" };
    const { freeze } = (await this.transport.request<{ freeze: Freeze }>("PUT", `${lockPath(name)}/freeze`, { body })).body;
    insist(freeze?.owner !== undefined, this.transport.server);
    return freeze;
  }

  /** Ends the caller's freeze, or with `force` anybody's. */
  async unfreeze(name: string, options: { force?: boolean } = {}): Promise<void> {
    const query = { ...this.#asker(), force: options.force ? true : undefined };
    const { freeze } = (await this.transport.request<{ freeze?: Freeze }>("DELETE", `${lockPath(name)}/freeze`, { query })).body;
    insist(freeze?.owner !== undefined, this.transport.server);
  }

  /** Yields events of locks, oldest first, until the signal aborts: those after a number, or those from now on. */
  async *events(options: { after?: number; name?: string; prefix?: string; signal?: AbortSignal } = {}): AsyncGenerator<LockEvent> {
    let after = options.after;
    if (after === undefined) {
      const query = { limit: 1, latest: true };
      after = (await this.transport.request<{ newest: number }>("GET", "/v1/audit", { query })).body.newest;
      insist(typeof after === "number", this.transport.server);
    }
    while (!options.signal?.aborted) {
      const query = { after, name: options.name, prefix: options.prefix, wait_ms: longestPoll };
      const x = { query, wait: longestPoll, signal: options.signal };
      const page: { events: LockEvent[] } = (await this.transport.request<{ events: LockEvent[] }>("GET", "/v1/audit", x)).body;
      insist(Array.isArray(page.events), this.transport.server);
      for (const event of page.events) {
        after = event.seq;
        yield event;
      }
    }
  }

  async #renew(name: string, leaseId: string, patience: number, signal?: AbortSignal, heard?: string): Promise<Holder> {
    const x = { body: { leases: [{ name, lease_id: leaseId, heard }] }, patience, signal };
    const { leases } = (await this.transport.request<{ leases?: { holder?: Holder }[] }>("POST", "/v1/leases/heartbeat", x)).body;
    return this.#own(leases?.[0]?.holder, name, leaseId);
  }

  /** The holder that an answer tells of, if that is this lease: nothing else grants or keeps it. */
  #own(holder: Holder | undefined, name: string, leaseId: string): Holder {
    const own = holder?.name === name && holder.id === publicId(leaseId) && typeof holder.token === "number" && holder.token > 0;
    insist(own && !Number.isNaN(lifeOf(holder)), this.transport.server);
    return holder!;
  }

  /** Ends the lease, and keeps copies of its claim that are still under way from being granted later. */
  async #giveBack(name: string, leaseId: string, operation: string, patience = this.transport.timeout): Promise<void> {
    const headers = { "lokt-lease": leaseId, "lokt-cancels": operation };
    const x = { query: this.#asker(), headers, patience };
    const { body } = await this.transport.request<{ released?: Holder[] }>("DELETE", leasePath(name, leaseId), x);
    insist(Array.isArray(body.released), this.transport.server);
  }

  #asker(): Record<string, string | number | undefined> {
    const { id, session, host, process } = this.owner;
    return { owner: id, session, host, pid: process?.pid };
  }
}

/** What everybody but the holder sees instead of a lease ID: "L-" and 20 hexadecimal digits of its SHA-256. */
export function publicId(leaseId: string): string {
  return `L-${createHash("sha256").update(leaseId).digest("hex").slice(0, 20)}`;
}

function lockPath(name: string): string {
  if (typeof name !== "string" || ["", ".", ".."].includes(name)) { // which are no segments of a path
    throw new InvalidError(`${JSON.stringify(name)} is no name for a lock`, "invalid");
  }
  return `/v1/locks/${segment(name)}`;
}

function leasePath(name: string, leaseId: string): string {
  return `${lockPath(name)}/leases/${publicId(leaseId)}`;
}

function userName(): string {
  try {
    return userInfo().username;
  } catch {
    return "unknown"; // a user without an entry in the system's list
  }
}
