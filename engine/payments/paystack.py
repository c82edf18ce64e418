"""Paystack over HTTP: transactions, what was paid by them, and refunds.

Which error means what is argued in ``docs/decisions/0060-what-a-paystack-error-means.md``.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

import httpx
import orjson
import structlog

from engine.errors import AlreadyRefunded, LastportionError, MalformedBody, ProviderError, ProviderTimeout, SessionLost
from engine.payments.fields import (
    LONGEST_URL,
    MARK_ATTEMPT,
    MARK_ORDER,
    MARK_RESERVATION,
    MARK_TENANT,
    integer_of,
    mapping_of,
    text_of,
)
from engine.payments.paystack_events import PaystackEvents
from engine.payments.paystack_objects import is_refund_of, refund_from, refund_note, session_from
from engine.payments.port import (
    ExpireOutcome,
    FrozenAttempt,
    FrozenRefund,
    ProviderEvent,
    ProviderRefund,
    Session,
    SessionState,
)
from engine.payments.sending import NEVER_SENT, is_final_status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

log = structlog.get_logger(__name__)

API_BASE = "https://api.paystack.co"

NOT_FOUND = "not_found"
_DUPLICATE = "duplicate_reference"
_REVERSED = "transaction_reversed"

_CODES = {"transaction_not_found": NOT_FOUND, _DUPLICATE: _DUPLICATE, _REVERSED: _REVERSED}
_SENTENCES = (
    ("duplicate transaction reference", _DUPLICATE),
    ("transaction reference not found", NOT_FOUND),
    ("fully reversed", _REVERSED),
    ("already been reversed", _REVERSED),
    ("already been fully refunded", _REVERSED),
    ("already fully refunded", _REVERSED),
)
"""Refusals that mean something to us, by Paystack's code or, since older answers have none, by its sentence."""

_SHORT_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LEAVES_IT_OPEN = frozenset({408, 409, 425})
"""Refusals after which the same call, or an earlier one, may be under way."""

_PAGE = 100
_MOST_PAGES = 1000
"""Lists end before; one that does not is no list that could be trusted to be whole."""

_AS_IT_IS = re.compile(r"[A-Za-z0-9.-]")


class PaystackPayments:
    """A :class:`engine.payments.port.PaymentPort` that talks to Paystack.

    ``timeout_seconds`` bounds connecting, sending and each read. Redirects are not followed, since the secret key
    would go along; a proxy that the environment names is used, as it is for Stripe.
    """

    sessions_end: ClassVar[bool] = False

    def __init__(self, secret_key: str, *, api_base: str | None = None, timeout_seconds: float = 10.0) -> None:
        self._http = httpx.AsyncClient(
            base_url=api_base or API_BASE,
            headers={"Authorization": f"Bearer {secret_key}", "Accept": "application/json"},
            timeout=timeout_seconds,
            follow_redirects=False,
        )
        self._events = PaystackEvents(secret_key)

    def reference_of(self, order_id: str, number: int) -> str | None:
        """The transaction's reference: the order's id and the number, in the characters that Paystack takes.

        Those are letters, digits, ``-``, ``.`` and ``=``. Any other is written as ``=`` and two hex digits, so that
        no two attempts share a reference.
        """
        written = "".join(char if _AS_IT_IS.fullmatch(char) else f"={ord(char):02X}" for char in order_id)
        return f"{written}-{number}"

    async def open(self, attempt: FrozenAttempt) -> Session:
        """Start the attempt's transaction.

        A transaction that the same attempt started before is answered if it was paid; otherwise ``SessionLost`` is
        raised, because Paystack tells where to pay once only. Raises ``ProviderError`` when Paystack refused,
        ``ProviderTimeout`` when it is unknown whether it acted, and ``ValueError`` without a reference.
        """
        params = initialize_params(attempt)
        try:
            answer = await self._call("open", "POST", "/transaction/initialize", json=params)
        except ProviderError as error:
            if error.details.get("provider_code") != _DUPLICATE:
                raise
            return await self._opened_before(params["reference"])
        try:
            data = mapping_of(answer, "data")
            if text_of(data, "reference") != params["reference"]:
                raise MalformedBody("The answer is about another reference.")
            url = text_of(data, "authorization_url", LONGEST_URL)
        except MalformedBody as error:
            raise _unreadable(error, "open") from error
        return Session(
            id=params["reference"],
            state=SessionState.OPEN,
            url=url,
            expires_at_s=None,
            amount_minor=attempt.amount_minor,
            currency=attempt.currency.upper(),
            payment_ref=None,
            marked_order_id=attempt.order_id,
            marked_tenant=attempt.tenant,
            marked_attempt=attempt.number,
        )

    async def _opened_before(self, reference: str) -> Session:
        try:
            session = await self.look_up(reference)
        except ProviderError as error:
            # There is a transaction, and this refusal says nothing of it.
            raise ProviderTimeout from error
        if session.state is SessionState.OPEN:
            raise SessionLost(provider_code=_DUPLICATE, session_id=reference)
        return session

    async def look_up(self, session_id: str) -> Session:
        """The transaction as Paystack has it now. Raises as :meth:`open` does, with ``provider_code`` ``not_found``
        where there is none."""
        data = await self._transaction(session_id, "look_up")
        try:
            return session_from(data)
        except MalformedBody as error:
            raise _unreadable(error, "look_up") from error

    async def expire(self, session_id: str) -> ExpireOutcome:
        """See how a transaction stands, as Paystack closes none. Raises as :meth:`look_up` does."""
        match (await self.look_up(session_id)).state:
            case SessionState.PAID:
                return ExpireOutcome.COMPLETE
            case SessionState.EXPIRED:
                return ExpireOutcome.EXPIRED
            case _:
                return ExpireOutcome.LAPSES

    async def paid_since(self, since_s: int) -> AsyncIterator[Session]:
        """Transactions made at or after ``since_s`` that were paid, ours or not. Raises as :meth:`open` does."""
        since = datetime.fromtimestamp(since_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        async for row in self._listed("paid_since", "/transaction", {"status": "success", "from": since}):
            try:
                session = session_from(row)
            except MalformedBody as error:
                # One that can't be read must not hide those that come after it.
                reference = str(row.get("reference"))[:64]
                log.warning("paystack_transaction_unreadable", reference=reference, reason=error.message)
                continue
            if session.state is SessionState.PAID:
                yield session

    async def refund(self, refund: FrozenRefund) -> ProviderRefund:
        """Send money back. Each call is one more refund: who repeats it looks the refunds up before.

        Raises ``AlreadyRefunded`` when nothing of the payment is left, and otherwise as :meth:`open` does.
        """
        try:
            answer = await self._call("refund", "POST", "/refund", json=refund_params(refund))
        except ProviderError as error:
            if error.details.get("provider_code") == _REVERSED:
                raise AlreadyRefunded(provider_code=_REVERSED) from error
            raise
        try:
            return refund_from(mapping_of(answer, "data"), refund.payment_ref)
        except MalformedBody as error:
            raise _unreadable(error, "refund") from error

    async def look_up_refunds(self, payment_ref: str) -> list[ProviderRefund]:
        """Every refund of the transaction that Paystack knows. Raises as :meth:`look_up` does."""
        # The list goes by Paystack's own number of the transaction and not by its reference.
        transaction = await self._transaction(payment_ref, "look_up_refunds")
        try:
            number = integer_of(transaction, "id")
            return [
                refund_from(row, payment_ref)
                async for row in self._listed("look_up_refunds", "/refund", {"transaction": str(number)})
                if is_refund_of(row, number, payment_ref)
            ]
        except MalformedBody as error:
            raise _unreadable(error, "look_up_refunds") from error

    def verify(self, body: bytes, header: str | None, _now_s: float) -> ProviderEvent:
        """See :meth:`engine.payments.paystack_events.PaystackEvents.verify`; no time is signed."""
        return self._events.verify(body, header)

    async def close(self) -> None:
        """Release the connections."""
        await self._http.aclose()

    async def _transaction(self, reference: str, verb: str) -> Mapping[str, Any]:
        answer = await self._call(verb, "GET", f"/transaction/verify/{quote(reference, safe='')}")
        try:
            data = mapping_of(answer, "data")
            if text_of(data, "reference") != reference:
                raise MalformedBody("The answer is about another reference.")
        except MalformedBody as error:
            raise _unreadable(error, verb) from error
        return data

    async def _listed(self, verb: str, path: str, query: dict[str, str]) -> AsyncIterator[Mapping[str, Any]]:
        """All rows of a list, page by page.

        Lists are newest first: a row that is new meanwhile moves others to later pages, so one may come twice and
        none is left out.
        """
        for page in range(1, _MOST_PAGES + 1):
            params = {**query, "perPage": str(_PAGE), "page": str(page)}
            answer = await self._call(verb, "GET", path, params=params)
            rows = answer.get("data")
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise _unreadable(MalformedBody("The answer is no list of objects."), verb)
            for row in rows:
                yield row
            if _is_last(answer, page, len(rows)):
                return
        raise _unreadable(MalformedBody(f"The list does not end after {_MOST_PAGES} pages."), verb)

    async def _call(
        self,
        verb: str,
        method: str,
        path: str,
        *,
        json: Mapping[str, Any] | None = None,
        params: dict[str, str] | None = None,
    ) -> Mapping[str, Any]:
        """What Paystack answered to a call that worked; says nothing of how the thing called for stands."""
        try:
            response = await self._http.request(method, path, json=json, params=params)
        except httpx.RequestError as error:
            certain = isinstance(error, NEVER_SENT)
            log.warning(
                "paystack_refused" if certain else "paystack_answer_unknown", verb=verb, cause=type(error).__name__
            )
            raise (ProviderError(is_final=False) if certain else ProviderTimeout()) from error
        try:
            answer = orjson.loads(response.content)
        except orjson.JSONDecodeError:
            answer = None
        if isinstance(answer, dict) and answer.get("status") is True and response.is_success:
            return answer
        is_refusal = isinstance(answer, dict) and answer.get("status") is False
        raise _refused(verb, response.status_code, answer if is_refusal else None)


def initialize_params(attempt: FrozenAttempt) -> dict[str, Any]:
    """What Paystack is told of an attempt. Raises ``ValueError`` where the attempt was frozen without reference."""
    if attempt.reference is None:
        raise ValueError(f"attempt {attempt.number} of order {attempt.order_id} has no reference")
    metadata = {
        MARK_ORDER: attempt.order_id,
        MARK_TENANT: attempt.tenant,
        MARK_ATTEMPT: str(attempt.number),
        # Paystack sends a buyer who cancels on its page there.
        "cancel_action": attempt.cancel_url,
    }
    if attempt.reservation_id is not None:
        metadata[MARK_RESERVATION] = attempt.reservation_id
    return {
        "email": attempt.email,
        "amount": attempt.amount_minor,
        "currency": attempt.currency.upper(),
        "reference": attempt.reference,
        "callback_url": attempt.success_url,
        "metadata": metadata,
    }


def refund_params(refund: FrozenRefund) -> dict[str, Any]:
    """What Paystack is told of a refund."""
    return {
        "transaction": refund.payment_ref,
        "amount": refund.amount_minor,
        "currency": refund.currency.upper(),
        "merchant_note": refund_note(refund.id, refund.round),
    }


def _is_last(answer: Mapping[str, Any], page: int, rows: int) -> bool:
    """Whether a list ends with this page; by its length where Paystack does not count the pages."""
    meta = answer.get("meta")
    pages = meta.get("pageCount") if isinstance(meta, dict) else None
    if isinstance(pages, int) and rows > 0:
        return page >= pages
    return rows < _PAGE


def _refused(verb: str, http_status: int, answer: Mapping[str, Any] | None) -> LastportionError:
    """Our error for Paystack's: a refusal only where Paystack itself says so, and nothing can be under way."""
    code = _code_of(answer) if answer is not None else None
    certain = answer is not None and http_status < 500 and http_status not in _LEAVES_IT_OPEN
    # Paystack's sentence stays out of logs and answers: it may quote the buyer's e-mail.
    event = "paystack_refused" if certain else "paystack_answer_unknown"
    log.warning(event, verb=verb, http_status=http_status, provider_code=code)
    if certain:
        return ProviderError(provider_code=code or f"http_{http_status}", is_final=is_final_status(http_status))
    return ProviderTimeout()


def _code_of(answer: Mapping[str, Any]) -> str | None:
    code, sentence = answer.get("code"), answer.get("message")
    if isinstance(code, str) and code in _CODES:
        return _CODES[code]
    if isinstance(sentence, str):
        for words, meant in _SENTENCES:
            if words in sentence.lower():
                return meant
    return code if isinstance(code, str) and _SHORT_CODE.fullmatch(code) else None


def _unreadable(error: MalformedBody, verb: str) -> ProviderTimeout:
    """Paystack acted and answered 2xx, but what it did can't be read."""
    log.warning("paystack_answer_unreadable", verb=verb, reason=error.message)
    return ProviderTimeout()
