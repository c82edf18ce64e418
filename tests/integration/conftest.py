"""The whole app in this process: every request through its middleware, on a database and a Redis of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import httpx
import pytest

from api.app import create_app
from api.authentication import DEV_KEY
from engine.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from api.services import Services
    from tests.conftest import RedisBackend

DEV = {"authorization": f"Bearer {DEV_KEY}"}


@dataclass(frozen=True, slots=True)
class Api:
    """A running app, and a client that presents the key of dev."""

    app: FastAPI
    client: httpx.AsyncClient

    @property
    def services(self) -> Services:
        return cast("Services", self.app.state.services)


@asynccontextmanager
async def running_api(settings: Settings) -> AsyncIterator[Api]:
    """Start the app, wait until it has looked at Redis once, and put it away at the end."""
    app = create_app(settings)
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://api", headers=DEV) as client,
    ):
        yield Api(app, client)


def settings_for(redis_url: str, database_url: str, **changes: object) -> Settings:
    """Settings of an app under test: the sandbox is on, and with it the key of dev."""
    return Settings.model_validate(
        {"redis_url": redis_url, "database_url": database_url, "sandbox": True, "stripe_secret_key": "sk_test_1"}
        | {"stripe_webhook_secret": "whsec_test"}
        | changes
    )


@pytest.fixture
async def api(redis_backend: RedisBackend, database_url: str) -> AsyncIterator[Api]:
    """The app on every kind of Redis, one after the other."""
    async with running_api(settings_for(redis_backend.url, database_url)) as running:
        yield running
