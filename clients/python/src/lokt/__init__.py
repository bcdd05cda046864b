"""Locks and leases for programs that share things: the client of loktd.

    import lokt

    with lokt.guard("db", ttl=30) as lease:
        migrate(fence=lease.token)

``lokt.aio`` is the same for asyncio.
"""

from __future__ import annotations

import threading
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

_default: Client | None = None
_making = threading.Lock()


def client() -> Client:
    """The client of this process for the server in ``LOKT_SERVER``."""
    global _default
    with _making:
        if _default is None:
            _default = Client()
        return _default


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
