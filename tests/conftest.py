"""What every test may use: the repository's root and its shipped deployments."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from toolkit.settings.deployment import Deployment
from toolkit.settings.load import load

ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="write the golden files anew instead of comparing")
    parser.addoption("--compiled", action="store_true", help="stop unless the router is the compiled one")


def pytest_configure(config: pytest.Config) -> None:
    router = find_spec("toolkit.router.app")
    if config.getoption("--compiled") and (router is None or str(router.origin).endswith(".py")):
        raise pytest.UsageError(f"not the compiled router: {router}")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text whole with tests/golden/NAME; a missing file fails."""

    def compare(name: str, text: str) -> None:
        path = ROOT / "tests" / "golden" / name
        if request.config.getoption("--golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden file {path}; look at the text, then run pytest --golden"
        assert text == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture
def deployment() -> Callable[..., Deployment]:
    """A shipped deployment by name, with settings changed as by --set."""

    def get(name: str = "embedded", *assignments: str) -> Deployment:
        return load(ROOT / "deployments" / f"{name}.yaml", assignments).deployment

    return get
