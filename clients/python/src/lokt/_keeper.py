"""Heartbeats: renews leases in time, and tells their loss before anybody else may enter."""

from __future__ import annotations

import heapq
import itertools
import sys
import threading
import time
from typing import Callable

from ._errors import LostError, NotFoundError, NotOwnerError
from ._http import Call, clock, begin_in_each_process

DRIFT = 0.01
"""How much faster or slower, relative to its length, this clock may measure a duration than the server's does."""

_RETRY = 0.05  # seconds between two tries of a renewal that failed, at least


class Beat:
    """One lease to be kept.

    ``renew`` gets the seconds that it may take, renews the lease and returns for how many seconds it lasts from the
    moment at which it was called, and after how many it is to be renewed; 0 is a third of that.
    NotFoundError and NotOwnerError are final; after any other error the lease is in doubt,
    and ``renew`` is called again, sooner and sooner, until the deadline. ``lost`` is called once, from a thread of its own.
    """

    def __init__(
        self,
        asked: float,
        life: float,
        renew: Callable[[float], tuple[float, float]],
        lost: Callable[[LostError], None],
        every: float = 0,
    ) -> None:
        self._renew = renew
        self._lost = lost
        self._life = life
        self._asked = asked
        self.deadline = asked + usable(life)
        self.in_doubt: BaseException | None = None
        self.over = False
        self.call = Call()  # of its renewals
        self.idle = threading.Event()  # no renewal is under way
        self.idle.set()
        self.next = asked + _until_next(life, every)


def _until_next(life: float, every: float) -> float:
    """After how many seconds to renew: as the server says, but so that there is time for another try."""
    return min(every or life / 3, usable(life) * 3 / 4)


def usable(life: float, whole: float | None = None) -> float:
    """For how long a lease, or what is left of the whole, may be relied on, counted from before it was asked for: less drift
    and a margin.
    """
    return life * (1 - DRIFT) - min(0.1, (whole or life) / 20)


class Keeper:
    """Keeps any number of leases, with one thread that watches and one for each renewal under way."""

    def __init__(self) -> None:
        begin_in_each_process(self)

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._cond = threading.Condition(self._lock)
        self._due: list[tuple[float, int, Beat]] = []
        self._count = itertools.count()
        self._running = False

    def keep(self, beat: Beat) -> None:
        """Renews the lease until ``stop``, or its loss."""
        with self._lock:  # a condition that is entered here may stay locked when the thread is interrupted
            self._push(beat)
            if not self._running:
                threading.Thread(target=self._watch, name="lokt-keeper", daemon=True).start()
                self._running = True
            self._cond.notify()

    def stop(self, beat: Beat) -> None:
        """Ends the heartbeats, waiting for one under way. No loss is told after it."""
        if sys.is_finalizing():  # the threads are gone, perhaps with the lock
            return
        with self._lock:
            beat.over = True
            self._cond.notify()
        beat.call.abort()  # a server that is away may take half the lease's life
        while not beat.idle.is_set():  # to wait for it enters a condition
            time.sleep(0.005)

    def _push(self, beat: Beat) -> None:
        at = min(beat.next, beat.deadline) if beat.idle.is_set() else beat.deadline
        heapq.heappush(self._due, (at, next(self._count), beat))

    def _watch(self) -> None:
        with self._cond:
            while True:
                while self._due and self._due[0][2].over:
                    heapq.heappop(self._due)
                if not self._due:
                    if not self._cond.wait(30) and not self._due:
                        self._running = False
                        return
                    continue
                at, _, beat = self._due[0]
                now = clock()
                if at > now:
                    self._cond.wait(min(at - now, 1.0))  # the machine may sleep, and timers with it
                    continue
                heapq.heappop(self._due)
                if now >= beat.deadline:
                    self._lose(beat, LostError("the lease was not renewed in time", beat.in_doubt))
                elif beat.idle.is_set() and now >= beat.next:
                    beat.idle.clear()
                    try:
                        threading.Thread(
                            target=self._renew, args=(beat,), name="lokt-renewal", daemon=True
                        ).start()
                    except RuntimeError as e:  # there may be no more threads for the moment
                        beat.idle.set()
                        beat.in_doubt, beat.next = e, now + _RETRY
                    self._push(beat)
                else:
                    self._push(beat)

    def _renew(self, beat: Beat) -> None:
        asked = clock()
        patience = max((beat.deadline - asked) / 2, 0.05)
        final: LostError | None = None
        try:
            life, every = beat._renew(patience)
            failure: BaseException | None = None
        except (NotFoundError, NotOwnerError) as e:
            failure, final = e, LostError(f"the lease is over: {e}", e)
        except BaseException as e:  # whatever it was, the lease may still be held
            failure = e
        with self._cond:
            beat.idle.set()
            if beat.over:
                return
            if final is not None:
                self._lose(beat, final)
                return
            now = clock()
            beat.in_doubt = failure
            if failure is None:
                beat.deadline = asked + usable(life)
                beat.next = asked + _until_next(life, every)
            else:
                beat.next = now + max(min((beat.deadline - now) / 4, beat._life / 10), _RETRY)
            self._push(beat)
            self._cond.notify()

    def _lose(self, beat: Beat, cause: LostError) -> None:
        beat.over = True
        try:
            threading.Thread(target=beat._lost, args=(cause,), name="lokt-loss", daemon=True).start()
        except RuntimeError:
            beat._lost(cause)
