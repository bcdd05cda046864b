// Gives the lock back, also when the job failed or was cancelled.
import { ask, fail, input, lease, mask, Refused } from "./lokt.mjs";

const { STATE_servers: servers, STATE_name: name, STATE_id: id, STATE_operation: operation, STATE_keeper: keeper, STATE_fence: fence } = process.env;
if (!id) process.exit(0); // nothing was claimed
const token = input("token");
mask(token);
mask(id);
if (keeper) {
  try {
    process.kill(Number(keeper));
  } catch {
    // it has ended
  }
}
try {
  const headers = { "lokt-lease": id, "lokt-cancels": operation };
  const { body } = await ask(servers.split(","), token, "DELETE", lease(name, id), { headers, good: (b) => Array.isArray(b?.released) });
  // A copy of the claim, late on the way, may have been granted after the lock was lost.
  if (fence && body.released[0]?.token !== Number(fence)) fail(`lock ${name} was lost before the job ended`);
  console.log(`Released lock ${name}`);
} catch (e) {
  if (!(e instanceof Refused)) fail(`lock ${name} was not given back, and ends with its time to live: ${e.message}`);
  if (keeper) fail(`lock ${name} was lost before the job ended: ${e.message}`);
}
