// Renews the lock until it is lost, the runner has vanished, or its process is ended by the post step.
import { readFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";

import { ask, holds } from "./lokt.mjs";

const { servers, name, id, ttl, runner } = JSON.parse(process.env.LOKT_KEEP);
const body = { leases: [{ name, lease_id: id }] };

function vanished() {
  try {
    return runner && readFileSync(`/proc/${runner}/comm`, "utf8") !== "Runner.Worker\n";
  } catch {
    return true;
  }
}

for (let next = ttl / 3; ; ) {
  await pause(Math.min(next, 2 ** 31 - 1)); // more is no time for a timer
  if (vanished()) break;
  try {
    const { body: got } = await ask(servers, process.env.LOKT_KEEP_TOKEN, "POST", "/v1/leases/heartbeat", {
      body, patience: ttl / 6, good: (b) => holds(b?.leases?.[0]?.holder, name, id),
    });
    next = Math.min(got.leases[0].holder.heartbeat_in_ms ?? ttl / 3, (ttl / 4) * 3);
  } catch (e) {
    if (["not_found", "not_owner"].includes(e.code)) break; // it is lost: the post step says so
    next = Math.min(1000, ttl / 20); // in doubt, until the server says more
  }
}
