"""Jobs of a loktd, and the worker that runs them."""

from __future__ import annotations

import json
import math
import random
import secrets
import signal
import threading
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Mapping, Sequence

from ._client import Client
from ._errors import (
    AuthError,
    InvalidError,
    LoktError,
    NotFoundError,
    NotOwnerError,
    UnavailableError,
)
from ._http import Answer, Call, Json, clock, segment
from ._keeper import usable

_API = "/api/system/scheduler"
_MOST = 1000  # leases of one heartbeat
_LONGEST_TEXT = 4000  # characters of an error's message, and of its traceback


class Jobs:
    """Submits jobs and looks at them. Answers are as docs/api.md describes Job, JobView, Snapshot and Stats."""

    def __init__(self, client: Client) -> None:
        self._request = client._transport.request

    def submit(
        self,
        payload: Mapping[str, Json] | None = None,
        *,
        type: str = "generic",
        priority: str = "normal",
        units: int = 1,
        unique: bool = False,
        key: str | None = None,
        tags: Sequence[str] = (),
        locks: Sequence[str] = (),
        after: Sequence[str] = (),
        after_any: bool = False,
        fair_key: str | None = None,
        limits: Mapping[str, Json] | None = None,
        cron: str | None = None,
        max_attempts: int = 1,
        retry_backoff: float = 1.0,
        max_runtime: float | None = None,
        run_at: str | None = None,
    ) -> str:
        """Queues a job and returns its ID. With a ``key`` it may be sent again: the same job, until 24 h after its end.

        ``retry_backoff`` and ``max_runtime`` are seconds; ``run_at`` is a time as of RFC 3339; ``locks`` are names that are
        held while the job is leased; ``after`` are IDs of jobs that have to complete first, or only end with ``after_any``; jobs
        with different keys ``fair_key`` take turns; ``limits`` are those on the locks, by name; with ``cron``, such as "30 4 * * *",
        it is a schedule, which submits a job like it at each tick. Raises ConflictError if the key was used for another job.
        """
        spec: dict[str, Json] = {
            "type": type,
            "priority": priority,
            "requested_units": units,
            "unique": unique,
            "payload": dict(payload or {}),
            "idempotency_key": key,
            "tags": list(tags),
            "locks": list(locks),
            "after": list(after),
            "after_any": after_any,
            "fair_key": fair_key,
            "limits": dict(limits or {}),
            "cron": cron,
            "max_attempts": max_attempts,
            "retry_backoff_s": retry_backoff,
            "max_runtime_s": max_runtime,
            "run_at": run_at,
        }
        _, answer = self._request("POST", f"{_API}/jobs", spec, resend=key is not None)
        return str(answer["job_id"])

    def get(self, job_id: str) -> dict[str, Any]:
        """Looks at a job with its attempts."""
        _, answer = self._request("GET", f"{_API}/jobs/{segment(job_id)}")
        answer.insist(answer["job_id"] == job_id)
        return dict(answer)

    def list(
        self, *, state: str | None = None, type: str | None = None, tag: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yields jobs, newest change first, page by page."""
        after = None
        while True:
            query = {"state": state, "type": type, "tag": tag, "after": after}
            _, page = self._request("GET", f"{_API}/jobs", query=query)
            yield from page.read(lambda p: [dict(item["job"]) for item in p["jobs"]])
            after = page.get("next")
            if not after:
                return

    def cancel(self, job_id: str, reason: str = "") -> str:
        """Cancels a queued job, or asks the worker of a leased one to stop. Returns its state."""
        _, answer = self._request(
            "POST", f"{_API}/jobs/{segment(job_id)}/cancel", {"reason": reason}
        )
        return str(answer["state"])

    def status(self) -> dict[str, Any]:
        """The capacity and its use."""
        _, answer = self._request("GET", f"{_API}/status")
        return dict(answer)

    def wait(
        self, job_id: str, *, timeout: float | None = None, every: float = 0.5
    ) -> dict[str, Any]:
        """Waits until the job has ended and returns it; raises TimeoutError after ``timeout`` seconds."""
        end = None if timeout is None else clock() + timeout
        pause = threading.Event()
        while True:
            job = self.get(job_id)
            if job["state"] in ("completed", "failed", "expired", "cancelled"):
                return job
            if end is not None and clock() >= end:
                raise TimeoutError(f"job {job_id} is still {job['state']}")
            pause.wait(every)


class Stopped(Exception):
    """A handler raises it, or lets it through, to end a job that was cancelled, lost or drained."""


@dataclass
class Job:
    """A job that this worker has, under a lease that is kept by heartbeats.

    ``stop`` is set when the handler should end: ``why`` says "cancelled", "lost", "lock lost" or, when its maximum runtime
    is about to be over, "out of time". ``token`` and ``lock_tokens`` are fencing tokens.
    """

    id: str
    type: str
    payload: dict[str, Any]
    attempt: int
    token: int
    lock_tokens: dict[str, int]
    checkpoint: Json
    spec: dict[str, Any]
    lease_id: str
    stop: threading.Event = field(default_factory=threading.Event)
    why: str = ""
    _listeners: list[Callable[[], None]] = field(default_factory=list)
    _deadline: float = 0.0
    _runs_until: float = math.inf
    _ttl: float = 0.0
    _limit: float = math.inf
    _news: dict[str, Json] = field(default_factory=dict)
    _refused: InvalidError | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @staticmethod
    def _of(answer: Answer, asked: float) -> Job:
        lease, spec = answer["lease"], answer["job"]
        answer.insist(lease["lease_id"] and lease["token"] > 0 and lease["job_id"] == spec["job_id"])
        job = Job(
            spec["job_id"],
            spec["type"],
            spec["payload"],
            lease["attempt"],
            lease["token"],
            dict(lease.get("lock_tokens") or {}),
            spec.get("checkpoint"),
            spec,
            lease["lease_id"],
        )
        job._ttl, job._limit = float(lease["lease_ttl_s"]), float(spec.get("max_runtime_s") or math.inf)
        job._deadline, job._runs_until = asked + usable(job._ttl), asked + usable(job._limit)
        return job

    def progress(self, fraction: float, checkpoint: Json = None) -> None:
        """Tells how far the job is, from 0 to 1, and what the next attempt would go on from; sent with the next heartbeat.

        Raises TypeError or ValueError if the checkpoint is no JSON, and InvalidError if the server refused the one before.
        """
        fraction = min(max(float(fraction), 0.0), 1.0)
        checkpoint = json.loads(json.dumps(checkpoint, allow_nan=False))
        with self._lock:
            refused, self._refused = self._refused, None
            if refused is not None:
                raise refused
            if not math.isnan(fraction):
                self._news["progress"] = fraction
            if checkpoint is not None:
                self._news["checkpoint"] = checkpoint

    def check(self) -> None:
        """Raises Stopped if the job is to end. Looks at the clock first."""
        self._look()
        if self.stop.is_set():
            raise Stopped(self.why)

    def _look(self) -> None:
        if clock() >= self._deadline:
            self._end("lost")
        elif clock() >= self._runs_until:
            self._end("out of time")

    def _extend(self, asked: float, answer: Mapping[str, Any]) -> None:
        """Takes in what a heartbeat was answered, which was sent at that moment."""
        self._deadline = max(self._deadline, asked + usable(self._ttl))
        if left := answer.get("run_left_s"):
            until = asked + usable(left, self._limit)
            self._runs_until = max(self._runs_until, until)
        if answer.get("cancel_requested"):
            self._end("cancelled")
        if answer.get("lost_locks"):
            self._end("lock lost")

    def _end(self, why: str) -> None:
        with self._lock:
            if self.stop.is_set():
                return
            self.why = why
            self.stop.set()
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def _on_stop(self, listener: Callable[[], None]) -> None:
        with self._lock:
            if not self.stop.is_set():
                self._listeners.append(listener)
                return
        listener()


class Worker:
    """Runs jobs of a loktd, up to ``concurrency`` at once, each in a thread.

    ``handle`` gets a Job and returns its result (any JSON value). An exception fails the attempt, with its type and
    message as the error. One stream of heartbeats keeps all leases. When a lease is lost, its job is told (``job.stop``)
    before anybody else may have it, and what the handler returns afterwards is thrown away.
    """

    def __init__(
        self,
        client: Client,
        handle: Callable[[Job], Json],
        *,
        types: Sequence[str] = (),
        capabilities: Sequence[str] = (),
        max_units: int | None = None,
        concurrency: int = 1,
        worker_id: str | None = None,
    ) -> None:
        if not concurrency >= 1:
            raise ValueError("concurrency is at least 1")
        self._client = client
        self._request = client._transport.request
        self._handle = handle
        self._ask: dict[str, Json] = {
            "types": list(types),
            "capabilities": list(capabilities),
            "max_units": max_units,
        }
        self._free = threading.Semaphore(concurrency)
        self.worker_id = (
            worker_id or f"{client.owner.id}-{client.owner.host}-{secrets.token_hex(4)}"
        )
        self._once = threading.Lock()
        self._draining = threading.Event()
        self._asking: Call | None = None
        self._request_id, self._first = "", 0.0  # of a request without an answer, and when it was first made
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._change = threading.Condition(self._lock)

    def run(self, *, signals: bool = True) -> None:
        """Works until ``drain``, and with ``signals`` until SIGTERM or SIGINT; jobs under way are finished first. A second signal
        does what it did before. Raises RuntimeError if it is called while it runs.
        """
        with self._running():
            self._run(signals)

    @contextmanager
    def _running(self) -> Iterator[None]:
        if not self._once.acquire(blocking=False):  # two would send the same request, and both do the job
            raise RuntimeError("the worker runs already: concurrency is how many jobs it does at once")
        try:
            yield
        finally:
            self._once.release()

    def _run(self, signals: bool) -> None:
        before: dict[signal.Signals, Any] = {}

        def restore() -> None:
            for s, handler in before.items():
                signal.signal(s, handler or signal.SIG_DFL)  # None is one that Python does not know

        def leave(*_: object) -> None:
            restore()
            threading.Thread(target=self.drain, daemon=True).start()

        if signals and threading.current_thread() is threading.main_thread():
            for s in (signal.SIGTERM, signal.SIGINT):
                before[s] = signal.signal(s, leave)
        over = threading.Event()
        threads = [
            threading.Thread(target=self._watch, args=(over,), name="lokt-watch", daemon=True),
            threading.Thread(target=self._beat, args=(over,), name="lokt-heartbeats", daemon=True),
        ]
        for t in threads:
            t.start()
        try:
            while not self._draining.is_set():
                if self._free.acquire(timeout=0.2):
                    begun = False
                    try:
                        begun = self._next()
                    finally:
                        if not begun:
                            self._free.release()
        finally:
            with self._change:
                while self._jobs:
                    self._change.wait(1.0)
                over.set()
                self._change.notify_all()
            for t in threads:
                t.join(5.0)
            restore()

    def drain(self) -> None:
        """Asks for no more jobs; ``run`` returns when those under way have ended."""
        self._draining.set()
        with self._change:
            if self._asking is not None:
                self._asking.abort()
            self._change.notify_all()

    def _next(self) -> bool:
        """Asks for a job and starts it. Reports whether there was one."""
        call = Call()
        with self._lock:
            self._asking = call
        asked = clock()
        request_id, first = self._request_id, self._first = self._request_id or secrets.token_hex(16), self._first or asked
        body: dict[str, Json] = {"worker_id": self.worker_id, "request_id": request_id, **self._ask}
        try:
            waiting = {**body, "wait_ms": 0 if self._draining.is_set() else 30000}
            job = self._answer(waiting, first, wait=30.0, patience=30.0, call=call)
        except LoktError as e:
            if not call.aborted.is_set():
                if not _passing(e):
                    raise
                if not self._draining.wait(random.uniform(0.5, 1.5)):
                    return False
            try:  # what was given up may have been granted a job: the same request finds it, and asks for no other
                job = self._answer({**body, "types": [f"none-{request_id}"]}, first, patience=2.0)
            except LoktError:
                return False
        self._request_id, self._first = "", 0.0
        if not isinstance(job, Job):
            if clock() - asked < 15:  # it has not waited there
                self._draining.wait(job)
            return False
        if clock() - first > min(job._ttl / 4, job._limit / 20) and not self._confirm(job):
            return False
        with self._change:
            self._jobs[job.lease_id] = job
            self._change.notify_all()
        try:
            threading.Thread(
                target=self._work, args=(job,), name=f"lokt-job-{job.id}", daemon=True
            ).start()
        except RuntimeError:  # there may be no more threads for the moment: then in this one
            self._work(job)
        return True

    def _answer(self, body: dict[str, Json], first: float, **how: Any) -> Job | float:
        """Asks, and returns the job that was granted to what was first sent then, or for how many seconds to pause."""
        _, answer = self._request("POST", f"{_API}/leases/request", body, **how)
        if answer["denied"] is True:
            return answer.read(lambda a: float(a["retry_after_ms"]) / 1000)
        return answer.read(lambda a: Job._of(a, first))

    def _confirm(self, job: Job) -> bool:
        """Extends the lease of a job whose request waited, so that it is known when it began."""
        path = f"{_API}/leases/{segment(job.lease_id)}/heartbeat"
        asked = clock()

        def sent() -> None:
            nonlocal asked
            asked = clock()

        try:
            body = {"worker_id": self.worker_id}
            _, answer = self._request("POST", path, body, patience=job._ttl / 2, sent=sent)
            answer.insist(answer["ok"] is True)
        except LoktError:  # it is over, or ends by itself: the job is somebody else's then
            return False
        job._extend(asked, answer)
        return clock() < min(job._deadline, job._runs_until)

    def _work(self, job: Job) -> None:
        done: dict[str, Json] = {"worker_id": self.worker_id, "status": "completed"}
        try:
            try:
                done["result"] = self._handle(job)
            except BaseException as e:  # the attempt has failed, whatever it was
                done["status"], done["error"] = "failed", _told(e, job.why)
            late = job.why == "out of time" and done["status"] == "failed"
            if job.why != "lost" and clock() < job._deadline and not late:  # else the service says why
                self._complete(job, done)
        finally:
            with self._change:
                self._jobs.pop(job.lease_id, None)
                self._change.notify_all()
            self._free.release()

    def _complete(self, job: Job, done: dict[str, Json]) -> None:
        path = f"{_API}/leases/{segment(job.lease_id)}/complete"
        foreign = clock() + max(60.0, 3 * job._ttl)  # by then a proxy refuses the result for what is in it
        while clock() < job._deadline:
            try:
                _, answer = self._request("POST", path, done, patience=max(job._deadline - clock(), 0.1))
                answer.insist("applied" in answer)
                return
            except UnavailableError:
                continue
            except (NotFoundError, NotOwnerError, AuthError):
                return
            except (
                TypeError,
                ValueError,
                RecursionError,
                InvalidError,
            ) as e:  # what cannot be sent, or is refused, fails the attempt
                if done["status"] == "failed":
                    return
                done = {"worker_id": self.worker_id, "status": "failed", "error": _told(e, "")}
            except LoktError as e:  # not about the job
                if clock() > foreign:
                    if done["status"] == "failed":
                        return
                    text = f"the result could not be sent: {e}"
                    done = {"worker_id": self.worker_id, "status": "failed", "error": text}
                time.sleep(random.uniform(0.2, 0.5))

    def _watch(self, over: threading.Event) -> None:
        """Tells jobs when their time is up, also while the heartbeats wait for an answer."""
        while not over.is_set():
            with self._change:
                jobs = list(self._jobs.values())
                ends = (min(j._deadline, j._runs_until) for j in jobs if not j.stop.is_set())
                nearest = min(ends, default=math.inf)
                if not over.is_set():  # the machine may sleep, and timers with it
                    self._change.wait(min(max(nearest - clock(), 0.0), 1.0))
            for job in jobs:
                job._look()

    def _beat(self, over: threading.Event) -> None:
        """The one stream of heartbeats: all leases in one request, at the pace that the server proposes."""
        while not over.is_set():
            with self._change:
                if not self._jobs:
                    if not over.is_set():
                        self._change.wait(1.0)
                    continue
                jobs = dict(self._jobs)
            begun = clock()  # what was told to end for another reason may be over, too
            live = {i: j for i, j in jobs.items() if j.why != "lost" and begun < j._deadline}
            shortest = min((j._ttl for j in live.values()), default=3.0)
            pause = shortest / 3
            if live:
                try:
                    proposed = self._send(live, shortest / 4) or pause
                    pause = min(proposed, shortest * 2 / 3) * random.uniform(0.8, 1.0)
                    pause -= clock() - begun
                except BaseException:  # in doubt, not lost: soon again, until the deadlines
                    pause = max(shortest / 20, 0.05)
            nearest = min((j._deadline for j in live.values()), default=clock() + pause)
            with self._change:
                if self._jobs.keys() <= jobs.keys():  # a new one is told of at once
                    self._change.wait(max(min(pause, nearest - clock()), 0.05))

    def _send(self, live: dict[str, Job], patience: float) -> float:
        """Returns after how many seconds the server wants the next heartbeats; 0 if it does not say."""
        ids = list(live)
        every = 0.0
        for i in range(0, len(ids), _MOST):
            asked = clock()
            body = {"worker_id": self.worker_id, "lease_ids": ids[i : i + _MOST]}
            _, answer = self._request("POST", f"{_API}/leases/heartbeat", body, patience=patience)
            for one in answer["leases"]:
                job = live[one["lease_id"]]
                if one["ok"]:
                    job._extend(asked, one)
                elif one.get("code") in ("lease_not_found", "worker_mismatch"):
                    job._end("lost")
            every = float(answer.get("heartbeat_interval_s") or 0)
        end = clock() + patience
        for job in live.values():
            if clock() < end:
                self._tell(job, end - clock())
        return every

    def _tell(self, job: Job, patience: float) -> None:
        """Sends what is new of a job. What the server refuses is dropped, lest it be in the way for ever."""
        with job._lock:
            news, job._news = job._news, {}
        if not news:
            return
        path = f"{_API}/leases/{segment(job.lease_id)}/heartbeat"
        asked = clock()
        try:
            _, one = self._request(
                "POST", path, {"worker_id": self.worker_id, **news}, patience=patience
            )
            one.insist(one["ok"] is True)
            job._extend(asked, one)
        except (NotFoundError, NotOwnerError):
            job._end("lost")
        except InvalidError as e:
            job._refused = e
        except LoktError:
            with job._lock:
                job._news = {**news, **job._news}


def _told(e: BaseException, why: str) -> dict[str, Json]:
    """What is told of an error: nothing in it is in the way of that, neither its length nor characters that JSON has not."""
    try:
        message = str(e)
    except Exception:
        message = "<exception str() failed>"
    told = {"type": type(e).__name__, "message": message[:_LONGEST_TEXT]}
    if isinstance(e, Stopped):
        told["type"], told["message"] = "Stopped", told["message"] or why
    else:
        try:
            told["traceback"] = "".join(traceback.format_exception(type(e), e, e.__traceback__))[-_LONGEST_TEXT:]
        except Exception:  # such as a SyntaxError whose text is no str
            told["traceback"] = "".join(traceback.format_tb(e.__traceback__))[-_LONGEST_TEXT:]
    return {k: text.encode("utf-8", "backslashreplace").decode() for k, text in told.items()}


def _passing(e: LoktError) -> bool:
    """Whether an error may pass: nothing is decided by it, and what is no loktd may be one again."""
    return isinstance(e, UnavailableError) or e.code in ("incompatible", "internal")
