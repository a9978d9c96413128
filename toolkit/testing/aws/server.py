"""The stand-in's HTTP server: moto's application, with time, a record of calls and the controls around it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qs

import botocore.session
from moto.moto_api._internal import mock_random
from moto.moto_api._internal.models import moto_api_backend
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import BaseWSGIServer, make_server

from toolkit.testing.aws import (
    account,
    image_build,
    moto_buckets,
    moto_capacity,
    moto_fleet,
    moto_instances,
    moto_logs,
    moto_network,
    moto_policies,
    moto_quotas,
    moto_refusals,
    moto_resources,
    moto_stacks,
    moto_storage,
)
from toolkit.testing.aws.calls import Call
from toolkit.testing.aws.operation import Request, is_dry_run, name_operation
from toolkit.testing.aws.scenario import Scenario
from toolkit.testing.aws.simulation import simulation
from toolkit.testing.aws.stack_life import lives

CONTROL = "/_standin/"
# The stand-in's own calls, which seed the account and play the fleet, are signed so and not recorded.
OWN_KEY = "standin"

StartResponse = Callable[..., Any]
Environ = dict[str, Any]


class Application:
    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._clients: account.Clients | None = None
        self.ids: dict[str, str] = {}

    def open(self, url: str) -> None:
        """Replaces moto's parts and seeds; needs the server to answer already."""
        self._clients = _clients(url)
        for part in (
            moto_policies,
            moto_buckets,
            moto_capacity,
            moto_instances,
            moto_logs,
            moto_network,
            moto_quotas,
            moto_refusals,
            moto_resources,
            moto_storage,
        ):
            part.install()
        moto_stacks.install(self._clients)
        moto_fleet.install(self._clients)
        # Twice: the first seed makes moto's services, which takes random numbers and so shifts the ids.
        self.reset()
        self.reset()

    def reset(self) -> dict[str, str]:
        assert self._clients is not None
        with simulation.lock:
            moto_api_backend.reset()
            mock_random.seed(20260101)  # the same ids after each reset
            lives.forget()
            simulation.reset()
            self.ids = account.seed(self._clients)
        return self.ids

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"].startswith(CONTROL):
            return self._control(environ, start_response)
        request = _request(environ)
        if request.access_key == OWN_KEY:
            return self._moto_answers(environ, start_response)
        with simulation.lock:
            lives.advance()
        statuses: list[str] = []

        def start(status: str, *rest: Any, **options: Any) -> Any:
            statuses.append(status)
            return start_response(status, *rest, **options)

        operation = name_operation(request)
        try:
            if request.service == "imagebuilder":
                start("200 OK", [("Content-Type", "application/json")])
                return [image_build.answer(operation, parse_qs(request.query))]
            return list(self._moto_answers(environ, start))
        finally:
            # No status: moto has no such operation, or broke; the client gets 500.
            ok = bool(statuses) and statuses[0] < "400"
            simulation.calls.append(Call(request.service, operation, ok, is_dry_run(request)))

    def _moto_answers(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        answered: Iterable[bytes] = self._moto(environ, start_response)
        return answered

    def _control(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        action = environ["PATH_INFO"].removeprefix(CONTROL)
        status, answer = "200 OK", self._controlled(action, _body(environ))
        if answer is None:
            status, answer = "404 Not Found", {"error": f"no control {action!r}"}
        start_response(status, [("Content-Type", "application/json")])
        return [json.dumps(answer).encode()]

    def _controlled(self, action: str, body: bytes) -> Any:
        match action:
            case "reset":
                return self.reset()
            case "ids":
                return self.ids
            case "script":
                changes = json.loads(body)
                with simulation.lock:
                    now = {**asdict(simulation.scenario), **changes}
                    simulation.scenario = Scenario(**{**now, "host_keys": tuple(now["host_keys"])})
                return asdict(simulation.scenario)
            case "calls":
                return [asdict(call) for call in simulation.calls]
            case "forget":
                simulation.calls.clear()
                return []
        return None


def serve(application: Application, port: int) -> BaseWSGIServer:
    """A bound server that is not yet running; port 0 takes a free one."""
    return make_server("127.0.0.1", port, application, threaded=True, request_handler=MotoRequestHandler)


def _clients(url: str) -> account.Clients:
    session = botocore.session.get_session()

    def client(service: str) -> Any:
        return session.create_client(
            service,
            region_name=account.REGION,
            endpoint_url=url,
            aws_access_key_id=OWN_KEY,
            aws_secret_access_key=OWN_KEY,
        )

    return account.Clients(
        ec2=client("ec2"),
        s3=client("s3"),
        fsx=client("fsx"),
        logs=client("logs"),
        dynamodb=client("dynamodb"),
        cloudformation=client("cloudformation"),
    )


def _request(environ: Environ) -> Request:
    form = ""
    if environ.get("CONTENT_TYPE", "").startswith("application/x-www-form-urlencoded"):
        body = _body(environ)
        environ["wsgi.input"] = io.BytesIO(body)
        form = body.decode()
    return Request(
        method=environ["REQUEST_METHOD"],
        path=environ["PATH_INFO"],
        query=environ.get("QUERY_STRING", ""),
        authorization=environ.get("HTTP_AUTHORIZATION", ""),
        target=environ.get("HTTP_X_AMZ_TARGET", ""),
        form=form,
    )


def _body(environ: Environ) -> bytes:
    body: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    return body
