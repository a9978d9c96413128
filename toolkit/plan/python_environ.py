"""The environment variables for a virtual environment of ours: none that lead pip elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Mapping

# Where packages come from and how they are reached. All other PIP_* names are left out: with PIP_TARGET,
# PIP_PREFIX, PIP_USER, PIP_NO_DEPS and the like pip installs elsewhere, or less than it should.
_PIP_SOURCES = frozenset(
    f"PIP_{name}"
    for name in (
        *("INDEX_URL", "EXTRA_INDEX_URL", "NO_INDEX", "FIND_LINKS", "CONFIG_FILE", "CONSTRAINT"),
        *("TRUSTED_HOST", "CERT", "CLIENT_CERT", "PROXY", "KEYRING_PROVIDER"),
        *("CACHE_DIR", "NO_CACHE_DIR", "TIMEOUT", "DEFAULT_TIMEOUT", "RETRIES"),
        *("ONLY_BINARY", "NO_BINARY", "PREFER_BINARY", "ROOT_USER_ACTION"),
    )
)


def python_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without every PYTHON* name and without those of pip that don't say where packages are.

    PYTHONPATH and PYTHONUSERBASE make pip take packages for installed that the environment then lacks.
    """
    kept = {name: value for name, value in environ.items() if not _misleads(name)}
    # As an environment variable it also overrules `user = true` of a pip.conf.
    return {**kept, "PIP_USER": "0"}


def _misleads(name: str) -> bool:
    other_python = name.startswith("PYTHON") or name in ("VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    return other_python or (name.startswith("PIP_") and name not in _PIP_SOURCES)
