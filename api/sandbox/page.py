"""The page where a person pays, is declined or walks away. Plain HTML; everything from outside is escaped."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from string import Template
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from api.sandbox.sessions import PAYSTACK_PAYABLE, StandInSessions
from api.times import written
from engine.domain import Provider
from engine.errors import IllegalTransition, Unknown
from engine.money import from_stripe, show
from persistence.tables.sandbox import SandboxSession, StandInState

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_NOTICES = {
    StandInState.PAID: '<p class="done">This is paid.</p>',
    StandInState.PENDING: '<p class="done">The payment is on its way.</p>',
    StandInState.FAILED: '<p class="notice">The payment failed later on.</p>',
    StandInState.EXPIRED: '<p class="notice">This session has expired; nobody can pay it any more.</p>',
}

_DECLINED = '<p class="notice" role="alert">The card was declined. Try again, or walk away.</p>'

_FORM = """<form method="post">
<button class="go" name="act" value="pay">Pay {amount}</button>
<button name="act" value="decline">Have the card declined</button>
</form>"""


class PayPage:
    """Routes under ``/sandbox/pay``."""

    def __init__(self, sessions: StandInSessions) -> None:
        self._sessions = sessions
        self._template = Template(files("api.sandbox").joinpath("page.html").read_text("utf-8"))
        self.router = APIRouter(prefix="/pay", include_in_schema=False)
        self.router.add_api_route("/{session_id}", self.show, methods=["GET"])
        self.router.add_api_route("/{session_id}", self.submit, methods=["POST"])

    async def show(self, session_id: str, declined: str | None = None) -> Response:
        """The page of a session, whatever has become of it."""
        try:
            session = await self._sessions.find(session_id)
        except Unknown:
            return self._page(
                404, title="No such payment", heading="No such payment", footer="The address may be incomplete."
            )
        amount = _amount(session.amount_total, session)
        ends = session.expires_at_s if session.state == StandInState.OPEN else None
        # A transaction of Paystack's that failed can be paid yet, and the page says so.
        notice = "" if can_be_paid(session) else _NOTICES.get(StandInState(session.state), "")
        if declined and can_be_paid(session):
            notice = _DECLINED
        return self._page(
            200,
            title=f"Pay {amount}",
            heading=amount,
            notice=notice,
            lines=_lines(session),
            actions=_actions(session, amount),
            footer=session.id if ends is None else f"Open until {written(ends * 1000)}",
        )

    async def submit(self, request: Request, session_id: str) -> Response:
        """What the person pressed: to the shop's success page after paying, else back to this page."""
        act = parse_qs((await request.body()).decode("ascii", "replace")).get("act", [""])[0]
        here = request.url.path
        try:
            if act == "decline":
                await self._sessions.act(session_id, "decline")
                return RedirectResponse(f"{here}?declined=1", 303)
            session, _, _ = await self._sessions.act(session_id, "pay")
        except (Unknown, IllegalTransition):
            # The page itself says what has become of the session.
            return RedirectResponse(here, 303)
        return RedirectResponse(success_address(session) or here, 303)

    def _page(self, status: int, *, title: str, heading: str, footer: str, **markup: str) -> Response:
        """``title``, ``heading`` and ``footer`` are text; ``markup`` (notice, lines, actions) is HTML already."""
        filled = self._template.substitute(
            {"notice": "", "lines": "", "actions": ""} | markup,
            title=escape(title),
            heading=escape(heading),
            footer=escape(footer),
        )
        return HTMLResponse(filled, status, _HEADERS)


def can_be_paid(session: SandboxSession) -> bool:
    """Whether the page takes a payment."""
    payable = PAYSTACK_PAYABLE if session.provider == Provider.PAYSTACK else (StandInState.OPEN,)
    return session.state in payable


def success_address(session: SandboxSession) -> str | None:
    """Where the buyer goes after paying, as each provider sends them on; None where nobody said."""
    if session.provider == Provider.STRIPE:
        return str(session.params["success_url"]).replace("{CHECKOUT_SESSION_ID}", session.id)
    callback = session.params.get("callback_url")
    if callback is None:
        return None
    parts = urlsplit(str(callback))
    added = urlencode({"trxref": session.id, "reference": session.id})
    return urlunsplit((*parts[:3], f"{parts.query}&{added}" if parts.query else added, parts.fragment))


def cancel_address(session: SandboxSession) -> str | None:
    """Where a buyer goes who walks away; Paystack finds it in the metadata, where it may be anything."""
    if session.provider == Provider.STRIPE:
        cancel = session.params.get("cancel_url")
    else:
        metadata = session.params.get("metadata")
        cancel = metadata.get("cancel_action") if isinstance(metadata, dict) else None
    return cancel if isinstance(cancel, str) and cancel.startswith(("http://", "https://")) else None


def _actions(session: SandboxSession, amount: str) -> str:
    """Buttons while it can be paid, else the way back; only http(s) addresses become links."""
    cancel, success = cancel_address(session), success_address(session)
    if can_be_paid(session):
        away = f'<a class="button" href="{escape(cancel)}">Walk away</a>' if cancel else ""
        return _FORM.format(amount=escape(amount)) + away
    if session.state in (StandInState.PAID, StandInState.PENDING):
        return f'<a class="button go" href="{escape(success)}">Back to the shop</a>' if success else ""
    return f'<a class="button" href="{escape(cancel)}">Back to the shop</a>' if cancel else ""


def _lines(session: SandboxSession) -> str:
    if session.provider == Provider.PAYSTACK:
        amount = escape(_amount(session.amount_total, session))
        return f"<ul><li><span>{escape(session.params['email'])}</span><span>{amount}</span></li></ul>"
    return f"<ul>{''.join(_line(line, session) for line in session.params['line_items'])}</ul>"


def _line(line: dict[str, Any], session: SandboxSession) -> str:
    price, quantity = line["price_data"], line["quantity"]
    name = escape(price["product_data"]["name"])
    times = f" &times; {quantity}" if quantity != 1 else ""
    return (
        f"<li><span>{name}{times}</span><span>{escape(_amount(price['unit_amount'] * quantity, session))}</span></li>"
    )


def _amount(amount: int, session: SandboxSession) -> str:
    minor = from_stripe(amount, session.currency) if session.provider == Provider.STRIPE else amount
    return f"{amount} {session.currency.upper()}" if minor is None else show(minor, session.currency)
