"""SDK clients, our router, real engines: every path gives the tokens of a fresh computation.

Fresh is what the prefill engine computes when it is asked directly: without a prefix cache it reuses nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.clients.served import Endpoint, Router, run_router
from tests.clients.talks import ENDPOINTS, ChatTalk, begin

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "connector" / "tests"))
import engines  # noqa: E402

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

PYTHON = str(ROOT / ".venv-engine" / "bin" / "python")
ROLES = {
    "prefill": {"kv_role": "kv_producer", "kv_load_failure_policy": "recompute"},
    "decode": {"kv_role": "kv_consumer", "kv_load_failure_policy": "fail"},
}
EXTRA = {"backends": ["UCX"], "bidirectional_kv_xfer": True, "kv_recompute_threshold": 32}
LIFETIMES = {"decoder_kv_blocks_ttl": 600, "kv_lease_duration": 30}
TOKENS = 12

Serve = Callable[..., Router]


class Places:
    """Where the two engines run, however often they are started."""

    def __init__(self, model: Path, folder: Path, stack: ExitStack) -> None:
        self._model, self._folder, self._stack = model, folder, stack
        self._ports = {role: (engines.free_port(), engines.free_port()) for role in ROLES}
        self.running: dict[str, engines.Engine] = {}
        self._starts = 0

    def start(self) -> None:
        """Both, at the ports that they always have."""
        self._starts += 1
        for core, role in enumerate(ROLES):
            folder = self._folder / f"{role}-{self._starts}"
            folder.mkdir()
            options = ["--no-enable-prefix-caching"] if role == "prefill" else []
            self.running[role] = self._stack.enter_context(
                engines.engine(
                    role,
                    self._model,
                    core,
                    folder,
                    _transfer(role),
                    wait=False,
                    options=options,
                    ports=self._ports[role],
                    python=PYTHON,
                )
            )
        for engine in self.running.values():
            engines.wait_ready(engine)

    def kill(self) -> None:
        for engine in self.running.values():
            engine.kill()

    @property
    def prefill(self) -> engines.Engine:
        return self.running["prefill"]

    @property
    def decode(self) -> engines.Engine:
        return self.running["decode"]

    def url(self, role: str) -> str:
        return f"http://127.0.0.1:{self._ports[role][0]}"


def _transfer(role: str) -> dict[str, Any]:
    return {
        **engines.CONNECTOR,
        **ROLES[role],
        "kv_buffer_device": "cpu",
        "engine_id": f"{role}-test",
        "kv_connector_extra_config": EXTRA | LIFETIMES,
    }


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    folder = tmp_path_factory.mktemp("pair")
    model = folder / "model"
    model.mkdir()
    make = "import pathlib, sys, tiny_model; tiny_model.build(pathlib.Path(sys.argv[1]))"
    tests = ROOT / "connector" / "tests"
    subprocess.run([PYTHON, "-c", make, str(model)], cwd=tests, check=True, timeout=240)
    with ExitStack() as stack:
        places = Places(model, folder, stack)
        places.start()
        yield places


@pytest.fixture
def serve(places: Places, tmp_path: Path) -> Iterator[Serve]:
    """A router before the engines with settings of its own: `serve(**settings)`."""
    with ExitStack() as stack:
        urls = [places.url(role) for role in ROLES]
        yield lambda **settings: stack.enter_context(
            run_router(urls[:1], urls[1:], tmp_path / "access.log", **settings)
        )


@pytest.fixture
def fresh(places: Places) -> Iterator[Endpoint]:
    """Where the SDKs are pointed at for a computation that reuses nothing."""
    with ExitStack() as clients:
        yield Endpoint(places.url("prefill"), clients)


def options_of(endpoint: str) -> dict[str, Any]:
    """Greedy, and as long as asked for where the endpoint has a member for that."""
    return {"extra_body": {"temperature": 0, **({} if endpoint == "messages" else {"ignore_eos": True})}}


def text(first: int, count: int = 64) -> str:
    """Of more than 512 bytes, so that a prompt without messages is known again."""
    return " ".join(f"word{number}" for number in range(first, first + count))


PATHS = {
    "prefill": ["prefill"] * 3,
    "readback": ["prefill", "readback", "readback"],
    "decode-local": ["decode-local"] * 3,
}


@pytest.mark.parametrize("path", list(PATHS))
@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_every_path_gives_the_tokens_of_a_fresh_computation(
    serve: Serve, fresh: Endpoint, path: str, endpoint: str, stream: bool
) -> None:
    router = serve(path=path)
    # Another conversation than that of any other case, or decode's own cache would have it.
    first = 1000 * (2 * list(PATHS).index(path) + stream)
    options = options_of(endpoint)
    talks = [begin(each, endpoint, stream, TOKENS, **options) for each in (router, fresh)]
    for turn in range(3):
        said, expected = (talk.say(text(first + 100 * turn)) for talk in talks)
        assert said
        assert said == expected
    # The stream of messages has no place for a handle.
    unreadable = path == "readback" and endpoint == "messages" and stream
    assert router.ways.paths == PATHS["prefill" if unreadable else path]
    read = router.ways.read
    assert (
        all(tokens == 0 for tokens in read) if router.ways.paths[1] != "readback" else read[2] > read[1] > 0
    )


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_an_unmodified_client_gets_what_the_router_finds_quickest(
    serve: Serve, fresh: Endpoint, endpoint: str
) -> None:
    """Few new tokens are computed where the history is; many by prefill, which reads the history."""
    router = serve()
    talks = [begin(each, endpoint, False, TOKENS, **options_of(endpoint)) for each in (router, fresh)]
    for number, count in enumerate((64, 10, 150)):
        said, expected = (talk.say(text(9000 + 200 * number, count)) for talk in talks)
        assert said == expected
    assert router.ways.paths == ["prefill", "decode-local", "readback"]
    assert router.ways.read[2] > 160
    assert ["identity=automatic" in line for line in router.logged(3)] == [True] * 3


@pytest.mark.parametrize("path", ["readback", "auto"])
@pytest.mark.parametrize("change", ["edited", "branched", "shortened"])
def test_a_changed_history_gives_its_own_tokens(
    serve: Serve, fresh: Endpoint, path: str, change: str
) -> None:
    router = serve(path=path)
    talks = [
        ChatTalk(each.openai(), True, max_tokens=TOKENS, **options_of("chat")) for each in (router, fresh)
    ]
    start = 20_000 + 1000 * ["edited", "branched", "shortened"].index(change) + 500 * (path == "auto")
    for turn in range(2):
        assert len({talk.say(text(start + 100 * turn)) for talk in talks}) == 1
    for talk in talks:
        if change == "edited":
            talk.messages[1] = {"role": "user", "content": text(start, 30) + " else " + text(start + 31, 33)}
        elif change == "branched":
            talk.messages[3:] = []
        else:
            talk.messages[1:3] = []
    assert len({talk.say(text(start + 300)) for talk in talks}) == 1
    # A branch goes on from the first turn, which is known; nothing else of these begins as anything known.
    # What comes after that turn, its answer too, counts as new: too much for decode alone.
    assert router.ways.paths[2] == ("readback" if change == "branched" else "prefill")


def test_several_choices_are_those_of_a_fresh_computation(serve: Serve, fresh: Endpoint) -> None:
    router = serve()
    said = [
        [choice.message.content for choice in answer.choices]
        for client in (router.openai(), fresh.openai())
        for answer in [
            client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": text(31_000)}],
                max_tokens=TOKENS,
                n=2,
                seed=1,
            )
        ]
    ]
    assert said[0] == said[1]
    assert len(said[0]) == 2
    assert router.ways.paths == ["decode-local"]


def test_a_client_that_leaves_frees_what_the_engines_hold(serve: Serve, places: Places) -> None:
    router = serve()
    client = router.openai()
    asked: dict[str, Any] = {"model": "tiny", "prompt": text(32_000), **options_of("completions")}
    before, used = places.decode.lease_counts(), places.decode.kv_used()
    with client.completions.create(**asked, max_tokens=1200, stream=True) as stream:
        next(iter(stream))
    engines.eventually(lambda: places.decode.metric("vllm:num_requests_running") == 0, "decode ended it")
    engines.eventually(lambda: places.prefill.kv_used() == 0, "prefill's blocks are freed")
    engines.eventually(lambda: places.decode.kv_used() <= used, "decode's blocks are freed")
    after = places.decode.lease_counts()
    # Who left has nothing to come back for.
    assert after["granted"] == before["granted"]
    for counts in (before, after):
        ended = sum(counts[name] for name in ("read", "released", "given_up", "expired"))
        assert counts["granted"] == ended + counts["held"]
    (line,) = router.logged(1)
    assert "outcome=client-gone" in line


def test_engines_that_come_back_give_the_right_tokens(serve: Serve, fresh: Endpoint, places: Places) -> None:
    """The last of the file: the engines are others afterwards."""
    router = serve(path="readback", health_interval_s=0.2)
    talks = [begin(each, "chat", True, TOKENS, **options_of("chat")) for each in (router, fresh)]
    for turn in range(2):
        assert len({talk.say(text(33_000 + 100 * turn, 40)) for talk in talks}) == 1
    assert router.ways.paths == ["prefill", "readback"]
    places.kill()
    talk = talks[0]
    history = list(talk.messages)
    with pytest.raises(openai.InternalServerError) as failure:
        talk.say(text(33_200, 40))
    assert failure.value.status_code in (502, 503)
    talk.messages = history
    places.start()
    engines.eventually(lambda: _healthy(router), "the router has found both engines again")
    for turn in (2, 3):
        assert len({talk.say(text(33_000 + 100 * turn, 40)) for talk in talks}) == 1
    assert router.ways.read[-2] == 0
    assert router.ways.paths[-1] == "readback"
    assert router.ways.read[-1] > 0


def _healthy(router: Router) -> bool:
    """Both engines get traffic."""
    try:
        state = router.openai().get("/../health", cast_to=dict[str, Any])
    except openai.InternalServerError:
        return False  # the answer's status while one of them is missing
    return json.dumps(state).count('"healthy": true') == 2
