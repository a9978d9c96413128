"""Real vLLM engines for the tests: started, asked, and ended with everything they leave behind."""

import contextlib
import ctypes
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIRST_TURN = {"do_remote_decode": True, "do_remote_prefill": False}
CONNECTOR = {"kv_connector": "NixlConnector", "kv_connector_module_path": "pd_connector.connector"}
READY_SECONDS = 240


def free_port() -> int:
    """Below those that Linux gives to outgoing connections: an engine takes its port only a minute later."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


@dataclass
class Engine:
    name: str
    port: int
    log: Path
    process: subprocess.Popen[bytes]
    side_port: int
    lease_secret: str | None = None

    def open(self, path: str, text: str | None = None, seconds: float = 60) -> Any:
        """GET, or POST where there is a body; raises TimeoutError when nothing comes for so long."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            None if text is None else text.encode(),
            {"Content-Type": "application/json", "X-Request-Id": "fixed"},
        )
        if self.lease_secret is not None and path.startswith("/pd/"):
            request.add_header("Authorization", f"Bearer {self.lease_secret}")
        return urllib.request.urlopen(request, timeout=seconds)

    def post(self, path: str, body: dict[str, Any], seconds: float = 60) -> tuple[int, str]:
        return self.post_text(path, json.dumps(body), seconds)

    def post_text(self, path: str, text: str, seconds: float = 60) -> tuple[int, str]:
        """A body as it is, status and answer."""
        try:
            with self.open(path, text, seconds) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        status, text = self.post(path, body)
        assert status == 200, f"{self.name}: {status} {text[:500]}"
        return json.loads(text)

    def complete(
        self, prompt: list[int], tokens: int, kv: dict[str, Any] | None = None, **more: Any
    ) -> dict[str, Any]:
        return self.ask("/v1/completions", completion(prompt, tokens, kv, **more))

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def healthy(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).status == 200
            )
        return False

    def metric(self, name: str) -> float:
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5).read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    def leases(self, operation: str, *names: str) -> dict[str, dict[str, Any]]:
        """The answers of POST /pd/leases/..., per lease."""
        return self.ask(f"/pd/leases/{operation}", {"leases": names})["leases"]

    def lease_counts(self) -> dict[str, int]:
        with self.open("/pd/leases") as answer:
            return json.load(answer)

    def kill(self) -> None:
        """All its processes at once, without a chance to say good-bye."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def kv_used(self) -> float:
        return self.metric("vllm:kv_cache_usage_perc")


def completion(prompt: Any, tokens: int, kv: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    body = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 1,
        "return_token_ids": True,
        **more,
    }
    return body if kv is None else body | {"kv_transfer_params": kv}


def produced(answer: dict[str, Any]) -> tuple[list[int], list[float]]:
    """Token ids and rounded log-probabilities; the latter tell a wrong KV before the tokens do."""
    choice = answer["choices"][0]
    return choice["token_ids"], [round(p, 3) for p in choice["logprobs"]["token_logprobs"]]


def words(count: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(300, 1000) for _ in range(count)]


def eventually(condition: Callable[[], bool], what: str, seconds: float = 45) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.1)


@contextlib.contextmanager
def engine(
    name: str,
    model: Path,
    core: int,
    folder: Path,
    transfer: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
    wait: bool = True,
    options: Sequence[str] = (),
    ports: tuple[int, int] | None = None,
    python: str = sys.executable,
) -> Iterator[Engine]:
    """`ports` are those of HTTP and of NIXL's handshake, for an engine that comes back where it was; `python`
    is the one that has vLLM."""
    (port, side), log = ports or (free_port(), free_port()), folder / f"{name}.log"
    arguments = [
        *("taskset", "-c", str(core), python, "-m", "vllm.entrypoints.cli.main", "serve", str(model)),
        *("--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--block-size", "32", "--enforce-eager", "--max-num-seqs", "8"),
        *("--enable-prompt-tokens-details", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    ]
    arguments += options
    if transfer is not None:
        arguments += ["--kv-transfer-config", json.dumps(transfer)]
    settings = {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_LOG_STATS_INTERVAL": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TMPDIR": str(folder),
    }
    shared_before = set(Path("/dev/shm").glob("psm_*"))
    with log.open("wb") as sink:
        process = subprocess.Popen(
            arguments,
            env=os.environ | settings | (environ or {}),
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    started = Engine(name, port, log, process, side)
    try:
        if wait:
            wait_ready(started)
        yield started
    finally:
        _end(process)
        for path in set(Path("/dev/shm").glob("psm_*")) - shared_before:
            if _orphan(path):
                path.unlink(missing_ok=True)


def wait_ready(started: Engine) -> None:
    end = time.monotonic() + READY_SECONDS
    while not started.healthy():
        if started.process.poll() is not None or time.monotonic() > end:
            raise AssertionError(f"{started.name} did not start:\n{started.text()[-4000:]}")
        time.sleep(0.5)


def warm_up(started: Engine) -> None:
    """An engine's first forward takes seconds on its own."""
    status, text = started.post("/v1/completions", completion(words(150, 0), 2), READY_SECONDS)
    assert status == 200, f"{started.name}: {status} {text[:500]}"


def _die_with_parent() -> None:
    """A test run that is killed runs no clean-up; its engines must not outlive it."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number, patience in ((signal.SIGTERM, 20), (signal.SIGKILL, 10)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            break
    # The server may be gone before its engine processes; none of the group may stay.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _orphan(path: Path) -> bool:
    """Nobody maps it any more: other engines of this machine keep theirs."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if str(path) in maps.read_text():
                return False
    return True
