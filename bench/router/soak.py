"""Mixed load on our router, while engines are killed and frozen and clients leave, for as long as wanted.

python -m bench.router.soak --minutes 20

All four endpoints, streamed and not, of several tenants. Decode spells its answer from the prompt, and
nonsense where it is given another prompt's blocks: each answer is compared with what must come. Exit code 1:
something was wrong; 2: it could not begin.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from bench.router import BenchFailed
from bench.router.soak_engines import Engines, fleet, free_ports, started
from bench.router.soak_talk import FORMS, TENANTS, Client, Tally

READY_S, REST_S = 60.0, 30.0
RETURN_S = 90.0
"""The router keeps an engine that failed often away for a minute at most."""
FREEZES = 0.25
TTL_S, HOLD_S = 15, 30
"""So long the router remembers a handle, and a conversation: then its map is as large as it gets."""
GROWTH_BYTES, GROWTH_PER_REQUEST = 2 << 20, 100
"""The memory may grow by the larger of these after the first third of the run, in which the map fills."""
LOG_FAULT = re.compile(r"Traceback|never retrieved|never awaited|failed inside the router")
ESTABLISHED, CLOSE_WAIT = "01", "08"


@dataclass
class Watched:
    """The router process and what is seen of it from outside."""

    process: subprocess.Popen[bytes]
    port: int
    key: str
    engine_ports: frozenset[int]
    samples: list[tuple[float, int, int]] = field(default_factory=list)
    """Requests that ended, bytes of memory, open files: each second."""

    def get(self, path: str) -> Any:
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", headers={"authorization": f"Bearer {self.key}"}
        )
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return json.load(answer)

    def ready(self) -> bool:
        """Every engine gets traffic."""
        with suppress(OSError):
            return all(leg["healthy"] for leg in self.get("/router/state")["legs"])
        return False

    def sample(self) -> None:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        ended = self.get("/router/state")["requests"]["total"]
        self.samples.append((ended, pages * os.sysconf("SC_PAGE_SIZE"), self.files()))

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def connections(self) -> Counter[str]:
        """The router's: of clients, to engines, and those that the other side has closed and ours has not."""
        counted: Counter[str] = Counter()
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, remote, state, *_ = line.split()
            ours, theirs = int(local.partition(":")[2], 16), int(remote.partition(":")[2], 16)
            side = "clients" if ours == self.port else "engines" if theirs in self.engine_ports else None
            if side is not None and state in (ESTABLISHED, CLOSE_WAIT):
                counted["half closed" if state == CLOSE_WAIT else side] += 1
        return counted

    def still_at_work(self) -> list[str]:
        """What should have come to rest, and has not."""
        state, open_now = self.get("/router/state"), self.connections()
        legs = state["legs"]
        checks = {
            "requests": state["queue"]["running"] + state["queue"]["waiting"],
            "requests on engines": sum(leg["in_flight"] for leg in legs),
            "pending tokens": sum(leg["pending_tokens"] for leg in legs),
            "half-closed connections": open_now["half closed"],
            # The one that asks may still be there, and each engine has one that is asked for its health.
            "connections of clients": max(0, open_now["clients"] - 1),
            "connections to engines": max(0, open_now["engines"] - len(legs)),
        }
        return [f"{count} {name}" for name, count in checks.items() if count]


@contextmanager
def router(folder: Path, engines: Sequence[Engines], keys: Sequence[str]) -> Iterator[Watched]:
    """Our router with all that is off by default; waited for until all engines get traffic."""
    (port,) = free_ports(1)
    file = folder / "keys"
    file.touch(mode=0o600)
    file.write_text("".join(f"tenant-{number}:{key}\n" for number, key in enumerate(keys)))
    urls = [(role, url) for one in engines for role in ("prefill", "decode") for url in one.urls(role)]
    process = started(
        folder / "router.log",
        *(sys.executable, "-P", "-m", "toolkit", "router", "serve", "--port", str(port)),
        *(word for role, url in urls for word in (f"--{role}", url)),
        *("--api-keys", str(file), "--access-log", str(folder / "access.log")),
        *("--map-file", str(folder / "map.sqlite"), "--ttl", str(TTL_S), "--lease-hold", str(HOLD_S)),
        *("--health-interval", "0.5", "--max-concurrent", "24", "--drain-timeout", "10"),
    )
    ports = frozenset(int(url.rpartition(":")[2]) for _, url in urls)
    try:
        yield Watched(process, port, keys[0], ports)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


async def trouble(engines: Sequence[Engines], until: float, tally: Tally, source: random.Random) -> None:
    """Kills and freezes engines, several at a time; all are started again when it returns."""

    async def strike(one: Engines) -> None:
        if source.random() < FREEZES:
            tally.counts["freezes"] += 1
            one.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(source.uniform(0.5, 4))
            one.process.send_signal(signal.SIGCONT)
        else:
            tally.counts["kills"] += 1
            one.kill()
            await asyncio.sleep(source.uniform(0.2, 3))
            one.start()
        # It needs a moment before it serves at all.
        await asyncio.sleep(source.uniform(1, 4))
        one.busy = False

    async with asyncio.TaskGroup() as strikes:
        while time.monotonic() < until:
            await asyncio.sleep(source.uniform(0.5, 4))
            one = source.choice(engines)
            if one.process.poll() is not None and not one.busy:
                tally.fault(f"the engines {one.places} ended by themselves; {one.log.name} says why")
                one.start()
            elif not one.busy:
                one.busy = True
                strikes.create_task(strike(one))


async def watch(watched: Watched, tally: Tally) -> None:
    """Samples until it is cancelled."""
    for second in range(1, sys.maxsize):
        await asyncio.sleep(1)
        try:
            await asyncio.to_thread(watched.sample)
        except OSError as error:
            tally.fault(f"the router does not tell its state: {error}")
            continue
        if second % 15 == 0:
            ended, memory, files = watched.samples[-1]
            shown = f"{ended} requests ended, {memory / 1e6:.1f} MB, {files} files"
            counts = tally.counts
            print(f"{second} s: {shown}, {counts['kills']} kills, {counts['faults']} faults", file=sys.stderr)


async def until_true(what: str, seconds: float, true: Any) -> str | None:
    """None, or what did not come true in time."""
    end = time.monotonic() + seconds
    while not await asyncio.to_thread(true):
        if time.monotonic() > end:
            return what
        await asyncio.sleep(0.2)
    return None


async def soak(given: argparse.Namespace, folder: Path, tally: Tally) -> Watched:
    """All of it. Raises BenchFailed: it could not begin."""
    source, keys = random.Random(given.seed), [secrets.token_urlsafe(16) for _ in range(TENANTS)]
    with ExitStack() as stack:
        engines = stack.enter_context(fleet(folder))
        watched = stack.enter_context(router(folder, engines, keys))
        if failed := await until_true("not all engines got traffic", READY_S, watched.ready):
            raise BenchFailed(f"{failed}; {folder / 'router.log'} says why")
        files = watched.files()
        until = time.monotonic() + 60 * given.minutes
        clients = [
            Client(watched.port, keys, tally, random.Random(f"{given.seed}-{n}"))
            for n in range(given.clients)
        ]
        watching = asyncio.create_task(watch(watched, tally))
        await asyncio.gather(trouble(engines, until, tally, source), *(one.run(until) for one in clients))
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await settle(watched, Client(watched.port, keys, tally, source), tally, files)
    return watched


async def settle(watched: Watched, client: Client, tally: Tally, files: int) -> None:
    """Everything works again, comes to rest and ends."""
    if failed := await until_true("an engine that is back gets no traffic", RETURN_S, watched.ready):
        tally.fault(failed)
    wrong = tally.counts["requests"], sum(tally.right.values())
    for form in FORMS:
        await client.converse(form, leaves=0)
    client.close()
    asked, right = tally.counts["requests"] - wrong[0], sum(tally.right.values()) - wrong[1]
    if asked != right:
        tally.fault(f"of {asked} requests after the trouble {asked - right} were not answered")
    # The look that the wait ended with counts: each one may see its own connection being closed.
    looks: list[list[str]] = []

    def at_rest() -> bool:
        looks.append(watched.still_at_work())
        return not looks[-1]

    await until_true("rest", REST_S, at_rest)
    for left in looks[-1]:
        tally.fault(f"{left} when nobody asked any more")
    if (now := watched.files()) > files + len(watched.engine_ports):
        tally.fault(f"{now} open files, {files} before the load")
    watched.process.terminate()
    try:
        code = await asyncio.to_thread(watched.process.wait, REST_S)
    except subprocess.TimeoutExpired:
        tally.fault("the router does not end")
    else:
        if code:
            tally.fault(f"the router ended with code {code}")


def growth(samples: Sequence[tuple[float, int, int]]) -> tuple[float, float]:
    """Bytes of memory and requests between the second and the last sixth of the last two thirds."""
    rest = samples[len(samples) // 3 :]
    sixth = max(1, len(rest) // 6)
    early, late = rest[:sixth], rest[-sixth:]

    def median(part: Sequence[tuple[float, int, int]], which: int) -> float:
        return statistics.median(each[which] for each in part)

    return median(late, 1) - median(early, 1), median(late, 0) - median(early, 0)


def judge(watched: Watched, folder: Path, tally: Tally) -> list[str]:
    """Adds what only the whole run tells; gives the lines of the report."""
    grown, requests = growth(watched.samples)
    filled = len(watched.samples) >= 6 * HOLD_S
    if filled and grown > max(GROWTH_BYTES, GROWTH_PER_REQUEST * requests):
        tally.fault(f"memory grew by {grown / 1e6:.1f} MB in {requests:.0f} requests")
    faults = [line for line in (folder / "router.log").read_text().splitlines() if LOG_FAULT.search(line)]
    for line in faults[:5]:
        tally.fault(f"the router's log: {line}")
    outcomes: Counter[str] = Counter()
    for line in (folder / "access.log").read_text().splitlines():
        outcomes.update(re.findall(r" (?:outcome|readback|identity|reason)=\S+", line))
    if outcomes[" outcome=internal-error"]:
        tally.fault(f"{outcomes[' outcome=internal-error']} requests failed inside the router")
    seen = {**tally.counts, **tally.right, "reads": outcomes[" readback=hit"]}
    needed = ["kills", "left", "spies", "reads", "path: decode-local", "path: readback", "path: prefill"]
    needed += [f"{form.path} {mode}" for form in FORMS for mode in ("stream", "whole")]
    for name in needed:
        if not seen.get(name):
            tally.fault(f"nothing was tried of: {name}")
    memory = [each[1] for each in watched.samples]
    return [
        *(f"{name}: {count}" for name, count in sorted(seen.items())),
        *(f"log:{name}: {count}" for name, count in sorted(outcomes.items())),
        f"memory: {memory[0] / 1e6:.1f} MB at the start, {max(memory) / 1e6:.1f} at most, "
        f"{memory[-1] / 1e6:.1f} at the end; {grown / 1e6:+.2f} MB in the last {requests:.0f} requests"
        f"{'' if filled else ', too short a run to judge that'}",
        f"open files: {max(each[2] for each in watched.samples)} at most",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.router.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--clients", type=int, default=32, metavar="N", help="that ask at the same time")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the load; when what is killed, the clock tells"
    )
    parser.add_argument("--folder", type=Path, help="where logs are left; default: nowhere")
    given = parser.parse_args()
    kept = nullcontext(given.folder) if given.folder else tempfile.TemporaryDirectory()
    with kept as name:
        folder, tally = Path(name), Tally()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            watched = uvloop.run(soak(given, folder, tally))
        except BenchFailed as error:
            print(f"soak: {error}", file=sys.stderr)
            return 2
        report = judge(watched, folder, tally)
    print("\n".join(report))
    print(
        f"{given.minutes:g} minutes: {tally.counts['faults']} faults" if tally.faults else "nothing was wrong"
    )
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
