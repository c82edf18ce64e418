"""Typed settings, read from ``LASTPORTION_*`` in the environment; every name and default exists here once."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from engine.domain import MismatchPolicy, Provider

STRIPE_MINIMUM_SESSION_SECONDS = 1800
"""Stripe refuses a session that would live less than 30 minutes (at its own clock, after the round trip)."""

SESSION_HEADROOM_SECONDS = 30
"""What the round trip and the clock skew may eat of a session's life before Stripe's minimum is missed."""

LARGEST_TTL_SECONDS = 7 * 24 * 3600
"""No reservation is made, and none extended, for longer than this at a time."""


class LogFormat(StrEnum):
    """JSON lines for machines, coloured ones for a person at a terminal."""

    JSON = "json"
    CONSOLE = "console"


class Settings(BaseSettings):
    """What an operator may set. Units last in the names; secrets never show in a repr or a log.

    Raises ``pydantic.ValidationError`` with a sentence that says why when the two clocks are out of order.
    """

    model_config = SettingsConfigDict(env_prefix="LASTPORTION_", extra="ignore", frozen=True)

    prefix: Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,32}$")] = "lp"
    """Deployment prefix of every Redis key and lock."""
    partitions: Annotated[int, Field(ge=1, le=1024)] = 64
    """Number of hash tags that tenants are spread over; fixed at installation."""

    redis_url: str = "redis://127.0.0.1:6379/0"
    redis_allow_unsafe: bool = False
    """Start although Redis may evict keys or keeps no append-only file; data loss is then the operator's."""
    redis_timeout_seconds: Annotated[float, Field(gt=0)] = 2.0
    redis_retries: Annotated[int, Field(ge=0, le=5)] = 1
    redis_connections: Annotated[int, Field(ge=1)] = 32
    database_url: str = "postgresql+psycopg://127.0.0.1:5432/lastportion"
    database_pool_size: Annotated[int, Field(ge=1)] = 10
    database_timeout_seconds: Annotated[float, Field(gt=0)] = 5.0

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    public_url: str | None = None
    """Where buyers reach this API; ``http://host:port`` when absent."""
    body_limit_bytes: Annotated[int, Field(ge=1024)] = 1_048_576
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: LogFormat = LogFormat.JSON

    session_ttl_seconds: int = 1860
    """How long a payment session that holds a reservation stays open."""
    reservation_ttl_seconds: int = 2400
    """How long a checkout's reservation holds its units."""
    default_ttl_seconds: Annotated[int, Field(ge=1, le=LARGEST_TTL_SECONDS)] = 2400
    """Life of a reservation made through the primitive that names no ``ttl_seconds``."""
    retention_seconds: Annotated[int, Field(ge=1)] = 7 * 24 * 3600
    """How long an ended reservation stays in Redis, and its id refused a second grant."""

    stripe_secret_key: SecretStr = SecretStr("")
    stripe_webhook_secret: SecretStr = SecretStr("")
    stripe_api_base: str | None = None
    """Another address for Stripe's API: the sandbox's, in dev and in tests."""
    stripe_timeout_seconds: Annotated[float, Field(gt=0)] = 10.0
    paystack_secret_key: SecretStr = SecretStr("")
    """Paystack signs its webhooks with the same key."""
    paystack_api_base: str | None = None
    """Another address for Paystack's API: the sandbox's, in dev and in tests."""
    paystack_timeout_seconds: Annotated[float, Field(gt=0)] = 10.0
    provider: Literal[Provider.STRIPE, Provider.PAYSTACK] = Provider.STRIPE
    """Who is paid through where a checkout names no provider."""
    signature_tolerance_seconds: Annotated[int, Field(ge=1)] = 300
    delayed_hold_seconds: Annotated[int, Field(ge=1, le=30 * 24 * 3600)] = 14 * 24 * 3600
    """How long units are kept for a payment method whose money takes days."""
    mismatched_payment: MismatchPolicy = MismatchPolicy.REFUND
    """Whether a payment of another amount or currency goes back by itself, or is flagged for a person."""
    checkout_attempts: Annotated[int, Field(ge=1, le=50)] = 5
    """Sessions that one reservation may be paid in, one after the other, each extending its life."""
    refund_claim_seconds: Annotated[int, Field(ge=60)] = 900
    """A refund that a worker has had in hand for so long may be taken by another; no call takes near as long."""

    outbox_limit: Annotated[int, Field(ge=1)] = 1_000_000
    """Entries that Redis may hold past the committed offset before reserving answers ``backlog_full``."""
    persist_batch: Annotated[int, Field(ge=1, le=500)] = 500
    trim_behind_seconds: Annotated[int, Field(ge=0)] = 600
    """The outbox keeps what Postgres already has for this long, so that a Postgres fail-over can step back."""

    sandbox: bool = False
    """Serve the stand-in providers and obey the test clock. Never with real keys."""

    @model_validator(mode="after")
    def _two_clocks_in_order(self) -> Self:
        least = STRIPE_MINIMUM_SESSION_SECONDS + SESSION_HEADROOM_SECONDS
        if self.session_ttl_seconds < least:
            raise ValueError(
                f"LASTPORTION_SESSION_TTL_SECONDS is {self.session_ttl_seconds}, but Stripe refuses a session "
                f"that lives under {STRIPE_MINIMUM_SESSION_SECONDS} s and the round trip needs "
                f"{SESSION_HEADROOM_SECONDS} s of headroom: set at least {least}."
            )
        if self.session_ttl_seconds >= self.reservation_ttl_seconds:
            raise ValueError(
                f"LASTPORTION_SESSION_TTL_SECONDS ({self.session_ttl_seconds}) must be smaller than "
                f"LASTPORTION_RESERVATION_TTL_SECONDS ({self.reservation_ttl_seconds}): a session that outlives "
                "its reservation takes money for units that somebody else may hold by then."
            )
        if self.reservation_ttl_seconds > LARGEST_TTL_SECONDS:
            raise ValueError(
                f"LASTPORTION_RESERVATION_TTL_SECONDS is {self.reservation_ttl_seconds}; "
                f"a reservation lives {LARGEST_TTL_SECONDS} s at most."
            )
        return self

    @property
    def base_url(self) -> str:
        """Where this API is reached, without a trailing slash."""
        return (self.public_url or f"http://{self.host}:{self.port}").rstrip("/")


def sentences_of(error: ValidationError) -> list[str]:
    """What is wrong with the settings, a sentence for each, without the values: they may be secret."""
    return [
        ": ".join(
            [f"LASTPORTION_{part}".upper() for part in problem["loc"]] + [problem["msg"].removeprefix("Value error, ")]
        )
        for problem in error.errors(include_input=False, include_url=False)
    ]


@lru_cache(maxsize=1)
def settings_from_environment() -> Settings:
    """The process's settings, read once."""
    return Settings()
