"""A shop window for a fresh installation: a product per provider, and a school code with a cap for each of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final

import httpx

from engine.domain import Provider


@dataclass(frozen=True, slots=True)
class Sample:
    """A product, the code that takes something off it, and who is paid for it."""

    provider: Provider
    product: str
    product_body: dict[str, Any]
    code: str
    code_body: dict[str, Any]


def _code_body(product: str, timezone: str) -> dict[str, Any]:
    return {
        "cap": 120,
        "period": {"kind": "academic_year", "starts": "09-01", "timezone": timezone},
        "discount": {"percent_off": 10},
        "per_customer": 1,
        "products": [product],
    }


STRIPE: Final = Sample(
    provider=Provider.STRIPE,
    product="practice-pack",
    product_body={"name": "Practice pack", "amount_minor": 4900, "currency": "GBP"},
    code="SCHOOL10",
    code_body=_code_body("practice-pack", "Europe/London"),
)
PAYSTACK: Final = Sample(
    provider=Provider.PAYSTACK,
    product="practice-pack-ng",
    product_body={"name": "Practice pack (Nigeria)", "amount_minor": 250_000, "currency": "NGN"},
    code="LAGOS10",
    code_body=_code_body("practice-pack-ng", "Africa/Lagos"),
)


def load_samples(url: str, key: str) -> None:
    """Define the samples through the API where the code is missing; what somebody changed since is left alone.

    Raises ``httpx.HTTPStatusError`` when the API refuses.
    """
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=30, trust_env=False) as client:
        for sample in (STRIPE, PAYSTACK):
            found = client.get(f"/v1/codes/{sample.code}")
            if found.status_code != httpx.codes.NOT_FOUND:
                found.raise_for_status()
                continue
            client.put(f"/v1/products/{sample.product}", json=sample.product_body).raise_for_status()
            client.put(f"/v1/codes/{sample.code}", json=sample.code_body).raise_for_status()


def curl_line(url: str, key: str, sample: Sample) -> str:
    """One line for a shell that makes a real checkout with a sample code."""
    buyer = f"student-{token_hex(3)}"  # a new one each time: the code is good for one place per customer
    body = {
        "customer": buyer,
        "email": f"{buyer}@example.com",
        "lines": [{"product": sample.product, "quantity": 1}],
        "code": sample.code,
        "provider": sample.provider.value,
        "success_url": f"{url}/docs",
        "cancel_url": f"{url}/docs",
    }
    return (
        f"curl -sw '\\n' {url}/v1/checkouts -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' "
        f"-H 'Idempotency-Key: {buyer}' -d '{json.dumps(body)}'"
    )
