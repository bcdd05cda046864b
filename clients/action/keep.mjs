// Renews the lock until it is lost, or its process is ended by the post step.
import { setTimeout as pause } from "node:timers/promises";

import { ask, lease } from "./lokt.mjs";

const { servers, name, id, ttl } = JSON.parse(process.env.LOKT_KEEP);
const headers = { "lokt-lease": id };
for (let end = Date.now() + ttl; Date.now() < end; ) {
  await pause(Math.min(ttl / 3, Math.max(end - Date.now(), 0)));
  const asked = Date.now();
  try {
    await ask(servers, process.env.LOKT_KEEP_TOKEN, "PUT", lease(name, id), { body: {}, headers, patience: Math.max(end - asked, 0) });
    end = asked + ttl;
  } catch {
    break; // it is lost: the post step says so
  }
}
