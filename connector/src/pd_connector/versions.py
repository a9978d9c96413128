"""Which vLLM versions the plugin serves: the one place that says so.

Asked by `plugin.register` before anything of vLLM is touched, so it imports nothing of vLLM.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Literal

Version = tuple[int, int, int]

TESTED: frozenset[Version] = frozenset({(0, 29, 0), (0, 32, 0)})
"""Every test of this distribution ran on real engines of these."""
NOTES: Mapping[tuple[int, int], str] = {
    (0, 21): "parts compared; an idle engine does not step, so its leases end with its next request; a dead "
    "peer's memory stays mapped; the reader does not check an expiry of its own",
    (0, 22): "parts compared; as 0.21",
    (0, 23): "not compared; as 0.22, by its neighbours",
    (0, 24): "parts compared; the reader does not check an expiry of its own",
    (0, 25): "not compared; as its neighbours",
    (0, 26): "parts compared; ran on one H200",
    (0, 27): "not compared; as its neighbours",
    (0, 28): "not compared; as its neighbours",
    (0, 29): "0.29.0 is tested",
    (0, 30): "not compared; as its neighbours",
    (0, 31): "parts compared",
    (0, 32): "0.32.0 is tested; vLLM itself forgets replaced peers and asks before it preempts",
    (0, 33): "source read, not run; vLLM streams the handle itself, so the plugin leaves streams alone",
}
"""What is known of each minor version. Compared parts: all names that the plugin relies on exist there."""
EXPECTED_FROM: Version = (*min(NOTES), 0)
"""The first version whose NIXL connector can transfer in both directions."""
EXPECTED_BELOW: Version = (0, max(NOTES)[1] + 1, 0)
"""The first version whose source nobody has compared with what the plugin relies on."""
OVERRIDE = "PD_CONNECTOR_ALLOW_UNTESTED"
"""Environment variable; the value 1 turns a refusal by version into a warning."""


class RefusedError(RuntimeError):
    """The engine must not start: the plugin cannot keep its promises in it."""


def parse(text: str) -> Version | None:
    """The release part of a version such as `0.29.0+cpu`; None for a build without one (`dev`)."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def judge(text: str) -> Literal["tested", "expected", "refused"]:
    """How far the plugin can be trusted in the vLLM of this version."""
    version = parse(text)
    if version in TESTED:
        return "tested"
    if version is not None and EXPECTED_FROM <= version < EXPECTED_BELOW:
        return "expected"
    return "refused"


def check(text: str, environ: Mapping[str, str]) -> str | None:
    """A warning to log, or None for a tested version.

    Raises RefusedError for a version outside the expected range, unless `OVERRIDE` is set to 1.
    """
    verdict = judge(text)
    if verdict == "tested":
        return None
    tested = ", ".join(".".join(map(str, version)) for version in sorted(TESTED))
    if verdict == "expected":
        note = NOTES[(parse(text) or EXPECTED_FROM)[:2]]
        return f"vLLM {text} is not tested with this plugin (tested: {tested}). {note}"
    span = f"{'.'.join(map(str, EXPECTED_FROM))} up to, not including, {'.'.join(map(str, EXPECTED_BELOW))}"
    if environ.get(OVERRIDE) == "1":
        return f"vLLM {text} is outside {span}; going on because {OVERRIDE}=1"
    raise RefusedError(
        f"pd-connector does not serve vLLM {text}: it knows {span} (tested: {tested}). "
        f"Install a vLLM of that range, or set {OVERRIDE}=1 to go on at your own risk."
    )


def require(part: object, names: Iterable[str]) -> None:
    """Raises RefusedError when a part of vLLM lacks attributes that the plugin relies on."""
    if missing := [name for name in names if not hasattr(part, name)]:
        raise RefusedError(
            f"pd-connector: {type(part).__name__} of this vLLM has no {', '.join(missing)}. "
            f"Install a tested vLLM."
        )
