"""The page where a person pays, is declined, or walks away."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from engine.payments.port import EventKind, PricedLine
from tests.stand_in import StandIn


class Page(HTMLParser):
    """What a person sees and can press."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.buttons: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.tags: set[str] = set()
        self.text = ""
        self._open: tuple[str, str] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        found = dict(attrs)
        if tag == "button":
            self._open = ("button", str(found["value"]))
        elif tag == "a":
            self._open = ("a", str(found["href"]))

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[0] == tag:
            self._open = None

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._open:
            kind, target = self._open
            (self.buttons if kind == "button" else self.links)[data] = target


async def page_of(stand_in: StandIn, session_id: str, query: str = "", status: int = 200) -> Page:
    answer = await stand_in.http.get(f"/sandbox/pay/{session_id}{query}")
    assert answer.status_code == status
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    return Page(answer.text)


async def press(stand_in: StandIn, session_id: str, act: str) -> str:
    """Press a button; answers where the browser is sent."""
    answer = await stand_in.http.post(f"/sandbox/pay/{session_id}", data={"act": act})
    assert answer.status_code == 303
    return answer.headers["location"]


async def test_a_person_pays_and_goes_on_to_the_shop(stand_in: StandIn) -> None:
    session = await stand_in.payments.open(
        stand_in.attempt(amount_minor=2500, lines=(PricedLine("Practice pack", 1875), PricedLine("Pencils", 625)))
    )
    page = await page_of(stand_in, session.id)
    assert page.buttons == {"Pay 25.00 GBP": "pay", "Have the card declined": "decline"}
    assert page.links == {"Walk away": "https://shop.example/basket"}
    assert "Practice pack" in page.text
    assert "18.75 GBP" in page.text
    assert await press(stand_in, session.id, "pay") == f"https://shop.example/thanks?session={session.id}"
    assert [event.kind for event in stand_in.received] == [EventKind.PAID]
    after = await page_of(stand_in, session.id)
    assert after.buttons == {}
    assert after.links == {"Back to the shop": f"https://shop.example/thanks?session={session.id}"}
    assert "This is paid." in after.text
    assert await press(stand_in, session.id, "pay") == f"/sandbox/pay/{session.id}"
    assert len(stand_in.received) == 1


async def test_a_declined_card_leaves_the_session_open_for_another(stand_in: StandIn) -> None:
    session = await stand_in.payments.open(stand_in.attempt())
    where = await press(stand_in, session.id, "decline")
    assert where == f"/sandbox/pay/{session.id}?declined=1"
    page = await page_of(stand_in, session.id, "?declined=1")
    assert "declined" in page.text
    assert "pay" in page.buttons.values()
    assert stand_in.received == []
    await press(stand_in, session.id, "pay")
    assert [event.kind for event in stand_in.received] == [EventKind.PAID]
    state = (await stand_in.http.get(f"/sandbox/sessions/{session.id}")).json()
    assert (state["state"], state["declines"]) == ("paid", 1)


async def test_an_expired_session_can_not_be_paid_on_the_page(stand_in: StandIn) -> None:
    session = await stand_in.payments.open(stand_in.attempt())
    await stand_in.advance(1900)
    page = await page_of(stand_in, session.id)
    assert page.buttons == {}
    assert "expired" in page.text
    assert page.links == {"Back to the shop": "https://shop.example/basket"}
    assert await press(stand_in, session.id, "pay") == f"/sandbox/pay/{session.id}"
    assert await press(stand_in, session.id, "decline") == f"/sandbox/pay/{session.id}"
    assert {event.kind for event in stand_in.received} == {EventKind.EXPIRED}


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "$title ${heading}", "a' onclick='b"]
)
async def test_whatever_a_line_is_called_it_stays_text(stand_in: StandIn, name: str) -> None:
    session = await stand_in.payments.open(
        stand_in.attempt(lines=(PricedLine(name, 1250),), cancel_url='https://shop.example/"><script>alert(1)</script>')
    )
    page = await page_of(stand_in, session.id)
    assert name in page.text
    assert page.tags <= {
        "html", "head", "meta", "title", "style", "body", "main", "span", "h1", "ul", "li", "p", "form", "button", "a",
    }  # fmt: skip
    assert set(page.links) == {"Walk away"}


async def test_an_unknown_session_has_a_page_too(stand_in: StandIn) -> None:
    page = await page_of(stand_in, "cs_test_nothing", status=404)
    assert "No such payment" in page.text
    assert await press(stand_in, "cs_test_nothing", "pay") == "/sandbox/pay/cs_test_nothing"
    assert (await stand_in.http.get("/sandbox/pay/a%00b")).status_code == 404
    assert (await stand_in.act("cs_test_nothing", "pay", 404))["error"]["code"] == "unknown_session"
    await stand_in.act("cs_test_nothing", "decline", 404)
    await stand_in.act("cs_test_nothing", "steal", 422)


async def test_a_currency_without_subunit_is_shown_without_places(stand_in: StandIn) -> None:
    session = await stand_in.payments.open(stand_in.attempt(amount_minor=80, currency="JPY"))
    assert "Pay 80 JPY" in (await page_of(stand_in, session.id)).buttons


async def test_a_paystack_transaction_is_paid_on_the_same_page(stand_in: StandIn) -> None:
    session = await stand_in.paystack.open(stand_in.transaction())
    page = await page_of(stand_in, session.id)
    assert page.buttons == {"Pay 1250.00 NGN": "pay", "Have the card declined": "decline"}
    assert page.links == {"Walk away": "https://shop.example/basket"}
    assert "pupil@school.example" in page.text
    assert await press(stand_in, session.id, "decline") == f"/sandbox/pay/{session.id}?declined=1"
    declined = await page_of(stand_in, session.id, "?declined=1")
    assert "declined" in declined.text
    assert "pay" in declined.buttons.values()
    # As Paystack does, after what the shop's address has of its own.
    back = "https://shop.example/thanks?from=paystack&trxref=ord-1-1&reference=ord-1-1"
    assert await press(stand_in, session.id, "pay") == back
    after = await page_of(stand_in, session.id)
    assert (after.buttons, after.links) == ({}, {"Back to the shop": back})
    assert [event.type for event in stand_in.received] == ["charge.success"]


async def test_a_transaction_without_addresses_has_a_page_without_links(stand_in: StandIn) -> None:
    answer = await stand_in.http.post(
        "/sandbox/paystack/transaction/initialize",
        json={"email": "pupil@school.example", "amount": 5000, "metadata": {"cancel_action": "javascript:alert(1)"}},
        headers={"Authorization": "Bearer sk_test_1"},
    )
    reference = answer.json()["data"]["reference"]
    assert (await page_of(stand_in, reference)).links == {}
    assert await press(stand_in, reference, "pay") == f"/sandbox/pay/{reference}"
    assert (await page_of(stand_in, reference)).links == {}
    assert [event.amount_minor for event in stand_in.received] == [5000]
