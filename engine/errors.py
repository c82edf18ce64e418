"""The errors of Lastportion.

    LastportionError
    ├── Invalid                  the request can't be right (fields say where)
    ├── Unauthenticated / Forbidden / TooLarge / MalformedBody / BadSignature
    ├── Unknown                  no such pool, reservation, code, product, order …
    ├── Refused                  a rule of the pool says no (carries the Refusal)
    ├── IdConflict               the id is taken by other content
    ├── IllegalTransition        the reservation or order is in a state that forbids it
    ├── CodeNotApplicable
    ├── ProviderError            the provider said no; units were given back
    │   ├── AlreadyRefunded      nothing of the payment is left to be refunded
    │   └── SessionLost          it has the session, but nobody can be sent there any more
    ├── ProviderTimeout          the provider's answer is unknown; units stay held
    └── Unavailable              try again later
        ├── NotReady             Redis is not admitted, or not reachable
        ├── BacklogFull          the outbox holds as much as it may
        └── StorageUnavailable   Postgres is not reachable

Each class names its ``code``; ``api.errors`` gives each code its HTTP status, once.
"""

from __future__ import annotations

from typing import Any

from engine.domain import Refusal


class LastportionError(Exception):
    """Something that a caller can be told. ``details`` go beside the message in an answer."""

    code = "error"

    def __init__(self, message: str = "", **details: Any) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])
        self.message = str(self)
        self.details = details


class Invalid(LastportionError):
    """The request is not valid."""

    code = "invalid"

    def __init__(self, message: str = "", *, fields: dict[str, str] | None = None) -> None:
        super().__init__(message, fields=fields or {})


class Unauthenticated(LastportionError):
    """A key is needed: Authorization: Bearer KEY."""

    code = "unauthenticated"


class Forbidden(LastportionError):
    """The key may not do this."""

    code = "forbidden"


class TooLarge(LastportionError):
    """The body is larger than what is taken."""

    code = "too_large"


class MalformedBody(LastportionError):
    """The body is not what its type says."""

    code = "malformed_body"


class BadSignature(LastportionError):
    """The signature does not match the body."""

    code = "bad_signature"


class Unknown(LastportionError):
    """There is no such thing. ``what`` is its kind, as in the contract's ``unknown_…`` codes."""

    def __init__(self, what: str, identifier: str) -> None:
        super().__init__(f"There is no {what} {identifier!r}.", **{what: identifier})
        self.code = f"unknown_{what}"


class Refused(LastportionError):
    """A pool's rule says no; the code is the refusal's outcome."""

    def __init__(self, refusal: Refusal, message: str = "") -> None:
        super().__init__(message or f"Pool {refusal.pool!r} refuses: {refusal.outcome.value}.")
        self.refusal = refusal
        self.code = refusal.outcome.value


class IdConflict(LastportionError):
    """This id was used for other content."""

    code = "id_conflict"


class IllegalTransition(LastportionError):
    """The state it is in does not allow this. ``status`` names that state."""

    code = "illegal_transition"

    def __init__(self, status: str, message: str = "") -> None:
        super().__init__(message or f"It is {status}, which does not allow this.", status=status)


class CodeNotApplicable(LastportionError):
    """The code does not apply to what is bought."""

    code = "code_not_applicable"


class ProviderError(LastportionError):
    """The payment provider refused; the units were given back.

    ``is_final``: it looked at what was asked and said no. Otherwise it, or the way to it, is out of order just now, and
    that says nothing of what an earlier call did.
    """

    code = "payment_provider_error"

    def __init__(self, message: str = "", *, is_final: bool = True, **details: Any) -> None:
        super().__init__(message, **details)
        self.is_final = is_final


class AlreadyRefunded(ProviderError):
    """The payment was refunded already."""


class SessionLost(ProviderError):
    """The payment provider has this session and does not tell its address again."""


class ProviderTimeout(LastportionError):
    """The payment provider did not answer in time; the units are still held. Repeat with the same key."""

    code = "payment_provider_timeout"


class Unavailable(LastportionError):
    """Not now; ``retry_after_seconds`` says when it is worth trying."""

    code = "storage_unavailable"
    retry_after_seconds = 1


class NotReady(Unavailable):
    """The reservation store is not admitted yet."""

    code = "not_ready"


class BacklogFull(Unavailable):
    """More is waiting for Postgres than may wait."""

    code = "backlog_full"
    retry_after_seconds = 5


class StorageUnavailable(Unavailable):
    """Postgres can't be reached."""

    code = "storage_unavailable"
    retry_after_seconds = 2
