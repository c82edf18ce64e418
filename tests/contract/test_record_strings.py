"""What scripts write and what Python writes are the same strings, whatever text comes from outside."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from engine.domain import Claim, LatePayment, PoolDefinition, PoolStatus, Reservation, ReservationStatus
from engine.keys import escape, unescape
from engine.records import (
    decode_claims,
    decode_reservation,
    encode_claims,
    encode_definition,
    encode_pool,
    encode_reservation,
)
from tests.admitted import TENANT
from tests.frozen import MINUTE, T0, Frozen

TEXTS = [
    "a|b",
    "a,b",
    "%",
    "%7C",
    "%25",
    "a:b;c",
    "{x}",
    "Zoë 😀 née",
    "\n\t",
    "'\"\\",
    "0",
    " ",
    "@include",
    "a" * 256,
]
FREE_FIELDS = ["customer", "metadata key", "metadata value", "code", "payment", "refused payment"]


@pytest.mark.parametrize("text", TEXTS)
def test_escaping_and_back(text: str) -> None:
    assert unescape(escape(text)) == text
    assert not set("|,") & set(escape(text))


@pytest.mark.parametrize("field", FREE_FIELDS)
async def test_free_text_survives_every_transition(frozen: Frozen, field: str) -> None:
    await frozen.define("a/b@c+d-e.f_g", 9, per_customer=9, late_payment=LatePayment.REFUND)
    for number, text in enumerate(TEXTS):
        identifier = f"r-{number}@x+y.z_"
        of: dict[str, Any] = {"customer": "ada"}
        if field == "customer":
            of["customer"] = text
        elif field.startswith("metadata"):
            of["metadata"] = {text: "v"} if field == "metadata key" else {"k": text, "other": "1"}
        elif field == "code":
            of["code"] = text
        granted = await frozen.take(identifier, ("a/b@c+d-e.f_g", 1), **of)
        assert await frozen.record(identifier) == encode_reservation(granted)
        assert replace(await frozen.engine.read(TENANT, identifier), epoch=granted.epoch) == granted
        payment = text if "payment" in field else "pay-1"
        if field == "refused payment":
            await frozen.take_late(identifier, [payment])
            assert (await frozen.engine.read(TENANT, identifier)).refused_payments == (payment,)
        else:
            done = (await frozen.engine.complete(TENANT, identifier, payment)).reservation
            assert done.payment_ref == payment
            assert await frozen.record(identifier) == encode_reservation(done)
            await frozen.engine.cancel(TENANT, identifier, restock=True)
        last = await frozen.engine.read(TENANT, identifier)
        assert (last.customer, last.metadata, last.code) == (granted.customer, granted.metadata, granted.code)
        assert await frozen.record(identifier) == encode_reservation(last)


async def test_every_state_is_written_as_python_writes_it(frozen: Frozen) -> None:
    await frozen.define("soup", 3, per_customer=3)
    await frozen.define("gate", None)
    claims = (("gate", 1), ("soup", 2))
    rest: dict[str, Any] = {
        "customer": "ada",
        "order_id": "o-1",
        "code": "SAVE",
        "period": "2026-27",
        "metadata": {"a": "b"},
    }
    for identifier in ("late", "released", "over"):
        await frozen.take(identifier, *claims, **rest)
        await frozen.pass_ms(MINUTE)
    await frozen.engine.release(TENANT, "released")
    late = (await frozen.engine.complete(TENANT, "late", "pay-1")).reservation
    over = (await frozen.engine.complete(TENANT, "over", "pay-2")).reservation
    await frozen.engine.cancel(TENANT, "late", restock=True)
    assert (late.late, late.over_cap, over.late, over.over_cap) == (True, 0, True, 1)
    for identifier in ("late", "released", "over"):
        text = await frozen.record(identifier)
        assert text is not None
        assert encode_reservation(decode_reservation(TENANT, identifier, text)) == text
    released = await frozen.record("released")
    assert released == (
        f"L|2|{T0 + MINUTE}|{(T0 + 2 * MINUTE) // 1000}||{T0 + 3 * MINUTE}||||01|||60000|{late.fingerprint}"
        '|gate:1,soup:2|ada|{"a":"b"}|o-1|SAVE|2026-27'
    )


def random_reservation(seed: int) -> Reservation:
    """Any reservation that the types allow."""
    chance = random.Random(seed)  # noqa: S311 - a sequence that can be had again, no secret
    claims = tuple(Claim(f"p/{number}", chance.randint(1, 10**6)) for number in range(chance.randint(1, 32)))

    def some(value: Any, other: Any) -> Any:
        return value if chance.random() < 0.5 else other

    return Reservation(
        tenant=TENANT,
        id="r1",
        status=chance.choice(list(ReservationStatus)),
        version=chance.randint(1, 10**6),
        created_at_ms=T0 + chance.randrange(10**6),
        expires_at_ms=T0 + chance.randrange(10**6) * 1000,
        claims=claims,
        counted=tuple(chance.random() < 0.3 for _ in claims),
        ttl_ms=chance.randrange(1000, 10**8),
        fingerprint=f"{chance.getrandbits(64):016x}",
        completed_at_ms=some(None, T0 + 5),
        ended_at_ms=some(None, T0 + 6),
        late=some(True, False),
        over_cap=some(0, 17),
        restocked=some(True, False),
        payment_ref=some("", chance.choice(TEXTS)),
        refused_payments=tuple(chance.sample(TEXTS, chance.randint(0, 3))),
        customer=some(None, chance.choice(TEXTS)),
        metadata=some({}, {text: text for text in TEXTS}),
        order_id=some("", "o-1"),
        code=some("", "SÄVE|10%"),
        period=some("", "2026-27"),
    )


def test_python_reads_what_it_writes() -> None:
    for seed in range(200):
        reservation = random_reservation(seed)
        text = encode_reservation(reservation)
        assert decode_reservation(TENANT, "r1", text) == reservation
        assert decode_claims(encode_claims(reservation.claims)) == reservation.claims


async def test_scripts_read_what_python_writes(frozen: Frozen) -> None:
    """Records come back from Postgres through Python; the scripts must take them for their own."""
    await frozen.define("soup", 9)
    for seed in range(60):
        made = random_reservation(seed)
        if made.status is ReservationStatus.RESERVED:
            continue
        await frozen.redis.delete(frozen.keys.records(TENANT, "r1"))
        await frozen.engine.restore(made)
        assert await frozen.record("r1") == encode_reservation(made)
        seen = await frozen.engine.read(TENANT, "r1")
        assert encode_reservation(seen) == encode_reservation(made)
        if made.status is ReservationStatus.COMPLETED:
            done = (await frozen.engine.cancel(TENANT, "r1", restock=False)).reservation
            assert (done.version, done.refused_payments, done.claims, done.counted) == (
                made.version + 1,
                made.refused_payments,
                made.claims,
                made.counted,
            )
    frozen.audited = False


@pytest.mark.parametrize(
    "text", ["", "R", "R|1|2|3", "|".join(["R"] * 20), "Z|1|1|1||||||||||1|ab|p:1|||||", "R|1|1|1||||||||||1|ab|p|||||"]
)
def test_what_is_no_record_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"20 fields|the letter of its state|invalid literal"):
        decode_reservation(TENANT, "r1", text)


@pytest.mark.parametrize("status", list(PoolStatus))
@pytest.mark.parametrize("late", list(LatePayment))
@pytest.mark.parametrize("numbers", [(None, None, None), (0, T0, 1), (10**12, T0 + 1, 1000)])
async def test_definitions_come_back(
    frozen: Frozen, status: PoolStatus, late: LatePayment, numbers: tuple[int | None, ...]
) -> None:
    cap, window, limit = numbers
    definition = PoolDefinition(TENANT, "soup", cap, 7, window, window, status, limit, late)
    state = await frozen.engine.define_pool(definition, first_of_tenant=True)
    assert state.definition == definition
    assert (await frozen.engine.read_pool(TENANT, "soup")).definition == definition
    stored = await frozen.redis.hget(frozen.keys.tenant(TENANT), "soup")
    assert stored == encode_pool(encode_definition(definition), 0, 0, 0, 0)
