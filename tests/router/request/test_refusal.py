"""Errors of the router in the form of each endpoint."""

import json

import pytest

from toolkit.router.request.dialects import DIALECTS, Endpoint
from toolkit.router.request.refusal import Refusal, error_body


@pytest.mark.parametrize(
    ("status", "openai", "anthropic"),
    [
        (400, "invalid_request_error", "invalid_request_error"),
        (401, "authentication_error", "authentication_error"),
        (404, "not_found_error", "not_found_error"),
        (405, "invalid_request_error", "invalid_request_error"),
        (413, "invalid_request_error", "request_too_large"),
        (429, "rate_limit_error", "rate_limit_error"),
        (500, "internal_error", "api_error"),
        (502, "upstream_error", "api_error"),
        (503, "service_unavailable_error", "overloaded_error"),
    ],
)
def test_the_type_names_the_status(status, openai, anthropic):
    assert json.loads(error_body(status, "m", "p")) == {
        "error": {"message": "m", "type": openai, "param": "p", "code": status}
    }
    assert json.loads(error_body(status, "m", "p", "anthropic")) == {
        "type": "error",
        "error": {"type": anthropic, "message": "m"},
    }


def test_every_endpoint_has_a_form():
    assert {endpoint: DIALECTS[endpoint].errors for endpoint in Endpoint} == {
        Endpoint.CHAT: "openai",
        Endpoint.COMPLETIONS: "openai",
        Endpoint.RESPONSES: "responses",
        Endpoint.MESSAGES: "anthropic",
    }


def test_events_of_each_form():
    refusal = Refusal(502, "gone\n\ndata: x", param="p", retry_after_s=3)
    assert refusal.retry_after_s == 3
    assert refusal.event() == b"data: " + refusal.body() + b"\n\n"
    assert refusal.event("anthropic") == b"event: error\ndata: " + refusal.body("anthropic") + b"\n\n"
    head, data, end = refusal.event("responses").split(b"\n", 2)
    assert (head, end) == (b"event: error", b"\n")
    event = json.loads(data.removeprefix(b"data: "))
    assert event["type"] == "error"
    # As documented, and as clients look for it.
    assert (event["message"], event["code"], event["param"]) == ("gone\n\ndata: x", "502", "p")
    assert event["error"] == json.loads(refusal.body("responses"))["error"]
    assert refusal.body("responses") == refusal.body("openai")
