"""A process that is forked, interrupted, or out of threads: LOKTD names the program of a real loktd."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import unittest
from typing import Any
from unittest import mock

import lokt
from lokt import _client
from test_client import LOKTD, TTL, Server, until


@unittest.skipUnless(LOKTD, "LOKTD does not name a loktd")
class TestProcess(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.stop)
        self.client = lokt.Client(self.server.url)
        self.addCleanup(self.client.close)

    @unittest.skipUnless(hasattr(os, "fork"), "the system has no fork")
    def test_a_forked_process_keeps_its_own_leases_and_ends_none_of_its_parents(self) -> None:
        # Promise S-265.
        script = f"""
import lokt, os, time
client = lokt.Client({self.server.url!r})
lease = client.acquire("parents", ttl={TTL})
if os.fork() == 0:
    print("child", lease.state, flush=True)
    lease.release()
    own = client.acquire("childs", ttl={TTL})
    while not client.lock("childs").holders[0].get("renewals"):
        time.sleep(0.05)
    print("child", own.state, flush=True)
    own.release()
    os._exit(0)
os.wait()
print("parent", lease.state, client.lock("parents").held)
"""
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        self.assertEqual(ran.stdout, "child lost\nchild held\nparent held True\n", ran.stderr)

    @unittest.skipUnless(hasattr(os, "fork"), "the system has no fork")
    def test_a_process_that_is_forked_while_a_client_is_made_can_make_one(self) -> None:
        script = f"""
import getpass, lokt, os, signal, threading
os.environ["LOKT_SERVER"] = {self.server.url!r}
user, asked, told = getpass.getuser, threading.Event(), threading.Event()
getpass.getuser = lambda: (asked.set(), told.wait(), user())[2]
thread = threading.Thread(target=lokt.client)
thread.start()
asked.wait()
if (child := os.fork()) == 0:
    signal.alarm(30)
    getpass.getuser = user
    os._exit(0 if lokt.client() is lokt.client() else 1)
print(os.waitpid(child, 0)[1])
told.set()
"""
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        self.assertEqual(ran.stdout, "0\n", ran.stderr)

    def test_a_program_that_ends_in_a_block_gives_its_lock_back(self) -> None:
        # A thread that the interpreter has ended keeps the locks that it had, here as the keeper's may.
        script = f"""
import gc, lokt, threading
client, got = lokt.Client({self.server.url!r}), threading.Event()

def keep():
    with client._keeper._lock:
        got.set()
        threading.Event().wait()

gc.set_threshold(0)  # what is garbage here lasts until the interpreter ends
garbage = [client.guard("db")]
garbage[0].__enter__()
garbage.append(garbage)
del garbage
threading.Thread(target=keep, daemon=True).start()
got.wait()
"""
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        self.assertEqual((ran.returncode, ran.stderr, self.client.lock("db").held), (0, "", False))

    def failing(self, method: str, failure: BaseException, after: bool = False) -> None:
        """Has the first request with the method fail, before it is sent or after it was answered."""
        request = self.client._transport.request
        failures = [failure]

        def fail(asked: str, *args: Any, **more: Any) -> Any:
            due = asked == method and failures
            answer = request(asked, *args, **more) if after or not due else None
            if due:
                raise failures.pop()
            return answer

        self.client._transport.request = fail  # type: ignore[method-assign]

    def test_what_interrupts_a_thread_leaves_nothing_held(self) -> None:
        # Promise S-265.
        for failure in (KeyboardInterrupt(), SystemExit(), lost := lokt.LostError("another lock")):
            for method in ("POST", "DELETE"):
                with self.subTest(method, failure=failure):
                    self.failing(method, failure, after=method == "POST")
                    with self.assertRaises(type(failure)):
                        with self.client.guard("db"):
                            raise lost
                    self.assertFalse(self.client.lock("db").held)

    def test_what_interrupts_a_thread_beside_a_request_leaves_nothing_held(self) -> None:
        # Promise S-265.
        def then(whole: Any, before: bool) -> Any:
            interrupts = [KeyboardInterrupt()]

            def call(*args: Any, **more: Any) -> Any:
                answer = None if before and interrupts else whole(*args, **more)
                if interrupts:
                    raise interrupts.pop()
                return answer

            return call

        for where, name, before in (
            (lokt.Client, "acquire", False),
            (lokt.Lease, "release", True),
            (_client._Interrupt, "end", True),
        ):
            with self.subTest(name), mock.patch.object(where, name, then(getattr(where, name), before)):
                with self.assertRaises(KeyboardInterrupt):
                    with self.client.guard("db", wait=False):
                        pass
                self.assertFalse(self.client.lock("db").held)

    def test_what_interrupts_a_thread_in_a_lock_of_the_clients_own_leaves_that_free(self) -> None:
        # Promise S-265.
        enter, cond = threading.Condition.__enter__, self.client._keeper._cond

        def interrupted(entered: threading.Condition) -> bool:
            got = enter(entered)
            if entered is cond and threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return got

        lease = self.client.acquire("db", ttl=TTL)
        with mock.patch("threading.Condition.__enter__", interrupted):
            try:
                self.client.acquire("other", ttl=TTL).release()
            except KeyboardInterrupt:
                pass
        self.client.force_release("db")
        self.assertTrue(lease.lost.wait(30), "the leases are not renewed any more")

    def test_a_release_that_failed_can_be_called_again(self) -> None:
        lease = self.client.acquire("db")
        self.failing("DELETE", lokt.UnavailableError("no answer in time"))
        with self.assertRaises(lokt.UnavailableError):
            lease.release()
        self.assertTrue(self.client.lock("db").held)
        lease.release()
        self.assertFalse(self.client.lock("db").held)

    def test_a_block_says_that_its_lock_was_not_given_back_wherever_it_stands(self) -> None:
        # Promise S-355.
        try:
            raise KeyError("another's")
        except KeyError:
            with self.assertRaises(lokt.UnavailableError):
                with self.client.guard("db"):
                    self.failing("DELETE", lokt.UnavailableError("no answer in time"))

    def test_a_lease_that_was_lost_is_released_in_silence(self) -> None:
        # Promise S-355.
        lease = self.client.acquire("db", ttl=TTL)
        self.client.force_release("db")
        self.assertTrue(lease.lost.wait(30))
        self.failing("DELETE", lokt.UnavailableError("no answer in time"))
        lease.release()

    def test_of_two_locks_that_are_lost_at_once_the_loss_of_each_is_told(self) -> None:
        # Promise S-355.
        with self.assertRaises(lokt.LostError):
            with self.client.guard("outer", ttl=TTL):
                with self.assertRaises(lokt.LostError):
                    with self.client.guard("inner", ttl=TTL):
                        self.server.kill()
                        time.sleep(2 * TTL)  # both are lost in it
                for _ in range(300):
                    time.sleep(0.1)
                self.fail("the block goes on")

    def test_a_loss_that_is_taken_for_that_of_an_inner_lock_is_told_again(self) -> None:
        # Promise S-355.
        with self.assertRaises(lokt.LostError):
            with self.client.guard("outer", ttl=TTL):
                with self.assertRaises(lokt.LostError):
                    with self.client.guard("inner", ttl=60):
                        self.client.force_release("outer")
                        for _ in range(300):
                            time.sleep(0.1)
                for _ in range(300):
                    time.sleep(0.1)
                self.fail("the block goes on")

    def test_the_loss_of_a_lock_is_told_while_another_is_tried(self) -> None:
        # Promise S-355.
        for method in ("POST", "DELETE"):
            self.failing(method, lokt.LostError())
            with self.subTest(method), self.assertRaises(lokt.LostError):
                with self.client.guard(f"db-{method}"):
                    raise lokt.UnavailableError("so it goes")

    def test_a_process_without_room_for_threads_renews_when_it_has_room_again(self) -> None:
        start, left = threading.Thread.start, {"lokt-keeper": 1, "lokt-renewal": 3, "lokt-loss": 1}

        def scarce(thread: threading.Thread) -> None:
            if left.get(thread.name):
                left[thread.name] -= 1
                raise RuntimeError("can't start new thread")
            start(thread)

        with mock.patch("threading.Thread.start", scarce):
            with self.assertRaises(RuntimeError):
                self.client.acquire("db", ttl=TTL)
            lease = self.client.acquire("db", ttl=TTL, wait=False)
            until(lambda: self.client.lock("db").holders[0].get("renewals"))
            until(lambda: lease.state == "held")  # and not in doubt any more
            self.client.force_release("db")
            self.assertTrue(lease.lost.wait(30))
        self.assertEqual(set(left.values()), {0})

    def test_a_renewal_that_ends_its_thread_is_none(self) -> None:
        def token() -> str:
            if threading.current_thread().name == "lokt-renewal":
                raise SystemExit
            return ""

        lease = lokt.Client(self.server.url, token=token).acquire("db", ttl=TTL)
        until(lambda: lease.state != "held")
        released = threading.Thread(target=lease.release, daemon=True)
        released.start()
        released.join(30)
        self.assertFalse(released.is_alive())

    def test_a_loss_is_told_to_all_though_one_of_them_fails(self) -> None:
        told = threading.Event()

        def fail(e: lokt.LostError) -> None:
            raise e

        lease = self.client.acquire("db", ttl=TTL)
        lease.on_loss(fail)
        lease.on_loss(lambda _: told.set())
        self.client.force_release("db")
        with mock.patch("traceback.print_exc"):
            self.assertTrue(told.wait(30))

    def test_a_second_signal_ends_a_worker_whose_job_does_not_end(self) -> None:
        # Promise S-360.
        script = """
import lokt, signal, time

def handle(job):
    print("begun", flush=True)
    time.sleep(600)

lokt.Worker(lokt.client(), handle).run()
"""
        lokt.Jobs(self.client).submit()
        env = {**os.environ, "LOKT_SERVER": self.server.url}
        with subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as worker:
            try:
                assert worker.stdout is not None
                self.assertEqual(worker.stdout.readline(), b"begun\n")
                for _ in range(300):
                    if worker.poll() is not None:
                        break
                    worker.send_signal(signal.SIGTERM)
                    time.sleep(0.1)
                self.assertIsNotNone(worker.poll(), "it goes on")
            finally:
                worker.kill()

    def test_a_worker_that_has_ended_leaves_signals_as_they_were(self) -> None:
        before = signal.getsignal(signal.SIGINT)
        worker = lokt.Worker(self.client, lambda job: None)
        worker.drain()
        worker.run()
        self.assertIs(signal.getsignal(signal.SIGINT), before)


class TestWhatCannotBeSent(unittest.TestCase):
    def test_hosts_and_tokens(self) -> None:
        for url in ("http://a..b", f"http://{'x' * 70}.y", "http://ho st"):
            with self.subTest(url), self.assertRaises(lokt.InvalidError):
                lokt.Client(url)
        lokt.Client("http://x", token="a\n")
        tokens = iter(["first", "", "next\n"])
        client = lokt.Client("http://x", token=lambda: next(tokens))
        for want in (None, "Bearer next"):
            self.assertEqual(client._transport._headers({}, False).get("Authorization"), want)
        for token in ("a\r\nb: c", "\u65e5"):
            with self.subTest(token), self.assertRaises(lokt.InvalidError):
                lokt.Client("http://x", token=token)
        lokt.Client("http://[fe80::abcd]")
        for name in ("", ".", "..", b"x", 5, None):
            with self.subTest(name), self.assertRaises(lokt.InvalidError):
                lokt.Client("http://x").acquire(name)  # type: ignore[arg-type]


if __name__ == "__main__":
    unittest.main()
