"""The stand-in from outside: starts it as a process, tells it what to let happen, asks what it was asked."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.testing.aws.calls import Call
from toolkit.testing.aws.scenario import Scenario

_START_SECONDS = 60.0


class Standin:
    """A running stand-in. `ids` names what its account has: see toolkit/testing/aws/account.py."""

    def __init__(self, url: str, ids: Mapping[str, str]) -> None:
        self.url = url
        self.ids = dict(ids)

    @property
    def environment(self) -> dict[str, str]:
        """What makes an AWS client use the stand-in, and nothing else: no profile, no other credentials."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_SESSION_TOKEN": "testing",
            "AWS_DEFAULT_REGION": "ap-south-1",
            "AWS_REGION": "ap-south-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def reset(self) -> None:
        """A new account, whose `ids` are to be read anew; the default scenario; no call is remembered."""
        self.ids = self._ask("reset", {})

    def script(self, **changes: Any) -> Scenario:
        """Changes fields of the Scenario from now on, for stacks that are made, changed or deleted later."""
        Scenario(**changes)  # refuses what there is not
        now = self._ask("script", changes)
        return Scenario(**{**now, "host_keys": tuple(now["host_keys"])})

    def calls(self) -> tuple[Call, ...]:
        """Every call since the start or the last `reset` or `forget_calls`, in order."""
        return tuple(Call(**each) for each in self._ask("calls"))

    def creating_calls(self) -> tuple[Call, ...]:
        """Those that made, changed or removed something, or tried to."""
        return tuple(call for call in self.calls() if call.creating)

    def forget_calls(self) -> None:
        self._ask("forget", {})

    def _ask(self, action: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/_standin/{action}", data=data)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            return json.load(answer)


@contextmanager
def aws_standin(port: int = 0) -> Iterator[Standin]:
    """Starts the stand-in on a free loopback port and stops it at the end. It also ends with this process,
    however that ends. Raises ToolkitError with its last words if it does not come up."""
    with tempfile.TemporaryDirectory(prefix="pd-aws-") as folder:
        state, log = Path(folder) / "state.json", Path(folder) / "log"
        argv = [sys.executable, "-m", "toolkit.testing.aws", "--port", str(port), "--state", str(state)]
        with (
            log.open("w") as output,
            subprocess.Popen(
                [*argv, "--until-eof"], stdin=subprocess.PIPE, stdout=output, stderr=output
            ) as process,
        ):
            try:
                _wait(process, state, log)
                known = json.loads(state.read_text())
                yield Standin(known["url"], known["ids"])
            finally:
                process.terminate()


def _wait(process: subprocess.Popen[bytes], state: Path, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not state.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
            raise ToolkitError(
                f"the AWS stand-in did not start:\n{tail}",
                next_step="install its parts: pip install 'pd-toolkit[dev]'",
            )
        time.sleep(0.05)
