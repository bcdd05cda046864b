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

/** What answered is no loktd, or one whose answers this version does not understand. */
export class IncompatibleError extends LoktError {}

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
  stale?: string;
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
  code?: string;
  title?: string;
  detail?: string | { loc: (string | number)[]; msg: string }[];
  holders?: Holder[];
  freeze?: Freeze;
}

const byCode: Record<string, new (m: string, c: string, r: string) => LoktError> = {
  invalid: InvalidError,
  body_too_large: InvalidError,
  not_found: NotFoundError,
  job_not_found: NotFoundError,
  lease_not_found: NotFoundError,
  not_owner: NotOwnerError,
  worker_mismatch: NotOwnerError,
  idempotency_conflict: ConflictError,
  unauthenticated: AuthError,
  forbidden: AuthError,
  unavailable: UnavailableError,
  rate_limited: UnavailableError,
  full: UnavailableError,
  no_route: IncompatibleError,
  method_not_allowed: IncompatibleError,
};

/** The error that an answer tells. */
export function fromAnswer(server: string, status: number, body: Problem, headers: Headers): LoktError {
  const requestId = headers.get("x-request-id") ?? "";
  if (Array.isArray(body.detail)) {
    const wrong = body.detail.map((d) => `${d.loc.join(".")}: ${d.msg}`).join("; ");
    return new InvalidError(wrong, "invalid", requestId);
  }
  const code = body.code ?? body.detail ?? "internal";
  let message = body.detail ?? body.title ?? `the server answered with status ${status}`;
  const reason = headers.get("lokt-reason");
  if (reason !== null) message += `: ${reason}`;
  if (code === "held" || code === "frozen") return new HeldError(message, code, requestId, body);
  const kind = byCode[code] ?? (status >= 502 && status <= 504 ? UnavailableError : LoktError);
  if (kind === UnavailableError || kind === IncompatibleError) message = `${server}: ${message}`;
  return new kind(message, code, requestId);
}
