/** Jobs of a loktd, and the worker that runs them. */

import { randomBytes } from "node:crypto";
import { hostname } from "node:os";

import { AuthError, InvalidError, LoktError, NotFoundError, NotOwnerError, UnavailableError, undecided } from "./errors.js";
import type { Lokt } from "./client.js";
import { usable } from "./lease.js";
import { clock, type Exchange, finite, insist, type Json, onAbort, segment, sleep, type Transport } from "./transport.js";

const api = "/api/system/scheduler";
const most = 1000; // leases of one heartbeat

/** Where a job stands. */
export type JobState = "scheduled" | "queued" | "leased" | "running" | "completed" | "failed" | "expired" | "cancelled";

/** What is asked of a job. Durations are seconds, as on the wire. */
export interface JobSpec {
  type?: string;
  priority?: "high" | "normal" | "low" | "background";
  requested_units?: number;
  unique?: boolean;
  payload?: { [name: string]: Json };
  /** The same key with the same job gives the same job again, until 24 h after its end. */
  idempotency_key?: string;
  tags?: string[];
  /** Names of locks that are held while the job is leased. */
  locks?: string[];
  /** IDs of jobs that have to complete first; if one of them ends otherwise, this one is cancelled. */
  after?: string[];
  /** The jobs to run after have to end only, however they do. */
  after_any?: boolean;
  /** Jobs of one priority that have different keys take turns. */
  fair_key?: string;
  /** Limits on the locks, by name: how many jobs hold one at a time, and how many begin within the time. */
  limits?: Record<string, { slots?: number; starts?: number; per_s?: number; burst?: number }>;
  /** Makes it a schedule, which submits a job like it at each tick: five fields as cron has them, or @hourly and the like. */
  cron?: string;
  max_attempts?: number;
  retry_backoff_s?: number;
  max_runtime_s?: number;
  /** RFC 3339 */
  run_at?: string;
}

/** A job as the server shows it. */
export interface JobView extends Required<Omit<JobSpec, "max_runtime_s" | "run_at" | "idempotency_key" | "after" | "after_any" | "fair_key" | "limits" | "cron">> {
  job_id: string;
  state: JobState;
  code: string | null;
  attempt: number;
  token: number;
  created_at: string;
  updated_at: string;
  ended_at: string | null;
  result: Json;
  error: Json;
  progress: number | null;
  message: string | null;
  checkpoint: Json;
  max_runtime_s: number | null;
  waiting_for?: string | null;
  after?: string[];
  after_any?: boolean;
  fair_key?: string;
  limits?: JobSpec["limits"];
  cron?: string;
  /** Of a job that a schedule submitted, and the tick that it is for. */
  schedule_id?: string;
  tick?: string;
  /** Of a schedule. */
  next_tick?: string;
  last_tick?: string;
  last_run_id?: string;
  skipped_ticks?: number;
}

interface Granted {
  denied: false;
  lease: { lease_id: string; job_id: string; attempt: number; token: number; lease_ttl_s: number; lock_tokens?: Record<string, number> };
  job: JobView;
}

interface Denied {
  denied: true;
  reason: string;
  code?: string;
  retry_after_ms: number;
}

interface BeatAnswer {
  ok?: boolean;
  run_left_s?: number;
  cancel_requested?: boolean;
  lost_locks?: string[];
}

/** Submits jobs and looks at them. */
export class Jobs {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Queues a job and returns its ID. It is sent again after a failure only if it has an `idempotency_key`. */
  async submit(spec: JobSpec = {}): Promise<string> {
    const x = { body: spec, resend: spec.idempotency_key !== undefined };
    const { job_id: id } = (await this.#transport.request<{ job_id: string }>("POST", `${api}/jobs`, x)).body;
    insist(typeof id === "string", this.#transport.server);
    return id;
  }

  /** Looks at a job. */
  async get(id: string): Promise<JobView> {
    const { body } = await this.#transport.request<JobView>("GET", `${api}/jobs/${segment(id)}`);
    insist(body.job_id === id, this.#transport.server);
    return body;
  }

  /** Yields jobs, newest change first, page by page. */
  async *list(filter: { state?: JobState; type?: string; tag?: string } = {}): AsyncGenerator<JobView> {
    let after: string | undefined;
    do {
      const query = { ...filter, after };
      const page: { jobs: { job: JobView }[]; next: string | null } = (
        await this.#transport.request<{ jobs: { job: JobView }[]; next: string | null }>("GET", `${api}/jobs`, { query })
      ).body;
      insist(Array.isArray(page.jobs) && page.jobs.every((item) => item?.job?.job_id !== undefined), this.#transport.server);
      for (const item of page.jobs) yield item.job;
      after = page.next ?? undefined;
    } while (after !== undefined);
  }

  /** Cancels a queued job, or asks the worker of a leased one to stop. Returns its state. */
  async cancel(id: string, reason = ""): Promise<JobState> {
    const path = `${api}/jobs/${segment(id)}/cancel`;
    const { state } = (await this.#transport.request<{ state: JobState }>("POST", path, { body: { reason } })).body;
    insist(typeof state === "string", this.#transport.server);
    return state;
  }

  /** The capacity and its use. */
  async status(): Promise<Record<string, unknown>> {
    return (await this.#transport.request<Record<string, unknown>>("GET", `${api}/status`)).body;
  }

  /** Waits until the job has ended and returns it; looks every `everyMs`. */
  async wait(id: string, options: { everyMs?: number; signal?: AbortSignal } = {}): Promise<JobView> {
    for (;;) {
      options.signal?.throwIfAborted();
      const job = await this.get(id);
      if (["completed", "failed", "expired", "cancelled"].includes(job.state)) return job;
      await sleep(options.everyMs ?? 500, options.signal);
    }
  }
}

/** Why a job is to end before it is done. */
export class StoppedError extends LoktError {
  constructor(readonly why: "cancelled" | "lost" | "lock lost" | "out of time") {
    super(`the job is to end: ${why}`, "stopped");
  }
}

/** A job that a worker has, under a lease that heartbeats keep. */
export class Job {
  readonly id: string;
  readonly type: string;
  readonly payload: { [name: string]: Json };
  readonly attempt: number;
  /** Fencing token: rises from lease to lease of the job. */
  readonly token: number;
  /** The fencing tokens of the locks that the job names. */
  readonly lockTokens: Record<string, number>;
  /** What the attempt before left behind. */
  readonly checkpoint: Json;
  readonly spec: JobView;
  /** @internal */ readonly leaseId: string;
  /** @internal */ readonly ttl: number;
  /** @internal */ deadline: number;
  /** @internal */ runsUntil: number;
  /** @internal */ news: { progress?: number; checkpoint?: Json } = {};
  /** @internal */ refused: InvalidError | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #stop = new AbortController();

  /** @internal */
  constructor(g: Granted, asked: number) {
    this.id = g.job.job_id;
    this.type = g.job.type;
    this.payload = g.job.payload;
    this.attempt = g.lease.attempt;
    this.token = g.lease.token;
    this.lockTokens = g.lease.lock_tokens ?? {};
    this.checkpoint = g.job.checkpoint;
    this.spec = g.job;
    this.leaseId = g.lease.lease_id;
    this.ttl = g.lease.lease_ttl_s * 1000;
    this.deadline = asked + usable(this.ttl);
    this.runsUntil = asked + usable(this.limit);
  }

  /** Aborts when the handler should end, with a StoppedError as reason: "out of time" when its maximum runtime is about to be over. */
  get signal(): AbortSignal {
    if (clock() >= this.deadline) this.end("lost");
    else if (clock() >= this.runsUntil) this.end("out of time");
    return this.#stop.signal;
  }

  /**
   * Tells how far the job is, from 0 to 1, and what the next attempt would go on from; sent with the next heartbeat. Throws if
   * the checkpoint is no JSON, and an InvalidError if the server refused the one before.
   */
  progress(fraction: number, checkpoint?: Json): void {
    const copy = checkpoint === undefined ? undefined : (JSON.parse(JSON.stringify(checkpoint, finite)) as Json);
    const refused = this.refused;
    this.refused = undefined;
    if (refused !== undefined) throw refused;
    if (!Number.isNaN(fraction)) this.news.progress = Math.min(Math.max(fraction, 0), 1);
    if (copy !== undefined) this.news.checkpoint = copy;
  }

  /** The maximum runtime in ms. @internal */
  get limit(): number {
    return (this.spec.max_runtime_s ?? Infinity) * 1000;
  }

  /** Takes in what a heartbeat was answered, which was sent at that moment. @internal */
  extend(asked: number, answer: BeatAnswer): void {
    this.deadline = Math.max(this.deadline, asked + usable(this.ttl));
    if (answer.run_left_s !== undefined) {
      this.runsUntil = Math.max(this.runsUntil, asked + usable(answer.run_left_s * 1000, this.limit));
    }
    if (answer.cancel_requested) this.end("cancelled");
    if (answer.lost_locks !== undefined) this.end("lock lost");
  }

  /** Tells the job when its time is up, also while the heartbeats wait for an answer. @internal */
  watch(): void {
    if (this.signal.aborted) return;
    const left = Math.min(this.deadline, this.runsUntil) - clock();
    this.#timer = setTimeout(() => this.watch(), Math.max(Math.min(left, 1000), 0)); // the machine may sleep, and timers with it
  }

  /** @internal */
  end(why: StoppedError["why"]): void {
    this.unwatch();
    if (!this.#stop.signal.aborted) this.#stop.abort(new StoppedError(why));
  }

  /** @internal */
  unwatch(): void {
    clearTimeout(this.#timer);
  }

  /** @internal */
  get lost(): boolean {
    const reason: unknown = this.signal.reason;
    return reason instanceof StoppedError && reason.why === "lost";
  }
}

/** What a worker may be told. */
export interface WorkerOptions {
  types?: string[];
  capabilities?: string[];
  maxUnits?: number;
  /** How many jobs at once; 1. */
  concurrency?: number;
  workerId?: string;
}

/**
 * Runs jobs with `handle`, whose result is the job's (any JSON value). An exception fails the attempt. One stream of heartbeats
 * keeps all leases; `job.signal` aborts before anybody else may have the job, and what comes afterwards is thrown away.
 */
export class Worker {
  readonly id: string;
  readonly #transport: Transport;
  readonly #handle: (job: Job, signal: AbortSignal) => Promise<Json | void>;
  readonly #ask: Record<string, unknown>;
  readonly #concurrency: number;
  readonly #draining = new AbortController();
  readonly #jobs = new Map<string, Job>();
  #running: Promise<void>[] = [];
  #runs = false;
  #open: { id: string; since: number } | undefined; // a request without an answer: a lease may be the answer to its first try
  #wake = new AbortController();

  constructor(client: Lokt, handle: (job: Job, signal: AbortSignal) => Promise<Json | void>, options: WorkerOptions = {}) {
    this.id = options.workerId ?? `${client.owner.id}-${hostname()}-${randomBytes(4).toString("hex")}`;
    this.#transport = client.transport;
    this.#handle = handle;
    this.#concurrency = options.concurrency ?? 1;
    if (!(this.#concurrency >= 1)) throw new RangeError("concurrency is at least 1");
    this.#ask = { worker_id: this.id, types: options.types ?? [], capabilities: options.capabilities ?? [] };
    if (options.maxUnits !== undefined) this.#ask["max_units"] = options.maxUnits;
  }

  /** Works until `drain` is called or the signal aborts; jobs under way are finished first. Rejects if it is called while it runs. */
  async run(signal?: AbortSignal): Promise<void> {
    // Two would send the same request, and both do the job.
    if (this.#runs) throw new Error("the worker runs already: concurrency is how many jobs it does at once");
    this.#runs = true;
    const undo = onAbort(signal, () => this.drain());
    if (signal?.aborted) this.drain();
    const over = new AbortController();
    const beats = this.#beat(over.signal);
    try {
      while (!this.#draining.signal.aborted) {
        if (this.#running.length >= this.#concurrency) {
          await Promise.race(this.#running);
          continue;
        }
        const job = await this.#next();
        if (job === undefined) continue;
        this.#jobs.set(job.leaseId, job);
        this.#wake.abort();
        job.watch();
        const work = this.#work(job).finally(() => {
          job.unwatch();
          this.#jobs.delete(job.leaseId);
          this.#running = this.#running.filter((w) => w !== work);
          this.#wake.abort();
        });
        this.#running.push(work);
      }
    } finally {
      await Promise.all(this.#running);
      undo();
      over.abort();
      this.#wake.abort();
      await beats;
      this.#runs = false;
    }
  }

  /** Asks for no more jobs; `run` returns when those under way have ended. */
  drain(): void {
    this.#draining.abort();
    this.#wake.abort();
  }

  async #next(): Promise<Job | undefined> {
    const asked = clock();
    const { id, since } = (this.#open ??= { id: randomBytes(16).toString("hex"), since: asked });
    const draining = this.#draining.signal;
    let answer: Granted | Denied | undefined;
    try {
      answer = await this.#asked({ request_id: id, wait_ms: 30_000 }, { wait: 30_000, patience: 30_000, signal: draining });
    } catch (e) {
      if (!draining.aborted) {
        if (!undecided(e)) throw e;
        await sleep(500 + 1000 * Math.random(), draining);
        if (!draining.aborted) return undefined;
      }
      // What was given up may have been granted a job: the same request finds it, and asks for no other.
      answer = await this.#asked({ request_id: id, types: [`none-${id}`] }, { patience: 2000 }).catch(() => undefined);
      if (answer === undefined) return undefined;
    }
    this.#open = undefined;
    if (!answer.denied) return this.#confirmed(new Job(answer, since), since);
    if (clock() - asked < 15_000) await sleep(answer.retry_after_ms, draining); // it has not waited there
    return undefined;
  }

  async #asked(more: Record<string, unknown>, x: Exchange): Promise<Granted | Denied> {
    const body = { ...this.#ask, ...more };
    const { body: answer } = await this.#transport.request<Granted | Denied>("POST", `${api}/leases/request`, { ...x, body });
    const granted = answer.denied === false && answer.lease?.token > 0 && answer.lease.lease_ttl_s > 0 && answer.lease.job_id === answer.job?.job_id;
    insist(granted || (answer.denied === true && typeof answer.retry_after_ms === "number"), this.#transport.server);
    return answer;
  }

  /** Extends the lease of a job whose request waited, so that it is known when it began; undefined if it is over. */
  async #confirmed(job: Job, asked: number): Promise<Job | undefined> {
    if (clock() - asked <= Math.min(job.ttl / 4, job.limit / 20)) return job;
    const path = `${api}/leases/${segment(job.leaseId)}/heartbeat`;
    const sent = (): void => void (asked = clock());
    try {
      const x = { body: { worker_id: this.id }, patience: job.ttl / 2, sent };
      const { body } = await this.#transport.request<BeatAnswer>("POST", path, x);
      insist(body.ok === true, this.#transport.server);
      job.extend(asked, body);
    } catch (e) {
      if (e instanceof LoktError) return undefined; // it ends by itself
      throw e;
    }
    return clock() < Math.min(job.deadline, job.runsUntil) ? job : undefined;
  }

  async #work(job: Job): Promise<void> {
    let done: Record<string, unknown> = { worker_id: this.id, status: "completed" };
    try {
      const result = await this.#handle(job, job.signal);
      if (result !== undefined) done["result"] = result;
    } catch (e) {
      done = { worker_id: this.id, status: "failed", error: failure(e) };
    }
    const path = `${api}/leases/${segment(job.leaseId)}/complete`;
    if ((job.signal.reason as StoppedError | undefined)?.why === "out of time" && done["status"] === "failed") return; // the service says why
    const foreign = clock() + Math.max(60_000, 3 * job.ttl); // by then a proxy refuses the result for what is in it
    while (!job.lost && clock() < job.deadline) {
      try {
        const x = { body: done, patience: Math.max(job.deadline - clock(), 100) };
        const { body } = await this.#transport.request<{ applied?: boolean }>("POST", path, x);
        insist(body.applied !== undefined, this.#transport.server);
        return;
      } catch (e) {
        if (e instanceof UnavailableError) continue;
        if (e instanceof NotFoundError || e instanceof NotOwnerError || e instanceof AuthError) return;
        if (e instanceof InvalidError || !(e instanceof LoktError)) { // what is refused fails the attempt
          if (done["status"] === "failed") return;
          done = { worker_id: this.id, status: "failed", error: failure(e) };
        } else { // not about the job
          if (clock() > foreign) {
            if (done["status"] === "failed") return;
            done = { worker_id: this.id, status: "failed", error: `the result could not be sent: ${e.message}` };
          }
          await sleep(200 + 300 * Math.random());
        }
      }
    }
  }

  /** The one stream of heartbeats: all leases in one request, at the pace that the server proposes. */
  async #beat(over: AbortSignal): Promise<void> {
    while (!over.aborted) {
      this.#wake = new AbortController();
      if (this.#jobs.size === 0) {
        await sleep(1000, this.#wake.signal);
        continue;
      }
      const begun = clock(); // what was told to end for another reason may be over, too
      const live = [...this.#jobs.values()].filter((j) => !j.lost && begun < j.deadline);
      const shortest = Math.min(...live.map((j) => j.ttl));
      let pause = 1000;
      if (live.length > 0) {
        try {
          const proposed = (await this.#send(live, shortest / 4)) ?? shortest / 3;
          pause = Math.min(proposed, (shortest / 3) * 2) * (0.8 + 0.2 * Math.random()) - (clock() - begun);
        } catch {
          pause = Math.max(shortest / 20, 50); // in doubt, not lost: soon again, until the deadlines
        }
      }
      const nearest = Math.min(...live.map((j) => j.deadline)) - clock();
      await sleep(Math.max(Math.min(pause, nearest), 50), this.#wake.signal);
    }
  }

  /** Returns after how many ms the server wants the next heartbeats. */
  async #send(live: Job[], patience: number): Promise<number | undefined> {
    let every: number | undefined;
    for (let i = 0; i < live.length; i += most) {
      const asked = clock();
      const byLease = new Map(live.slice(i, i + most).map((j) => [j.leaseId, j]));
      const x = { body: { worker_id: this.id, lease_ids: [...byLease.keys()] }, patience };
      type One = BeatAnswer & { lease_id: string; ok: boolean; code?: string };
      type Many = { leases: One[]; heartbeat_interval_s?: number };
      const { body } = await this.#transport.request<Many>("POST", `${api}/leases/heartbeat`, x);
      for (const one of body.leases) {
        const job = byLease.get(one.lease_id);
        if (job === undefined) continue;
        if (one.ok) job.extend(asked, one);
        else if (one.code === "lease_not_found" || one.code === "worker_mismatch") job.end("lost");
      }
      every = body.heartbeat_interval_s === undefined ? undefined : body.heartbeat_interval_s * 1000;
    }
    const end = clock() + patience;
    for (const job of live) if (clock() < end) await this.#tell(job, end - clock());
    return every;
  }

  /** Sends what is new of a job. What the server refuses is dropped, lest it be in the way for ever. */
  async #tell(job: Job, patience: number): Promise<void> {
    const news = job.news;
    if (Object.keys(news).length === 0) return;
    job.news = {};
    const path = `${api}/leases/${segment(job.leaseId)}/heartbeat`;
    const asked = clock();
    try {
      const x = { body: { worker_id: this.id, ...news }, patience };
      const { body } = await this.#transport.request<BeatAnswer>("POST", path, x);
      insist(body.ok === true, this.#transport.server);
      job.extend(asked, body);
    } catch (e) {
      if (e instanceof NotFoundError || e instanceof NotOwnerError) job.end("lost");
      else if (e instanceof InvalidError) job.refused = e;
      else job.news = { ...news, ...job.news };
    }
  }
}

/** What is told of an error: nothing in it is in the way of that, neither its length nor characters that JSON has not. */
function failure(e: unknown): Json {
  const text = (of: () => unknown): string => {
    try {
      return String(of()).slice(0, 4000).replace(/\p{Surrogate}/gu, (c) => `\\u${c.charCodeAt(0).toString(16)}`);
    } catch {
      return "it cannot be told";
    }
  };
  if (!(e instanceof Error)) return { type: "Error", message: text(() => e) };
  return { type: text(() => e.name), message: text(() => e.message), stack: text(() => e.stack ?? "") };
}
