"""Which vLLM versions the plugin serves: the one place that says so.

Asked by `plugin.register` before anything of vLLM is touched, so it imports nothing of vLLM.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Literal

Version = tuple[int, int, int]

TESTED: frozenset[Version] = frozenset({(0, 29, 0)})
"""Every test of this distribution ran on real engines of these."""
EXPECTED_FROM: Version = (0, 21, 0)
"""The first version whose NIXL connector can transfer in both directions."""
EXPECTED_BELOW: Version = (0, 34, 0)
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
        return f"vLLM {text} is not tested with this plugin (tested: {tested}); its source was compared"
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
