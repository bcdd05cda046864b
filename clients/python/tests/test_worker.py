"""What may go wrong around a worker of jobs: LOKTD names the program of a real loktd."""

from __future__ import annotations

import tempfile
import threading
import time
import unittest
import unittest.mock
from typing import Any

import lokt
from lokt import _http
from test_client import LOKTD, Server


@unittest.skipUnless(LOKTD, "LOKTD does not name a loktd")
class TestWorker(unittest.TestCase):
    def setUp(self) -> None:
        self.serve("8s")

    def serve(self, ttl: str) -> None:
        self.server = Server("--lease-ttl", ttl)
        self.addCleanup(self.server.stop)
        self.client = lokt.Client(self.server.url)
        self.addCleanup(self.client.close)
        self.jobs = lokt.Jobs(self.client)

    def work(self, handle: Any, **options: Any) -> lokt.Worker:
        return self.start(lokt.Worker(self.client, handle, **options))

    def start(self, worker: lokt.Worker) -> lokt.Worker:
        thread = threading.Thread(target=worker.run)
        thread.start()
        self.addCleanup(thread.join, 30)
        self.addCleanup(worker.drain)
        return worker

    def test_a_worker_that_runs_already_is_not_run_again_beside_that(self) -> None:
        begun = threading.Event()
        worker = self.work(lambda job: begun.set())
        self.jobs.submit()
        self.assertTrue(begun.wait(30))
        with self.assertRaises(RuntimeError):
            worker.run()

    def test_a_worker_goes_on_when_there_is_no_token_for_the_moment(self) -> None:
        failures: list[Exception] = []

        def token() -> str:
            if failures:
                raise failures.pop()
            return ""

        def handle(job: lokt.Job) -> str:
            failures.extend(KeyError("vault") for _ in range(4))
            return "done"

        self.client = lokt.Client(self.server.url, token=token)
        self.work(handle)
        job = self.jobs.wait(self.jobs.submit(), timeout=30)
        self.assertEqual(("completed", "done"), (job["state"], job["result"]))

    def test_an_error_that_cannot_even_be_printed_fails_the_attempt(self) -> None:
        def handle(job: lokt.Job) -> None:
            raise SyntaxError("unexpected token", ("data", 1, 2, b"not text"))  # type: ignore[arg-type]

        self.work(handle)
        self.assertEqual(self.jobs.wait(self.jobs.submit(), timeout=60)["state"], "failed")

    def test_an_error_that_cannot_be_told_as_it_is_fails_the_attempt(self) -> None:
        # Promise S-354.
        class Speechless(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no text")

        errors = {
            "speechless": Speechless(),
            "not unicode": OSError("no file '\udcff'"),
            "long": ValueError("x" * 20_000_000),
            "exit": SystemExit(3),
        }

        def handle(job: lokt.Job) -> None:
            raise errors[job.payload["what"]]

        worker = self.work(handle, concurrency=4)
        ids = {what: self.jobs.submit({"what": what}) for what in errors}
        for what, id in ids.items():
            with self.subTest(what):
                job = self.jobs.wait(id, timeout=30)
                self.assertEqual(("failed", type(errors[what]).__name__), (job["state"], job["error"]["type"]))
        end = time.monotonic() + 30
        while worker._jobs and time.monotonic() < end:  # the server has each result before its answer is here
            time.sleep(0.01)
        self.assertFalse(worker._jobs)

    # Promise S-254.
    def test_a_loss_is_told_while_a_heartbeat_waits_for_its_answer(self) -> None:
        told = threading.Event()
        why: list[str] = []

        def handle(job: lokt.Job) -> None:
            job.stop.wait(40)
            why.append(job.why)
            told.set()

        worker = self.work(handle)
        request = worker._request

        def silent(method: str, path: str, *args: Any, **more: Any) -> Any:
            if path.endswith("/leases/heartbeat") and not told.wait(30):
                why.append("not told")
            return request(method, path, *args, **more)

        worker._request = silent
        job = self.jobs.wait(self.jobs.submit(), timeout=40)
        self.assertTrue(told.wait(40))
        self.assertEqual((why, job["state"]), (["lost"], "expired"))

    # Promise S-254.
    def test_a_job_is_told_before_its_maximum_runtime_is_over(self) -> None:
        seen: list[Any] = []
        told = threading.Event()

        def handle(job: lokt.Job) -> None:
            seen.append(job.stop.is_set())
            job.stop.wait(30)
            seen.append(job.why)
            told.set()
            job.check()

        self.work(handle)
        time.sleep(4.5)  # its request waits for longer than the job may run
        job_id = self.jobs.submit(max_runtime=4)
        ended = self.jobs.wait(job_id, timeout=40)
        self.assertTrue(told.wait(30))
        self.assertEqual((seen, ended["code"]), ([False, "out of time"], "max_runtime_exceeded"))

    # Promise S-255.
    def test_what_one_job_tells_wrongly_harms_no_other(self) -> None:
        self.serve("16s")  # what is large takes its time
        bad: list[type[Exception]] = []
        sent = threading.Event()

        def handle(job: lokt.Job) -> str:
            if job.type == "good":
                sent.wait(60)
                before = job._deadline
                while job._deadline == before:
                    job.check()
                    time.sleep(0.02)
                return "done"
            for value in ({1, 2}, float("nan"), [object()]):
                try:
                    job.progress(0.5, value)
                except (TypeError, ValueError) as e:
                    bad.append(type(e))
            job.progress(float("nan"))
            try:
                while True:  # until the server has refused it
                    job.progress(0.5, "x" * (2 << 20))
                    job.stop.wait(0.1)
                    job.check()
            except lokt.InvalidError as e:
                bad.append(type(e))
                job.progress(0.5, "small")
            sent.set()
            return "done"

        self.work(handle, concurrency=2)
        ids = [self.jobs.submit(type=t) for t in ("good", "bad")]
        ended = [self.jobs.wait(i, timeout=60)["result"] for i in ids]
        self.assertEqual(
            (ended, bad), (["done"] * 2, [TypeError, ValueError, TypeError, lokt.InvalidError])
        )

    # Promise S-255.
    def test_what_one_job_tells_slowly_costs_no_other_its_lease(self) -> None:
        self.serve("16s")  # some heartbeats are as late as can be already

        def handle(job: lokt.Job) -> str:
            end = time.monotonic() + 24
            while time.monotonic() < end and not job.stop.wait(0.05):
                if job.type == "telling":
                    job.progress(0.5, {"at": time.monotonic()})
            return job.why or "kept"

        worker = lokt.Worker(self.client, handle, concurrency=2)
        request = worker._request

        def slow(method: str, path: str, *args: Any, **more: Any) -> Any:
            answer = request(method, path, *args, **more)
            if path.endswith("/heartbeat"):
                time.sleep(3.68)  # 0.23 of the lease's life
            return answer

        worker._request = slow
        ids = [self.jobs.submit(type=t) for t in ("telling", "quiet")]
        self.start(worker)
        self.assertEqual([self.jobs.wait(i, timeout=60)["result"] for i in ids], ["kept"] * 2)

    # Promise S-255.
    def test_each_of_very_many_jobs_is_kept(self) -> None:
        with unittest.mock.patch("lokt._jobs._MOST", 2):
            kept = threading.Barrier(5)

            def handle(job: lokt.Job) -> None:
                before = job._deadline
                while job._deadline == before:
                    job.check()
                    time.sleep(0.02)
                kept.wait(60)

            self.work(handle, concurrency=5)
            ids = [self.jobs.submit() for _ in range(5)]
            states = [self.jobs.wait(i, timeout=60)["state"] for i in ids]
            self.assertEqual(states, ["completed"] * 5)

    # Promise S-255.
    def test_a_result_outlives_an_answer_that_says_nothing_about_it(self) -> None:
        worker = lokt.Worker(self.client, lambda job: 7)
        failures = [
            lokt.LoktError("internal", code="internal"),
            lokt.IncompatibleError("<html>"),
            lokt.UnavailableError("away"),
        ]
        request = worker._request

        def failing(method: str, path: str, *args: Any, **more: Any) -> Any:
            if path.endswith("/complete") and failures:
                raise failures.pop()
            return request(method, path, *args, **more)

        worker._request = failing
        self.start(worker)
        job = self.jobs.wait(self.jobs.submit(), timeout=30)
        self.assertEqual((job["state"], job["result"], failures), ("completed", 7, []))

    def test_a_job_is_done_though_no_thread_can_be_started_for_it(self) -> None:
        start = threading.Thread.start

        def none_for_jobs(thread: threading.Thread) -> None:
            if thread.name.startswith("lokt-job"):
                raise RuntimeError("can't start new thread")
            start(thread)

        with unittest.mock.patch.object(threading.Thread, "start", none_for_jobs):
            self.work(lambda job: job.payload["n"], concurrency=2)
            for id in [self.jobs.submit({"n": n}) for n in range(3)]:
                self.assertEqual("completed", self.jobs.wait(id, timeout=30)["state"])

    def test_a_worker_that_is_refused_says_so_and_leaves_nothing_behind(self) -> None:
        with tempfile.NamedTemporaryFile() as tokens:
            server = Server("--tokens", tokens.name)
            self.addCleanup(server.stop)
            worker = lokt.Worker(lokt.Client(server.url), lambda job: None)
            for _ in range(2):
                with self.assertRaises(lokt.AuthError):
                    worker.run()
                names = {t.name for t in threading.enumerate()}
                self.assertFalse(names & {"lokt-watch", "lokt-heartbeats"})

    def test_a_worker_that_cannot_wait_at_the_server_waits_itself(self) -> None:
        asked: list[float] = []
        worker = lokt.Worker(self.client, lambda job: None)

        def full(*_: Any, **__: Any) -> Any:
            asked.append(time.monotonic())
            if len(asked) == 3:
                worker.drain()
            return 200, _http.Answer("", {"denied": True, "code": "queue_empty", "retry_after_ms": 400})

        worker._request = full
        worker.run()
        self.assertGreater(asked[2] - asked[0], 0.7)

    def test_a_job_without_a_key_is_submitted_after_the_server_was_started_again(self) -> None:
        self.jobs.submit()
        self.server.kill()
        self.server.start()
        self.jobs.submit()
        self.assertEqual(len(list(self.jobs.list())), 2)


if __name__ == "__main__":
    unittest.main()
