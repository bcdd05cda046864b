/** Requests to a loktd: several addresses, time limits, and which failures are tried again. */

import { uptime } from "node:os";

import { foreign, fromAnswer, IncompatibleError, InvalidError, LoktError, passing, type Problem, UnavailableError } from "./errors.js";

/** A JSON value. */
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

const longestAnswer = 64 << 20; // bytes; more is no answer of a loktd

const began = performance.now();
const up = sinceBoot(); // undefined where it is not told
const beganWall = Date.now();
let slept = 0;
let read = { mono: -Infinity, ahead: 0 }; // when the time since the start was read, and how far the wall clock was ahead then

function sinceBoot(): number | undefined {
  try {
    return uptime() * 1000;
  } catch { // Deno may be told not to tell, at any time
    return undefined;
  }
}

/**
 * Milliseconds on a clock that nobody sets back. It keeps up with the time since the machine was started, because the other one
 * stands still while the machine sleeps. Where that is known in seconds only, it may be one too far, once: never behind. It takes long
 * to read, and so is read when the wall clock says that there was a sleep, and once a second.
 */
export function clock(): number {
  const mono = performance.now() - began;
  const ahead = Date.now() - beganWall - mono;
  if (up === undefined) slept = Math.max(slept, ahead);
  else if (Math.abs(ahead - read.ahead) > 5 || mono - read.mono > 1000) {
    slept = Math.max(slept, (sinceBoot() ?? 0) - up - mono);
    read = { mono, ahead };
  }
  return mono + slept;
}

const waiting = new WeakMap<AbortSignal, Set<() => void>>();

/** Has `end` called when the signal aborts, and returns what undoes that. It is one listener for all that wait: Node warns of more than ten. */
export function onAbort(signal: AbortSignal | undefined, end: () => void): () => void {
  if (signal === undefined) return () => {};
  const all = waiting.get(signal) ?? new Set();
  if (!waiting.has(signal)) {
    waiting.set(signal, all);
    signal.addEventListener("abort", () => all.forEach((each) => each()));
  }
  all.add(end);
  return () => void all.delete(end);
}

/** Resolves after so many milliseconds, or at once when the signal aborts. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const end = (): void => {
      clearTimeout(timer);
      undo();
      resolve();
    };
    const timer = setTimeout(end, ms);
    const undo = onAbort(signal, end);
  });
}

/** Throws IncompatibleError unless the answer is what was asked for. */
export function insist(whole: boolean, server: string): asserts whole {
  if (!whole) throw foreign(server);
}

/** What a request may be told. Times are milliseconds. */
export interface Exchange {
  body?: unknown | (() => unknown);
  query?: Record<string, string | number | boolean | undefined>;
  headers?: Record<string, string>;
  /** How long the server may take on purpose. */
  wait?: number;
  /** For how long a server that does not answer is tried again. */
  patience?: number;
  /** Whether that is safe after the request was sent; true unless it is said. */
  resend?: boolean;
  signal?: AbortSignal | undefined;
  /** Called before each try. */
  sent?: () => void;
  /** Called when a try may have reached a server. */
  reached?: () => void;
}

const unsent = new WeakSet<LoktError>(); // errors that came before anything was sent

/** Sends requests to the first of some addresses that answers. */
export class Transport {
  readonly #addresses: string[];
  readonly #token: () => string;
  readonly #fetch: typeof fetch;
  readonly timeout: number;
  #current = 0;
  #trusted = false;

  constructor(servers: string, token: string | (() => string), timeout: number, how: typeof fetch) {
    this.#addresses = servers.split(",").map((s) => s.trim()).filter((s) => s !== "").map(address);
    if (this.#addresses.length === 0) throw new InvalidError("no server: give its URL, or set LOKT_SERVER");
    this.#token = () => {
      const now = (typeof token === "function" ? token() : token).trim();
      if (!/^[\x20-\x7e]*$/.test(now)) throw new InvalidError("the token has a character that a header may not have", "invalid");
      return now;
    };
    this.#token(); // says what is wrong with it
    if (!(timeout > 0)) throw new InvalidError(`timeoutMs is ${timeout}: give it in ms, more than 0`, "invalid");
    this.timeout = timeout;
    this.#fetch = how;
  }

  /** The address that is asked next. */
  get server(): string {
    return this.#addresses[this.#current]!;
  }

  /** Returns status and body of an answer below 300, and throws what anything else says. */
  async request<T>(method: string, path: string, x: Exchange = {}): Promise<{ status: number; body: T }> {
    const query = new URLSearchParams();
    for (const [k, v] of Object.entries(x.query ?? {})) if (v !== undefined) query.set(k, String(v));
    if (query.size > 0) path += `?${query}`;
    const end = clock() + (x.patience ?? this.timeout);
    let pause = 50;
    for (;;) {
      x.signal?.throwIfAborted();
      let failure: LoktError | undefined;
      for (let n = 0; n < this.#addresses.length; n++) {
        const limit = Math.min((x.wait ?? 0) + Math.min(this.timeout, Math.max(end - clock(), 50)), 2 ** 31 - 1);
        const which = this.#current; // which others that fail beside this may change
        const got = await this.#ask<T>(method, path, x, limit);
        if (!(got instanceof LoktError)) return got;
        if (!(got instanceof UnavailableError)) throw got;
        failure = got;
        if (distrusted(got.cause) && this.#addresses.length === 1 && !this.#trusted) throw got; // else it may be about to be again
        if (x.resend === false && !refused(got.cause) && !unsent.has(got)) throw got;
        this.#current = (which + 1) % this.#addresses.length;
      }
      const left = end - clock();
      if (left <= 0) throw failure!;
      await sleep(Math.min(pause * (0.8 + 0.4 * Math.random()), left), x.signal);
      pause = Math.min(pause * 2, 2000);
    }
  }

  async #ask<T>(method: string, path: string, x: Exchange, limit: number): Promise<{ status: number; body: T } | LoktError> {
    const at = this.server;
    const value = typeof x.body === "function" ? (x.body as () => unknown)() : x.body;
    const headers: Record<string, string> = { accept: "application/json", ...x.headers };
    const init: RequestInit = { method, headers, redirect: "manual" };
    if (value !== undefined) {
      headers["content-type"] = "application/json";
      init.body = JSON.stringify(value, finite);
    }
    try {
      const token = this.#token();
      if (token !== "") headers["authorization"] = `Bearer ${token}`;
    } catch (e) {
      if (e instanceof LoktError) return e;
      const none = new UnavailableError(`there is no token: ${why(e)}`, "unavailable", "", { cause: e }); // for the moment
      unsent.add(none);
      return none;
    }
    const ours = new AbortController();
    const late = setTimeout(() => ours.abort(new UnavailableError(`${at}: no answer in time`, "unavailable")), limit);
    const undo = onAbort(x.signal, () => ours.abort(x.signal!.reason));
    init.signal = ours.signal;
    let answer: Response;
    let text: string;
    try {
      x.sent?.();
      answer = await this.#fetch(at + path, init);
      this.#trusted = true;
      x.reached?.();
      text = await whole(answer, at);
    } catch (e) {
      if (!refused(e)) x.reached?.();
      if (x.signal?.aborted) throw x.signal.reason;
      if (ours.signal.aborted) return ours.signal.reason as LoktError; // Node 20.4 throws an error of its own
      if (e instanceof LoktError) return e;
      return new UnavailableError(`${at}: ${why(e)}`, "unavailable", "", { cause: e });
    } finally {
      clearTimeout(late);
      undo();
    }
    let body: unknown;
    try {
      body = JSON.parse(text);
    } catch {
      body = undefined;
    }
    if (answer.ok && typeof body === "object" && body !== null && !Array.isArray(body)) return { status: answer.status, body: body as T };
    if (typeof body === "object" && body !== null) return fromAnswer(at, answer.status, body as Problem, answer.headers);
    if (passing(answer.status)) {
      return new UnavailableError(`${at}: status ${answer.status}`, "unavailable");
    }
    const line = text.slice(0, 200).trim().split("\n")[0]!;
    const said = line === "" || "<{[".includes(line[0]!) ? "" : ` (${line})`;
    return new IncompatibleError(
      `${at} answered with status ${answer.status} and no JSON${said}: is it a loktd, and is the URL right?`,
      "incompatible",
    );
  }
}

/** Refuses numbers that JSON has not: as null they would mean none, such as a hold without an end. */
export function finite(name: string, value: unknown): unknown {
  if (typeof value === "number" && !Number.isFinite(value)) throw new InvalidError(`${name || "it"} is ${value}, which is no number in JSON`, "invalid");
  return value;
}

/** The text as a segment of a path. */
export function segment(text: string): string {
  try {
    return encodeURIComponent(text);
  } catch {
    throw new InvalidError(`${JSON.stringify(text)} has half of a surrogate pair, which is no character`, "invalid");
  }
}

/** Reads an answer, if it is not too long. */
async function whole(answer: Response, server: string): Promise<string> {
  const parts: Uint8Array[] = [];
  let size = 0;
  for await (const part of (answer.body ?? []) as unknown as AsyncIterable<Uint8Array>) {
    if ((size += part.length) > longestAnswer) throw foreign(server, `the answer is longer than ${longestAnswer >> 20} MiB`);
    parts.push(part);
  }
  return Buffer.concat(parts).toString();
}

/** The reason that fetch hides in the cause of its error. */
function why(e: unknown): string {
  let text = e instanceof Error ? e.message : String(e);
  for (let c = e; c instanceof Error; c = c.cause) {
    const code = String((c as { code?: unknown }).code);
    if (code === "ECONNREFUSED") return "connection refused";
    // Deno has no codes.
    if (/^ERR_SSL|CERT|^EPROTO$/.test(code) || /invalid peer certificate|corrupt message/.test(c.message)) {
      return `TLS: ${c.message.trim()}; is the URL's scheme right, and the certificate's authority known?`;
    }
    if (c instanceof AggregateError && c.errors.length > 0) return why(c.errors[0]);
    text = c.message || text;
  }
  return text;
}

function refused(e: unknown): boolean {
  return why(e) === "connection refused";
}

function distrusted(e: unknown): boolean {
  return why(e).startsWith("TLS: ");
}

function address(url: string): string {
  let u: URL;
  try {
    u = new URL(url);
  } catch {
    throw new InvalidError(`${JSON.stringify(url)} is no server: give http://HOST:PORT or https://HOST:PORT`, "invalid");
  }
  if (!/^https?:$/.test(u.protocol) || u.hostname === "" || !["", "/"].includes(u.pathname) || u.search !== "") {
    throw new InvalidError(`${JSON.stringify(url)} is no server: give http://HOST:PORT or https://HOST:PORT`, "invalid");
  }
  return u.origin;
}
