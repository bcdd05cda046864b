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
        holders = body.get("holders")
        self.holders: list[dict[str, Any]] = holders if isinstance(holders, list) else []
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
    """What answered is no loktd, or one whose answers this version does not understand: it grants nothing and ends nothing."""

    code = "incompatible"


class FullError(LoktError):
    """So many wait for the lock, or hold it, that nobody else may: ask again later, or use several locks."""

    code = "full"


class LostError(LoktError):
    """The lease can not be relied on any more. ``cause`` is why, if it is known."""

    code = "lost"

    def __init__(
        self, message: str = "the lease is lost", cause: BaseException | None = None
    ) -> None:
        super().__init__(message)
        self.cause = cause


# By code: the status that loktd has it with, and the class. The scheduler's and those of locks have no code in common but the first ones.
_BY_CODE: dict[str, tuple[int, type[LoktError]]] = {
    "unauthenticated": (401, AuthError),
    "forbidden": (403, AuthError),
    "body_too_large": (413, InvalidError),
    "unavailable": (503, UnavailableError),
    "rate_limited": (429, UnavailableError),
    "internal": (500, LoktError),
}
_OF_LOCKS: dict[str, tuple[int, type[LoktError]]] = {
    **_BY_CODE,
    "invalid": (400, InvalidError),
    "held": (409, HeldError),
    "frozen": (423, FrozenError),
    "full": (429, FullError),
    "not_found": (404, NotFoundError),
    "not_owner": (403, NotOwnerError),
    "no_route": (404, IncompatibleError),
    "no_locks": (404, IncompatibleError),
    "no_events": (404, LoktError),
    "method_not_allowed": (405, IncompatibleError),
    "unsupported_media_type": (415, LoktError),
    "damaged": (500, LoktError),
}
_OF_JOBS: dict[str, tuple[int, type[LoktError]]] = {
    **_BY_CODE,
    "job_not_found": (404, NotFoundError),
    "lease_not_found": (404, NotFoundError),
    "worker_mismatch": (403, NotOwnerError),
    "idempotency_conflict": (409, ConflictError),
    "not_found": (404, IncompatibleError),
}
_ABOUT_A_LOCK = ("held", "frozen", "not_found", "not_owner")


def foreign(server: str, what: str = "the answer is not one of loktd's") -> IncompatibleError:
    """The error for an answer that something else than a loktd of this version made up."""
    return IncompatibleError(f"{server}: {what} (is a proxy in between, the URL wrong, or it a loktd of another version?)")


def from_answer(
    server: str, status: int, body: Mapping[str, Any], headers: Mapping[str, str]
) -> LoktError:
    """The error that an answer tells. ``body`` is a problem (locks) or a detail (jobs), with the marks of those: a code with its
    status and, if a lock is in question, its name. Nothing else may say that something is over.
    """
    detail, code, known = body.get("detail"), body.get("code"), (0, LoktError)
    request_id = headers.get("X-Request-Id", "")
    if status == 422 and isinstance(detail, list) and all(isinstance(d, dict) and isinstance(d.get("loc"), list) for d in detail):
        wrong = "; ".join(f"{'.'.join(map(str, d['loc']))}: {d.get('msg', '')}" for d in detail)
        return InvalidError(wrong, request_id=request_id)
    if body.get("type") == "about:blank" and body.get("status") == status and isinstance(code, str):
        if body.get("lock") or code not in _ABOUT_A_LOCK:
            known = _OF_LOCKS.get(code, (status, LoktError))
    elif isinstance(detail, str):
        code = detail
        known = _OF_JOBS.get(code, known)
    if known[0] != status:
        said = f"status {status}, {str(detail)[:100]!r}" if detail else f"status {status}"
        if status in (429, 502, 503, 504):
            return UnavailableError(f"{server}: {said}")
        return foreign(server, f"{said}: the answer is not one of loktd's")
    kind = known[1]
    message = str(detail or body.get("title") or f"the server answered with status {status}")
    if reason := headers.get("Lokt-Reason"):
        message = f"{message}: {reason}"
    if code == "frozen":
        return FrozenError(message, body, code=code, request_id=request_id)
    if code == "held":
        return HeldError(message, body, code=code, request_id=request_id)
    if kind in (UnavailableError, IncompatibleError):
        message = f"{server}: {message}"
    return kind(message, code=code, request_id=request_id)
