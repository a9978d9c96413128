"""One run of a deployment: which Slurm jobs it is made of, on which nodes, with which files. Pure.

`submit(settings)` is `execute(render(plan_run(settings)))`; nothing below a plan decides anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from toolkit.errors import SettingsError
from toolkit.plan.embedded import GPU_PARTITION, ROUTER_PARTITION
from toolkit.plan.run_folder import RunFolder
from toolkit.plan.serve import Role, engine_environment, leg_of, vllm_arguments
from toolkit.settings.deployment import Deployment
from toolkit.settings.target import EmbeddedTarget

ROUTER = "router"
SWEEP = "sweep"


@dataclass(frozen=True)
class Allocation:
    """What a job asks of Slurm."""

    partition: str
    node: str | None  # a node of that name, or Slurm's choice
    gpus: int
    exclusive: bool
    time_limit_minutes: int


@dataclass(frozen=True)
class EngineJob:
    """One `vllm serve`: a leg is its replicas, one job each."""

    name: str
    role: Role
    allocation: Allocation
    environment: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...]
    port: int
    side_channel_port: int


@dataclass(frozen=True)
class RouterJob:
    name: str
    allocation: Allocation
    port: int
    arguments: tuple[str, ...]  # of `toolkit router serve`, which takes the engines' addresses too
    prefill: tuple[str, ...]  # names of the engine jobs whose addresses it waits for
    decode: tuple[str, ...]


@dataclass(frozen=True)
class SweepJob:
    name: str
    allocation: Allocation


@dataclass(frozen=True)
class Places:
    """Folders on the cluster that job scripts name."""

    engine_env: PurePosixPath
    toolkit_python: PurePosixPath
    model: str  # hub id or folder


@dataclass(frozen=True)
class RunPlan:
    """`name`: of the run, part of every Slurm job name."""

    name: str
    folder: RunFolder
    places: Places
    engines: tuple[EngineJob, ...]
    router: RouterJob
    sweep: SweepJob | None

    @property
    def jobs(self) -> tuple[EngineJob | RouterJob | SweepJob, ...]:
        """In the order of submission."""
        return (*self.engines, self.router, *((self.sweep,) if self.sweep else ()))


def plan_run(
    settings: Deployment, name: str, runs: PurePosixPath, places: Places, *, sweep: bool = False
) -> RunPlan:
    """The jobs of the run `name` below `runs` (absolute, on the cluster); with the benchmark client if
    `sweep`. Raises SettingsError for a name or folder that Slurm can't take."""
    folder = runs / name
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}(/(off|on))?", name):
        raise SettingsError(
            f"run name {name!r}: letters, digits, '.', '_' and '-' only, at most 81.",
            next_step="give another --name",
        )
    _absolute_and_plain(folder)
    engines = tuple(
        _engine(settings, role, index, places)
        for role in ("prefill", "decode")
        for index in range(1, leg_of(settings, role).replicas + 1)
    )
    router = RouterJob(
        name=ROUTER,
        allocation=_beside_router(settings, settings.router.time_limit_minutes),
        port=settings.router.port,
        arguments=_router_arguments(settings, RunFolder(folder)),
        prefill=tuple(job.name for job in engines if job.role == "prefill"),
        decode=tuple(job.name for job in engines if job.role == "decode"),
    )
    client = SweepJob(SWEEP, _beside_router(settings, settings.sweep.time_limit_minutes)) if sweep else None
    return RunPlan(name.replace("/", "-"), RunFolder(folder), places, engines, router, client)


def places_of(settings: Deployment, base: Path, toolkit_python: Path) -> Places:
    """Where the engine, this toolkit and the model are on the target.

    `base`: folder that an embedded target's relative paths start from; `toolkit_python`: the interpreter
    that runs this toolkit, which the embedded cluster shares.
    """
    target = settings.target
    model = settings.model.name
    if model.startswith(("./", "../")):
        model = str(base / model)
    if isinstance(target, EmbeddedTarget):
        if "/" not in model:
            model = str((base / target.root).resolve() / "models" / model)
        return Places(PurePosixPath(base / target.engine_env), PurePosixPath(toolkit_python), model)
    return Places(
        PurePosixPath(target.engine_env), PurePosixPath(target.toolkit_env) / "bin" / "python", model
    )


def runs_folder(settings: Deployment, base: Path) -> PurePosixPath:
    """Where the target keeps its run folders."""
    return PurePosixPath(base / settings.target.runs_dir)


def _engine(settings: Deployment, role: Role, index: int, places: Places) -> EngineJob:
    leg = leg_of(settings, role)
    target = settings.target
    name = f"{role}-{index}"
    return EngineJob(
        name=name,
        role=role,
        allocation=Allocation(
            partition=GPU_PARTITION if isinstance(target, EmbeddedTarget) else target.gpu_partition,
            node=name if isinstance(target, EmbeddedTarget) else None,
            gpus=leg.tensor_parallel,
            # Two servers of one node would share its rails and ports.
            exclusive=True,
            time_limit_minutes=leg.time_limit_minutes,
        ),
        environment=(*_lease_secret(settings, role), *engine_environment(settings, role)),
        arguments=vllm_arguments(settings, role, index, places.model),
        port=leg.port,
        side_channel_port=leg.side_channel_port,
    )


def _router_arguments(settings: Deployment, folder: RunFolder) -> tuple[str, ...]:
    router = settings.router
    return (
        *("--host", "0.0.0.0", "--port", str(router.port)),
        *("--path", router.path, "--decode-local-tokens", str(router.decode_local_tokens)),
        *("--ttl", f"{router.ttl:g}"),
        *(("--lease-hold", f"{router.lease_hold:g}") if router.lease_hold is not None else ()),
        # Engines without a secret answer the router's node with 403.
        *(
            ("--lease-secret-file", str(router.lease_secret_file))
            if router.lease_secret_file
            else ("--no-claim",)
        ),
        *(("--map-file", str(folder.conversations)) if router.keep_map else ()),
        *("--max-concurrent", str(router.max_concurrent)),
        *("--queue-timeout", f"{router.queue_timeout:g}"),
        *("--access-log", str(folder.access_log)),
    )


def _lease_secret(settings: Deployment, role: Role) -> tuple[tuple[str, str], ...]:
    """Decode's lease routes want it, and all engines sign their handles with it. A variable of the same name
    in the leg's `env` goes first."""
    file = settings.router.lease_secret_file
    given = "PD_LEASE_SECRET_FILE" in leg_of(settings, role).env
    return (("PD_LEASE_SECRET_FILE", str(file)),) if file and not given else ()


def _beside_router(settings: Deployment, time_limit_minutes: int) -> Allocation:
    target = settings.target
    partition = ROUTER_PARTITION if isinstance(target, EmbeddedTarget) else target.router_partition
    return Allocation(partition, None, 0, False, time_limit_minutes)


def _absolute_and_plain(folder: PurePosixPath) -> None:
    """Slurm expands % in log paths and ends a directive at a newline, so such a folder can't be used."""
    text = str(folder)
    if not folder.is_absolute() or any(c in text for c in "%\\\n\r\"'") or len(text) > 900:
        raise SettingsError(
            f"the run folder {text!r} can't be used: Slurm needs an absolute path without %, \\, quotes "
            "or line breaks.",
            next_step="choose another target.runs_dir or run name",
        )
