"""Locks and leases for programs that share things: the client of loktd.

    import lokt

    with lokt.guard("db", ttl=30) as lease:
        migrate(fence=lease.token)

``lokt.aio`` is the same for asyncio.
"""

from __future__ import annotations

from typing import Any, ContextManager

from ._client import Client, Lease, Lock, Owner, public_id
from ._errors import (
    AuthError,
    ConflictError,
    FrozenError,
    FullError,
    HeldError,
    IncompatibleError,
    InvalidError,
    LoktError,
    LostError,
    NotFoundError,
    NotOwnerError,
    UnavailableError,
)
from ._jobs import Job, Jobs, Stopped, Worker

_default: dict[str, Client] = {}  # one at most, so that it is made without a lock


def client() -> Client:
    """The client of this process for the server in ``LOKT_SERVER``."""
    return _default.get("") or _default.setdefault("", Client())  # a process that is forked could find a lock taken


def guard(name: str, **options: Any) -> ContextManager[Lease]:
    """``Client.guard`` of the process's own client."""
    return client().guard(name, **options)


__all__ = [
    "AuthError",
    "Client",
    "ConflictError",
    "FrozenError",
    "FullError",
    "HeldError",
    "IncompatibleError",
    "InvalidError",
    "Job",
    "Jobs",
    "Lease",
    "Lock",
    "LoktError",
    "LostError",
    "NotFoundError",
    "NotOwnerError",
    "Owner",
    "Stopped",
    "UnavailableError",
    "Worker",
    "client",
    "guard",
    "public_id",
]
