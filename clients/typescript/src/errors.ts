/** What can go wrong, one class for each thing a caller may do about it. */

/** The base of all errors of this package. `code` is stable; `requestId` finds the request in the server's log. */
export class LoktError extends Error {
  readonly code: string;
  readonly requestId: string;

  constructor(message: string, code = "internal", requestId = "", options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
    this.code = code;
    this.requestId = requestId;
  }
}

/** The request is wrong, and will be when it is sent again. */
export class InvalidError extends LoktError {}

/** Somebody else is in the way; `holders` and `freeze` say who. The code is `held`, or `frozen` for a freeze. */
export class HeldError extends LoktError {
  readonly holders: Holder[];
  readonly freeze: Freeze | undefined;

  constructor(message: string, code: string, requestId: string, body: Problem) {
    super(message, code, requestId);
    this.holders = body.holders ?? [];
    this.freeze = body.freeze;
  }
}

/** There is no such lease, job or hold. */
export class NotFoundError extends LoktError {}

/** It belongs to somebody else. */
export class NotOwnerError extends LoktError {}

/** The idempotency key was used for another job. */
export class ConflictError extends LoktError {}

/** The token is missing, not valid any more, or lacks a scope; the message says which. */
export class AuthError extends LoktError {}

/** No server, or no store, could be reached in time. The request may have been carried out. */
export class UnavailableError extends LoktError {}

/** What answered is no loktd, or one whose answers this version does not understand: it grants nothing and ends nothing. */
export class IncompatibleError extends LoktError {}

/** So many wait for the lock, or hold it, that nobody else may: ask again later, or use several locks. */
export class FullError extends LoktError {}

/** The lease can not be relied on any more; `cause` is why, if it is known. */
export class LostError extends LoktError {
  constructor(message = "the lease is lost", cause?: unknown) {
    super(message, "lost", "", { cause });
  }
}

/** An owner, as the server shows it. */
export interface Owner {
  id: string;
  session?: string;
  host?: string;
  process?: { pid?: number };
}

/** A hold on a lock. Times are RFC 3339, in UTC, by the server's clock. */
export interface Holder {
  name: string;
  id: string;
  owner: Owner;
  token: number;
  kind?: string;
  ttl_ms?: number;
  /** When the server wants the next renewal: in its answer to a claim or a renewal. */
  heartbeat_in_ms?: number;
  held_since: string;
  acquired_at: string;
  expires_at?: string;
  /** A claim of higher priority wants it, or it was passed on; by when it has to end is known once a renewal has told so. */
  yield?: { deadline?: string };
  metadata?: Record<string, string>;
}

/** What keeps newcomers out of a lock. */
export interface Freeze {
  owner: Owner;
  reason?: string;
  at: string;
  expires_at?: string;
}

/** An error body: of the locks API (RFC 9457), or of the scheduler. */
export interface Problem {
  type?: string;
  status?: number;
  lock?: string;
  code?: string;
  title?: string;
  detail?: string | { loc: (string | number)[]; msg: string }[];
  holders?: Holder[];
  freeze?: Freeze;
}

type Kind = new (m: string, c: string, r: string) => LoktError;

// By code: the status that loktd has it with, and the class. The scheduler's and those of locks have no code in common but the first ones.
const common: Record<string, [number, Kind]> = {
  unauthenticated: [401, AuthError],
  forbidden: [403, AuthError],
  body_too_large: [413, InvalidError],
  unavailable: [503, UnavailableError],
  rate_limited: [429, UnavailableError],
  internal: [500, LoktError],
};
const ofLocks: Record<string, [number, Kind | typeof HeldError]> = {
  ...common,
  invalid: [400, InvalidError],
  held: [409, HeldError],
  frozen: [423, HeldError],
  full: [429, FullError],
  not_found: [404, NotFoundError],
  not_owner: [403, NotOwnerError],
  no_route: [404, IncompatibleError],
  no_locks: [404, IncompatibleError],
  no_events: [404, LoktError],
  method_not_allowed: [405, IncompatibleError],
  unsupported_media_type: [415, LoktError],
  damaged: [500, LoktError],
};
const ofJobs: Record<string, [number, Kind]> = {
  ...common,
  job_not_found: [404, NotFoundError],
  lease_not_found: [404, NotFoundError],
  worker_mismatch: [403, NotOwnerError],
  idempotency_conflict: [409, ConflictError],
  not_found: [404, IncompatibleError],
};
const aboutALock = ["held", "frozen", "not_found", "not_owner"];

/** The error for an answer that something else than a loktd of this version made up. @internal */
export function foreign(server: string, what = "the answer is not one of loktd's"): IncompatibleError {
  return new IncompatibleError(`${server}: ${what} (is a proxy in between, the URL wrong, or it a loktd of another version?)`, "incompatible");
}

/**
 * The error that an answer tells, if it has the marks of a problem (locks) or a detail (jobs): a code with its status and, if a lock
 * is in question, its name. Nothing else may say that something is over. @internal
 */
export function fromAnswer(server: string, status: number, body: Problem, headers: Headers): LoktError {
  const requestId = headers.get("x-request-id") ?? "";
  const detail: unknown = body.detail;
  if (status === 422 && Array.isArray(detail) && detail.every((d) => Array.isArray(d?.loc))) {
    const wrong = detail.map((d) => `${d.loc.join(".")}: ${d.msg}`).join("; ");
    return new InvalidError(wrong, "invalid", requestId);
  }
  let code = "";
  let known: [number, Kind | typeof HeldError] | undefined;
  if (body.type === "about:blank" && body.status === status && typeof body.code === "string") {
    code = body.code;
    if (body.lock || !aboutALock.includes(code)) known = Object.hasOwn(ofLocks, code) ? ofLocks[code] : [status, LoktError];
  } else if (typeof detail === "string") {
    code = detail;
    if (Object.hasOwn(ofJobs, code)) known = ofJobs[code];
  }
  if (known?.[0] !== status) {
    const said = `status ${status}${typeof detail === "string" ? `, ${JSON.stringify(detail.slice(0, 100))}` : ""}`;
    if (passing(status)) return new UnavailableError(`${server}: ${said}`, "unavailable");
    return foreign(server, `${said}: the answer is not one of loktd's`);
  }
  const kind = known[1];
  let message = typeof detail === "string" ? detail : (body.title ?? `the server answered with status ${status}`);
  const reason = headers.get("lokt-reason");
  if (reason !== null) message += `: ${reason}`;
  if (kind === UnavailableError || kind === IncompatibleError) message = `${server}: ${message}`;
  if (code === "held" || code === "frozen") return new HeldError(message, code, requestId, body);
  return new (kind as Kind)(message, code, requestId);
}

/** Whether a proxy answers with the status when it has no server to ask for the moment. @internal */
export function passing(status: number): boolean {
  return status === 429 || (status >= 502 && status <= 504);
}

/** Whether an error may pass: nothing is decided by it, and what is no loktd may be one again. @internal */
export function undecided(e: unknown): boolean {
  return e instanceof UnavailableError || (e instanceof LoktError && ["incompatible", "internal"].includes(e.code));
}
