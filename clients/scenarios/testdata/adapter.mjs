// Does what lines of JSON on standard input ask for, with the TypeScript client, and answers each with one.
import { createInterface } from "node:readline";
import { setTimeout as pause } from "node:timers/promises";

const lokt = await import(process.env.CLIENT);
const refused = [
  [lokt.AuthError, "forbidden"], [lokt.UnavailableError, "unavailable"], [lokt.IncompatibleError, "incompatible"], [lokt.InvalidError, "invalid"],
];
let made;
const client = () => (made ??= new lokt.Lokt({ server: process.env.SERVER, token: process.env.TOKEN || undefined, timeoutMs: 10000 }));
const leases = [];
const workers = [];
const told = [];

const handle = async (job, signal) => {
  told.push("began");
  try {
    await pause((job.payload.seconds ?? 0) * 1000, undefined, { signal });
  } catch {
    told.push("stopped");
    throw signal.reason;
  }
  return job.payload.echo;
};

const doers = {
  async acquire({ name, ttl, wait }) {
    try {
      leases.push(await client().lock(name, { ttlMs: ttl * 1000, wait: wait ? wait * 1000 : false }));
    } catch (e) {
      return { why: e instanceof lokt.HeldError ? e.code : refused.find(([kind]) => e instanceof kind)?.[1], said: e.message };
    }
    return { token: leases.at(-1).token };
  },
  state: async () => ({ state: leases.at(-1).state.replace("in doubt", "held") }),
  async release() {
    await leases.pop().release();
    return {};
  },
  async work() {
    const worker = new lokt.Worker(client(), handle);
    workers.push({ worker, done: worker.run() });
    return {};
  },
  async drain() {
    for (const { worker, done } of workers) {
      worker.drain();
      await done;
    }
    return {};
  },
  told: async () => ({ told }),
};

for await (const line of createInterface({ input: process.stdin })) {
  const ask = JSON.parse(line);
  console.log(JSON.stringify(await doers[ask.do](ask)));
}
process.exit(0);
