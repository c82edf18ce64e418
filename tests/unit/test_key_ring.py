"""Keys in memory: looked up seldom, forgotten soon once revoked, and taken on while Postgres is away."""

from __future__ import annotations

import asyncio

import pytest

from api.authentication import DEV_KEY, FRESH_SECONDS, STALE_SECONDS, UNKNOWN_SECONDS, KeyRing
from engine.domain import Scope
from engine.errors import StorageUnavailable, Unauthenticated
from persistence.repositories.keys import ApiKey, hash_of

SECRET = "lp_secret"
BEARER = f"Bearer {SECRET}"
KEY = ApiKey(id="k1", tenant="t1", name="till", scopes=frozenset({Scope.READ}))


class Shelf:
    """The keys as Postgres would have them, with a clock and a count of look-ups."""

    def __init__(self) -> None:
        self.keys = {hash_of(SECRET): KEY}
        self.away = False
        self.asked: list[str] = []
        self.now = 1000.0
        self.answer = asyncio.Event()
        self.answer.set()

    async def find(self, key_hash: str) -> ApiKey | None:
        self.asked.append(key_hash)
        await self.answer.wait()
        if self.away:
            raise StorageUnavailable
        return self.keys.get(key_hash)

    def ring(self, *, dev: bool = False) -> KeyRing:
        return KeyRing(find=self.find, dev=dev, clock=lambda: self.now)


@pytest.fixture
async def shelf() -> Shelf:
    return Shelf()


async def _settled() -> None:
    """Let background look-ups come to their end."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_known_key_is_looked_up_once_while_fresh(shelf: Shelf) -> None:
    ring = shelf.ring()
    for _ in range(5):
        assert await ring.key_of(BEARER) == KEY
    assert len(shelf.asked) == 1
    assert shelf.asked == [hash_of(SECRET)]


async def test_many_at_once_share_one_look_up(shelf: Shelf) -> None:
    ring = shelf.ring()
    shelf.answer.clear()
    waiting = [asyncio.create_task(ring.key_of(BEARER)) for _ in range(20)]
    await _settled()
    waiting[0].cancel()
    shelf.answer.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [KEY] * 19
    assert len(shelf.asked) == 1


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic lp_secret", "lp_secret", f"Bearer {'x' * 300}"]
)
async def test_without_a_key_there_is_no_look_up(shelf: Shelf, header: str | None) -> None:
    with pytest.raises(Unauthenticated):
        await shelf.ring().key_of(header)
    assert shelf.asked == []


async def test_the_scheme_is_read_in_any_case(shelf: Shelf) -> None:
    assert await shelf.ring().key_of(f"bEARER  {SECRET} ") == KEY


async def test_a_guess_is_refused_and_not_asked_again_at_once(shelf: Shelf) -> None:
    ring = shelf.ring()
    for _ in range(3):
        with pytest.raises(Unauthenticated):
            await ring.key_of("Bearer guess")
    assert len(shelf.asked) == 1
    shelf.keys[hash_of("guess")] = KEY
    shelf.now += UNKNOWN_SECONDS
    assert await ring.key_of("Bearer guess") == KEY


async def test_guesses_do_not_fill_the_memory(shelf: Shelf) -> None:
    ring = shelf.ring()
    for number in range(1200):
        with pytest.raises(Unauthenticated):
            await ring.key_of(f"Bearer guess{number}")
    assert len(ring._unknown) == 1000


async def test_a_revoked_key_is_refused_after_one_look_in_the_background(shelf: Shelf) -> None:
    ring = shelf.ring()
    await ring.key_of(BEARER)
    shelf.keys.clear()
    shelf.now += FRESH_SECONDS
    assert await ring.key_of(BEARER) == KEY
    await _settled()
    with pytest.raises(Unauthenticated):
        await ring.key_of(BEARER)


async def test_a_key_past_the_stale_age_is_not_taken_unseen(shelf: Shelf) -> None:
    ring = shelf.ring()
    await ring.key_of(BEARER)
    shelf.keys.clear()
    shelf.now += STALE_SECONDS
    with pytest.raises(Unauthenticated):
        await ring.key_of(BEARER)


async def test_a_known_key_goes_on_while_postgres_is_away(shelf: Shelf) -> None:
    ring = shelf.ring()
    await ring.key_of(BEARER)
    shelf.away = True
    for _ in range(10):
        shelf.now += 3600
        assert await ring.key_of(BEARER) == KEY
        await _settled()
    asked = len(shelf.asked)
    for _ in range(50):
        assert await ring.key_of(BEARER) == KEY
    assert len(shelf.asked) == asked
    shelf.away = False
    shelf.keys.clear()
    shelf.now += 3600
    await ring.key_of(BEARER)
    await _settled()
    with pytest.raises(Unauthenticated):
        await ring.key_of(BEARER)


async def test_an_unknown_key_is_not_judged_while_postgres_is_away(shelf: Shelf) -> None:
    ring = shelf.ring()
    shelf.away = True
    with pytest.raises(StorageUnavailable):
        await ring.key_of(BEARER)
    shelf.away = False
    assert await ring.key_of(BEARER) == KEY


async def test_the_key_of_dev_counts_in_dev_alone(shelf: Shelf) -> None:
    key = await shelf.ring(dev=True).key_of(f"Bearer {DEV_KEY}")
    assert key.tenant == "demo"
    assert key.scopes == frozenset(Scope)
    assert shelf.asked == []
    with pytest.raises(Unauthenticated):
        await shelf.ring().key_of(f"Bearer {DEV_KEY}")


async def test_closing_ends_what_is_under_way(shelf: Shelf) -> None:
    ring = shelf.ring()
    shelf.answer.clear()
    waiting = asyncio.create_task(ring.key_of(BEARER))
    await _settled()
    await ring.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
