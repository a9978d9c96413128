"""Which AWS operation an HTTP request is: by signature, form or target, else by method and path."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote

import botocore.session

# Services whose requests name no operation, by the name that they sign with.
_BY_PATH = {
    "s3": "s3",
    "imagebuilder": "imagebuilder",
    "lambda": "lambda",
    "elasticfilesystem": "efs",
    "route53": "route53",
}


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: str
    authorization: str
    target: str
    form: str

    @property
    def access_key(self) -> str:
        return self._credential[0]

    @property
    def service(self) -> str:
        """The name that it signs with; a URL that is presigned, or not signed at all, is S3's."""
        scope = self._credential
        return scope[3].lower() if len(scope) == 5 else "s3"

    @property
    def _credential(self) -> list[str]:
        match = re.search(r"Credential=([^,\s]+)", self.authorization)
        return match[1].split("/") if match else [""]


def name_operation(request: Request) -> str:
    if request.target:
        return request.target.rpartition(".")[2]
    if match := re.fullmatch(r"/service/[^/]+/operation/(\w+)", request.path):
        return match[1]
    if action := _parameters(request).get("Action"):
        return action[0]
    if request.service in _BY_PATH:
        return _by_path(_BY_PATH[request.service], request)
    return f"{request.method} {request.path}"


def is_dry_run(request: Request) -> bool:
    return _parameters(request).get("DryRun") == ["true"]


def _parameters(request: Request) -> dict[str, list[str]]:
    return {
        **parse_qs(request.query, keep_blank_values=True),
        **parse_qs(request.form, keep_blank_values=True),
    }


def _by_path(service: str, request: Request) -> str:
    """The operation whose path matches, of several the one that asks for the most of this query."""
    given = parse_qs(request.query, keep_blank_values=True)
    fitting = [
        # Of two alike, PutObject and CopyObject, the plainer: they differ by a header only.
        (len(wanted), -len(name), name)
        for name, method, pattern, wanted in _routes(service)
        if method == request.method
        and pattern.fullmatch(unquote(request.path).rstrip("/") or "/")
        and all(key in given and (not value or given[key] == [value]) for key, value in wanted.items())
    ]
    return max(fitting)[2] if fitting else f"{request.method} {request.path}"


@functools.cache
def _routes(service: str) -> tuple[tuple[str, str, re.Pattern[str], Mapping[str, str]], ...]:
    model = botocore.session.get_session().get_service_model(service)
    routes = []
    for name in model.operation_names:
        http = model.operation_model(name).http
        path, _, query = http["requestUri"].partition("?")
        pattern = re.sub(r"\\\{\w+\\\+\\\}", ".+", re.escape(path))
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", pattern).rstrip("/") or "/"
        wanted = {key: values[0] for key, values in parse_qs(query, keep_blank_values=True).items()}
        shape = model.operation_model(name).input_shape
        for member in shape.required_members if shape else ():
            where = shape.members[member].serialization
            if where.get("location") == "querystring":
                wanted[where["name"]] = ""
        routes.append((name, http["method"], re.compile(pattern), wanted))
    return tuple(routes)
