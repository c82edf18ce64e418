"""How every Redis key and hash field is spelt; nowhere else.

A key is ``prefix:{partition}:build:kind[:…]``: the tag in braces puts all that one call touches on one cluster slot,
and the build number keeps a rebuild's new keys apart from the data it replaces. Ids never hold ``|``, ``:`` or
braces, so no text from outside can reach another key or field. The glossary is in ``lua/README.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

RECORD_SHARDS = 64
"""Hashes that a tenant's records are spread over, so that none grows without bound."""

BUILD_FIELD = "!build"
CLOCK_FIELD = "!clock"
"""Field of a tenant hash with the test clock's offset in ms; only the sandbox's scripts read it."""

_ESCAPES = str.maketrans({"%": "%25", "|": "%7C", ",": "%2C"})


def escape(text: str) -> str:
    """Free text as it may stand in a record: without the characters that separate fields or list entries."""
    return text.translate(_ESCAPES)


def unescape(text: str) -> str:
    """The inverse of :func:`escape`."""
    if "%" not in text:
        return text
    return text.replace("%7C", "|").replace("%2C", ",").replace("%25", "%")


def partition_of(tenant: str, partitions: int) -> int:
    """The partition that a tenant lives in, for ever: its CRC-32 over the number fixed at installation."""
    return crc32(tenant.encode()) % partitions


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one partition in one build."""

    prefix: str
    partition: int
    build: int

    def _key(self, rest: str) -> str:
        return f"{self.prefix}:{{{self.partition}}}:{self.build}:{rest}"

    @property
    def mark(self) -> str:
        """String: the epoch that this partition's data was admitted under. Absent after a loss."""
        return self._key("mark")

    @property
    def outbox(self) -> str:
        """Stream: one entry a transition, ids ``epoch-0``, ``epoch-1``, …"""
        return self._key("outbox")

    @property
    def committed(self) -> str:
        """String: the outbox sequence that Postgres has, written by the persister."""
        return self._key("committed")

    def tenant(self, tenant: str) -> str:
        """Hash: build mark, pools, buckets and customer counters of a tenant."""
        return self._key(f"t:{tenant}")

    def expiries(self, tenant: str) -> str:
        """Sorted set, all scores 0: the tenant's buckets in lexical order, which is pool then second."""
        return self._key(f"x:{tenant}")

    def records(self, tenant: str, reservation: str) -> str:
        """Hash: the reservation records of one shard of a tenant."""
        return self.records_shard(tenant, crc32(reservation.encode()) % RECORD_SHARDS)

    def records_shard(self, tenant: str, shard: int) -> str:
        return self._key(f"r:{tenant}:{shard}")

    @staticmethod
    def customer_field(pool: str, customer: str) -> str:
        """Field of the tenant hash with what one customer holds of a pool."""
        return f"{pool}||{escape(customer)}"
