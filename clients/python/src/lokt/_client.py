"""Locks of a loktd, for programs that block."""

from __future__ import annotations

import ctypes
import getpass
import hashlib
import math
import os
import secrets
import socket
import threading
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Callable, Iterator, Mapping

from ._errors import (
    AuthError,
    FullError,
    HeldError,
    InvalidError,
    LoktError,
    LostError,
    NotFoundError,
    NotOwnerError,
)
from ._http import Answer, Call, Json, Transport, clock, segment
from ._keeper import Beat, Keeper

_POLL = 30.0  # seconds that one request waits for a lock at most
_QUEUE_TTL = 30.0  # seconds that a claim keeps its place when nobody asks for it


@dataclass(frozen=True)
class Owner:
    """Who asks. Two claims of one owner do not exclude each other unless both are strict, as ``Client.acquire`` makes them."""

    id: str
    session: str = ""
    host: str = ""
    pid: int = 0

    @staticmethod
    def default() -> Owner:
        """``LOKT_OWNER``, else the user's name; the session is ``LOKT_AGENT_ID``, else this process."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):
            user = f"uid-{os.getuid()}" if hasattr(os, "getuid") else "unknown"
        name = os.environ.get("LOKT_OWNER") or user
        session = os.environ.get("LOKT_AGENT_ID") or f"python-{os.getpid()}-{secrets.token_hex(4)}"
        return Owner(name, session, socket.gethostname(), os.getpid())

    def _wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"id": self.id}
        if self.session:
            wire["session"] = self.session
        if self.host:
            wire["host"] = self.host
        if self.pid:
            wire["process"] = {"pid": self.pid}
        return wire

    def _query(self) -> dict[str, Any]:
        return {
            "owner": self.id,
            "session": self.session or None,
            "host": self.host or None,
            "pid": self.pid or None,
        }


@dataclass(frozen=True)
class Lock:
    """What a server knows about a name. ``holders`` and ``queue`` are as docs/api.md describes Holder and Waiter; ``stale`` says why
    one of them, by its ``id``, does not count any more.
    """

    name: str
    token: int
    revision: str
    holders: list[dict[str, Any]] = field(default_factory=list)
    queue: list[dict[str, Any]] = field(default_factory=list)
    freeze: dict[str, Any] | None = None
    stale: dict[str, str] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """Whether somebody holds it: a stale hold does not count."""
        return any(h.get("id") not in self.stale for h in self.holders)

    @staticmethod
    def _of(w: Mapping[str, Any]) -> Lock:
        return Lock(
            w["name"],
            w["token"],
            w["revision"],
            list(w.get("holders") or []),
            list(w.get("queue") or []),
            w.get("freeze"),
            dict(w.get("stale") or {}),
        )


class Lease:
    """A lock that this program holds. It is renewed in the background until it is released or lost.

    ``token`` is the fencing token: higher than that of every earlier grant of the name. A resource that refuses lower
    ones is safe from holders that act late. ``id`` proves ownership and is a secret.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        lease_id: str,
        operation: str,
        holder: Mapping[str, Any],
        asked: float,
        ttl: float,
    ) -> None:
        self.name = name
        self.id = lease_id
        self.token: int = holder["token"]
        self.lost = threading.Event()
        self._client = client
        self._operation = operation
        self._released = self._given_back = False
        self._pid = os.getpid()
        self._heard = ""
        self._cause: LostError | None = None
        self._listeners: list[Callable[[LostError], None]] = []
        self._lock = threading.Lock()
        self._beat = Beat(asked, ttl, self._renew, self._lose, _next(holder))
        try:
            client._keeper.keep(self._beat)
        except BaseException:
            self._beat.over = True  # nobody else knows of it
            raise

    @property
    def state(self) -> str:
        """``held``, ``in doubt`` (a renewal failed; it is tried again), ``lost`` or ``released``, at this moment."""
        if self._released:
            return "released"
        if self.lost.is_set() or self.remaining() <= 0:
            return "lost"
        return "in doubt" if self._beat.in_doubt is not None else "held"

    def remaining(self) -> float:
        """For how many seconds the lock may be relied on without another renewal."""
        return (
            0.0
            if self._released or self.lost.is_set() or self._pid != os.getpid()
            else max(self._beat.deadline - clock(), 0.0)
        )

    def check(self) -> None:
        """Raises LostError unless the lock can be relied on at this moment. Looks at the clock first."""
        if self.state in ("lost", "released"):
            raise self._cause or LostError(
                f"the lock {self.name!r} is {self.state}", self._beat.in_doubt
            )

    def on_loss(self, listener: Callable[[LostError], None]) -> None:
        """Has the loss told, once, in a thread of its own; at once if it has happened."""
        with self._lock:
            if self._cause is None:
                self._listeners.append(listener)
                return
            cause = self._cause
        listener(cause)

    def release(self) -> None:
        """Gives the lock back, and stops its heartbeat first. If it raises UnavailableError it can be called again. After a loss
        it only tries to tell the server; again, or in a process that was forked since, it does nothing.
        """
        if self._given_back or self._pid != os.getpid():
            return
        try:
            lost = self.state == "lost"
            self._released = True
            self._client._keeper.stop(self._beat)
            if lost:
                self._client._take_back(self.name, self.id, self._operation, 1.0)
            else:
                self._client._give_back(self.name, self.id, self._operation)
        except (NotFoundError, NotOwnerError):
            pass
        except BaseException as e:
            if isinstance(e, LostError) or not isinstance(e, LoktError):  # what interrupts the thread, such as KeyboardInterrupt
                self._client._take_back(self.name, self.id, self._operation)
            raise
        self._given_back = True

    def _renew(self, patience: float) -> tuple[float, float]:
        holder = self._client._renew(self.name, self.id, patience, self._heard, self._beat.call)
        if holder["token"] != self.token:
            raise NotOwnerError(f"the hold of {self.name!r} had ended, and a copy of its claim was granted since")
        wanted = str((holder.get("yield") or {}).get("deadline") or "")
        if wanted and wanted != self._heard:
            # It is not relied on beyond that from here on, which the server is told at once.
            self._heard = wanted
            return _life(holder), 0.01
        return _life(holder), _next(holder)

    def _lose(self, cause: LostError) -> None:
        with self._lock:
            self._cause = cause
            listeners, self._listeners = self._listeners, []
            self.lost.set()
        for listener in listeners:
            try:
                listener(cause)
            except BaseException:  # the others are told, too
                traceback.print_exc()


class Client:
    """Locks and jobs of a loktd. Safe for use by several threads; one of a process is enough.

    ``server`` is a URL, or several with commas between them for replicas; without one ``LOKT_SERVER`` is taken. ``token``
    defaults to ``LOKT_SERVER_TOKEN``; a function is asked for it with each request, as one that may expire. ``ca`` is a file
    with the certificates to trust. ``timeout`` is how long, in seconds, a server may take to answer, and for how long one
    that does not is tried again.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        token: str | Callable[[], str] | None = None,
        owner: Owner | str | None = None,
        ca: str | None = None,
        timeout: float = 10.0,
    ) -> None:
        self._transport = Transport(
            server or os.environ.get("LOKT_SERVER") or "",
            token or os.environ.get("LOKT_SERVER_TOKEN"),
            ca,
            timeout,
        )
        if isinstance(owner, str):
            owner = Owner(owner, Owner.default().session, socket.gethostname(), os.getpid())
        self.owner = owner or Owner.default()
        self._keeper = Keeper()

    def close(self) -> None:
        """Closes kept connections. Leases go on being renewed until they are released."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def about(self) -> dict[str, Any]:
        """What the server is, and who it takes the caller for."""
        _, answer = self._transport.request("GET", "/v1/about")
        return dict(answer)

    def acquire(
        self,
        name: str,
        *,
        ttl: float = 30.0,
        wait: bool | float = True,
        shared: bool = False,
        slots: int = 1,
        priority: int = 0,
        max_hold: float = 0.0,
        metadata: Mapping[str, str] | None = None,
        call: Call | None = None,
    ) -> Lease:
        """Takes the lock and returns its lease, which is renewed from then on: when the server says, from a third to half of ``ttl`` (seconds).

        ``wait`` is for how long to wait in the queue: True without end, False not at all, or seconds. ``slots`` is how
        many holders may share it at most, ``shared`` any number of others that share. Raises HeldError (also when the wait
        is over), FrozenError, FullError, UnavailableError, InvalidError or AuthError; then nothing is held.
        """
        if not 1 <= ttl < float("inf") or not max_hold < float("inf"):
            raise ValueError("ttl and max_hold are in seconds, ttl at least 1, and neither is infinite")
        if wait != wait:
            raise ValueError("wait is True, False or seconds")
        lease_id = secrets.token_hex(16)
        operation = secrets.token_hex(8)
        begun = clock()
        most = _POLL if wait is True else 0.0 if wait is False else max(float(wait), 0.0)
        poll = min(_POLL, max(ttl / 3, 1.0))
        claim: dict[str, Any] = {
            "lease_id": lease_id,
            "owner": self.owner._wire(),
            "strict": True,
            "attended": True,
            "ttl_ms": round(ttl * 1000),
        }
        if shared or slots != 1:
            claim["limit"] = (1 << 31) - 1 if shared else slots
        if priority:
            claim["priority"] = priority
        if max_hold:
            claim["max_hold_ms"] = math.ceil(max_hold * 1000)
        if metadata:
            claim["metadata"] = dict(metadata)
        asked = begun
        call = call or Call()

        def body() -> dict[str, Any]:
            if wait is False:
                return claim
            left = poll if wait is True else min(poll, most - (clock() - begun))
            if left <= 0:
                return {**claim, "wait_ms": 1}
            return {**claim, "wait_ms": max(round(left * 1000), 1), "stay": True}

        def sent() -> None:
            nonlocal asked
            asked = clock()

        patience = (
            self._transport.timeout
            if wait is False
            else min(_QUEUE_TTL, max(most, 1.0))
            if wait is not True
            else _QUEUE_TTL
        )
        try:
            while True:
                status, answer = self._transport.request(
                    "POST",
                    f"{_lock_path(name)}/leases",
                    body,
                    headers={"Lokt-Operation": operation},
                    wait=0.0 if wait is False else poll,
                    patience=patience,
                    call=call,
                    sent=sent,
                )
                if status == 202:
                    answer.insist(answer["id"] == public_id(lease_id))
                else:
                    holder = _own(answer, answer["holder"], name, lease_id)
                    if clock() - asked > (_life(holder) or ttl) / 4:
                        # The request waited: when the hold began is not known well enough.
                        asked = clock()
                        try:
                            holder = self._renew(name, lease_id, ttl / 2)
                        except (NotFoundError, NotOwnerError):  # it is over, as after a sleep of the machine: once more
                            claim["lease_id"] = lease_id = secrets.token_hex(16)
                            operation = secrets.token_hex(8)
                            continue
                    ttl = _life(holder) or ttl
                    call.got = Lease(self, name, lease_id, operation, holder, asked, ttl)
                    return call.got
        except (HeldError, FullError, InvalidError, AuthError):
            raise
        except BaseException:  # it may have been granted
            if call.reached:
                self._take_back(name, lease_id, operation)
            raise

    def try_acquire(self, name: str, *, ttl: float = 30.0, **options: Any) -> Lease | None:
        """Takes the lock if it can be had now, and returns None if somebody else is in the way."""
        try:
            return self.acquire(name, ttl=ttl, wait=False, **options)
        except HeldError:
            return None

    @contextmanager
    def guard(
        self,
        name: str,
        *,
        ttl: float = 30.0,
        wait: bool | float = True,
        interrupt: bool = True,
        **options: Any,
    ) -> Iterator[Lease]:
        """Holds the lock while the block runs, which is told when it is lost: ``lease.lost`` is set, and unless
        ``interrupt`` is False, LostError is raised in the block's thread as soon as it runs Python code again. A call that
        blocks in C is not interrupted. At the end of the block LostError is raised if the lock was lost meanwhile.
        """
        thread = None
        failed = True
        call = options.setdefault("call", Call())
        try:
            lease = self.acquire(name, ttl=ttl, wait=wait, **options)
        except BaseException:  # what interrupts the thread may come on the way from there, too
            if call.got is not None:
                self._keeper.stop(call.got._beat)
                self._take_back(name, call.got.id, call.got._operation)
            raise
        try:
            thread = _Interrupt() if interrupt else None
            if thread is not None:
                lease.on_loss(thread._raise)  # perhaps at once
            yield lease
            failed = False
        finally:
            try:
                try:
                    if thread is not None:
                        thread.end()
                    lost = lease.state == "lost"
                    lease.release()
                except BaseException as e:
                    if isinstance(e, LostError) or not isinstance(e, LoktError):  # it may have come before that
                        lease.release()
                    raise
            except LostError:  # of another lease, which this thread holds
                raise
            except LoktError:
                if not failed:
                    raise
            finally:
                if thread is not None:
                    thread.left()
        if lost:
            lease_lost = lease._cause or LostError(f"the lock {name!r} was lost")
            raise lease_lost

    def lock(self, name: str) -> Lock:
        """Looks at a lock. A name that nobody uses is a free lock."""
        _, answer = self._transport.request("GET", _lock_path(name))
        answer.insist(answer["name"] == name)
        return answer.read(Lock._of)

    def locks(self, prefix: str = "") -> list[Lock]:
        """Lists the locks that are not free, by name."""
        _, answer = self._transport.request("GET", "/v1/locks", query={"prefix": prefix or None})
        return answer.read(lambda a: [Lock._of(w) for w in a["locks"]])

    def force_release(self, name: str, public_id: str | None = None) -> list[dict[str, Any]]:
        """Ends all holds of the lock, or the one with the public ID, whoever's they are. Needs the scope force."""
        path = f"{_lock_path(name)}/leases" + (f"/{segment(public_id)}" if public_id else "")
        _, answer = self._transport.request(
            "DELETE", path, query={**self.owner._query(), "force": True}
        )
        answer.insist(isinstance(answer["released"], list))
        return list(answer["released"])

    def freeze(self, name: str, *, ttl: float, reason: str = "") -> dict[str, Any]:
        """Keeps newcomers out for ``ttl`` seconds. Who holds the lock stays."""
        if not 0 < ttl < math.inf:
            raise ValueError("ttl is in seconds, more than 0 and not infinite")
        body = {"owner": self.owner._wire(), "ttl_ms": math.ceil(ttl * 1000), "reason": reason}
        _, answer = self._transport.request("PUT", f"{_lock_path(name)}/freeze", body)
        return answer.read(lambda a: dict(a["freeze"]))

    def unfreeze(self, name: str, *, force: bool = False) -> None:
        """Ends the caller's freeze, or with ``force`` anybody's."""
        query = {**self.owner._query(), "force": force or None}
        _, answer = self._transport.request("DELETE", f"{_lock_path(name)}/freeze", query=query)
        answer.insist(answer["freeze"])

    def events(
        self,
        *,
        after: int | None = None,
        name: str | None = None,
        prefix: str | None = None,
        wait: float = 30.0,
    ) -> Iterator[dict[str, Any]]:
        """Yields events of locks, oldest first and without end: those with a higher number than ``after``, or those from
        now on. A gap in ``seq`` shows that some were forgotten before they could be read.
        """
        if after is None:
            _, page = self._transport.request(
                "GET", "/v1/audit", query={"limit": 1, "latest": True}
            )
            after = page.read(lambda p: int(p["newest"]))
        while True:
            query = {"after": after, "name": name, "prefix": prefix, "wait_ms": round(wait * 1000)}
            _, page = self._transport.request("GET", "/v1/audit", query=query, wait=wait)
            for seq, event in page.read(lambda p: [(int(e["seq"]), dict(e)) for e in p["events"]]):
                after = seq
                yield event

    def _give_back(
        self, name: str, lease_id: str, operation: str, patience: float | None = None
    ) -> None:
        # Copies of the claim that are still under way are not to be granted later.
        headers = {"Lokt-Lease": lease_id, "Lokt-Cancels": operation}
        _, answer = self._transport.request(
            "DELETE",
            _lease_path(name, lease_id),
            query=self.owner._query(),
            headers=headers,
            patience=patience,
        )
        answer.insist(isinstance(answer["released"], list))

    def _renew(self, name: str, lease_id: str, patience: float, heard: str = "", call: Call | None = None) -> Any:
        lease = {"name": name, "lease_id": lease_id}
        if heard:
            lease["heard"] = heard
        body = {"leases": [lease]}
        _, answer = self._transport.request("POST", "/v1/leases/heartbeat", body, patience=patience, call=call)
        leases = answer["leases"]
        answer.insist(isinstance(leases, list) and len(leases) == 1 and isinstance(leases[0], dict))
        return _own(answer, leases[0].get("holder"), name, lease_id)

    def _take_back(self, name: str, lease_id: str, operation: str, patience: float = 5.0) -> None:
        """Ends a claim whose outcome is not known, copies of it that are under way included."""
        try:
            self._give_back(name, lease_id, operation, patience)
        except LostError:  # of another lease, which this thread holds
            raise
        except Exception:
            pass  # it ends with its time to live


_here = threading.local()


class _Interrupt:
    """Raises LostError in the thread that made it when the lease is lost, until ``end``."""

    def __init__(self) -> None:
        self._around: _Interrupt | None = getattr(_here, "innermost", None)
        _here.innermost = self
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._ended = False
        self._raised = False
        self._known = self._lost_around()

    def _lost_around(self) -> _Interrupt | None:
        """The innermost block around this one that was told of its loss."""
        around = self._around
        while around is not None and not around._raised:
            around = around._around
        return around

    def _raise(self, _: LostError) -> None:
        with self._lock:
            if not self._ended:
                self._raised = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread), ctypes.py_object(LostError)
                )

    def end(self) -> None:
        """From here on nothing is raised; what was, and has not arrived, is taken back."""
        try:
            with self._lock:
                self._ended = True
                if self._raised:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), None)
        except LostError:  # it arrived here
            self._ended = True

    def left(self) -> None:
        """Tells the block around this one of its loss again: of two that a thread is told of at once, it gets one, and who
        left this block may have taken it for the loss of this one's.
        """
        _here.innermost = self._around
        around = self._lost_around()
        if around is not None and around is not self._known:
            again = threading.Timer(0.1, around._raise, (LostError(),))  # unless it ends, too
            again.daemon = True
            again.start()


def public_id(lease_id: str) -> str:
    """What everybody but the holder sees instead of a lease ID: "L-" and 20 hexadecimal digits of its SHA-256."""
    return "L-" + hashlib.sha256(lease_id.encode()).hexdigest()[:20]


def _lock_path(name: str) -> str:
    if not isinstance(name, str) or name in ("", ".", ".."):  # which are no segments of a path
        raise InvalidError(f"{name!r} is no name for a lock")
    return f"/v1/locks/{segment(name)}"


def _lease_path(name: str, lease_id: str) -> str:
    return f"{_lock_path(name)}/leases/{public_id(lease_id)}"


def _own(answer: Answer, holder: Json, name: str, lease_id: str) -> dict[str, Any]:
    """The holder that an answer tells of, if that is this lease: nothing else grants or keeps it."""
    answer.insist(
        isinstance(holder, dict)
        and holder.get("name") == name
        and holder.get("id") == public_id(lease_id)
        and isinstance(holder.get("token"), int)
        and holder["token"] > 0
    )
    answer.read(lambda _: (_life(holder), _next(holder)))
    own: dict[str, Any] = holder
    return own


def _next(holder: Mapping[str, Any]) -> float:
    return float(holder.get("heartbeat_in_ms", 0)) / 1000


def _life(holder: Mapping[str, Any]) -> float:
    """For how long the hold lasts from its last renewal: its TTL, or less if it must end before."""
    ttl = float(holder.get("ttl_ms", 0)) / 1000
    if "expires_at" not in holder:
        return ttl
    end = _moment(holder["expires_at"])
    wanted = (holder.get("yield") or {}).get("deadline")
    if wanted:
        end = min(end, _moment(wanted))
    # Since the last renewal a server may have put off the end, and nobody knows from when on.
    return max(min(end - _moment(holder["acquired_at"]), ttl or math.inf), 0.001)


def _moment(text: str) -> float:
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(whole + "+00:00").timestamp() + float(f"0.{fraction or 0}")
