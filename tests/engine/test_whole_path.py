"""The whole path with nothing faked: Slurm, vLLM prefill and decode on CPU, NIXL over TCP, router, client."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from openai import BadRequestError, OpenAI

from toolkit.testing.serving import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
Toolkit = Callable[..., subprocess.CompletedProcess[str]]
Processes = Callable[[], list[str]]


@pytest.fixture(scope="module")
def url(toolkit: Toolkit) -> Iterator[str]:
    submitted = toolkit("job", "submit", "--name", "served")
    assert submitted.returncode == 0, submitted.stderr
    yield submitted.stdout.strip()
    cancelled = toolkit("job", "cancel", "--run", "served")
    assert cancelled.returncode == 0, cancelled.stderr


@pytest.fixture
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def ask(
    client: OpenAI, history: list[dict[str, str]], conversation: str | None, path: str = "prefill"
) -> tuple[str, str]:
    """(path, answer) of one streamed turn that asks for `path`."""
    extra = {"conversation_id": conversation} if conversation else {}
    raw = client.chat.completions.with_raw_response.create(
        model="tiny",
        messages=history,
        stream=True,
        max_tokens=24,
        temperature=0,
        extra_body={**extra, "ignore_eos": True},
        extra_headers={"X-KV-Path": path},
    )
    chunks = list(raw.parse())
    assert all("kv_transfer_params" not in chunk.model_dump_json() for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    return raw.headers["X-KV-Path"], text


def words(n: int, first: int = 0) -> str:
    return " ".join(f"word{i}" for i in range(first, first + n))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("wanted", ["readback", "decode-local"])
def test_three_streamed_turns_reuse_and_give_the_tokens_of_a_recomputed_prompt(
    client: OpenAI, folder: Path, wanted: str
) -> None:
    history: list[dict[str, str]] = []
    paths = []
    for turn in range(3):
        history.append(user(words(150, 1000 * turn)))
        path, answer = ask(client, history, f"three-turns-{wanted}", wanted if turn else "prefill")
        paths.append(path)
        # Another conversation, forced: nothing is read back, prefill computes the whole prompt.
        assert ask(client, history, None) == ("prefill", answer)
        history.append({"role": "assistant", "content": answer})
    assert paths == ["prefill", wanted, wanted]
    if wanted == "readback":
        log = (folder / "runs" / "served" / "logs" / "access.log").read_text()
        assert len(re.findall(r"path=readback .*Prefill done in [\d.]+ms", log)) == 2


def test_the_readmes_client_reuses(url: str, folder: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert code is not None
    program = code.group(1).replace("http://10.77.0.13:8000/v1", url)
    assert url in program
    log = folder / "runs" / "served" / "logs" / "access.log"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) >= 3

    def free_ones() -> list[str]:
        """The turns of this run that ask for no path, which are the program's."""
        return [line for line in log.read_text().splitlines() if " path=" in line and "=forced" not in line]

    wait_until(lambda: len(free_ones()) >= 3)
    paths = [re.search(r" path=(\S+)", line)[1] for line in free_ones()]
    assert paths == ["prefill", "decode-local", "decode-local"]
    assert {re.search(r" identity=(\S+)", line)[1] for line in free_ones()} == {"automatic"}


@pytest.mark.parametrize("wanted", ["readback", "decode-local"])
@pytest.mark.parametrize("change", ["edited", "shortened", "branched"])
def test_a_changed_history_gives_the_tokens_of_a_recomputed_prompt(
    client: OpenAI, change: str, wanted: str
) -> None:
    history = [user(words(200))]
    _, answer = ask(client, history, f"changed-{change}-{wanted}")
    history += [{"role": "assistant", "content": answer}, user(words(60, 500))]
    if change == "edited":
        history[0] = user(words(100) + " something else " + words(98, 102))
    elif change == "shortened":
        history = [user(words(120))]
    else:
        history[1] = {"role": "assistant", "content": "another answer"}
    path, again = ask(client, history, f"changed-{change}-{wanted}", wanted)
    assert path == wanted
    assert again == ask(client, history, None)[1]


def test_a_clients_own_kv_metadata_is_refused(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="kv_transfer_params"):
        client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "x"}],
            extra_body={"kv_transfer_params": {"do_remote_prefill": True}},
        )


def test_a_second_router_on_the_port_is_told(url: str, toolkit: Toolkit) -> None:
    assert url
    done = toolkit("job", "submit", "--name", "second")
    assert done.returncode == 3
    assert re.search(r"job router of run second ended: FAILED, exit code 98", done.stderr)
    assert "port 8000 on router-1 is in use" in done.stderr
    listed = toolkit("job", "list", "--all")
    states = dict(line.split("\t")[1:4:2] for line in listed.stdout.splitlines() if line.startswith("second"))
    assert states["prefill-1"].startswith("CANCELLED")
    assert "served\trouter" in listed.stdout


def test_cancel_leaves_no_process_and_no_shared_memory(
    url: str, toolkit: Toolkit, folder: Path, processes: Processes
) -> None:
    assert url
    before = shared_memory(toolkit)
    assert before, "the engines use shared memory"
    assert toolkit("job", "cancel", "--run", "served").returncode == 0
    assert shared_memory(toolkit) == []
    assert [p for p in processes() if "vllm" in p or "router serve" in p] == []
    assert list((folder / "runs" / "served" / "endpoints").iterdir()) == []
    log = (folder / "runs" / "served" / "logs" / "prefill-1.log").read_text()
    assert "Application shutdown complete" in log
    assert "stopped on request" in log


def shared_memory(toolkit: Toolkit) -> list[Path]:
    """Engines' segments on the nodes, each of which has a /dev/shm of its own."""
    described = json.loads(toolkit("cluster", "describe", "-o", "json").stdout)
    nodes = [node["name"] for node in described["nodes"]]
    return [
        path
        for node in nodes
        for path in Path(f"/proc/{described['daemons'][node]}/root/dev/shm").glob("psm_*")
    ]


def test_an_engine_that_dies_at_start_is_told_with_its_log(toolkit: Toolkit, processes: Processes) -> None:
    done = toolkit(
        "job", "submit", "--name", "dies", settings=("legs.prefill.extra_args=[--no-such-argument]",)
    )
    assert done.returncode == 3
    assert "job prefill-1 of run dies ended: FAILED" in done.stderr
    assert "no-such-argument" in done.stderr
    assert "Traceback" not in done.stderr.split("From ")[0]
    assert [p for p in processes() if "vllm" in p or "router serve" in p] == []


def test_a_sweep_is_valid_and_resumed(toolkit: Toolkit, folder: Path) -> None:
    settings = (
        "sweep.prompt_lengths=[600]",
        "sweep.repeats=1",
        "sweep.turns=2",
        "sweep.output_tokens=8",
        "sweep.turn_tokens=24",
    )
    done = toolkit("sweep", "run", "--name", "small", settings=settings)
    assert done.returncode == 0, done.stderr
    sweep = folder / "runs" / "small"
    assert done.stdout.strip() == str(sweep)
    built = _report(sweep)
    assert built.returncode == 0, built.stderr
    results = json.loads((sweep / "results.json").read_text())
    assert (results["valid"], results["reasons"], results["outputs_identical"]) == (True, [], True)
    paths = [(row["leg"], row["turn"], row["path"]) for row in results["rows"]]
    assert paths == [
        ("off", 1, "prefill"), ("off", 2, "prefill"), ("on", 1, "prefill"), ("on", 2, "readback"),
    ]  # fmt: skip
    assert results["points"][0]["kv_transfer"]["readbacks"] == 1
    assert results["software"]["vllm"] == "0.29.0+cpu"
    for picture in ("ttft.png", "prefill.png"):
        assert (sweep / picture).read_bytes().startswith(b"\x89PNG")
    again = toolkit("sweep", "resume", "--name", "small", settings=settings)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("are there already") == 2
    other = toolkit("sweep", "run", "--name", "small", settings=(*settings, "sweep.seed=1"))
    assert other.returncode == 2
    assert "other settings" in other.stderr


def _report(sweep: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toolkit", "report", "build", str(sweep)],
        capture_output=True,
        text=True,
        check=False,
    )
