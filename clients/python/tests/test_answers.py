"""Against what is no loktd: proxies and others that answer in its place."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable
from unittest import mock

import lokt
from lokt import _http

Said = tuple[int, str, bytes]


def own(name: str, lease_id: str, **more: Any) -> dict[str, Any]:
    """A holder, as a loktd tells of it."""
    times = {"acquired_at": "2026-11-28T12:00:00Z", "expires_at": "2026-11-28T12:00:20Z"}
    public = "L-" + hashlib.sha256(lease_id.encode()).hexdigest()[:20]
    return {"name": name, "id": public, "token": 7, "ttl_ms": 20000, **times, **more}


class Answering:
    """A server that answers every request with what ``say`` returns for its method, path and body."""

    def __init__(self, say: Callable[[str, str, Any], Said], context: ssl.SSLContext | None = None) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(self) -> None:
                sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, media, body = say(self.command, self.path, json.loads(sent or b"null"))
                self.send_response(status)
                self.send_header("Content-Type", media)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_DELETE = do

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:  # before the server is used, and who says nothing is in nobody's way
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
            self.server.handle_error = lambda *_: None  # type: ignore[method-assign]  # of handshakes that fail
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Raw:
    """A server that answers each request of a connection with one of the texts, as they stand, and closes it after the last."""

    def __init__(self, *connections: list[bytes]) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.connections = connections
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        for texts in self.connections:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                for text in texts:
                    self._read(connection)
                    connection.sendall(text)

    @staticmethod
    def _read(connection: socket.socket) -> None:
        """Reads a request to its end: a connection that is closed before it is reset, perhaps before its answer is read."""
        with connection.makefile("rb") as file:
            length = 0
            while (line := file.readline().lower().strip()):
                name, _, value = line.partition(b":")
                if name == b"content-length":
                    length = int(value)
            file.read(length)


def told(status: int, value: Any, media: str = "application/json") -> Said:
    return status, media, json.dumps(value).encode()


PAGE: Said = (200, "text/html", b"<html>welcome</html>")
SUCCESSES = [
    told(200, {}),
    told(200, {"status": "ok"}),
    told(200, None),
    told(200, []),
    told(202, {}),
    told(202, {"queued": True}),
    told(200, {"holder": {}, "leases": [{}]}),
    told(200, {"holder": own("db", "another's"), "leases": [{"holder": own("db", "another's")}]}),
    told(200, {"holder": [], "leases": {}, "released": "yes", "ok": "yes", "name": "x"}),
    PAGE,
]
ERRORS = [
    told(404, {"detail": "Not Found"}),
    told(404, {"detail": "not_found"}),
    told(410, {"detail": "lease_not_found"}),
    told(404, {"code": "not_found"}),
    told(404, {"code": "lease_not_found", "error": {"code": 404}}),
    told(404, {"type": "about:blank", "title": "Not Found", "status": 404, "code": "not_found"}),
    told(410, {"type": "about:blank", "status": 410, "code": "not_found", "lock": "db"}),
    told(403, {"code": "not_owner"}),
    told(403, {"code": "forbidden", "message": "log in"}),
    told(409, {"code": "held"}),
    told(422, {"detail": ["no"]}),
    told(400, {"code": "invalid"}),
    told(404, "not found"),
    (404, "text/html", b"<html>no such page</html>"),
]


class TestAnswersOfOthers(unittest.TestCase):
    # Promise S-241.

    def answering(self, say: Callable[[str, str, Any], Said], timeout: float = 30) -> lokt.Client:
        server = Answering(say)
        self.addCleanup(server.stop)
        client = lokt.Client(server.url, owner="ana", timeout=timeout)
        self.addCleanup(client.close)
        return client

    def test_a_hold_that_has_expired_is_none(self) -> None:
        hold = own("db", "one")
        lock = {"name": "db", "token": 7, "revision": "1", "holders": [hold], "stale": {hold["id"]: "expired"}}
        client = self.answering(lambda *_: told(200, lock))
        self.assertFalse(client.lock("db").held)
        lock["stale"] = {}
        self.assertTrue(client.lock("db").held)

    def test_what_a_proxy_answers_grants_nothing_and_ends_nothing(self) -> None:
        now: list[Said] = [PAGE]
        client = self.answering(lambda *_: now[0], timeout=0.2)  # no answer in time is as good
        jobs = lokt.Jobs(client)
        for now[0] in SUCCESSES + ERRORS:
            for what, ask in {
                "acquire": lambda: client.acquire("db", wait=False),
                "wait": lambda: client.acquire("db", wait=0.2),
                "renew": lambda: client._renew("db", "mine", 0.2),
                "release": lambda: client._give_back("db", "mine", "operation"),
                "force": lambda: client.force_release("db"),
                "unfreeze": lambda: client.unfreeze("db"),
                "show": lambda: client.lock("db"),
                "submit": lambda: jobs.submit(),
                "cancel": lambda: jobs.cancel("j"),
                "get": lambda: jobs.get("j"),
            }.items():
                with self.subTest(what, said=now[0]):
                    with self.assertRaises((lokt.IncompatibleError, lokt.UnavailableError)):
                        ask()

    def test_a_lease_outlives_answers_that_are_not_loktds(self) -> None:
        answers = {f"lock-{i}": said for i, said in enumerate(SUCCESSES[:3] + ERRORS)}
        sick = True

        def say(method: str, path: str, body: Any) -> Said:
            if method == "DELETE":
                return told(200, {"released": []})
            if "leases" not in body:
                name = path.split("/")[3]
                return told(200, {"holder": own(name, body["lease_id"], heartbeat_in_ms=20)})
            (lease,) = body["leases"]
            if sick:
                return answers[lease["name"]]
            return told(200, {"leases": [{"holder": own(lease["name"], lease["lease_id"])}]})

        client = self.answering(say)
        leases = {name: client.acquire(name, ttl=20) for name in answers}
        for want in ("in doubt", "held"):
            for name, lease in leases.items():
                end = time.monotonic() + 15
                while lease.state != want and time.monotonic() < end:
                    time.sleep(0.01)
                with self.subTest(want, said=answers[name]):
                    self.assertEqual(lease.state, want)
            sick = False
        for lease in leases.values():
            lease.release()

    # Promise S-12.
    def test_a_lease_is_relied_on_for_its_time_to_live_at_most(self) -> None:
        def say(method: str, path: str, body: Any) -> Said:
            if method == "DELETE":
                return told(200, {"released": []})
            return told(200, {"holder": own("db", body["lease_id"], expires_at="2026-11-28T13:00:20Z")})

        lease = self.answering(say).acquire("db", ttl=20)
        self.assertLess(lease.remaining(), 20)
        lease.release()

    # Promise S-282.
    def test_a_lease_ends_with_its_grant_though_a_copy_of_its_claim_is_granted_later(self) -> None:
        def say(method: str, path: str, body: Any) -> Said:
            if method == "DELETE":
                return told(200, {"released": []})
            if "leases" not in body:
                return told(200, {"holder": own("db", body["lease_id"], heartbeat_in_ms=20)})
            (lease,) = body["leases"]
            return told(200, {"leases": [{"holder": own("db", lease["lease_id"], token=9)}]})

        lease = self.answering(say).acquire("db", ttl=20)
        self.assertTrue(lease.lost.wait(15))
        self.assertEqual(lease.state, "lost")
        lease.release()

    def test_a_lease_is_given_back_at_once_though_a_renewal_has_no_answer(self) -> None:
        asked, over = threading.Event(), threading.Event()
        self.addCleanup(over.set)

        def say(method: str, path: str, body: Any) -> Said:
            if method == "DELETE":
                return told(200, {"released": []})
            if "leases" in body:
                asked.set()
                over.wait(120)
            return told(200, {"holder": own("db", body.get("lease_id", ""), ttl_ms=300000, heartbeat_in_ms=20, expires_at="2026-11-28T12:05:00Z")})

        lease = self.answering(say).acquire("db", ttl=300)
        self.assertTrue(asked.wait(30))
        begun = time.monotonic()
        lease.release()
        self.assertLess(time.monotonic() - begun, 60)  # half of what is left is 150 s

    def test_a_lock_that_was_waited_for_is_held_when_it_comes(self) -> None:
        asked = []

        def say(method: str, path: str, body: Any) -> Said:
            asked.append(path)
            if method == "DELETE":
                return told(200, {"released": []})
            if "leases" in body:
                return told(200, {"leases": [{"holder": own("db", body["leases"][0]["lease_id"])}]})
            time.sleep(5.1)  # more than a quarter of the time to live: when it began is not known well enough
            return told(200, {"holder": own("db", body["lease_id"])})

        client = self.answering(say)
        client.acquire("db", ttl=20).release()
        self.assertEqual([p.split("/")[2] for p in asked], ["locks", "leases", "locks"])

    def test_who_hears_of_a_grant_when_it_is_over_asks_again(self) -> None:
        # Promise S-361.
        claimed = []

        def say(method: str, path: str, body: Any) -> Said:
            if method == "DELETE":
                return told(200, {"released": []})
            if "leases" in body:
                return told(404, {"type": "about:blank", "status": 404, "code": "not_found", "lock": "db", "detail": "gone"})
            claimed.append(body["lease_id"])
            if len(claimed) == 1:
                time.sleep(5.1)  # more than a quarter of the time to live
            return told(200, {"holder": own("db", body["lease_id"])})

        client = self.answering(say)
        lease = client.acquire("db", ttl=20)
        self.assertEqual(claimed[1:], [lease.id])
        lease.release()

    def test_what_is_of_another_shape_is_no_other_error(self) -> None:
        deep = b"[" * 100_000 + b"]" * 100_000
        own_marks = {"type": "about:blank", "lock": "db"}
        for said in (
            told(422, {"detail": [{"loc": None, "msg": "no"}]}),
            told(422, {"detail": [{"loc": 7}]}),
            told(409, {**own_marks, "status": 409, "code": "held", "holders": 7}),
            told(200, {"name": "db", "token": 1, "revision": "1", "holders": 7, "locks": [{}], "newest": None, "jobs": [{}]}),
            told(200, {"name": "db", "freeze": 7, "locks": 7, "newest": 1, "events": [{}], "jobs": 7}),
            told(200, {"newest": 1, "events": 7}),
            (200, "application/json", deep),
            (500, "application/json", deep),
        ):
            client = self.answering(lambda *_: said, timeout=0.2)
            for what, ask in {
                "acquire": lambda: client.acquire("db", wait=False),
                "show": lambda: client.lock("db"),
                "list": lambda: client.locks(),
                "freeze": lambda: client.freeze("db", ttl=30),
                "events": lambda: next(client.events()),
                "jobs": lambda: next(lokt.Jobs(client).list()),
            }.items():
                with self.subTest(what, said=said[2][:60]), self.assertRaises(lokt.LoktError):
                    ask()

    def test_half_an_answer_is_none(self) -> None:
        head, body = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n", b'{"name":"db"}'
        for text in (
            head + b"Content-Length: 100\r\n\r\n" + body,
            head + b"Content-Length: 100\r\n\r\n",
            head + b"Transfer-Encoding: chunked\r\n\r\nd\r\n" + body + b"\r\n",
            head + b"Transfer-Encoding: chunked\r\n\r\n64\r\n" + body,
        ):
            server = Raw(*[[text]] * 100)
            self.addCleanup(server.listener.close)
            with self.subTest(text=text), self.assertRaises(lokt.UnavailableError):
                lokt.Client(server.url, timeout=0.2).about()

    def test_what_was_not_read_is_in_the_way_of_no_other_request(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
        long = head % 40 + b'{"job_id":"1"}'.ljust(40)
        server = Raw([long, long], [head % 14 + b'{"job_id":"2"}'])
        self.addCleanup(server.listener.close)
        client = lokt.Client(server.url)
        with mock.patch("lokt._http._LONGEST_ANSWER", 20):
            with self.assertRaises(lokt.IncompatibleError):
                client.about()
            self.assertEqual(lokt.Jobs(client).submit(), "2")  # which is not sent twice

    def test_a_worker_goes_on_through_pages_of_a_proxy(self) -> None:
        # Promise S-263.
        pages = [said for said in SUCCESSES + ERRORS if said != told(404, {"detail": "not_found"})]  # which loktd says, too
        pages += [told(500, {"detail": "internal"}), told(200, {"denied": False, "lease": {}, "job": {}}), told(200, {"denied": True})]
        asked: list[Any] = []
        done: list[Any] = []

        def say(method: str, path: str, body: Any) -> Said:
            if path.endswith("/complete"):
                done.append(body["result"])
                return told(200, {"applied": True})
            if path.endswith("/heartbeat"):
                return told(200, {"ok": True, "leases": []})
            asked.append(body)
            if len(asked) <= len(pages) or done:
                return pages[len(asked) % len(pages)]
            lease = {"lease_id": "l", "job_id": "j", "attempt": 1, "token": 1, "lease_ttl_s": 60}
            return told(200, {"denied": False, "lease": lease, "job": {"job_id": "j", "type": "t", "payload": {}}})

        worker = lokt.Worker(self.answering(say), lambda job: "done")
        with mock.patch("lokt._jobs.random.uniform", lambda *_: 0.01):
            thread = threading.Thread(target=worker.run)
            thread.start()
            end = time.monotonic() + 30
            while len(asked) < len(pages) + 9 and thread.is_alive() and time.monotonic() < end:
                time.sleep(0.01)
            worker.drain()
            thread.join(30)
        self.assertEqual((done, thread.is_alive()), (["done"], False))
        granted = len(pages) + 1
        self.assertEqual(len({a["request_id"] for a in asked[:granted]}), 1, "the lease of a lost answer is not looked for")
        self.assertEqual(len({a["request_id"] for a in asked[granted:]}), 1)
        self.assertGreaterEqual(len(asked), granted + 8)

    def test_a_result_that_somebody_in_between_refuses_fails_the_attempt_in_the_end(self) -> None:
        # Promise S-255.
        for ttl, bound in (8.0, 60), (30.0, 90):
            now, sent = [0.0], []
            lease = {"lease_id": "l", "job_id": "j", "attempt": 1, "token": 1, "lease_ttl_s": ttl}
            answer = _http.Answer("", {"lease": lease, "job": {"job_id": "j", "type": "t", "payload": {}}})
            worker = lokt.Worker(lokt.Client("http://x"), lambda job: "done")

            def refuse(method: str, path: str, body: Any, **_: Any) -> Any:
                sent.append((body["status"], now[0]))
                now[0] += 1
                job._deadline = now[0] + ttl  # heartbeats pass
                if body["status"] == "completed":
                    raise lokt.IncompatibleError("<html>")
                return 200, _http.Answer("", {"applied": True})

            worker._request = refuse
            with mock.patch("lokt._jobs.clock", lambda: now[0]), mock.patch("lokt._jobs.time"):
                job = lokt.Job._of(answer, 0)
                worker._work(job)
            self.assertEqual(sent, [("completed", t) for t in range(bound + 1)] + [("failed", bound + 1)])

    def test_what_loktd_alone_says_ends_a_lease(self) -> None:
        gone = {"type": "about:blank", "title": "Lock is not held", "status": 404, "code": "not_found", "lock": "db", "gone": True}
        client = self.answering(lambda *_: told(404, gone, "application/problem+json"))
        with self.assertRaises(lokt.NotFoundError):
            client._renew("db", "mine", 30)

    def test_who_finds_a_full_queue_is_told_at_once(self) -> None:
        full = {"type": "about:blank", "title": "Lock is full", "status": 429, "code": "full", "detail": "lock is full"}
        asked = []

        def say(method: str, *_: Any) -> Said:
            asked.append(method)
            return told(429, full, "application/problem+json")

        client = self.answering(say)
        with self.assertRaises(lokt.FullError):
            client.acquire("db")
        self.assertEqual(asked, ["POST"])

    @unittest.skipUnless(hasattr(time, "CLOCK_BOOTTIME"), "the system has no such clock")
    def test_a_lease_is_over_when_the_machine_has_slept_through_its_time(self) -> None:
        # Promise S-242.
        client = self.answering(lambda _, path, body: told(200, {"holder": own("db", body["lease_id"])}))
        lease = client.acquire("db", ttl=20)
        self.assertEqual(lease.state, "held")
        real = time.clock_gettime
        with mock.patch("time.clock_gettime", lambda c: real(c) + (30 if c == time.CLOCK_BOOTTIME else 0)):
            self.assertEqual(lease.state, "lost")

    def test_an_answer_without_an_end_is_not_read_to_its_end(self) -> None:
        # Promise S-240.
        client = self.answering(lambda *_: (200, "application/json", b" " * (_http._LONGEST_ANSWER + 1)))
        with self.assertRaisesRegex(lokt.IncompatibleError, "longer than 64 MiB"):
            client.about()

    def test_an_answer_that_drips_takes_no_longer_than_one_may(self) -> None:
        # Promise S-352.
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        for begin, drop in (
            (head + b"Content-Length: 1000000\r\n\r\n", b" "),
            (head + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
            (head, b"X"),
            (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        ):
            with self.subTest(begin), socket.create_server(("127.0.0.1", 0)) as listener:

                def drip() -> None:
                    try:
                        while True:
                            connection, _ = listener.accept()
                            connection.sendall(begin)
                            threading.Thread(target=dripping, args=(connection,), daemon=True).start()
                    except OSError:
                        pass

                def dripping(connection: socket.socket) -> None:
                    try:
                        while True:
                            connection.sendall(drop)
                            time.sleep(0.1)
                    except OSError:
                        pass

                threading.Thread(target=drip, daemon=True).start()
                client = lokt.Client(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.5)
                caught: list[BaseException] = []

                def ask() -> None:
                    try:
                        client.about()
                    except BaseException as e:
                        caught.append(e)

                asking = threading.Thread(target=ask, daemon=True)
                asking.start()
                asking.join(30)
                self.assertRegex(str(caught), "UnavailableError.*no answer in time")

    def test_a_chunk_of_no_size_is_no_answer(self) -> None:
        bad = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc\r\n"
        server = Raw(*[[bad]] * 50)
        self.addCleanup(server.listener.close)
        with self.assertRaises(lokt.UnavailableError):
            lokt.Client(server.url, timeout=0.2).about()

    def test_one_of_several_servers_that_is_not_trusted_is_in_the_way_of_nothing(self) -> None:
        # Promise S-353.
        with tempfile.TemporaryDirectory() as dir:
            servers = [Answering(lambda *_: told(200, {"ok": True}), certified(dir, name)) for name in ("bad", "good")]
            for server in servers:
                self.addCleanup(server.stop)
            urls = ",".join(s.url.replace("http:", "https:") for s in servers)
            self.assertTrue(lokt.Client(urls, ca=os.path.join(dir, "good.pem")).about()["ok"])

    def test_a_job_without_a_key_is_sent_once_though_TLS_breaks_then(self) -> None:
        # Promise S-353.
        with tempfile.TemporaryDirectory() as dir, socket.create_server(("127.0.0.1", 0)) as listener:
            context = certified(dir, "server")
            sent: list[bytes] = []

            def serve() -> None:
                try:
                    while True:
                        with context.wrap_socket(listener.accept()[0], server_side=True) as connection:
                            sent.append(connection.recv(1 << 16))
                            os.write(connection.fileno(), b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
                except OSError:
                    pass

            threading.Thread(target=serve, daemon=True).start()
            client = lokt.Client(f"https://127.0.0.1:{listener.getsockname()[1]}", ca=os.path.join(dir, "server.pem"), timeout=30)
            with self.assertRaises(lokt.UnavailableError):
                lokt.Jobs(client).submit()
            self.assertEqual(1, sum(b"POST" in s for s in sent))


def certified(dir: str, name: str) -> ssl.SSLContext:
    """What serves TLS with a certificate of its own, which is in the directory."""
    cert, key = os.path.join(dir, name + ".pem"), os.path.join(dir, name + ".key")
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=x -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*make.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


class Arguments(unittest.TestCase):
    """What cannot be sent is refused before anything is, and said why."""

    def test_half_a_surrogate_pair_is_no_character(self) -> None:
        client = lokt.Client("http://127.0.0.1:1", owner="\ud800")
        jobs = lokt.Jobs(client)
        for ask in (
            lambda: client.lock("a\ud800"),
            lambda: client.acquire("a\ud800", wait=False),
            lambda: client.locks("\ud800"),
            lambda: client.unfreeze("a"),
            lambda: jobs.get("\ud800"),
        ):
            with self.assertRaisesRegex(lokt.InvalidError, "half of a surrogate pair"):
                ask()

    def test_times_are_finite(self) -> None:
        for timeout in (float("inf"), float("nan"), 0.0, -1.0):
            with self.assertRaisesRegex(lokt.InvalidError, "timeout is"):
                lokt.Client("http://127.0.0.1:1", timeout=timeout)
        client = lokt.Client("http://127.0.0.1:1")
        for ttl, most in ((float("inf"), 0.0), (float("nan"), 0.0), (30.0, float("inf"))):
            with self.assertRaisesRegex(ValueError, "in seconds"):
                client.acquire("a", ttl=ttl, max_hold=most)
        for ttl in (float("inf"), float("nan"), 0.0, -1.0):
            with self.assertRaisesRegex(ValueError, "in seconds"):
                client.freeze("a", ttl=ttl)
        with self.assertRaisesRegex(ValueError, "seconds"):
            client.acquire("a", wait=float("nan"))
        with self.assertRaisesRegex(ValueError, "concurrency"):
            lokt.Worker(client, lambda job: None, concurrency=0)


if __name__ == "__main__":
    unittest.main()
