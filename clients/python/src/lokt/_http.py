"""Requests to a loktd: kept connections, several addresses, and which failures are tried again."""

from __future__ import annotations

import http.client
import io
import json
import os
import random
import selectors
import socket
import ssl
import sys
import threading
import time
import weakref
from collections import deque
from typing import Any, Callable, Mapping, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from . import _errors as errors

Json = Any
"""A JSON value: None, bool, int, float, str, a list or a dict of these."""

_LONGEST_ANSWER = 64 << 20  # bytes; more is no answer of a loktd
_IDLE = 16  # connections that are kept
_KEPT = 20.0  # seconds: loktd closes what was idle for 30
_T = TypeVar("_T")
# Linux's CLOCK_MONOTONIC stands still in sleep, that of macOS does not; time.monotonic is the one that does, where there are two.
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def clock() -> float:
    """Seconds that pass while the machine sleeps, too, where the system has such a clock."""
    return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()


_threaded: weakref.WeakSet[Any] = weakref.WeakSet()


def begin_in_each_process(it: Any) -> None:
    """Has ``_begin`` called, now and in processes that are forked, which have neither the threads nor the connections of their parent."""
    it._begin()
    _threaded.add(it)


def _forked() -> None:
    for it in list(_threaded):
        it._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Call:
    """One request under way, which another thread may abort."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self.aborted = threading.Event()
        self.reached = False  # some server: it may have carried out the request
        self.got: Any = None  # what it is for, so that it is not lost on the way to who asked

    def use(self, sock: socket.socket | None) -> None:
        with self._lock:
            self._sock = sock
            self.reached = self.reached or sock is not None
        if self.aborted.is_set():
            self.abort()

    def abort(self) -> None:
        """Ends the request: its thread gets an UnavailableError at once."""
        self.aborted.set()
        with self._lock:
            if self._sock is not None:
                try:
                    self._sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass


class Answer(dict[str, Json]):
    """What a server has answered: a member that is not there is one that another version has under another name."""

    def __init__(self, server: str, members: Mapping[str, Json]) -> None:
        super().__init__(members)
        self._server = server

    def __missing__(self, name: str) -> Json:
        raise errors.foreign(self._server, f"the answer has no {name!r}")

    def insist(self, whole: object) -> None:
        """Raises IncompatibleError unless the answer is what was asked for."""
        if not whole:
            raise errors.foreign(self._server)

    def read(self, read: Callable[[Answer], _T]) -> _T:
        """Takes out what was asked for, and raises IncompatibleError if it is of another shape."""
        try:
            return read(self)
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
            raise errors.foreign(self._server) from None


class Transport:
    """Sends requests to the first of some addresses that answers. Safe for use by several threads."""

    def __init__(self, servers: str, token: str | Callable[[], str] | None, ca: str | None, timeout: float) -> None:
        self._addresses = [_address(s.strip()) for s in servers.split(",") if s.strip()]
        if not self._addresses:
            raise errors.InvalidError("no server: give its URL, or set LOKT_SERVER")
        self._token = token
        self._bearer()  # says what is wrong with it
        if not 0 < timeout < threading.TIMEOUT_MAX:
            raise errors.InvalidError(f"timeout is {timeout}: give it in seconds, more than 0 and not infinite")
        self._ca = ca
        self._tls: ssl.SSLContext | None = None
        self._trusted = False
        self._ca_found: tuple[int, int, int, int] | None = None
        self.timeout = timeout
        self._current = 0
        begin_in_each_process(self)

    def _begin(self) -> None:
        self._idle: deque[tuple[int, float, http.client.HTTPConnection]] = deque()
        self._lock = threading.Lock()

    def request(
        self,
        method: str,
        path: str,
        body: Callable[[], Json] | Json = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        wait: float = 0,
        patience: float | None = None,
        resend: bool = True,
        call: Call | None = None,
        sent: Callable[[], None] | None = None,
    ) -> tuple[int, Answer]:
        """Returns the status and the members of an answer below 300, and raises what anything else says.

        ``wait`` is how long, in seconds, the server may take on purpose. ``patience`` is for how long an address that
        does not answer is tried again, ``resend`` whether that is safe after the request was sent. ``body`` may be a
        function, which is called anew for each try. ``sent`` is called before each try.
        """
        if query:
            given = {k: _text(v) for k, v in query.items() if v is not None}
            path = f"{path}?{_encoded(given, lambda: urlencode(given, doseq=True))}"
        call = call or Call()
        if sys.is_finalizing():  # a thread that is gone may have the lock
            self._begin()
        end = clock() + (self.timeout if patience is None else patience)
        pause = 0.05
        while True:
            if call.aborted.is_set():
                raise errors.UnavailableError("the request was given up")
            value = body() if callable(body) else body
            if sent is not None:
                sent()
            failure, again = self._try(
                method, path, value, headers or {}, wait, max(end - clock(), 0.05), resend, call
            )
            if not isinstance(failure, errors.LoktError):
                return failure
            left = end - clock()
            if not again or left <= 0 or call.aborted.is_set():
                raise failure
            call.aborted.wait(min(pause * random.uniform(0.8, 1.2), left))
            pause = min(pause * 2, 2.0)

    def _try(
        self,
        method: str,
        path: str,
        value: Json,
        headers: Mapping[str, str],
        wait: float,
        left: float,
        resend: bool,
        call: Call,
    ) -> tuple[tuple[int, Answer] | errors.LoktError, bool]:
        """Asks each address once. Returns the answer, or the error and whether to try again."""
        data = None if value is None else json.dumps(value, allow_nan=False).encode()
        failure: errors.LoktError = errors.UnavailableError("no address")
        try:
            with_token = self._headers(headers, data is not None)
        except errors.LoktError:
            raise
        except Exception as e:  # there is no token for the moment; nothing was sent
            failure = errors.UnavailableError(f"there is no token: {type(e).__name__}: {_why(e)}")
            failure.__cause__ = e
            return failure, True
        for _ in self._addresses:
            which = self._current
            fresh = False
            while (
                True
            ):  # a kept connection may have been closed meanwhile: then once more over a new one
                limit = min(self.timeout, left)
                connection, kept = self._connection(which, limit, fresh)
                begun = False
                try:
                    if connection.sock is None:
                        connection.connect()
                    self._trusted = True
                    assert connection.sock is not None
                    connection.sock.settimeout(wait + limit)
                    call.use(connection.sock)
                    begun = True
                    connection.response_class = _response(clock() + wait + limit)
                    connection.request(method, path, data, with_token)
                    answer = connection.getresponse()
                    raw = answer.read(_LONGEST_ANSWER + 1)
                    if answer.length and len(raw) <= _LONGEST_ANSWER:  # half an answer is none
                        raise http.client.IncompleteRead(raw, answer.length)
                except (OSError, http.client.HTTPException, ValueError) as e:  # the last for the size of a chunk
                    connection.close()
                    if (
                        kept
                        and resend
                        and not fresh
                        and not isinstance(e, TimeoutError)
                        and not call.aborted.is_set()
                    ):
                        fresh = True
                        continue
                    failure = errors.UnavailableError(f"{self._name(which)}: {_why(e)}")
                    failure.__cause__ = e
                    if begun and not resend:
                        return failure, False
                    # Whom it has trusted before may be about to be again, and another server may be trusted.
                    if _distrusted(e) and not self._trusted and len(self._addresses) == 1:
                        return failure, False
                    break
                finally:
                    call.use(None)
                if answer.will_close or not answer.isclosed():  # what is not read is in the way of the next
                    connection.close()
                else:
                    self._keep(which, connection)
                got = self._understand(which, answer, raw)
                if not isinstance(got, errors.UnavailableError):
                    return got, False
                failure = got
                if not resend:
                    return failure, False
                break
            self._current = (which + 1) % len(self._addresses)
        return failure, True

    def _understand(
        self, which: int, answer: http.client.HTTPResponse, raw: bytes
    ) -> tuple[int, Answer] | errors.LoktError:
        if len(raw) > _LONGEST_ANSWER:
            return errors.foreign(self._name(which), f"the answer is longer than {_LONGEST_ANSWER >> 20} MiB")
        try:
            value = json.loads(raw) if raw else None
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and answer.status < 300:
            return answer.status, Answer(self._name(which), value)
        if isinstance(value, dict):
            headers = {k.title(): v for k, v in answer.getheaders()}
            return errors.from_answer(self._name(which), answer.status, value, headers)
        if answer.status in (429, 502, 503, 504):
            return errors.UnavailableError(f"{self._name(which)}: status {answer.status}")
        line = raw[:200].decode("utf-8", "replace").strip().partition("\n")[0]
        said = f" ({line})" if line and line[0] not in "<{[" else ""
        return errors.IncompatibleError(
            f"{self._name(which)} answered with status {answer.status} and no JSON{said}: is it a loktd, and is the URL right?"
        )

    def _bearer(self) -> str:
        token = ((self._token() if callable(self._token) else self._token) or "").strip()
        if not (token.isascii() and token.isprintable()):
            raise errors.InvalidError("the token has a character that a header may not have")
        return token

    def _headers(self, more: Mapping[str, str], body: bool) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "lokt-python"}
        if body:
            headers["Content-Type"] = "application/json"
        if token := self._bearer():
            headers["Authorization"] = f"Bearer {token}"
        headers.update(more)
        return headers

    def _name(self, which: int) -> str:
        scheme, host, port = self._addresses[which]
        return f"{scheme}://{host}:{port}"

    def _connection(
        self, which: int, timeout: float, fresh: bool
    ) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            while self._idle and not fresh:
                at, since, connection = self._idle.pop()
                if at == which and clock() - since < _KEPT and not _closed(connection):
                    return connection, True
                connection.close()
        scheme, host, port = self._addresses[which]
        if scheme == "https":
            tls = self._trust()
            return (
                http.client.HTTPSConnection(host, port, timeout=timeout, context=tls),
                False,
            )
        return http.client.HTTPConnection(host, port, timeout=timeout), False

    def _trust(self) -> ssl.SSLContext:
        """Goes by the authorities that are in the file now. While it cannot be used, halfway through a change, by those before."""
        with self._lock:
            try:
                is_ = os.stat(self._ca) if self._ca else None
                found = is_ and (is_.st_dev, is_.st_ino, is_.st_size, is_.st_mtime_ns)
                if self._tls is None or found != self._ca_found:
                    self._tls, self._ca_found = ssl.create_default_context(cafile=self._ca), found
            except OSError as e:  # ssl.SSLError is one
                if self._tls is None:
                    raise errors.InvalidError(f"ca: {self._ca} cannot be used: {e.strerror or e}") from e
            return self._tls

    def _keep(self, which: int, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._idle) < _IDLE:
                self._idle.append((which, clock(), connection))
                return
        connection.close()

    def close(self) -> None:
        """Closes the connections that are kept."""
        with self._lock:
            idle, self._idle = self._idle, deque()
        for _, _, connection in idle:
            connection.close()


def _closed(connection: http.client.HTTPConnection) -> bool:
    """Whether the server has closed a connection that was kept, or said something unasked."""
    if connection.sock is None:
        return True
    try:
        with selectors.DefaultSelector() as s:
            s.register(connection.sock, selectors.EVENT_READ)
            return bool(s.select(0))
    except OSError:  # no descriptor is left to look with
        return False


class _Until(io.RawIOBase):
    """What a socket receives until a moment: however slowly it comes, it takes no longer."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        self._sock, self._end = sock, end
        self._file = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int | None:
        left = self._end - clock()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._file.readinto(into)

    def close(self) -> None:
        self._file.close()
        super().close()

    def makefile(self, *_: Any) -> io.BufferedReader:
        return io.BufferedReader(self)


def _response(end: float) -> Any:
    return lambda sock, **more: http.client.HTTPResponse(_Until(sock, end), **more)  # type: ignore[arg-type]


def _why(e: Exception) -> str:
    if isinstance(e, ssl.SSLError):
        reason = getattr(e, "verify_message", "") or e.reason or str(e)
        return f"TLS: {reason}; is the URL's scheme right, and the CA known?"
    try:
        text = str(e)
    except Exception:
        text = ""
    said = "".join(c if c.isprintable() else "?" for c in text[:200])  # a line of a garbled answer, perhaps
    return "no answer in time" if isinstance(e, TimeoutError) else said or type(e).__name__


def _distrusted(e: Exception) -> bool:
    """Whether what answered speaks no TLS, or has no certificate that counts."""
    return isinstance(e, ssl.SSLError) and not isinstance(e, (ssl.SSLEOFError, ssl.SSLZeroReturnError))


def segment(text: str) -> str:
    """The text as a segment of a path."""
    return _encoded(text, lambda: quote(text, safe=""))


def _encoded(what: object, encode: Callable[[], str]) -> str:
    try:
        return encode()
    except UnicodeEncodeError:
        raise errors.InvalidError(f"{what!r} has half of a surrogate pair, which is no character") from None


def _address(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise errors.InvalidError(f"{url!r} has no valid port") from None
    try:
        http.client.HTTPConnection((parts.hostname or "").encode("idna").decode(), port or 80)
    except (UnicodeError, http.client.InvalidURL):
        raise errors.InvalidError(f"{url!r} has no valid host") from None
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.path not in ("", "/")
        or parts.query
    ):
        raise errors.InvalidError(
            f"{url!r} is no server: give http://HOST:PORT or https://HOST:PORT, without a path"
        )
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80)


def _text(v: Any) -> Any:
    if isinstance(v, bool):
        return "true" if v else "false"
    return v
