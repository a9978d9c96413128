"""One prefill and one decode engine for all engine tests; they start together and once."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import engines
import hypothesis
import pytest
import tiny_model

# Engines and a busy machine have no fixed pace, and no examples are left in the source tree.
hypothesis.settings.register_profile("here", deadline=None, database=None)
hypothesis.settings.load_profile("here")


@dataclass
class Pair:
    prefill: engines.Engine
    decode: engines.Engine

    def turn(
        self, prompt: list[int], tokens: int, kv: dict[str, Any] | None = None, **more: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Both answers of one turn: prefill with decode's handle, decode with prefill's."""
        asked = {**(kv or {}), **engines.FIRST_TURN}
        first = self.prefill.complete(prompt, 1, asked, **more)
        return first, self.decode.complete(prompt, tokens, first["kv_transfer_params"], **more)

    def forget_prefix(self) -> None:
        """Empty prefill's own cache, so that only a readback can save it work."""
        engines.eventually(lambda: self.prefill.kv_used() == 0, "prefill's blocks are released")
        status, text = self.prefill.post("/reset_prefix_cache", {})
        assert status == 200, text

    def recompute(self, prompt: list[int], tokens: int) -> tuple[list[int], list[float]]:
        """What the prompt's continuation is, by an engine that reuses nothing."""
        self._fresh += 1
        return engines.produced(self.decode.complete(prompt, tokens, cache_salt=f"fresh-{self._fresh}"))

    _fresh: int = 0


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.build(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def pair(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    with start_pair(model, folder) as started:
        yield started


# Both policies are in use: prefill computes what it could not read, decode answers with an error.
ROLES = {
    "prefill": {"kv_role": "kv_producer", "kv_load_failure_policy": "recompute"},
    "decode": {"kv_role": "kv_consumer", "kv_load_failure_policy": "fail"},
}


def transfer(role: str, **extra: Any) -> dict[str, Any]:
    """The value of `--kv-transfer-config`."""
    settings = {"backends": ["UCX"], "bidirectional_kv_xfer": True, "kv_recompute_threshold": 32}
    settings |= {"decoder_kv_blocks_ttl": 120, "kv_lease_duration": 8}
    return {
        **engines.CONNECTOR,
        **ROLES[role],
        "kv_buffer_device": "cpu",
        "engine_id": f"{role}-test",
        "kv_connector_extra_config": settings | extra,
    }


def start_engine(
    role: str,
    model: Path,
    folder: Path,
    options: Sequence[str] = (),
    ports: tuple[int, int] | None = None,
    stock: bool = False,
    **extra: Any,
) -> AbstractContextManager[engines.Engine]:
    """Not waited for. `stock` is an engine with vLLM's own connector, that has never heard of ours."""
    settings, environ = transfer(role, **extra), {}
    if stock:
        del settings["kv_connector_module_path"]
        environ["VLLM_PLUGINS"] = ""
    core = list(ROLES).index(role)
    return engines.engine(
        role, model, core, folder, settings, environ, wait=False, options=options, ports=ports
    )


@contextmanager
def start_pair(
    model: Path, folder: Path, options: Mapping[str, Sequence[str]] | None = None, **extra: Any
) -> Iterator[Pair]:
    """`options` are those of the command line, per role; `extra` is the connector's extra config of both."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(start_engine(role, model, folder, (options or {}).get(role, ()), **extra))
            for role in ROLES
        ]
        for one in started:
            engines.wait_ready(one)
        yield Pair(*started)
