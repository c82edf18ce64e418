"""Reading a header straight from what the server parsed."""

from __future__ import annotations

from fastapi import Request


def header_of(request: Request, name: bytes) -> str | None:
    """The first header of this name, which is given in lower case; None without one.

    Starlette's mapping encodes the name and builds a list of all values at each look.
    """
    for found, value in request.scope["headers"]:
        if found == name:
            text: str = value.decode("latin-1")
            return text
    return None
