"""Against what is no loktd: proxies and others that answer in its place."""

from __future__ import annotations

import hashlib
import json
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

    def __init__(self, say: Callable[[str, str, Any], Said]) -> None:
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
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


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
    # Promises S-241.

    def answering(self, say: Callable[[str, str, Any], Said]) -> lokt.Client:
        server = Answering(say)
        self.addCleanup(server.stop)
        client = lokt.Client(server.url, owner="ana", timeout=0.2)
        self.addCleanup(client.close)
        return client

    def test_what_a_proxy_answers_grants_nothing_and_ends_nothing(self) -> None:
        now: list[Said] = [PAGE]
        client = self.answering(lambda *_: now[0])
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
        client._transport.timeout = 30
        client.acquire("db", ttl=20).release()
        self.assertEqual([p.split("/")[2] for p in asked], ["locks", "leases", "locks"])

    def test_what_loktd_alone_says_ends_a_lease(self) -> None:
        gone = {"type": "about:blank", "title": "Lock is not held", "status": 404, "code": "not_found", "lock": "db", "gone": True}
        client = self.answering(lambda *_: told(404, gone, "application/problem+json"))
        with self.assertRaises(lokt.NotFoundError):
            client._renew("db", "mine", 1)

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
        # Promises S-242.
        client = self.answering(lambda _, path, body: told(200, {"holder": own("db", body["lease_id"])}))
        lease = client.acquire("db", ttl=20)
        self.assertEqual(lease.state, "held")
        real = time.clock_gettime
        with mock.patch("time.clock_gettime", lambda c: real(c) + (30 if c == time.CLOCK_BOOTTIME else 0)):
            self.assertEqual(lease.state, "lost")

    def test_an_answer_without_an_end_is_not_read_to_its_end(self) -> None:
        # Promises S-240.
        client = self.answering(lambda *_: (200, "application/json", b" " * (_http._LONGEST_ANSWER + 1)))
        client._transport.timeout = 30
        with self.assertRaisesRegex(lokt.IncompatibleError, "longer than 64 MiB"):
            client.about()


if __name__ == "__main__":
    unittest.main()
