"""The OpenAPI page: bodies are parsed by the handlers themselves, so they say here what they take."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_REF: Final = "#/components/schemas/{model}"
_BEARER: Final = "bearer"
_models: set[type[BaseModel]] = set()

OPEN: Final[dict[str, Any]] = {"security": []}
"""For ``openapi_extra`` of a route that needs no key."""


def takes(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """``openapi_extra`` of a route whose body is ``model``."""
    _models.add(model)
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def makes(model: type[BaseModel]) -> dict[str, Any]:
    """``openapi_extra`` of a route that makes something of a body, once per ``Idempotency-Key``."""
    made = {"description": "Made now; 200 where the same request made it before.", "content": {"application/json": {}}}
    said = "The same key and body again answer the same, and make nothing new. Without one each request is its own."
    return takes(model) | {"responses": {"201": made}, "parameters": [_header("Idempotency-Key", said)]}


def signed(header: str) -> dict[str, Any]:
    """``openapi_extra`` of a route that needs no key, but a signature in this header."""
    return OPEN | {"parameters": [_header(header, "The provider's signature over the raw bytes.", required=True)]}


def _header(name: str, said: str, *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": required, "description": said, "schema": {"type": "string"}}


class DescribedApp(FastAPI):
    """An app whose OpenAPI document holds the bodies, the key, and the shape of errors."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = _document(self)
        return self.openapi_schema


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    _, definitions = models_json_schema(
        [(model, "validation") for model in sorted(_models, key=lambda model: model.__name__)], ref_template=_REF
    )
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(definitions.get("$defs", {}))
    components["schemas"]["Error"] = {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "message"],
                "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
            }
        },
    }
    _answer_errors(document)
    components["securitySchemes"] = {_BEARER: {"type": "http", "scheme": "bearer"}}
    document["security"] = [{_BEARER: []}]
    return document


def _answer_errors(document: dict[str, Any]) -> None:
    """Every operation may answer with an error, and in one shape: FastAPI's own for 422 is never sent."""
    error = {"$ref": _REF.format(model="Error")}
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = {
                "description": "What was refused or failed: see the code and the status.",
                "content": {"application/json": {"schema": error}},
            }
    for unused in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(unused, None)
