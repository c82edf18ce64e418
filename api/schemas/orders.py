"""Checkouts and orders on the wire."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints

from api.schemas.base import Body, Customer, Identifier, Printable, is_printable
from api.times import written, written_instant, written_or_none
from engine.checkout import CheckoutAnswer, CheckoutRequest
from engine.domain import LARGEST_QUANTITY, Provider
from engine.money import LARGEST_AMOUNT_MINOR
from engine.orders import OrderStory
from engine.pricing import WantedLine

MOST_LINES = 50
LONGEST_URL = 2048
LONGEST_EMAIL = 254
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")


def _email(text: str) -> str:
    if not is_printable(text) or _EMAIL.fullmatch(text) is None:
        raise ValueError("must be an e-mail address")
    return text


def _web_address(text: str) -> str:
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("must be an http or https address")
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise ValueError("must be an http or https address") from error
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http or https address")
    return text


def _not_yet(use_rewards: bool) -> bool:
    if use_rewards:
        raise ValueError("must be false: rewards can't be spent yet")
    return use_rewards


Email = Annotated[str, StringConstraints(min_length=3, max_length=LONGEST_EMAIL), AfterValidator(_email)]
WebAddress = Annotated[str, StringConstraints(max_length=LONGEST_URL), AfterValidator(_web_address)]


class LineBody(Body):
    """So many of one product; its price is ours to know."""

    product: Identifier
    quantity: Annotated[int, Field(ge=1, le=LARGEST_QUANTITY)]


class CheckoutBody(Body):
    """What a buyer wants to pay for. Rewards can't be used yet."""

    customer: Customer
    email: Email
    lines: Annotated[list[LineBody], Field(min_length=1, max_length=MOST_LINES)]
    code: Printable | None = None
    use_rewards: Annotated[bool, AfterValidator(_not_yet)] = False
    provider: Provider | None = None
    success_url: WebAddress
    cancel_url: WebAddress

    def request(self, tenant: str, idempotency_key: str | None, provider: Provider) -> CheckoutRequest:
        """What the service is asked for; ``provider`` is who is paid through where the body names none."""
        return CheckoutRequest(
            tenant=tenant,
            customer=self.customer,
            email=self.email,
            lines=tuple(WantedLine(line.product, line.quantity) for line in self.lines),
            success_url=self.success_url,
            cancel_url=self.cancel_url,
            code=self.code,
            provider=self.provider or provider,
            idempotency_key=idempotency_key,
        )


class ConfirmOrderBody(Body):
    """Nothing is to be said."""


class CancelOrderBody(Body):
    """Whether the units of a paid order go back on sale; those of an unpaid one always do."""

    restock: bool


class RefundBody(Body):
    """A refund under an id of the caller's: the same id again is the same refund. All that is left, if no amount."""

    id: Identifier
    amount_minor: Annotated[int, Field(ge=1, le=LARGEST_AMOUNT_MINOR)] | None = None
    reason: Annotated[Printable, Field(max_length=500)] = ""


def checkout_content(answer: CheckoutAnswer) -> dict[str, Any]:
    """A checkout as the contract writes it. Where nothing is reserved, the session's end is the provider's affair."""
    order, attempt = answer.order, answer.attempt
    end_s = None if attempt is None else attempt.frozen.expires_at_s
    return {
        "id": order.id,
        "order_id": order.id,
        "reservation_id": order.reservation_id,
        "period": order.period or None,
        "amount_minor": order.amount_minor,
        "discount_minor": order.discount_minor,
        "currency": order.currency,
        "checkout_url": None if attempt is None else attempt.url,
        "session_id": None if attempt is None else attempt.session_id,
        "session_expires_at": None if end_s is None else written(end_s * 1000),
        "expires_at": written_or_none(order.expires_at_ms),
    }


def order_content(story: OrderStory) -> dict[str, Any]:
    """An order with all that became of it, as the contract writes it."""
    order = story.order
    return {
        "id": order.id,
        "status": order.status.value,
        "customer": order.customer,
        "payments": [
            {
                "provider": payment.provider.value,
                "ref": payment.ref,
                "amount_minor": payment.amount_minor,
                "currency": payment.currency,
                "status": payment.status.value,
            }
            for payment in story.payments
        ],
        "refunds": [
            {"id": refund.id, "amount_minor": refund.amount_minor, "status": refund.status.value}
            for refund in story.refunds
        ],
        "lines": [
            {
                "product": line.product,
                "name": line.name,
                "quantity": line.quantity,
                "unit_amount_minor": line.unit_amount_minor,
                "amount_minor": line.amount_minor,
            }
            for line in order.lines
        ],
        "amount_minor": order.amount_minor,
        "discount_minor": order.discount_minor,
        "refunded_minor": order.refunded_minor,
        "currency": order.currency,
        "reservation_id": order.reservation_id,
        "code": order.code or None,
        "period": order.period or None,
        "listing": None,
        "late": order.late,
        "history": [
            {"at": written_instant(entry.at), "event": entry.event} | dict(entry.details) for entry in story.history
        ],
    }
