"""Records what the real pcluster says of a failed creation, for each outcome of the stand-in.

`python tests/aws/record.py` writes tests/aws/recorded/OUTCOME.json anew: describe-cluster, the stack events
that failed (and the first few), the log lines. About ten seconds for each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from conftest import small_cluster

from toolkit.remote.pcluster_env import PclusterEnv, ensure_pcluster
from toolkit.testing.aws import OUTCOMES, Standin, aws_standin

FOLDER = Path(__file__).parent / "recorded"


class Cli:
    def __init__(self, env: PclusterEnv, standin: Standin) -> None:
        self._env, self._standin = env, standin

    def __call__(self, command: str, *arguments: str) -> dict[str, Any]:
        argv = [str(self._env.executable), command, "--region", "ap-south-1", *arguments]
        environment = {**os.environ, **self._standin.environment}
        done = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


def record(cli: Cli, standin: Standin, config: Path, outcome: str, *, rollback: bool) -> dict[str, Any]:
    standin.reset()
    standin.script(outcome=outcome)
    config.write_text(small_cluster(standin.ids))
    on = "true" if rollback else "false"
    cli("create-cluster", "-n", "pd", "-c", str(config), "--rollback-on-failure", on)
    cluster = cli("describe-cluster", "-n", "pd")
    cluster["clusterConfiguration"] = {"url": "https://example.com/config"}
    events = cli("get-cluster-stack-events", "-n", "pd")["events"]
    streams = cli("list-cluster-log-streams", "-n", "pd").get("logStreams", [])
    logs = {
        name: cli("get-cluster-log-events", "-n", "pd", "--log-stream-name", name)["events"]
        for name in sorted(stream["logStreamName"] for stream in streams)
    }
    told = [each for each in events if each.get("resourceStatusReason") or each["logicalResourceId"] == "pd"]
    return {"version": "3.14.2", "cluster": cluster, "events": told, "streams": streams, "logs": logs}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    env = ensure_pcluster("3.14.2", print)
    wanted = sys.argv[1:] or [outcome for outcome in OUTCOMES if outcome != "complete"]
    with aws_standin() as standin:
        for outcome in wanted:
            rollback = outcome in ("bootstrap-script", "denied")
            config = FOLDER / "config.yaml"
            found = record(Cli(env, standin), standin, config, outcome, rollback=rollback)
            config.unlink()
            (FOLDER / f"{outcome}.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
            print(outcome, found["cluster"].get("clusterStatus"), len(found["logs"]))


if __name__ == "__main__":
    main()
