"""The engines of the soak: processes of fakes that can be killed, frozen and started again where they were.

python -m bench.router.soak_engines ROLE:PORT ... is one of them.
"""

from __future__ import annotations

import asyncio
import ctypes
import random
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from bench.router import BenchFailed
from bench.router.soak_talk import spell
from toolkit.testing.fake_engine import FakeEngine, Seen
from toolkit.testing.fake_handles import Blocks

# Prefill reads the blocks of a decode engine in its own process; what it is offered of others it declines.
PROCESSES = (("prefill", "decode"), ("prefill", "decode"), ("prefill",), ("decode",))
PORTS = range(20_000, 30_000)
"""No connection is made from these, so an engine finds its port free when it comes back."""
TOKEN_S = 0.004
NONSENSE = "the blocks of another prompt"


def spell_checked(seen: Seen, prompt: bytes) -> list[str]:
    """The answer to a prompt, unless the request brings blocks of another one."""
    asked = seen.body.get("kv_transfer_params") or {}
    own = Blocks(prompt, "", "", stock=False).for_decode({})["pd_proof"]
    fits = not asked.get("do_remote_prefill") or asked["pd_proof"] == own
    return spell(prompt) if fits else [NONSENSE]


async def run_engines(places: Sequence[str]) -> None:
    """What one engine process does: serves each `role:port`."""
    servers = []
    for place in places:
        role, _, port = place.partition(":")
        engine = FakeEngine("prefill" if role == "prefill" else "decode", f"{role}{port}", token_s=TOKEN_S)
        engine.spell, engine.generation = spell_checked, secrets.token_hex(4)
        config = uvicorn.Config(engine, port=int(port), ws="none", lifespan="off", log_level="error")
        servers.append(uvicorn.Server(config).serve())
    await asyncio.gather(*servers)


@dataclass
class Engines:
    """One process of the fleet. `busy`: it is being killed or frozen just now."""

    places: tuple[str, ...]
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)
    busy: bool = False

    def start(self) -> None:
        self.process = started(self.log, sys.executable, "-m", "bench.router.soak_engines", *self.places)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def urls(self, role: str) -> list[str]:
        return [
            f"http://127.0.0.1:{place[len(role) + 1 :]}" for place in self.places if place.startswith(role)
        ]


@contextmanager
def fleet(folder: Path) -> Iterator[list[Engines]]:
    ports = iter(free_ports(sum(map(len, PROCESSES))))
    made = [
        Engines(tuple(f"{role}:{next(ports)}" for role in roles), folder / f"engines-{number}.log")
        for number, roles in enumerate(PROCESSES)
    ]
    try:
        for one in made:
            one.start()
        yield made
    finally:
        for one in made:
            one.kill()


def started(log: Path, *command: str) -> subprocess.Popen[bytes]:
    """A process of the soak, which does not outlive it."""
    with log.open("ab") as sink:
        return subprocess.Popen(
            command,
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL),
        )


def free_ports(count: int) -> list[int]:
    """Raises BenchFailed: there are not so many."""
    found: list[int] = []
    for port in random.sample(PORTS, 200):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise BenchFailed(f"no {count} ports between {PORTS.start} and {PORTS.stop} are free")


if __name__ == "__main__":
    asyncio.run(run_engines(sys.argv[1:]))
