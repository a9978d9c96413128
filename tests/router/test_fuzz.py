"""Requests made at random from the router's own description of its API, good ones and bad ones: the router
never crashes, and every error of its own has its form. (Bytes that are no HTTP: tests/router/wire.)"""

import json
import os

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from toolkit.router.openapi import description
from toolkit.router.request.dialects import DIALECTS, Endpoint
from toolkit.testing.fake_engine import Fault

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
# Of what takes nothing there are no bad requests.
CASES = [
    (path, method, mode)
    for path, methods in json.loads(description())["paths"].items()
    for method in methods
    for mode in GenerationMode
    if method == "post" or mode == GenerationMode.POSITIVE
]
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "30"))
PREFILLED = (
    b'{"usage":{"prompt_tokens":20},"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1]],'
    b'"remote_engine_id":"p","remote_request_id":"r","remote_host":"h","remote_port":1,"pd_lease":"p"}}'
)
DECODED = (
    b'{"id":"resp_1","usage":{"prompt_tokens":20},"kv_transfer_params":{"do_remote_decode":true,'
    b'"remote_block_ids":[[1]],"remote_engine_id":"d","remote_request_id":"r","remote_host":"h",'
    b'"remote_port":1,"pd_lease":"d","pd_proof":{"format":2,"block_size":16,"tokens":16,"digests":"AAAAAAAAAAA="}}}'
)


@pytest.fixture(scope="module")
def stage(start_stage, tmp_path_factory):
    """Engines that answer 200 to whatever they are sent; what they think of it is not the question."""
    with start_stage(tmp_path_factory.mktemp("fuzz") / "access.log", 1, path="auto") as stage:
        stage.prefills[0].fault = Fault(status=200, body=PREFILLED)
        stage.decodes[0].fault = Fault(status=200, body=DECODED)
        yield stage


@pytest.fixture(scope="module")
def api(stage):
    return schemathesis.openapi.from_url(stage.client.url + "/openapi.json")


@pytest.mark.parametrize(("path", "method", "mode"), CASES)
def test_no_request_breaks_the_router(stage, api, path, method, mode):
    @hypothesis.given(case=api[path][method].as_strategy(generation_mode=mode))
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize="FUZZ_EXAMPLES" not in os.environ,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def ask(case):
        response = case.call()
        case.validate_response(response, checks=CHECKS)
        if response.status_code >= 400 and response.request.method != "HEAD":
            check_error(path, response)

    ask()
    failed = stage.client.metric("pd_router_requests_total", outcome="internal-error")
    assert failed == 0
    assert stage.client.ask("GET", "/health").status == 200
    for engine in stage.engines:
        engine.seen.clear()


def check_error(path, response):
    """An error of the router: the engines give none."""
    told = response.json()
    anthropic = path in set(Endpoint) and DIALECTS[Endpoint(path)].errors == "anthropic"
    assert (told.get("type") == "error") == anthropic or response.status_code in (400, 413, 431)
    assert told["error"]["message"]
    assert told["error"]["type"]
    assert "Traceback" not in response.text
