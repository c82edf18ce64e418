"""What the stand-in Paystack takes: the documented parameters, with unknown ones refused so that a slip shows."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

LARGEST = 10**12

LEAST = {"NGN": 5000, "GHS": 10, "ZAR": 100, "KES": 300, "USD": 200}
"""The currencies that Paystack takes with their smallest charges in subunits, from its page on supported currencies."""


class PaystackRefusal(Exception):
    """An error answer of the stand-in, with Paystack's sentence, kind and code."""

    def __init__(self, status: int, message: str, code: str, kind: str = "validation_error") -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {
            "status": False,
            "message": message,
            "meta": {"nextStep": "See the message"},
            "type": kind,
            "code": code,
        }


def _web_address(address: str) -> str:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("is no valid URL")
    return address


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        # A date alone is a day of UTC.
        return datetime.fromisoformat(f"{text}T00:00:00+00:00" if len(text) == 10 else f"{text}+00:00")
    return moment


def _digits(value: Any) -> Any:
    """Paystack takes an amount as a number and as digits in a text."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,15}", value) else value


Text = Annotated[str, StringConstraints(min_length=1, max_length=5000, pattern=r"^[^\x00]*$")]
Amount = Annotated[int, BeforeValidator(_digits), Field(gt=0, le=LARGEST)]
Currency = Literal["NGN", "GHS", "ZAR", "KES", "USD"]
Moment = Annotated[datetime, BeforeValidator(_moment)]
Page = Annotated[int, BeforeValidator(_digits), Field(ge=1, le=10**6)]
PerPage = Annotated[int, BeforeValidator(_digits), Field(ge=1, le=100)]


class _Documented(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Initialize(_Documented):
    """Body of ``POST /transaction/initialize``."""

    email: Annotated[Text, StringConstraints(pattern=r"^[^@\s\x00]+@[^@\s\x00]+$")]
    amount: Amount
    currency: Currency = "NGN"
    reference: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.=-]{1,200}$")] | None = None
    callback_url: Annotated[Text, AfterValidator(_web_address)] | None = None
    plan: Text | None = None
    invoice_limit: int | None = None
    metadata: dict[str, Any] | str | None = None
    channels: list[Text] | None = None
    split_code: Text | None = None
    subaccount: Text | None = None
    transaction_charge: int | None = None
    bearer: Literal["account", "subaccount"] | None = None


class CreateRefund(_Documented):
    """Body of ``POST /refund``; ``transaction`` is a reference or Paystack's own id."""

    transaction: Text | int
    amount: Amount | None = None
    currency: Currency | None = None
    customer_note: Text | None = None
    merchant_note: Text | None = None


class ListTransactions(_Documented):
    """Query of ``GET /transaction``, as far as the stand-in knows it."""

    per_page: Annotated[PerPage, Field(alias="perPage")] = 50
    page: Page = 1
    status: Literal["failed", "success", "abandoned"] | None = None
    from_: Annotated[Moment | None, Field(alias="from")] = None
    to: Moment | None = None
    amount: Amount | None = None


class ListRefunds(_Documented):
    """Query of ``GET /refund``; ``transaction`` is Paystack's own id, ``reference`` the transaction's reference."""

    per_page: Annotated[PerPage, Field(alias="perPage")] = 50
    page: Page = 1
    transaction: Text | None = None
    reference: Text | None = None
    currency: Currency | None = None
    from_: Annotated[Moment | None, Field(alias="from")] = None
    to: Moment | None = None


class Nothing(_Documented):
    """No parameters at all."""


Model = TypeVar("Model", bound=BaseModel)


def asked(method: str, query: str, body: bytes) -> dict[str, Any]:
    """The parameters of a call as they came. Raises ``PaystackRefusal`` (400)."""
    if method == "GET":
        return dict(parse_qsl(query, keep_blank_values=True))
    try:
        params = json.loads(body)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise PaystackRefusal(400, "Invalid JSON", "invalid_params") from error
    if not isinstance(params, dict):
        raise PaystackRefusal(400, "The body is no JSON object", "invalid_params")
    if "\\u0000" in json.dumps(params):
        raise PaystackRefusal(400, "A NUL character is not allowed", "invalid_params")
    return params


def checked(model: type[Model], params: dict[str, Any]) -> Model:
    """The parameters, if the stand-in takes all of them. Raises ``PaystackRefusal`` (400)."""
    try:
        return model.model_validate(params)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = str(first["loc"][0]) if first["loc"] else "body"
        match first["type"]:
            case "extra_forbidden":
                sentence = f'"{where}" is not allowed'
            case "missing":
                sentence = f'"{where}" is required'
            case _:
                sentence = f'Invalid "{where}": {first["msg"]}'
        raise PaystackRefusal(400, sentence, "invalid_params") from error
