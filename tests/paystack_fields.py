"""What Paystack documents of each request that we make: fields and types, with unknown ones refused.

From the API reference at paystack.com/docs/api: "Initialize Transaction", "List Transactions", "Create Refund" and
"List Refunds". ``cancel_action`` is documented at paystack.com/docs/payments/metadata.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, unquote

from pydantic import BaseModel, ConfigDict, Field, HttpUrl, StrictInt, StrictStr

Currency = Literal["NGN", "GHS", "ZAR", "KES", "USD"]
Reference = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9.=-]+$")]
Moment = Annotated[StrictStr, Field(pattern=r"^\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d(\.\d{3})?Z)?$")]
Number = Annotated[StrictStr, Field(pattern=r"^\d+$")]


class _Documented(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Initialize(_Documented):
    """Body of ``POST /transaction/initialize``."""

    email: Annotated[StrictStr, Field(pattern=r"^[^@\s]+@[^@\s]+$")]
    amount: Annotated[StrictInt, Field(gt=0)]
    currency: Currency | None = None
    reference: Reference | None = None
    callback_url: HttpUrl | None = None
    plan: StrictStr | None = None
    invoice_limit: StrictInt | None = None
    metadata: dict[str, Any] | None = None
    channels: list[StrictStr] | None = None
    split_code: StrictStr | None = None
    subaccount: StrictStr | None = None
    transaction_charge: StrictInt | None = None
    bearer: Literal["account", "subaccount"] | None = None


class CreateRefund(_Documented):
    """Body of ``POST /refund``."""

    transaction: Annotated[StrictStr, Field(min_length=1)]
    amount: Annotated[StrictInt, Field(gt=0)] | None = None
    currency: Currency | None = None
    customer_note: StrictStr | None = None
    merchant_note: StrictStr | None = None


class ListTransactions(_Documented):
    """Query of ``GET /transaction``."""

    per_page: Annotated[Number | None, Field(alias="perPage")] = None
    page: Number | None = None
    customer: Number | None = None
    terminalid: StrictStr | None = None
    status: Literal["failed", "success", "abandoned"] | None = None
    from_: Annotated[Moment | None, Field(alias="from")] = None
    to: Moment | None = None
    amount: Number | None = None


class ListRefunds(_Documented):
    """Query of ``GET /refund``. ``transaction`` is the transaction's number and not its reference."""

    transaction: Number | None = None
    currency: Currency | None = None
    from_: Annotated[Moment | None, Field(alias="from")] = None
    to: Moment | None = None
    per_page: Annotated[Number | None, Field(alias="perPage")] = None
    page: Number | None = None


def check_initialize(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a new transaction, if Paystack documents all of them."""
    Initialize.model_validate(params)
    return params


def check_refund(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a new refund, if Paystack documents all of them."""
    CreateRefund.model_validate(params)
    return params


def check_paystack_request(method: str, path: str, query: str, body: bytes) -> dict[str, Any]:
    """The parameters of a request that the adapter may make; fails for any other request."""
    asked: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    match method, path.removeprefix("/").split("/"):
        case "POST", ["transaction", "initialize"]:
            assert not asked
            return check_initialize(json.loads(body))
        case "POST", ["refund"]:
            assert not asked
            return check_refund(json.loads(body))
        case "GET", ["transaction", "verify", reference]:
            assert not asked
            return {"reference": unquote(reference)}
        case "GET", ["transaction"]:
            ListTransactions.model_validate(asked)
        case "GET", ["refund"]:
            ListRefunds.model_validate(asked)
        case _:
            raise AssertionError(f"{method} {path} is none of the adapter's requests")
    assert not body
    return asked
