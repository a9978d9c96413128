"""A client's request as the router reads it, and what it would send of it."""

import json

import pytest

from toolkit.router.request.facts import read_request

TENANT = b"t" * 16


class Named(dict):
    """Headers by name, as `get` finds them."""

    @classmethod
    def of(cls, headers):
        encoded = {
            name.replace("_", "-").encode(): value if isinstance(value, bytes) else value.encode("latin-1")
            for name, value in headers.items()
        }
        return cls(encoded)


@pytest.fixture(scope="session")
def read():
    """`read(endpoint, body, header_name="value")`; a body of bytes is taken as it is."""

    def read(endpoint, body, *, tenant=TENANT, **headers):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return read_request(endpoint, raw, Named.of(headers), tenant)

    return read


@pytest.fixture
def sent():
    """A body's pieces as the engine reads them: by Python's json, as vLLM does."""
    return lambda pieces: json.loads(b"".join(pieces))
