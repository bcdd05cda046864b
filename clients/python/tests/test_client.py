"""Against a real loktd: LOKTD names its program."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Callable

import lokt
from lokt import aio

LOKTD = os.environ.get("LOKTD", "")

# A machine may stand still for a second and more: what has to last lives for 8 s at least, and deadlines are far off.
TTL = 8.0


def until(seen: Callable[[], Any]) -> None:
    """Waits for what must come."""
    end = time.monotonic() + 30
    while not seen():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.02)


# Sockets for datagrams that have the numbers of the ports that were chosen, as long as this
# process lives: no other test chooses those.
marks: list[socket.socket] = []


def free_port() -> int:
    """A port that nobody gets who does not ask for it: the system gives connections, and who asks for any, those above."""
    while True:
        port = random.randrange(10_000, 32_000)
        mark = socket.socket(type=socket.SOCK_DGRAM)
        with socket.socket() as s:
            try:
                mark.bind(("127.0.0.1", port))
                s.bind(("127.0.0.1", port))
            except OSError:
                mark.close()
                continue  # somebody else's
        marks.append(mark)
        return port


class Server:
    """A loktd on a port of its own, which can be killed and started again."""

    def __init__(self, *args: str) -> None:
        self.dir = tempfile.TemporaryDirectory()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.args = args
        self.start()

    def start(self) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("LOKT")}
        store = f"sqlite:{self.dir.name}/db"
        self.process = subprocess.Popen(
            [LOKTD, "--listen", f"127.0.0.1:{self.port}", "--store", store, *self.args],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError("loktd does not answer")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        self.dir.cleanup()


class Proxy:
    """Passes connections on to a server until it is cut; then nothing comes through, in silence."""

    def __init__(self, port: int) -> None:
        self.cut = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.target = port
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.target))
            for a, b in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(a, b), daemon=True).start()

    def _pass(self, a: socket.socket, b: socket.socket) -> None:
        try:
            while data := a.recv(65536):
                if not self.cut.is_set():
                    b.sendall(data)
        except OSError:
            pass
        finally:
            b.close()


@unittest.skipUnless(LOKTD, "LOKTD does not name a loktd")
class TestLocks(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.stop)
        self.client = lokt.Client(self.server.url, owner="ana")
        self.addCleanup(self.client.close)

    def test_one_holder_at_a_time_and_first_come_first_served(self) -> None:
        order: list[int] = []
        inside = 0
        most = 0

        def work(i: int) -> None:
            nonlocal inside, most
            with self.client.guard("db", ttl=10):
                inside += 1
                most = max(most, inside)
                order.append(i)
                time.sleep(0.02)
                inside -= 1

        threads = []
        with self.client.guard("db", ttl=10):
            for i in range(8):
                threads.append(threading.Thread(target=work, args=(i,)))
                threads[-1].start()
                while len(self.client.lock("db").queue) <= i:
                    time.sleep(0.01)
        for t in threads:
            t.join()
        self.assertEqual((most, order), (1, list(range(8))))

    def test_a_refusal_says_who_is_in_the_way(self) -> None:
        with self.client.guard("db"):
            with self.assertRaises(lokt.HeldError) as caught:
                lokt.Client(self.server.url, owner="bob").acquire("db", wait=False)
            self.assertEqual(caught.exception.holders[0]["owner"]["id"], "ana")
            begun = time.monotonic()
            with self.assertRaises(lokt.HeldError):
                self.client.acquire("db", wait=0.3)
            self.assertLess(time.monotonic() - begun, 20)
            self.assertIsNone(self.client.try_acquire("db"))
            self.assertEqual(self.client.lock("db").queue, [])

    def renewals(self) -> int:
        return int(self.client.lock("db").holders[0].get("renewals", 0))

    def test_tokens_rise_and_a_lease_is_renewed(self) -> None:
        with self.client.guard("db", ttl=TTL) as first:
            until(self.renewals)
            first.check()
            self.assertEqual(first.state, "held")
            self.assertEqual(self.client.lock("db").holders[0]["id"], lokt.public_id(first.id))
        with self.client.guard("db") as second:
            self.assertGreater(second.token, first.token)

    def test_a_lock_taken_away_interrupts_the_block(self) -> None:
        with self.assertRaises(lokt.LostError):
            with self.client.guard("db", ttl=TTL) as lease:
                self.client.force_release("db")
                for _ in range(3000):
                    time.sleep(0.01)
        self.assertTrue(lease.lost.is_set())

    def test_a_block_that_is_not_interrupted_learns_at_its_end(self) -> None:
        with self.assertRaises(lokt.LostError):
            with self.client.guard("db", ttl=TTL, interrupt=False) as lease:
                self.client.force_release("db")
                self.assertTrue(lease.lost.wait(30))

    def test_a_partition_is_doubt_first_and_loss_before_others_may_enter(self) -> None:
        proxy = Proxy(self.server.port)
        client = lokt.Client(proxy.url, owner="far", timeout=1)
        lease = client.acquire("db", ttl=TTL)
        proxy.cut.set()
        until(lambda: lease.state == "in doubt")
        other = self.client.acquire("db", wait=30)
        self.assertEqual(lease.state, "lost")
        self.assertTrue(lease.lost.wait(30))
        other.release()

    def test_a_short_partition_and_a_server_killed_and_started_lose_nothing(self) -> None:
        lease = self.client.acquire("db", ttl=TTL)
        self.server.kill()
        time.sleep(0.5)
        self.server.start()
        until(self.renewals)
        until(lambda: lease.state == "held")  # and not in doubt any more
        lease.release()

    def test_a_stopped_process_finds_its_lease_over_when_it_goes_on(self) -> None:
        script = (
            "import lokt,sys,time\n"
            f"lease = lokt.Client({self.server.url!r}).acquire('db', ttl={TTL})\n"
            "print('held', flush=True)\n"
            "sys.stdin.readline()\n"
            "print(lease.state, flush=True)\n"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdin and child.stdout
        self.assertEqual(child.stdout.readline(), "held\n")
        child.send_signal(signal.SIGSTOP)
        self.client.acquire("db", wait=30).release()
        child.stdin.write("\n")
        child.stdin.flush()
        child.send_signal(signal.SIGCONT)
        self.assertEqual(child.communicate(timeout=30)[0], "lost\n")

    def test_a_killed_holder_frees_the_lock_after_its_ttl(self) -> None:
        script = f"import lokt,time\nlokt.Client({self.server.url!r}).acquire('db', ttl=1)\nprint('held', flush=True)\ntime.sleep(60)\n"
        child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert child.stdout
        child.stdout.readline()
        child.kill()
        child.communicate()
        self.client.acquire("db", wait=30).release()

    def test_who_is_asked_to_leave_says_that_it_has_heard(self) -> None:
        lease = self.client.acquire("db", ttl=24)
        claim = {
            "lease_id": "of-bob",
            "owner": {"id": "bob"},
            "priority": 9,
            "preempt_ms": 5000,
            "wait_ms": 60000,
            "ttl_ms": 60000,
        }
        begun = time.monotonic()
        self.client._transport.request("POST", "/v1/locks/db/leases", claim, wait=60)
        took = time.monotonic() - begun
        self.assertEqual(lease.state, "lost", "the lock was another's before its holder had lost it")
        self.assertLess(took, 22)  # the next renewal is due after 12 s at most, and who is silent has 24
        self.assertTrue(lease.lost.wait(30))
        lease.release()

    @unittest.skipUnless(shutil.which("openssl"), "no openssl")
    def test_authorities_may_be_replaced_while_it_runs(self) -> None:
        # Promise S-330.
        with tempfile.TemporaryDirectory() as dir:
            cert, key, ca = (os.path.join(dir, name) for name in ("cert", "key", "ca"))

            def issue() -> None:
                make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=x -addext subjectAltName=IP:127.0.0.1"
                subprocess.run([*make.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
                shutil.copy(cert, ca + ".new")

            issue()
            with self.assertRaises(lokt.InvalidError):
                lokt.Client("https://127.0.0.1:1", ca=ca).about()
            os.replace(ca + ".new", ca)
            server = Server("--tls-cert", cert, "--tls-key", key)
            self.addCleanup(server.stop)
            url = server.url.replace("http:", "https:")
            client = lokt.Client(url, ca=ca)
            other = lokt.Client(url, ca=ca, owner="other")
            held = client.acquire("x", ttl=60)
            waited: list[Any] = []
            waiter = threading.Thread(target=lambda: waited.append(other.acquire("x", wait=60)))
            waiter.start()
            until(lambda: client.lock("x").queue)
            server.kill()
            issue()
            server.start()
            with self.assertRaises(lokt.UnavailableError):
                lokt.Client(url, ca=ca).about()
            os.replace(ca + ".new", ca)
            held.release()
            waiter.join(60)
            self.assertEqual(1, len(waited))
            waited[0].release()
            for state in ("replaced", "half", "missing"):
                with self.subTest(state):
                    if state == "half":
                        os.truncate(ca, 100)
                    if state == "missing":
                        os.remove(ca)
                    client.close()
                    client.about()

    def test_freezes_and_events(self) -> None:
        self.client.freeze("db", ttl=30, reason="release day")
        with self.assertRaises(lokt.FrozenError) as caught:
            self.client.acquire("db", wait=False)
        self.assertEqual((caught.exception.freeze or {})["reason"], "release day")
        self.client.unfreeze("db")
        with self.client.guard("db"):
            pass
        types = []
        for event in self.client.events(after=0, name="db"):
            types.append(event["type"])
            if event["type"] == "release":
                break
        self.assertEqual(types, ["freeze", "freeze-deny", "unfreeze", "acquire", "release"])

    def test_slots_and_sharing(self) -> None:
        held = [self.client.acquire("gpu", slots=2, wait=False) for _ in range(2)]
        self.assertIsNone(self.client.try_acquire("gpu", slots=2))
        for lease in held:
            lease.release()
        readers = [self.client.acquire("doc", shared=True, wait=False) for _ in range(3)]
        self.assertIsNone(self.client.try_acquire("doc"))
        for lease in readers:
            lease.release()


@unittest.skipUnless(LOKTD, "LOKTD does not name a loktd")
class TestAsyncio(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.stop)

    async def test_a_task_is_cancelled_when_its_lock_is_lost(self) -> None:
        async with aio.Client(self.server.url) as client:
            cancelled = False
            with self.assertRaises(lokt.LostError):
                async with client.guard("db", ttl=TTL):
                    client.blocking.force_release("db")
                    try:
                        await asyncio.sleep(30)
                    except asyncio.CancelledError:
                        cancelled = True
                        raise
            self.assertTrue(cancelled)
            await asyncio.sleep(0)  # the task itself goes on

    async def test_a_block_that_kept_the_loop_busy_is_told_of_the_loss_at_its_end(self) -> None:
        # Promise S-355.
        async with aio.Client(self.server.url) as client:
            with self.assertRaises(lokt.LostError):
                async with client.guard("db", ttl=TTL) as lease:
                    client.blocking.force_release("db")
                    lease._lease.lost.wait(60)

    async def test_what_ended_a_block_is_told_though_the_server_is_away(self) -> None:
        # Promise S-355.
        proxy = Proxy(self.server.port)
        self.addCleanup(proxy.listener.close)
        async with aio.Client(proxy.url, timeout=1) as client:
            with self.assertRaises(lokt.LostError):
                async with client.guard("db", ttl=TTL):
                    proxy.cut.set()
                    await asyncio.sleep(60)
            proxy.cut.clear()
            with self.assertRaisesRegex(KeyError, "mine"):
                async with client.guard("other", ttl=60):
                    proxy.cut.set()
                    raise KeyError("mine")

    async def test_what_was_granted_is_given_back_though_the_task_is_cancelled_twice(self) -> None:
        # Promise S-356.
        granted, undone = threading.Event(), threading.Event()

        def work() -> str:
            granted.wait(30)
            return "lease"

        waiting = asyncio.create_task(aio._in_thread(work, lambda: None, lambda _: undone.set()))
        for _ in range(2):
            await asyncio.sleep(0.01)
            waiting.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await waiting
        granted.set()
        self.assertTrue(await asyncio.to_thread(undone.wait, 30))

    async def test_a_wait_that_is_cancelled_leaves_nothing_behind(self) -> None:
        async with aio.Client(self.server.url) as client:
            async with client.guard("db"):
                waiting = asyncio.create_task(client.acquire("db"))
                while not (await client.lock("db")).queue:
                    await asyncio.sleep(0.01)
                waiting.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await waiting
                self.assertEqual((await client.lock("db")).queue, [])
            self.assertFalse((await client.lock("db")).held)

    async def test_many_tasks_one_holder(self) -> None:
        async with aio.Client(self.server.url) as client:
            inside = most = 0

            async def work() -> None:
                nonlocal inside, most
                async with client.guard("db", ttl=10):
                    inside += 1
                    most = max(most, inside)
                    await asyncio.sleep(0.01)
                    inside -= 1

            await asyncio.gather(*(work() for _ in range(20)))
            self.assertEqual(most, 1)

    async def test_a_coroutine_runs_jobs_and_is_cancelled_with_them(self) -> None:
        async with aio.Client(self.server.url) as client:
            ended = []

            async def handle(job: lokt.Job) -> Any:
                if job.payload.get("long"):
                    try:
                        await asyncio.sleep(30)
                    except asyncio.CancelledError:
                        ended.append(job.why)
                        raise
                return {"doubled": job.payload["n"] * 2}

            worker = aio.Worker(client, handle, concurrency=2)
            running = asyncio.create_task(worker.run())
            short = await client.submit({"n": 4})
            long = await client.submit({"long": True})
            jobs = lokt.Jobs(client.blocking)
            done = await asyncio.to_thread(lambda: jobs.wait(short, timeout=30))
            self.assertEqual((done["state"], done["result"]), ("completed", {"doubled": 8}))
            while (await client.job(long))["state"] not in ("leased", "running"):
                await asyncio.sleep(0.05)
            jobs.cancel(long)
            gone = await asyncio.to_thread(lambda: jobs.wait(long, timeout=30))
            self.assertEqual((gone["state"], ended), ("cancelled", ["cancelled"]))
            worker.drain()
            await asyncio.wait_for(running, 30)


@unittest.skipUnless(LOKTD, "LOKTD does not name a loktd")
class TestJobs(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server("--lease-ttl", f"{TTL}s")
        self.addCleanup(self.server.stop)
        self.client = lokt.Client(self.server.url)
        self.addCleanup(self.client.close)
        self.jobs = lokt.Jobs(self.client)

    def work(self, handle: Any, **options: Any) -> lokt.Worker:
        worker = lokt.Worker(self.client, handle, **options)
        thread = threading.Thread(target=worker.run)
        thread.start()
        self.addCleanup(thread.join, 30)
        self.addCleanup(worker.drain)
        return worker

    def test_jobs_are_run_and_their_failures_kept(self) -> None:
        def handle(job: lokt.Job) -> Any:
            job.progress(0.5, checkpoint={"at": 1})
            if job.payload["n"] == 13:
                raise ValueError("unlucky")
            return job.payload["n"] + 1

        self.work(handle, concurrency=4)
        ids = [self.jobs.submit({"n": n}) for n in range(10, 15)]
        ended = [self.jobs.wait(i, timeout=40) for i in ids]
        self.assertEqual([j["state"] for j in ended], ["completed"] * 3 + ["failed", "completed"])
        self.assertEqual(ended[0]["result"], 11)
        self.assertEqual(
            (ended[3]["error"]["type"], ended[3]["error"]["message"]), ("ValueError", "unlucky")
        )

    def test_heartbeats_keep_a_job_beyond_its_ttl(self) -> None:
        self.work(lambda job: time.sleep(TTL + 2))
        job = self.jobs.wait(self.jobs.submit(max_attempts=3), timeout=60)
        self.assertEqual((job["state"], job["attempt"]), ("completed", 1))

    def test_a_job_that_was_waited_for_is_kept(self) -> None:
        self.work(lambda job: time.sleep(TTL / 2))
        time.sleep(TTL * 3 / 4)  # its request waits, and for as long its lease does not last
        job = self.jobs.wait(self.jobs.submit(), timeout=40)
        self.assertEqual((job["state"], job["attempt"]), ("completed", 1))

    def test_who_is_cancelled_or_revoked_is_told(self) -> None:
        told: list[str] = []

        def handle(job: lokt.Job) -> None:
            while True:
                try:
                    job.check()
                except lokt.Stopped as e:
                    told.append(str(e))
                    raise
                time.sleep(0.02)

        self.work(handle)
        job_id = self.jobs.submit()
        while self.jobs.get(job_id)["state"] != "running":
            time.sleep(0.05)
        self.jobs.cancel(job_id, "not needed")
        self.assertEqual(self.jobs.wait(job_id, timeout=30)["state"], "cancelled")
        self.assertEqual(told, ["cancelled"])

    def test_a_lost_lock_stops_the_job_that_named_it(self) -> None:
        told: list[str] = []

        def handle(job: lokt.Job) -> None:
            self.assertGreater(job.lock_tokens["db"], 0)
            self.client.force_release("db")
            job.stop.wait(30)
            told.append(job.why)
            job.check()

        self.work(handle)
        self.assertEqual(
            self.jobs.wait(self.jobs.submit(locks=["db"]), timeout=40)["state"], "failed"
        )
        self.assertEqual(told, ["lock lost"])

    def test_a_drained_worker_finishes_what_it_has_and_takes_no_more(self) -> None:
        begun = threading.Event()

        def handle(job: lokt.Job) -> str:
            begun.set()
            time.sleep(1)
            return "done"

        worker = self.work(handle)
        first = self.jobs.submit()
        begun.wait(30)
        worker.drain()
        second = self.jobs.submit()
        self.assertEqual(self.jobs.wait(first, timeout=30)["result"], "done")
        self.assertEqual(self.jobs.get(second)["state"], "queued")

    def test_a_server_killed_under_a_job_does_not_lose_it(self) -> None:
        again = threading.Event()
        self.work(lambda job: again.wait(30))
        job_id = self.jobs.submit(max_attempts=3)
        while self.jobs.get(job_id)["state"] != "running":
            time.sleep(0.05)
        self.server.kill()
        time.sleep(0.3)
        self.server.start()
        again.set()
        job = self.jobs.wait(job_id, timeout=60)
        self.assertEqual((job["state"], job["attempt"]), ("completed", 1))

    def test_the_same_key_is_the_same_job(self) -> None:
        self.assertEqual(self.jobs.submit({"a": 1}, key="k"), self.jobs.submit({"a": 1}, key="k"))
        with self.assertRaises(lokt.ConflictError):
            self.jobs.submit({"a": 2}, key="k")
        self.assertEqual(len(list(self.jobs.list(state="queued"))), 1)


class TestBadInput(unittest.TestCase):
    def test_urls_that_are_none(self) -> None:
        for url in ("", "127.0.0.1:7117", "ftp://x", "http://h:99999", "http://h/path"):
            with self.subTest(url), self.assertRaises(lokt.InvalidError):
                lokt.Client(url)

    def test_a_dead_port_says_so_within_the_wait(self) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]  # which nobody else gets meanwhile
            begun = time.monotonic()
            with self.assertRaises(lokt.UnavailableError) as caught:
                lokt.Client(f"http://127.0.0.1:{port}").acquire("x", wait=1)
        self.assertLess(time.monotonic() - begun, 20)
        self.assertIn("refused", str(caught.exception))

    def test_tls_spoken_to_a_plain_port_and_what_is_no_loktd(self) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"<html>hello</html>")

            def log_message(self, *_: object) -> None:
                pass

        other = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=other.serve_forever, daemon=True).start()
        self.addCleanup(other.server_close)
        self.addCleanup(other.shutdown)
        with self.assertRaises(lokt.IncompatibleError):
            lokt.Client(f"http://127.0.0.1:{other.server_port}").about()
        with self.assertRaises(lokt.UnavailableError) as caught:
            lokt.Client(f"https://127.0.0.1:{other.server_port}", timeout=30).about()
        self.assertIn("TLS", str(caught.exception))

    @unittest.skipUnless(LOKTD, "LOKTD does not name a loktd")
    def test_names_tokens_and_bodies_that_are_refused(self) -> None:
        server = Server()
        self.addCleanup(server.stop)
        client = lokt.Client(server.url)
        for name in ("", "a/b", "..", "x" * 300, "ü"):
            with self.subTest(name), self.assertRaises(lokt.LoktError):
                client.acquire(name, wait=False)
        with self.assertRaises(lokt.InvalidError):
            lokt.Jobs(client).submit(priority="urgent")
        with self.assertRaises(lokt.NotFoundError):
            lokt.Jobs(client).get("no-such-job")
        with self.assertRaises(TypeError):
            lokt.Jobs(client).submit({"x": object()})


if __name__ == "__main__":
    unittest.main()
