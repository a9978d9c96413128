"""The routers under test: their command lines, and one of them as a process pinned to its core."""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.router import BenchFailed
from bench.router.client import Door
from toolkit.testing.serving import free_port

ROOT = Path(__file__).parents[2]
READY_S = 30.0
STOP_S = 15.0

FORMS = {"compiled": ".venv-compiled", "interpreted": ".venv"}
"""Of our router, and the environments that `make compiled` and `make install` put them into."""
OURS = "bin/toolkit router serve --host 127.0.0.1 --port {port} --prefill {prefill} --decode {decode}"
SWITCHED_ON = {
    "--access-log": "{folder}/access.log",
    "--api-keys": "{folder}/api-keys",
    "--map-file": "{folder}/map.sqlite",
    "--lease-secret-file": "{folder}/lease-secret",
    "--lease-hold": "900",
}
"""Everything of ours that costs something and is off unless an option says otherwise."""
_INTERPRETER = """
import platform
shared = "libpython" in open("/proc/self/maps").read()
print("Python", platform.python_version() + (" with a shared libpython" if shared else ""))
"""
PEER = (
    "{peer} --vllm-pd-disaggregation --kv-connector nixl --policy round_robin --log-level warning"
    " --host 127.0.0.1 --port {port} --prefill {prefill} --decode {decode} --prometheus-port {free}"
    " --worker-startup-check-interval 1"
)
"""In its cheapest form: the other policies look into the text, and at level info it logs requests."""
BARE = "{python} -m bench.router.bare --port {port} --decode {decode}"


class TargetFailed(BenchFailed):
    """A router did not start; the text has the end of its log."""


@dataclass(frozen=True, slots=True)
class Places:
    """What a command line is filled in with."""

    prefill: str
    decode: str
    folder: Path
    peer: Path


@dataclass(frozen=True, slots=True)
class Router:
    """A router that runs."""

    door: Door
    pid: int


def our_command(form: str) -> tuple[str, tuple[str, ...]]:
    """The command line of our router in that form with everything on, and the options that it lacks.

    Raises:
        TargetFailed: it does not run at all.
    """
    ours = f"{FORMS[form]}/{OURS}"
    asked = [*shlex.split(ours)[:3], "--help"]
    if not (ROOT / asked[0]).exists():
        raise TargetFailed(f"there is no {asked[0]}\nNext: make install compiled")
    shown = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    if shown.returncode:
        raise TargetFailed(f"{' '.join(asked)}: {shown.stderr.strip()}\nNext: make install compiled")
    has = {option for option in SWITCHED_ON if option in shown.stdout}
    on = " ".join(f"{option} {value}" for option, value in SWITCHED_ON.items() if option in has)
    return f"{ours} {on}".strip(), tuple(option for option in SWITCHED_ON if option not in has)


def interpreter(form: str) -> str:
    """What our router in that form runs on; that libpython is shared is said, since it costs a fifth."""
    told = subprocess.run(
        [f"{FORMS[form]}/bin/python", "-c", _INTERPRETER],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return told.stdout.strip()


@asynccontextmanager
async def running(name: str, template: str, places: Places, core: int) -> AsyncIterator[Router]:
    """The router `name`, pinned to `core`, while it is needed.

    Raises:
        TargetFailed: it ended, or does not answer /health within READY_S.
    """
    folder = places.folder / name
    folder.mkdir()
    key = _secrets(folder)
    port, free = free_port(), free_port()
    filled = template.format(
        port=port,
        free=free,
        folder=folder,
        prefill=places.prefill,
        decode=places.decode,
        peer=places.peer,
        python=sys.executable,
    )
    log = folder / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            shlex.split(filled),
            cwd=ROOT,
            stdout=sink,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: _pinned_and_mortal(core),
        )
    try:
        await _ready(process, port, name, log)
        yield Router(Door(name, port, key), process.pid)
    finally:
        await asyncio.to_thread(_end, process)


def _secrets(folder: Path) -> str:
    """Writes the files of SWITCHED_ON that must be there before; gives the API key of the clients."""
    key = secrets.token_urlsafe(24)
    for name, text in (("api-keys", f"bench:{key}\n"), ("lease-secret", secrets.token_urlsafe(24))):
        path = folder / name
        path.touch(mode=0o600)
        path.write_text(text)
    return key


def _pinned_and_mortal(core: int) -> None:
    """In the child: its core, and its end when the benchmark is killed."""
    os.sched_setaffinity(0, {core})
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


async def _ready(process: subprocess.Popen[bytes], port: int, name: str, log: Path) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + READY_S
    while not await asyncio.to_thread(_healthy, port):
        if process.poll() is not None or loop.time() > end:
            tail = log.read_text(errors="replace")[-2000:]
            raise TargetFailed(
                f"{name} did not get ready within {READY_S:.0f} s. The end of its log:\n{tail}"
            )
        await asyncio.sleep(0.1)


def _healthy(port: int) -> bool:
    with suppress(OSError, urllib.error.URLError):
        return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).status == 200)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
            return
    print(f"process {process.pid} did not end", file=sys.stderr)
