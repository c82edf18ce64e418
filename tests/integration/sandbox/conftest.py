"""The sandbox, served on loopback on a database of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from psycopg import sql
from stripe.params.checkout import SessionCreateParams

from api.servers import PostgresServer
from engine.payments import stripe as adapter
from engine.payments.port import FrozenAttempt
from tests.stand_in import StandIn, library_parameters, standing_in


@pytest.fixture(autouse=True)
def _known_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every session that the adapter asks for in these tests is asked for in the library's own words."""

    unchecked = adapter.session_params

    def checked(attempt: FrozenAttempt) -> SessionCreateParams:
        params = unchecked(attempt)
        assert library_parameters().validate_python(params) == params
        return params

    monkeypatch.setattr(adapter, "session_params", checked)


@pytest.fixture
async def stand_in(database_url: str) -> AsyncIterator[StandIn]:
    """A sandbox whose background task runs."""
    async with standing_in(database_url) as running:
        yield running


@pytest.fixture
async def still_stand_in(database_url: str) -> AsyncIterator[StandIn]:
    """A sandbox that expires and delivers only when it is asked to: what happens when is the test's to say."""
    async with standing_in(database_url, background=False) as running:
        yield running


@pytest.fixture(scope="module")
async def shared_stand_in(postgres_server: PostgresServer, database_template: str) -> AsyncIterator[StandIn]:
    """A sandbox for the tests of a module that leave the clock, the faults and each other's sessions alone."""
    name = sql.Identifier(f"test_{uuid4().hex[:12]}")
    with postgres_server.connect() as connection:
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(name, sql.Identifier(database_template)))
    async with standing_in(postgres_server.url_of(name.as_string().strip('"'))) as running:
        yield running
    with postgres_server.connect() as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
