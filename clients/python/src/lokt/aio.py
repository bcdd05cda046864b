"""The same for asyncio.

Requests run in threads of their own, so that leases are renewed while the event loop is busy. A task that holds a lock is
cancelled when the lock is lost, and gets LostError at the end of its ``async with``. A wait whose task is cancelled leaves
nothing behind.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from contextlib import asynccontextmanager, suppress
from typing import Any, AsyncIterator, Awaitable, Callable, Iterator, Sequence, TypeVar

from . import _client, _jobs
from ._errors import HeldError, LoktError, LostError
from ._http import Call, Json

_T = TypeVar("_T")


async def _in_thread(
    work: Callable[[], _T],
    abort: Callable[[], None] | None = None,
    undo: Callable[[_T], None] | None = None,
) -> _T:
    """Runs work in a thread. When the task is cancelled, aborts it and waits for its end; what it has done is undone, also when
    the task is cancelled again meanwhile.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()
    lock = threading.Lock()
    gone = False  # the task
    got: list[_T] = []

    def settle(result: _T | None, failure: BaseException | None) -> None:
        if done.cancelled():
            return
        if failure is not None:
            done.set_exception(failure)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            result = work()
        except BaseException as e:
            failure = e
            _soon(loop, lambda: settle(None, failure))
            return
        with lock:
            got.append(result)
            alone = gone
        if alone and undo is not None:
            with suppress(Exception):
                undo(result)
        _soon(loop, lambda: settle(result, None))

    threading.Thread(target=run, name="lokt-request", daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        if abort is not None:
            with lock:
                gone, here = True, list(got)
            abort()
            with suppress(Exception):
                if not here:
                    await done
                elif undo is not None:
                    back = undo
                    await _in_thread(lambda: back(here[0]))
        raise


class Lease:
    """A lock that this program holds; see ``lokt.Lease``."""

    def __init__(self, lease: _client.Lease) -> None:
        self._lease = lease
        self.name = lease.name
        self.id = lease.id
        self.token = lease.token
        self.lost = asyncio.Event()
        loop = asyncio.get_running_loop()
        lease.on_loss(lambda _: _soon(loop, self.lost.set))

    @property
    def state(self) -> str:
        """See ``lokt.Lease.state``."""
        return self._lease.state

    def remaining(self) -> float:
        """See ``lokt.Lease.remaining``: seconds."""
        return self._lease.remaining()

    def check(self) -> None:
        """See ``lokt.Lease.check``."""
        self._lease.check()

    async def release(self) -> None:
        """See ``lokt.Lease.release``."""
        await asyncio.shield(asyncio.ensure_future(_in_thread(self._lease.release)))


class Client:
    """Locks of a loktd; the arguments are those of ``lokt.Client``."""

    def __init__(self, server: str | None = None, **options: Any) -> None:
        self.blocking = _client.Client(server, **options)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.blocking.close()

    async def acquire(self, name: str, **options: Any) -> Lease:
        """See ``lokt.Client.acquire``."""
        call = Call()
        lease = await _in_thread(
            lambda: self.blocking.acquire(name, call=call, **options),
            call.abort,
            _client.Lease.release,
        )
        return Lease(lease)

    async def try_acquire(self, name: str, **options: Any) -> Lease | None:
        """See ``lokt.Client.try_acquire``."""
        try:
            return await self.acquire(name, wait=False, **options)
        except HeldError:
            return None

    @asynccontextmanager
    async def guard(self, name: str, **options: Any) -> AsyncIterator[Lease]:
        """Holds the lock while the block runs. When it is lost the block's task is cancelled, and the ``async with`` raises
        LostError instead of CancelledError.
        """
        lease = await self.acquire(name, **options)
        current = asyncio.current_task()
        assert current is not None
        task: asyncio.Task[Any] = current
        loop = asyncio.get_running_loop()
        cause: list[LostError] = []
        ended = lost = False
        failed = True

        def lose(e: LostError) -> None:
            if not ended:
                cause.append(e)
                task.cancel()

        lease._lease.on_loss(lambda e: _soon(loop, lambda: lose(e)))
        try:
            try:
                yield lease
                failed = False
            finally:
                ended = True
                lost = lease.state == "lost"
                try:
                    await lease.release()
                except LoktError:
                    if not failed:
                        raise
        except asyncio.CancelledError:
            if not cause or (hasattr(task, "uncancel") and task.uncancel() > 0):
                raise
            raise cause[0] from None
        except BaseException:  # of the block: it is told, and not the loss, which cancels nothing any more
            if cause and hasattr(task, "uncancel"):
                task.uncancel()
            raise
        if cause:
            if hasattr(task, "uncancel"):
                task.uncancel()
            raise cause[0]
        if lost:  # while the loop was busy
            raise lease._lease._cause or LostError(f"the lock {name!r} was lost")

    async def lock(self, name: str) -> _client.Lock:
        """See ``lokt.Client.lock``."""
        return await _in_thread(lambda: self.blocking.lock(name))

    async def locks(self, prefix: str = "") -> list[_client.Lock]:
        """See ``lokt.Client.locks``."""
        return await _in_thread(lambda: self.blocking.locks(prefix))

    async def events(self, **options: Any) -> AsyncIterator[dict[str, Any]]:
        """See ``lokt.Client.events``."""
        events: Iterator[dict[str, Any]] = self.blocking.events(**options)
        while True:
            yield await _in_thread(lambda: next(events))

    async def submit(self, payload: dict[str, Json] | None = None, **options: Any) -> str:
        """See ``lokt.Jobs.submit``."""
        return await _in_thread(lambda: _jobs.Jobs(self.blocking).submit(payload, **options))

    async def job(self, job_id: str) -> dict[str, Any]:
        """See ``lokt.Jobs.get``."""
        return await _in_thread(lambda: _jobs.Jobs(self.blocking).get(job_id))


class Worker:
    """Runs jobs with a coroutine, ``concurrency`` at once. It is cancelled when its job is cancelled or its lease lost."""

    def __init__(
        self,
        client: Client,
        handle: Callable[[_jobs.Job], Awaitable[Json]],
        *,
        types: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self._handle = handle
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker = _jobs.Worker(client.blocking, self._run, types=types, **options)

    def _run(self, job: _jobs.Job) -> Json:
        assert self._loop is not None
        loop = self._loop

        async def handle() -> Json:
            current = asyncio.current_task()
            assert current is not None
            task: asyncio.Task[Any] = current
            job._on_stop(lambda: _soon(loop, task.cancel))
            return await self._handle(job)

        try:
            return asyncio.run_coroutine_threadsafe(handle(), loop).result()
        except concurrent.futures.CancelledError:
            raise _jobs.Stopped(job.why or "its task was cancelled") from None

    async def run(self) -> None:
        """Works until ``drain``, or until its task is cancelled; jobs under way are finished first."""
        loop = asyncio.get_running_loop()

        def work() -> None:
            with self._worker._running():
                self._loop = loop  # not before: one that runs has its own
                self._worker._run(signals=False)

        await _in_thread(work, self._worker.drain)

    def drain(self) -> None:
        """See ``lokt.Worker.drain``."""
        self._worker.drain()


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        pass  # the loop has ended, and with it whoever would have listened
