/** Leases of locks, and the heartbeats that keep them. */

import { LoktError, LostError, NotFoundError, NotOwnerError } from "./errors.js";
import { clock } from "./transport.js";

/** How much faster or slower, relative to its length, this clock may measure a duration than the server's does. */
const drift = 0.01;

/** For how many ms a lease, or what is left of the whole, may be relied on, counted from before it was asked for: less drift and a margin. */
export function usable(life: number, whole = life): number {
  return life * (1 - drift) - Math.min(100, whole / 20);
}

/** Where a lease stands: `in doubt` means that a renewal failed and is tried again. */
export type LeaseState = "held" | "in doubt" | "lost" | "released";

/** For how many ms a hold lasts, and after how many it is to be renewed: as the server says, or a third. @internal */
export interface Life {
  ttl_ms?: number;
  acquired_at?: string;
  expires_at?: string;
  heartbeat_in_ms?: number;
  yield?: { deadline?: string };
}

/** For how many ms a hold lasts from its last renewal: its time to live, or less if it must end before. @internal */
export function lifeOf(hold: Life): number | undefined {
  if (hold.expires_at === undefined || hold.acquired_at === undefined) return hold.ttl_ms;
  const end = Math.min(Date.parse(hold.expires_at), Date.parse(hold.yield?.deadline ?? hold.expires_at));
  // Since the last renewal a server may have put off the end, and nobody knows from when on.
  return Math.max(Math.min(end - Date.parse(hold.acquired_at), hold.ttl_ms || Infinity), 1);
}

function untilNext(life: number, every: number | undefined): number {
  return Math.min(every ?? life / 3, (usable(life) * 3) / 4); // so that there is time for another try
}

/** How a lease is renewed and given back. @internal */
export interface Keeping {
  renew(patience: number, signal: AbortSignal): Promise<Life>;
  release(patience?: number): Promise<void>;
}

/**
 * A lock that this program holds. It is renewed in the background, when the server says, until it is released or
 * lost. `signal` aborts with a LostError before anybody else may enter. With `await using` it is released at the block's end.
 */
export class Lease implements AsyncDisposable {
  readonly name: string;
  /** Proves ownership: a secret. */
  readonly id: string;
  /** Fencing token: higher than that of every earlier grant of the name. */
  readonly token: number;
  readonly #keeping: Keeping;
  readonly #lost = new AbortController();
  readonly #stop = new AbortController();
  #deadline: number;
  #next: number;
  #life: number;
  #doubt: unknown;
  #released = false;
  #releasing: Promise<void> | undefined;
  #renewing: Promise<void> | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** @internal */
  constructor(name: string, id: string, token: number, asked: number, life: number, keeping: Keeping, every?: number) {
    this.name = name;
    this.id = id;
    this.token = token;
    this.#life = life;
    this.#keeping = keeping;
    this.#deadline = asked + usable(life);
    this.#next = asked + untilNext(life, every);
    this.#schedule();
  }

  /** Aborts when the lease is lost, with the LostError as reason. It does not abort for a release. */
  get signal(): AbortSignal {
    this.#look();
    return this.#lost.signal;
  }

  /** Where the lease stands at this moment; looks at the clock first. */
  get state(): LeaseState {
    if (this.#released) return "released";
    this.#look();
    if (this.#lost.signal.aborted) return "lost";
    return this.#doubt === undefined ? "held" : "in doubt";
  }

  /** For how many ms the lock may be relied on without another renewal. */
  remaining(): number {
    return this.state === "held" || this.state === "in doubt" ? Math.max(this.#deadline - clock(), 0) : 0;
  }

  /** Throws LostError unless the lock can be relied on at this moment. */
  check(): void {
    const state = this.state;
    if (state === "lost") throw this.#lost.signal.reason;
    if (state === "released") throw new LostError(`the lock ${JSON.stringify(this.name)} is released`);
  }

  /** Gives the lock back; stops its heartbeat first. If it rejects it can be called again. After a loss it only tries to tell the server; again, nothing. */
  release(): Promise<void> {
    const lost = this.state === "lost";
    this.#released = true;
    this.#releasing ??= this.#giveBack(lost).catch((e: unknown) => {
      this.#releasing = undefined;
      throw e;
    });
    return this.#releasing;
  }

  async #giveBack(lost: boolean): Promise<void> {
    clearTimeout(this.#timer);
    this.#stop.abort();
    await this.#renewing;
    try {
      await this.#keeping.release(lost ? 1000 : undefined);
    } catch (e) {
      if (!(lost || e instanceof NotFoundError || e instanceof NotOwnerError)) throw e;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  #look(): void {
    if (!this.#released && clock() >= this.#deadline) {
      this.#lose(new LostError(`the lock ${JSON.stringify(this.name)} was not renewed in time`, this.#doubt));
    }
  }

  #lose(cause: LostError): void {
    if (this.#lost.signal.aborted) return;
    clearTimeout(this.#timer);
    this.#stop.abort();
    this.#lost.abort(cause);
  }

  #schedule(): void {
    clearTimeout(this.#timer);
    const at = this.#renewing === undefined ? Math.min(this.#next, this.#deadline) : this.#deadline;
    this.#timer = setTimeout(() => this.#due(), Math.max(Math.min(at - clock(), 1000), 0));
    (this.#timer as { unref?: () => void }).unref?.(); // the program may end while it holds a lock
  }

  #due(): void {
    if (this.#released || this.#lost.signal.aborted) return;
    this.#look();
    if (this.#lost.signal.aborted) return;
    if (this.#renewing === undefined && clock() >= this.#next) {
      this.#renewing = this.#renew().finally(() => {
        this.#renewing = undefined;
        if (!this.#released && !this.#lost.signal.aborted) this.#schedule();
      });
    }
    this.#schedule();
  }

  async #renew(): Promise<void> {
    const asked = clock();
    try {
      const answer = await this.#keeping.renew(Math.max((this.#deadline - asked) / 2, 50), this.#stop.signal);
      const [life, every] = [lifeOf(answer) ?? this.#life, answer.heartbeat_in_ms];
      this.#doubt = undefined;
      this.#life = life;
      this.#deadline = asked + usable(life);
      this.#next = asked + untilNext(life, every);
    } catch (e) {
      if (this.#released) return;
      if (e instanceof NotFoundError || e instanceof NotOwnerError) {
        this.#lose(new LostError(`the lease is over: ${(e as LoktError).message}`, e));
        return;
      }
      this.#doubt = e;
      const now = clock();
      this.#next = now + Math.max(Math.min((this.#deadline - now) / 4, this.#life / 10), 50);
    }
  }
}
