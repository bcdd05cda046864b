/**
 * Locks and leases for programs that share things: the client of loktd.
 *
 * ```ts
 * import { Lokt } from "lokt";
 *
 * const lokt = new Lokt();
 * await using lock = await lokt.lock("db");
 * ```
 *
 * @module
 */
export * from "./client.js";
export * from "./errors.js";
export * from "./jobs.js";
export { Lease, type LeaseState } from "./lease.js";
export type { Json } from "./transport.js";
