"""Paystack's objects (transactions, refunds, disputes) as the port's types.

Every function raises ``MalformedBody`` when a field is missing or of a wrong type. Paystack counts money in the
subunit of the currency, which is our minor unit, so amounts are taken as they are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from engine.domain import IDENTIFIER_PATTERN
from engine.errors import MalformedBody
from engine.payments.fields import (
    MARK_ATTEMPT,
    MARK_ORDER,
    MARK_TENANT,
    integer_of,
    mark_of,
    number_mark_of,
    optional_text,
    text_of,
)
from engine.payments.port import Dispute, ProviderRefund, ProviderRefundStatus, Session, SessionState

if TYPE_CHECKING:
    from collections.abc import Mapping

SUCCESS = "success"
"""The status of a transaction that was paid."""

_REVERSED = "reversed"

REFUND_STATUS = {
    "pending": ProviderRefundStatus.PENDING,
    "processing": ProviderRefundStatus.PENDING,
    # The buyer's bank details are wanted; nothing has failed, and nothing more has gone back.
    "needs-attention": ProviderRefundStatus.PENDING,
    "processed": ProviderRefundStatus.SUCCEEDED,
    "failed": ProviderRefundStatus.FAILED,
}
"""Paystack's words for how far a refund is, which are the last part of its events' names as well."""

_LONGEST_WORD = 50
"""Characters of a status or another fixed word: together with two ids they still fit a key of the database."""

_NOTE_MARK = re.compile(rf"lastportion:({IDENTIFIER_PATTERN.strip('^$')}):(\d{{1,9}})(?!\d)")


def word_of(found: Mapping[str, Any], key: str) -> str:
    """A status or another of Paystack's fixed words."""
    return text_of(found, key, _LONGEST_WORD)


def money_of(found: Mapping[str, Any], key: str = "amount") -> int:
    """An amount in subunits, which Paystack sometimes writes as text."""
    value = found.get(key)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 18:
        return int(value)
    return integer_of(found, key)


def currency_of(found: Mapping[str, Any]) -> str:
    """The currency's code in capitals."""
    return text_of(found, "currency", 3).upper()


def metadata_of(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Metadata as a map, whatever shape Paystack gave it: object, JSON text, "", 0, null or nothing."""
    metadata = found.get("metadata")
    if isinstance(metadata, str):
        try:
            metadata = orjson.loads(metadata)
        except orjson.JSONDecodeError:
            # A help, not a need: the reference alone says which order is meant.
            return {}
    return metadata if isinstance(metadata, dict) else {}


def marks_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """Our marks in an object's metadata, by the names that sessions and events have for them."""
    metadata = metadata_of(found)
    return {
        "marked_order_id": mark_of(metadata, MARK_ORDER),
        "marked_tenant": mark_of(metadata, MARK_TENANT),
        "marked_attempt": number_mark_of(metadata, MARK_ATTEMPT),
    }


def session_from(found: Mapping[str, Any]) -> Session:
    """A transaction. Only success and reversed are final: any other may be paid yet, as Paystack closes none."""
    reference, status = text_of(found, "reference"), word_of(found, "status")
    state = {SUCCESS: SessionState.PAID, _REVERSED: SessionState.EXPIRED}.get(status, SessionState.OPEN)
    return Session(
        id=reference,
        state=state,
        url=None,
        expires_at_s=None,
        amount_minor=money_of(found),
        currency=currency_of(found),
        payment_ref=reference if state is SessionState.PAID else None,
        **marks_of(found),
    )


def refund_note(refund_id: str, round_: int) -> str:
    """Our mark of a refund: its note for the merchant is the one thing of ours that Paystack keeps with it."""
    return f"lastportion:{refund_id}:{round_}"


def refund_from(found: Mapping[str, Any], payment_ref: str) -> ProviderRefund:
    """A refund in an answer or a list, with our mark where its note has one."""
    marked = _NOTE_MARK.search(optional_text(found, "merchant_note", 5000) or "")
    return ProviderRefund(
        ref=str(integer_of(found, "id")),
        payment_ref=payment_ref,
        amount_minor=money_of(found),
        currency=currency_of(found),
        status=refund_status_of(found),
        alias=_alias_of(found),
        marked_refund_id=marked[1] if marked else None,
        marked_round=int(marked[2]) if marked else None,
    )


def refund_in_event(found: Mapping[str, Any]) -> ProviderRefund:
    """A refund in an event, where its id is missing and its reference may be."""
    return ProviderRefund(
        ref=_id_of(found) if found.get("id") is not None else None,
        payment_ref=text_of(found, "transaction_reference"),
        amount_minor=money_of(found),
        currency=currency_of(found),
        status=refund_status_of(found),
        alias=_alias_of(found),
    )


def refund_status_of(found: Mapping[str, Any]) -> ProviderRefundStatus:
    """How far a refund is."""
    status = word_of(found, "status")
    if status not in REFUND_STATUS:
        raise MalformedBody(f"The refund's status is {status!r}.")
    return REFUND_STATUS[status]


def dispute_from(found: Mapping[str, Any], *, closed: bool) -> Dispute | None:
    """A dispute; None where it does not say which transaction it is about."""
    transaction = found.get("transaction")
    if not isinstance(transaction, dict) or transaction.get("reference") is None:
        return None
    status = word_of(found, "status")
    # A dispute without an amount of its own is about the whole payment.
    amount_of = found if found.get("refund_amount") is not None else transaction
    return Dispute(
        ref=_id_of(found),
        payment_ref=text_of(transaction, "reference"),
        amount_minor=money_of(amount_of, "refund_amount" if amount_of is found else "amount"),
        currency=currency_of(found if found.get("currency") is not None else transaction),
        status=status,
        reason=optional_text(found, "resolution") or optional_text(found, "category"),
        is_closed=closed or status == "resolved",
    )


def is_refund_of(row: Mapping[str, Any], transaction_id: int, payment_ref: str) -> bool:
    """Whether a row of a list of refunds is about this transaction, should the list hold those of others as well."""
    transaction = row.get("transaction")
    if isinstance(transaction, dict):
        return integer_of(transaction, "id") == transaction_id
    if isinstance(transaction, int) and not isinstance(transaction, bool):
        return transaction == transaction_id
    return text_of(row, "transaction_reference") == payment_ref


def _alias_of(found: Mapping[str, Any]) -> str | None:
    return optional_text(found, "refund_reference")


def _id_of(found: Mapping[str, Any]) -> str:
    return text_of(found, "id") if isinstance(found.get("id"), str) else str(integer_of(found, "id"))
