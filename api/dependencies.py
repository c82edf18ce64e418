"""What every handler asks first: the services of this process, and who is calling for which tenant."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from fastapi import Request

from api.headers import header_of
from api.schemas.base import LONGEST_KEY, is_printable
from api.shell import note
from engine.domain import IDENTIFIER_PATTERN, Scope
from engine.errors import Forbidden, Invalid, Unknown
from persistence.repositories.keys import ApiKey

if TYPE_CHECKING:
    from api.services import Services

TENANT_HEADER = "Lastportion-Tenant"
IDEMPOTENCY_HEADER = "Idempotency-Key"
_TENANT = TENANT_HEADER.lower().encode()
_IDEMPOTENCY = IDEMPOTENCY_HEADER.lower().encode()
_IDENTIFIER = re.compile(IDENTIFIER_PATTERN)


@dataclass(frozen=True, slots=True)
class Caller:
    """A key that may do what is asked, and the tenant that it is asked for."""

    key_id: str
    tenant: str


def services_of(request: Request) -> Services:
    """The services that the app was started with."""
    return cast("Services", request.app.state.services)


async def authorised(request: Request, *any_of: Scope) -> Caller:
    """The caller, once its key holds one of the scopes.

    Raises ``Unauthenticated`` without a known key, ``Forbidden`` without the scope, ``Invalid`` when a platform's key
    comes without a tenant, ``Unknown`` when a tenant's key names another tenant.
    """
    key = await services_of(request).keys.key_of(header_of(request, b"authorization"))
    if key.scopes.isdisjoint(any_of):
        raise Forbidden(f"This key lacks the scope {' or '.join(any_of)}.")
    tenant = _tenant_of(request, key)
    note(request, key=key.id, tenant=tenant)
    return Caller(key.id, tenant)


def _tenant_of(request: Request, key: ApiKey) -> str:
    named = header_of(request, _TENANT)
    if named is None:
        if key.tenant is None:
            raise Invalid(
                "A platform's key needs a tenant.", fields={TENANT_HEADER: "is required with a platform's key"}
            )
        return key.tenant
    if _IDENTIFIER.fullmatch(named) is None:
        raise Invalid("The tenant is not an id.", fields={TENANT_HEADER: "should be a tenant's id"})
    if key.tenant not in (None, named):
        raise Unknown("tenant", named)
    return named


def idempotency_key_of(request: Request) -> str | None:
    """The caller's idempotency key, None without one; raises ``Invalid`` unless it is printable and not too long."""
    raw = header_of(request, _IDEMPOTENCY)
    if raw is None:
        return None
    text = raw
    if not raw.isascii():
        try:
            text = raw.encode("latin-1").decode()
        except UnicodeDecodeError:
            text = raw
    if not text.strip() or len(text) > LONGEST_KEY or not is_printable(text):
        raise Invalid(
            "The idempotency key can't be used.",
            fields={IDEMPOTENCY_HEADER: f"should be printable text of 1 to {LONGEST_KEY} characters"},
        )
    return text
