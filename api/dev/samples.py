"""A shop window for a fresh installation: one product, and one school code with a cap per academic year."""

from __future__ import annotations

import json
from secrets import token_hex
from typing import Any, Final

import httpx

PRODUCT: Final = "practice-pack"
CODE: Final = "SCHOOL10"

PRODUCT_BODY: Final[dict[str, Any]] = {"name": "Practice pack", "amount_minor": 4900, "currency": "GBP"}
CODE_BODY: Final[dict[str, Any]] = {
    "cap": 120,
    "period": {"kind": "academic_year", "starts": "09-01", "timezone": "Europe/London"},
    "discount": {"percent_off": 10},
    "per_customer": 1,
    "products": [PRODUCT],
}


def load_samples(url: str, key: str) -> None:
    """Define the samples through the API where the code is missing; what somebody changed since is left alone.

    Raises ``httpx.HTTPStatusError`` when the API refuses.
    """
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=30, trust_env=False) as client:
        found = client.get(f"/v1/codes/{CODE}")
        if found.status_code != httpx.codes.NOT_FOUND:
            found.raise_for_status()
            return
        client.put(f"/v1/products/{PRODUCT}", json=PRODUCT_BODY).raise_for_status()
        client.put(f"/v1/codes/{CODE}", json=CODE_BODY).raise_for_status()


def curl_line(url: str, key: str) -> str:
    """One line for a shell that makes a real checkout with the sample code."""
    buyer = f"student-{token_hex(3)}"  # a new one each time: the code is good for one place per customer
    body = {
        "customer": buyer,
        "email": f"{buyer}@example.com",
        "lines": [{"product": PRODUCT, "quantity": 1}],
        "code": CODE,
        "success_url": f"{url}/docs",
        "cancel_url": f"{url}/docs",
    }
    return (
        f"curl -sw '\\n' {url}/v1/checkouts -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' "
        f"-H 'Idempotency-Key: {buyer}' -d '{json.dumps(body)}'"
    )
