"""Does what lines of JSON on standard input ask for, with the Python client, and answers each with one."""

import functools
import json
import os
import sys
import threading
import time

import lokt

REFUSED = {
    lokt.FrozenError: "frozen", lokt.HeldError: "held", lokt.AuthError: "forbidden",
    lokt.UnavailableError: "unavailable", lokt.IncompatibleError: "incompatible", lokt.InvalidError: "invalid",
}
leases = []
workers = []
told = []


@functools.cache
def client():
    return lokt.Client(os.environ["SERVER"], token=os.environ.get("TOKEN") or None, timeout=10)


def handle(job):
    told.append("began")
    end = time.monotonic() + job.payload.get("seconds", 0)
    while time.monotonic() < end:
        try:
            job.check()
        except lokt.Stopped:
            told.append("stopped")
            raise
        time.sleep(0.02)
    return job.payload.get("echo")


def work():
    worker = lokt.Worker(client(), handle)
    thread = threading.Thread(target=worker.run)
    thread.start()
    workers.append((worker, thread))


def do(ask):
    what = ask["do"]
    if what == "acquire":
        try:
            leases.append(client().acquire(ask["name"], ttl=ask["ttl"], wait=ask["wait"] or False))
        except lokt.LoktError as e:
            return {"why": next((why for kind, why in REFUSED.items() if isinstance(e, kind)), ""), "said": str(e)}
        return {"token": leases[-1].token}
    if what == "state":
        return {"state": leases[-1].state.replace("in doubt", "held")}
    if what == "release":
        leases.pop().release()
    elif what == "work":
        work()
    elif what == "drain":
        for worker, thread in workers:
            worker.drain()
            thread.join()
    elif what == "told":
        return {"told": told}
    return {}


for line in sys.stdin:
    print(json.dumps(do(json.loads(line))), flush=True)
os._exit(0)
