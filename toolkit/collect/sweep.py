"""A sweep's folder, read into one value: schedules, rows and KV transfers of both legs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta, timezone, tzinfo
from pathlib import Path, PurePosixPath

from pydantic import TypeAdapter, ValidationError

from toolkit.collect.kv_log import KvLine, KvTransfers, merge, parse_kv_lines
from toolkit.collect.rows import read_rows
from toolkit.collect.sweep_file import SWEEP_AGAIN, read_bytes, read_object, read_text
from toolkit.errors import SettingsError, ToolkitError
from toolkit.plan.row import Row
from toolkit.plan.run_folder import RunFolder, SweepFolder
from toolkit.plan.sweep import Schedule, SweepLeg

SCHEDULE = TypeAdapter(Schedule)


@dataclass(frozen=True)
class LegData:
    schedule: Schedule
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class SweepData:
    """`kv`: what prefill read back from decode in leg ON, by prompt length; a length without any is
    absent. `problems`: sentences on what could not be read."""

    off: LegData
    on: LegData
    kv: dict[int, KvTransfers]
    problems: tuple[str, ...]


def read_sweep(folder: Path, zone: tzinfo | None = None) -> SweepData:
    """`zone`: of the nodes that wrote the engines' logs; by default what the client noted there, else
    this machine's. Raises ToolkitError naming a file that is missing or damaged."""
    sweep = SweepFolder(PurePosixPath(folder))
    off, problems_off = _read_leg(sweep.leg("off"), "off")
    on, problems_on = _read_leg(sweep.leg("on"), "on")
    lines, problems_kv = _read_kv(sweep.leg("on"), on, zone)
    return SweepData(off, on, kv_by_length(lines, on), (*problems_off, *problems_on, *problems_kv))


def kv_by_length(lines: list[KvLine], leg: LegData) -> dict[int, KvTransfers]:
    """Each line goes to the point whose later turn it follows: an engine logs a transfer up to an interval
    after it, and the client rests `settle_s` between points. Warm-up and dropped attempts fall away."""
    # First turns read nothing back. Lines carry whole seconds, rows fractions.
    spans = [
        (row.started_at - 1, row.started_at + row.total_ms / 1000 + leg.schedule.settle_s, row.prompt_length)
        for row in leg.rows
        if row.turn > 1
    ]
    by_length: dict[int, list[KvLine]] = {}
    for line in lines:
        length = next((length for start, end, length in spans if start <= line.at <= end), None)
        if length is not None:
            by_length.setdefault(length, []).append(line)
    merged = {length: merge(of_length) for length, of_length in sorted(by_length.items())}
    return {length: transfers for length, transfers in merged.items() if transfers is not None}


def _read_leg(folder: RunFolder, leg: SweepLeg) -> tuple[LegData, tuple[str, ...]]:
    schedule = _read_schedule(Path(folder.schedule))
    read = read_rows(Path(folder.rows))
    strangers = (
        [f"{leg}/rows.jsonl holds rows of the other leg"] if any(r.leg != leg for r in read.rows) else []
    )
    if schedule.leg != leg:
        strangers.append(f"{leg}/schedule.json is of leg {schedule.leg}")
    return LegData(schedule, read.rows), (*read.problems, *strangers)


def _read_schedule(path: Path) -> Schedule:
    text = read_text(path, failure=SettingsError)
    try:
        # from_json takes members of any type.
        return SCHEDULE.validate_python(asdict(Schedule.from_json(text)))
    except SettingsError as error:
        raise SettingsError(f"{path}: {error.what}", next_step=error.next_step) from error
    except (ValidationError, TypeError, RecursionError) as error:
        raise SettingsError(f"{path}: not a sweep schedule: {error}", next_step=SWEEP_AGAIN) from error


def _read_kv(folder: RunFolder, leg: LegData, zone: tzinfo | None) -> tuple[list[KvLine], list[str]]:
    logs = sorted(Path(folder.log("prefill")).parent.glob("prefill-*.log"))
    if not logs:
        return [], ["on/logs holds no prefill-*.log: KV transfers are unknown"]
    near = leg.rows[0].started_at if leg.rows else 0.0
    zone = zone or _noted_zone(folder)
    lines: list[KvLine] = []
    problems: list[str] = []
    for log in logs:
        # An engine's log may hold any bytes of any request.
        found, unread = parse_kv_lines(read_bytes(log).decode(errors="replace"), near, zone)
        lines += found
        problems += [f"on/logs/{log.name}: unreadable line: {line[:120]}" for line in unread]
    return lines, problems


def _noted_zone(folder: RunFolder) -> tzinfo | None:
    note = Path(folder.rows).with_name("client.json")
    if not note.exists():
        return None
    try:
        return timezone(timedelta(seconds=read_object(note)["utc_offset_s"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ToolkitError(
            f"{note} does not hold `utc_offset_s`, seconds less than a day: {error}", next_step=SWEEP_AGAIN
        ) from error
