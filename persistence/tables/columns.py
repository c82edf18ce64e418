"""Column types and checks that several tables share."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

from sqlalchemy import BigInteger, CheckConstraint, DateTime, Text, func, text
from sqlalchemy.orm import mapped_column

Key = Annotated[str, mapped_column(Text, primary_key=True)]
String = Annotated[str, mapped_column(Text)]
Counter = Annotated[int, mapped_column(BigInteger)]
Zero = Annotated[int, mapped_column(BigInteger, server_default=text("0"))]
"""A count or amount in minor units that starts at 0."""
Milliseconds = Annotated[int, mapped_column(BigInteger)]
"""An instant of the engine's clock (Redis's) in ms since 1970."""
Instant = Annotated[datetime, mapped_column(DateTime(timezone=True))]
Now = Annotated[datetime, mapped_column(DateTime(timezone=True), server_default=func.now())]
No = Annotated[bool, mapped_column(server_default=text("false"))]
Empty = Annotated[str, mapped_column(Text, server_default=text("''"))]


def quoted(words: Iterable[str]) -> str:
    """Words as a list of SQL literals; for names from our own enums only."""
    return ", ".join(f"'{word}'" for word in words)


def one_of(column: str, words: Iterable[str]) -> CheckConstraint:
    """A check that ``column`` holds one of the words of an enum; named after the column."""
    return CheckConstraint(f"{column} in ({quoted(words)})", name=column)


def not_negative(*columns: str) -> CheckConstraint:
    """A check that none of these is below 0; null passes."""
    return CheckConstraint(" and ".join(f"{column} >= 0" for column in columns), name="not_negative")
