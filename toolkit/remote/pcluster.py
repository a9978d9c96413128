"""AWS ParallelCluster's command line: the only way to create, change and delete clusters.

Each call is one subprocess with an argument list; its answer is the one JSON document on stdout.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.remote import pcluster_answer as answer
from toolkit.remote.masked import masked
from toolkit.remote.pcluster_answer import DRY_RUN_PASSED, Document, Outcome
from toolkit.remote.pcluster_env import PclusterEnv, private_log
from toolkit.remote.pcluster_error import PclusterRefused, explain, is_missing

# Besides every AWS_* name: what the command needs of the user's shell, and nothing else.
INHERITED = (
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
)
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
# CDK makes the templates in about 10 s; an old Node.js hangs there for ever (aws-parallelcluster issue 6451).
SLOW_CALL, QUICK_CALL = 900.0, 180.0  # seconds


@dataclass(frozen=True)
class _Answer:
    returncode: int
    document: Document


class Pcluster:
    """One version of pcluster, in one region. Every method raises ToolkitError with pcluster's own message
    and a next step, PclusterRefused (a ToolkitError with the Outcome) when it refuses a configuration."""

    def __init__(
        self,
        env: PclusterEnv,
        region: str,
        *,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        """`environment` gives the AWS_* names in place of this process's own, and proxies; `log` is where
        pcluster writes its log, by default in its virtual environment; only its owner may read it."""
        self.version = env.version
        self.region = region
        self._env = env
        self._log = log or env.log
        self._environment = _environment(env, region, environment, self._log)

    def create_cluster(
        self,
        name: str,
        config_text: str,
        *,
        dry_run: bool = False,
        rollback_on_failure: bool = True,
        suppress: Sequence[str] = (),
    ) -> Outcome:
        """Validates, and unless `dry_run` starts the creation and returns at once. `suppress` names
        validators, such as `type:EfaPlacementGroupValidator`."""
        with _config_file(config_text) as config:
            return self._judged(
                "create-cluster",
                *("--cluster-name", name, "--cluster-configuration", config),
                *("--rollback-on-failure", _flag(rollback_on_failure), "--dryrun", _flag(dry_run)),
                *_suppressed(suppress),
            )

    def update_cluster(
        self,
        name: str,
        config_text: str,
        *,
        dry_run: bool = False,
        force: bool = False,
        suppress: Sequence[str] = (),
    ) -> Outcome:
        """`change_set` of the answer says what changes; `force` lets it change what needs a stopped fleet.
        `accepted` is False if nothing would change."""
        with _config_file(config_text) as config:
            return self._judged(
                "update-cluster",
                *("--cluster-name", name, "--cluster-configuration", config),
                *("--dryrun", _flag(dry_run), "--force-update", _flag(force)),
                *_suppressed(suppress),
            )

    def delete_cluster(self, name: str) -> answer.ClusterSummary | None:
        """Starts the deletion and returns at once; None if there is no such cluster."""
        document = self._found("delete-cluster", "--cluster-name", name)
        return answer.cluster_summary(document["cluster"]) if document else None

    def describe_cluster(self, name: str) -> answer.Cluster | None:
        """None if there is no such cluster."""
        document = self._found("describe-cluster", "--cluster-name", name)
        return answer.cluster(document) if document else None

    def list_clusters(self) -> tuple[answer.ClusterSummary, ...]:
        return tuple(answer.cluster_summary(each) for each in self._pages("clusters", "list-clusters"))

    def describe_cluster_instances(self, name: str) -> tuple[answer.Instance, ...]:
        """Head, login and compute instances; empty if there is no such cluster."""
        pages = self._pages("instances", "describe-cluster-instances", "--cluster-name", name)
        return tuple(answer.instance(each) for each in pages)

    def describe_compute_fleet(self, name: str) -> answer.Fleet | None:
        """None if there is no such cluster."""
        document = self._found("describe-compute-fleet", "--cluster-name", name)
        return answer.fleet(document) if document else None

    def update_compute_fleet(self, name: str, status: str) -> answer.Fleet | None:
        """`status`: START_REQUESTED or STOP_REQUESTED. Returns at once; the cluster does the rest within
        minutes. None if there is no such cluster."""
        document = self._found("update-compute-fleet", "--cluster-name", name, "--status", status)
        return answer.fleet(document) if document else None

    def get_cluster_stack_events(self, name: str) -> tuple[answer.StackEvent, ...]:
        """Oldest first; empty if there is no such cluster."""
        pages = self._pages("events", "get-cluster-stack-events", "--cluster-name", name)
        return tuple(sorted((answer.stack_event(each) for each in pages), key=lambda event: event.time))

    def list_cluster_log_streams(self, name: str) -> tuple[answer.LogStream, ...]:
        """Empty if there is no such cluster, or while it has no logs."""
        pages = self._pages("logStreams", "list-cluster-log-streams", "--cluster-name", name)
        return tuple(answer.log_stream(each) for each in pages)

    def get_cluster_log_events(
        self, name: str, stream: str, *, limit: int = 200
    ) -> tuple[answer.LogEvent, ...]:
        """The newest `limit` lines of a stream, oldest first; empty if there is no such stream."""
        document = self._found(
            "get-cluster-log-events",
            *("--cluster-name", name, "--log-stream-name", stream, "--limit", str(limit)),
        )
        return tuple(answer.log_event(each) for each in (document or {}).get("events", ()))

    def build_image(
        self,
        image_id: str,
        config_text: str,
        *,
        dry_run: bool = False,
        rollback_on_failure: bool = False,
        suppress: Sequence[str] = (),
    ) -> Outcome:
        """Starts an EC2 Image Builder run. Also with `dry_run` pcluster creates or updates the IAM role
        PClusterBuildImageCleanupRole-* unless the configuration names a CleanupLambdaRole."""
        with _config_file(config_text) as config:
            return self._judged(
                "build-image",
                *("--image-id", image_id, "--image-configuration", config),
                *("--rollback-on-failure", _flag(rollback_on_failure), "--dryrun", _flag(dry_run)),
                *_suppressed(suppress),
            )

    def describe_image(self, image_id: str) -> answer.Image | None:
        """None if there is neither such an image nor a build of it.

        pcluster looks for the AMI first and for the build's stack then. Of a build that ends in between it
        sees neither the AMI nor its success, only that the stack is being deleted: so this is asked again.
        """
        document = self._found("describe-image", "--image-id", image_id)
        if document and answer.image(document).status == "DELETE_IN_PROGRESS":
            document = self._found("describe-image", "--image-id", image_id)
        return answer.image(document) if document else None

    def list_images(self) -> tuple[answer.Image, ...]:
        """Finished, running and failed builds."""
        statuses = ("AVAILABLE", "PENDING", "FAILED")
        pages = (self._pages("images", "list-images", "--image-status", status) for status in statuses)
        return tuple(answer.image(each) for page in pages for each in page)

    def delete_image(self, image_id: str, *, force: bool = False) -> answer.Image | None:
        """Starts the deletion of AMI, snapshots and build; `force` also while instances use it. None if
        there is no such image."""
        document = self._found("delete-image", "--image-id", image_id, "--force", _flag(force))
        return answer.image(document["image"]) if document else None

    def list_official_images(
        self, *, os_name: str = "", architecture: str = ""
    ) -> tuple[answer.OfficialImage, ...]:
        """Official AMIs of this pcluster's version in the region."""
        chosen: tuple[str, ...] = ("--os", os_name) if os_name else ()
        chosen += ("--architecture", architecture) if architecture else ()
        return tuple(
            answer.official_image(each) for each in self._pages("images", "list-official-images", *chosen)
        )

    def get_image_stack_events(self, image_id: str) -> tuple[answer.StackEvent, ...]:
        """Oldest first; empty if there is no such build, or no longer."""
        pages = self._pages("events", "get-image-stack-events", "--image-id", image_id)
        return tuple(sorted((answer.stack_event(each) for each in pages), key=lambda event: event.time))

    def list_image_log_streams(self, image_id: str) -> tuple[answer.LogStream, ...]:
        pages = self._pages("logStreams", "list-image-log-streams", "--image-id", image_id)
        return tuple(answer.log_stream(each) for each in pages)

    def get_image_log_events(
        self, image_id: str, stream: str, *, limit: int = 200
    ) -> tuple[answer.LogEvent, ...]:
        """The newest `limit` lines, oldest first; empty if there is no such stream."""
        document = self._found(
            "get-image-log-events",
            *("--image-id", image_id, "--log-stream-name", stream, "--limit", str(limit)),
        )
        return tuple(answer.log_event(each) for each in (document or {}).get("events", ()))

    def _judged(self, command: str, *arguments: str) -> Outcome:
        done = self._call(SLOW_CALL, command, *arguments)
        message = str(done.document.get("message", ""))
        if done.returncode == 0 or message == DRY_RUN_PASSED:
            return answer.outcome(_masked(done.document), accepted=True)
        result = answer.outcome(_masked(done.document), accepted=False)
        if command == "update-cluster" and "No changes found" in message:
            return result
        raise PclusterRefused(f"pcluster {command}", result)

    def _found(self, command: str, *arguments: str) -> Document | None:
        done = self._call(QUICK_CALL, command, *arguments)
        if done.returncode == 0:
            return done.document
        message = str(done.document.get("message", ""))
        if is_missing(message):
            return None
        raise explain(f"pcluster {command}", message)

    def _pages(self, key: str, command: str, *arguments: str) -> Iterator[Document]:
        token: tuple[str, ...] = ()
        while True:
            document = self._found(command, *arguments, *token)
            if document is None:
                return
            yield from document.get(key) or ()
            if not document.get("nextToken"):
                return
            token = ("--next-token", document["nextToken"])

    def _call(self, timeout: float, command: str, *arguments: str) -> _Answer:
        private_log(self._log)
        argv = [str(self._env.executable), command, "--region", self.region, *arguments]
        returncode, stdout, stderr = _run(argv, self._environment, timeout)
        document = _json_document(stdout)
        if document is None:
            told = (stderr.strip() or stdout.strip())[-1500:]
            raise explain(f"pcluster {command}", told or f"it ended with {returncode} and said nothing")
        return _Answer(returncode, document)


def _run(argv: list[str], environment: Mapping[str, str], timeout: float) -> tuple[int, str, str]:
    """In a process group of its own, which Node.js joins, so that stopping leaves neither behind."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
            umask=0o077,  # its log keeps presigned URLs, and is rotated into new files
        )
    except OSError as error:
        raise ToolkitError(
            f"{argv[0]} can't be started: {error.strerror}.",
            next_step=f"remove {Path(argv[0]).parents[1]}; the next command installs it again",
        ) from error
    with process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            _stop(process)
            raise ToolkitError(
                f"`pcluster {argv[1]}` gave no answer within {timeout:g} s.",
                next_step="see whether it was done all the same: `toolkit cluster describe`; "
                "an old Node.js hangs here: remove it from PATH and the toolkit brings its own",
            ) from error
        except BaseException:
            _stop(process)
            raise
    return process.returncode, stdout, stderr


def _stop(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=5)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _json_document(stdout: str) -> Document | None:
    """The JSON object at the end of the output; Node.js may have printed a notice before it."""
    start = stdout.find("{")
    while start >= 0:
        try:
            document: Any = json.loads(stdout[start:])
        except ValueError:
            start = stdout.find("\n{", start + 1)
            start = start + 1 if start >= 0 else -1
            continue
        return document if isinstance(document, dict) else None
    return None


def _environment(env: PclusterEnv, region: str, given: Mapping[str, str] | None, log: Path) -> dict[str, str]:
    source = os.environ if given is None else given
    path = [str(env.executable.parent), str(env.node.parent), os.environ.get("PATH", os.defpath)]
    return {
        **{name: os.environ[name] for name in (*INHERITED, *PROXIES) if name in os.environ},
        **{name: value for name, value in source.items() if name.startswith("AWS_") or name in PROXIES},
        "AWS_DEFAULT_REGION": region,
        "PATH": os.pathsep.join(path),
        "PCLUSTER_LOG_FILE": str(log),
    }


def _masked(part: Any) -> Any:
    """A document, or a part of one, whose texts are shown."""
    if isinstance(part, dict):
        return {key: _masked(value) for key, value in part.items()}
    if isinstance(part, list):
        return [_masked(each) for each in part]
    return masked(part) if isinstance(part, str) else part


@contextmanager
def _config_file(text: str) -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="pcluster-", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        yield file.name


def _suppressed(validators: Sequence[str]) -> tuple[str, ...]:
    return ("--suppress-validators", *validators) if validators else ()


def _flag(value: bool) -> str:
    return "true" if value else "false"
