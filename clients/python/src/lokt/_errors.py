"""What can go wrong, one class for each thing a caller may do about it."""

from __future__ import annotations

from typing import Any, Mapping


class LoktError(Exception):
    """The base of all errors of this package.

    ``code`` is the server's stable code, or one of this client's: ``unavailable``, ``lost``, ``incompatible``.
    ``request_id`` finds the request in the server's log.
    """

    code = "internal"

    def __init__(self, message: str, *, code: str | None = None, request_id: str = "") -> None:
        super().__init__(message)
        if code:
            self.code = code
        self.request_id = request_id


class InvalidError(LoktError):
    """The request is wrong, and will be when it is sent again."""

    code = "invalid"


class HeldError(LoktError):
    """Somebody else is in the way. ``holders`` and ``freeze`` say who, as the server tells it."""

    code = "held"

    def __init__(self, message: str, body: Mapping[str, Any], **more: Any) -> None:
        super().__init__(message, **more)
        self.holders: list[dict[str, Any]] = list(body.get("holders") or [])
        self.freeze: dict[str, Any] | None = body.get("freeze")


class FrozenError(HeldError):
    """The lock is frozen: nobody may enter. ``freeze`` says who froze it, why, and until when."""

    code = "frozen"


class NotFoundError(LoktError):
    """There is no such lease, job or hold."""

    code = "not_found"


class NotOwnerError(LoktError):
    """It belongs to somebody else."""

    code = "not_owner"


class ConflictError(LoktError):
    """The idempotency key was used for another job."""

    code = "idempotency_conflict"


class AuthError(LoktError):
    """The token is missing, not valid any more, or lacks a scope; the message says which."""

    code = "forbidden"


class UnavailableError(LoktError):
    """The server, or its store, could not be reached in time. The request may have been carried out."""

    code = "unavailable"


class IncompatibleError(LoktError):
    """What answered is no loktd, or one whose answers this version does not understand."""

    code = "incompatible"


class LostError(LoktError):
    """The lease can not be relied on any more. ``cause`` is why, if it is known."""

    code = "lost"

    def __init__(
        self, message: str = "the lease is lost", cause: BaseException | None = None
    ) -> None:
        super().__init__(message)
        self.cause = cause


_BY_CODE: dict[str, type[LoktError]] = {
    "invalid": InvalidError,
    "not_found": NotFoundError,
    "job_not_found": NotFoundError,
    "lease_not_found": NotFoundError,
    "not_owner": NotOwnerError,
    "worker_mismatch": NotOwnerError,
    "idempotency_conflict": ConflictError,
    "unauthenticated": AuthError,
    "forbidden": AuthError,
    "body_too_large": InvalidError,
    "unavailable": UnavailableError,
    "rate_limited": UnavailableError,
    "full": UnavailableError,
    "no_route": IncompatibleError,
    "method_not_allowed": IncompatibleError,
}


def from_answer(
    server: str, status: int, body: Mapping[str, Any], headers: Mapping[str, str]
) -> LoktError:
    """The error that an answer tells. ``body`` is a problem (locks) or a detail (jobs)."""
    detail = body.get("detail")
    request_id = headers.get("X-Request-Id", "")
    code = str(body.get("code") or (detail if isinstance(detail, str) else "") or "internal")
    if isinstance(detail, list):  # what is wrong with a request to the scheduler
        wrong = "; ".join(
            f"{'.'.join(map(str, d.get('loc', [])))}: {d.get('msg', '')}" for d in detail
        )
        return InvalidError(wrong, request_id=request_id)
    message = str(detail or body.get("title") or f"the server answered with status {status}")
    if reason := headers.get("Lokt-Reason"):
        message = f"{message}: {reason}"
    if code == "frozen":
        return FrozenError(message, body, code=code, request_id=request_id)
    if code == "held":
        return HeldError(message, body, code=code, request_id=request_id)
    kind = _BY_CODE.get(code)
    if kind is None:
        kind = UnavailableError if status in (502, 503, 504) else LoktError
    if kind in (UnavailableError, IncompatibleError):
        message = f"{server}: {message}"
    return kind(message, code=code, request_id=request_id)
