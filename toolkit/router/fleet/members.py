"""The engines that come and go while the router runs: a members file, or the endpoints of a run's jobs.

A file is YAML or JSON; `drain` sends a leg's conversations on, and gives it no new ones:

    prefill: [http://10.0.0.1:8100]
    decode:
      - http://10.0.0.2:8200
      - {url: http://10.0.0.3:8200, drain: true}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from toolkit.errors import SettingsError
from toolkit.plan.run_folder import RunFolder
from toolkit.router.fleet.legs import Pool, Role
from toolkit.router.fleet.polling import Stamp, WatchedFiles, stamp
from toolkit.router.fleet.regular import read_regular
from toolkit.router.fleet.urls import Identity, identity, presentable, what_is_wrong
from toolkit.settings.document import Document, DocumentError
from toolkit.settings.shown import shown

ROLES: tuple[Role, ...] = get_args(Role)
_ENGINE_JOB = re.compile(r"(prefill|decode)-\d+")
_NEXT = "correct it; it is read again when it changes"


@dataclass(frozen=True, slots=True)
class Member:
    """One engine of the set. `where`: file and key, as an error names them."""

    role: Role
    url: str
    drain: bool
    where: str


class Members(WatchedFiles):
    """Keeps two pools as the file or the run folder `path` says, beside the legs that they have already.

    A new leg gets traffic after its first good check; one that is missing gets no more requests and leaves
    its pool when it is idle. What cannot be read is logged once and leaves the pools as they are.
    """

    def __init__(self, path: Path, prefill: Pool, decode: Pool) -> None:
        super().__init__(f"the members ({path})")
        self._path = path
        self._pools = {"prefill": prefill, "decode": decode}
        self._given: dict[Identity, Role] = {
            identity(leg.url): pool.role for pool in (prefill, decode) for leg in pool.legs
        }
        self._had_endpoints = False
        self._is_run: bool | None = None

    def _stamps(self) -> tuple[object, ...]:
        if not self._path.is_dir():
            return (stamp(self._path),)
        return tuple(_endpoint_stamps(self._path))

    def _take(self) -> None:
        members = read_members(self._path)
        is_run = self._path.is_dir()
        if self._is_run not in (None, is_run):
            was, now = ("folder", "file") if self._is_run else ("file", "folder")
            raise SettingsError(f"{self._path} was a {was} and is a {now}.", next_step=f"restore the {was}")
        self._is_run = is_run
        if is_run:
            self._check_endpoints()
        self._refuse_repeats(members)
        for role, pool in self._pools.items():
            self._apply(pool, [member for member in members if member.role == role])

    def _check_endpoints(self) -> None:
        """A run begins without the folder; where it has been, its loss says nothing about the engines."""
        there = _endpoints(self._path).is_dir()
        if self._had_endpoints and not there:
            raise SettingsError(f"{_endpoints(self._path)} is gone.", next_step="restore the run's folder")
        self._had_endpoints = there

    def _refuse_repeats(self, members: list[Member]) -> None:
        """An engine has one role and counts once. One that the command line names may be named again."""
        seen: dict[Identity, str] = {}
        for member in members:
            engine = identity(member.url)
            if engine in seen:
                raise SettingsError(
                    f"{member.where} = {member.url!r} is given by {seen[engine]} too.",
                    next_step="name each engine once",
                )
            seen[engine] = member.where
            given = self._given.get(engine, member.role)
            if given != member.role:
                raise SettingsError(
                    f"{member.where} = {member.url!r} is given by --{given} too.",
                    next_step="give each engine one role",
                )

    def _apply(self, pool: Pool, members: list[Member]) -> None:
        wanted = {identity(member.url): member for member in members}
        for leg in list(pool.legs):
            member = wanted.pop(identity(leg.url), None)
            if member is not None:
                _set_draining(pool, leg.url, member.drain)
            elif identity(leg.url) not in self._given:
                pool.remove(leg.url)
            else:
                _set_draining(pool, leg.url, False)
        for member in wanted.values():
            pool.add(member.url)
            _set_draining(pool, member.url, member.drain)


def read_members(path: Path) -> list[Member]:
    """The engines that a members file names, or that the jobs of a run folder have published.

    Raises:
        SettingsError: with file, key, value and reason.
    """
    try:
        if path.is_dir():
            return [_published(file) for file in _endpoint_files(path)]
        text = read_regular(path).data.decode("utf-8")
    except OSError as error:
        raise SettingsError(
            f"{error.filename or path} cannot be read: {error.strerror or error}.",
            next_step="give --members an existing file, or the folder of a run",
        ) from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 text.", next_step=_NEXT) from error
    return list(_in_document(path, text))


def _set_draining(pool: Pool, url: str, drain: bool) -> None:
    if drain:
        pool.drain(url)
    else:
        pool.add(url)


def _endpoints(run: Path) -> Path:
    # The files' names are the plan's affair; only the folder that they have in common is needed here.
    return Path(RunFolder(PurePosixPath(run)).endpoint("prefill-1")).parent


def _endpoint_files(run: Path) -> list[Path]:
    return sorted(file for file in _endpoints(run).glob("*.json") if _ENGINE_JOB.fullmatch(file.stem))


def _endpoint_stamps(run: Path) -> Iterator[tuple[str, Stamp]]:
    yield "", stamp(_endpoints(run))
    for file in _endpoint_files(run):
        yield file.name, stamp(file)


def _published(file: Path) -> Member:
    role: Role = "prefill" if file.stem.startswith("prefill") else "decode"
    try:
        published = json.loads(read_regular(file).data)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{file} is not JSON.", next_step=_NEXT) from error
    url = published.get("url") if isinstance(published, dict) else None
    return _member(role, url, False, f"{file}: url")


def _in_document(path: Path, text: str) -> Iterator[Member]:
    try:
        content = Document(text).value()
    except DocumentError as error:
        line = "" if error.line is None else f", line {error.line}"
        raise SettingsError(f"{path}{line}: {error.problem}.", next_step=_NEXT) from error
    if not isinstance(content, dict):
        raise SettingsError(
            f"{path} is no mapping.", next_step="write it as `prefill: [URL, ...]` and `decode: [URL, ...]`"
        )
    for key, entries in content.items():
        if key not in ROLES:
            raise SettingsError(f"{path}: unknown key {shown(key)}.", next_step="use prefill and decode only")
        if not isinstance(entries, list):
            raise SettingsError(f"{path}: {key} = {shown(entries)} is no list.", next_step=_NEXT)
        role: Role = "prefill" if key == "prefill" else "decode"
        for index, entry in enumerate(entries):
            yield _entry(role, entry, f"{path}: {key}[{index}]")


def _entry(role: Role, entry: Any, where: str) -> Member:
    if not isinstance(entry, dict):
        return _member(role, entry, False, where)
    for key in entry:
        if key not in ("url", "drain"):
            raise SettingsError(f"{where}: unknown key {shown(key)}.", next_step="use url and drain only")
    drain = entry.get("drain", False)
    if not isinstance(drain, bool):
        raise SettingsError(f"{where}.drain = {shown(drain)} is not true or false.", next_step=_NEXT)
    return _member(role, entry.get("url"), drain, f"{where}.url")


def _member(role: Role, url: Any, drain: bool, where: str) -> Member:
    if not isinstance(url, str):
        raise SettingsError(f"{where} = {shown(url)} is no text.", next_step="write it as http://HOST:PORT")
    if wrong := what_is_wrong(url):
        raise SettingsError(
            f"{where} = {presentable(url)!r} {wrong}.", next_step="write it as http://HOST:PORT"
        )
    return Member(role, url.rstrip("/"), drain, where)
