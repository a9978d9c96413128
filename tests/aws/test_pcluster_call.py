"""How pcluster is run: arguments, environment, answers and the end of it. Small scripts take its place;
the real one is in test_pcluster.py."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.remote.pcluster import Pcluster
from toolkit.remote.pcluster_answer import Outcome, ValidationMessage
from toolkit.remote.pcluster_env import PclusterEnv
from toolkit.remote.pcluster_error import PclusterRefused, explain, is_missing


def env_of(folder: Path, body: str) -> PclusterEnv:
    executable = folder / "bin" / "pcluster"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!{sys.executable}\nimport json, os, sys\n{body}\n")
    executable.chmod(0o755)
    return PclusterEnv("3.14.2", folder, executable, folder / "node" / "node")


def answering(folder: Path, document: object, code: int = 1) -> Pcluster:
    env = env_of(folder, f"print({json.dumps(json.dumps(document))}); sys.exit({code})")
    return Pcluster(env, "ap-south-1", environment={})


def test_environment_has_what_is_needed_and_nothing_else(tmp_path: Path) -> None:
    env = env_of(
        tmp_path, f"json.dump(dict(os.environ), open({str(tmp_path / 'env')!r}, 'w'))\nprint('{{}}')"
    )
    misleading = {"HF_TOKEN": "secret", "PYTHONPATH": "/x", "PYTHONHOME": "/x", "PYTHONUSERBASE": "/x"}
    os.environ.update(misleading)
    try:
        given = {"AWS_PROFILE": "pd", "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "HF_HOME": "/x"}
        assert Pcluster(env, "ap-south-1", environment=given).list_clusters() == ()
    finally:
        for name in misleading:
            del os.environ[name]
    seen = json.loads((tmp_path / "env").read_text())
    assert {name for name in seen if name.startswith(("AWS_", "HF_", "PYTHON"))} == {
        "AWS_PROFILE",
        "AWS_ENDPOINT_URL",
        "AWS_DEFAULT_REGION",
    }
    assert seen["AWS_DEFAULT_REGION"] == "ap-south-1"
    assert seen["PATH"].split(os.pathsep)[:2] == [str(tmp_path / "bin"), str(tmp_path / "node")]
    assert seen["PCLUSTER_LOG_FILE"] == str(env.log)


@pytest.mark.parametrize("readable_before", [False, True])
def test_its_log_is_its_owners_alone(tmp_path: Path, readable_before: bool) -> None:
    """Presigned URLs are in it. It is written, and rotated into new files, by pcluster itself."""
    body = """
log = os.environ["PCLUSTER_LOG_FILE"]
open(log, "a").write("X-Amz-Security-Token=x")
os.rename(log, log + ".1")
open(log, "a").write("more")
print("{}")"""
    env = env_of(tmp_path, body)
    if readable_before:
        env.log.parent.mkdir(mode=0o755)
        env.log.touch(mode=0o644)
        env.log.with_name("pcluster-cli.log.2").touch(mode=0o644)
    assert Pcluster(env, "ap-south-1", environment={}).list_clusters() == ()
    modes = {each.name: each.stat().st_mode & 0o777 for each in env.log.parent.iterdir()}
    assert set(modes.values()) == {0o600}
    assert len(modes) == 3 if readable_before else 2
    assert readable_before or env.log.parent.stat().st_mode & 0o777 == 0o700


SECRET_TEXTS = [
    'Could not connect to the endpoint URL: "http://ops:hunter2@proxy:1/"',
    "Invalid endpoint: https://ops:hunt@hunter2@10.0.0.1",
    "proxy HTTPS://hunter2@proxy:3128 refused; see https://docs.aws.amazon.com/x",
    "GET https://b.s3.amazonaws.com/k?X-Amz-Credential=AKIA1&X-Amz-Security-Token=hunter2&X-Amz-Signature=1",
    "SignatureDoesNotMatch: AKIAHUNTER2HUNTER2XY",
]


@pytest.mark.parametrize("text", SECRET_TEXTS)
def test_no_secret_of_its_words_is_told(tmp_path: Path, text: str) -> None:
    messages = [{"level": "ERROR", "type": "V", "message": text}]
    document = {
        "message": text,
        "configurationValidationErrors": messages,
        "updateValidationErrors": [{"parameter": "a", "requestedValue": text, "message": text}],
    }
    pcluster = answering(tmp_path / "a", document)
    failing = Pcluster(env_of(tmp_path / "b", f"sys.exit({text!r})"), "ap-south-1", environment={})
    for call in (
        lambda: pcluster.create_cluster("pd", "x"),
        lambda: pcluster.update_cluster("pd", "x"),
        pcluster.list_clusters,
        failing.list_clusters,
    ):
        with pytest.raises(ToolkitError) as caught:
            call()
        assert "hunter2" not in str(caught.value).lower()
        if isinstance(caught.value, PclusterRefused):
            assert "hunter2" not in str(caught.value.outcome).lower()
    accepted = answering(tmp_path / "c", {"validationMessages": messages}, 0).create_cluster("pd", "x")
    assert "hunter2" not in str(accepted).lower()


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        (["DELETE_IN_PROGRESS", "BUILD_COMPLETE"], "BUILD_COMPLETE"),
        (["DELETE_IN_PROGRESS", "DELETE_IN_PROGRESS"], "DELETE_IN_PROGRESS"),
        (["DELETE_IN_PROGRESS", ""], None),
        (["BUILD_IN_PROGRESS"], "BUILD_IN_PROGRESS"),
        (["BUILD_FAILED"], "BUILD_FAILED"),
        (["BUILD_COMPLETE"], "BUILD_COMPLETE"),
        ([""], None),
    ],
)
def test_a_build_that_ends_while_it_is_asked_for_is_no_deletion(
    tmp_path: Path, answers: list[str], told: str | None
) -> None:
    """pcluster's two looks, at AMIs and at stacks, are of two moments. "": there is none."""
    queue = tmp_path / "answers"
    queue.write_text("\n".join([*answers, "END"]))
    body = f"""
status, *rest = open({str(queue)!r}).read().split("\\n")
open({str(queue)!r}, "w").write("\\n".join(rest))
image = {{"imageId": "pd", "version": "3.14.2", "region": "ap-south-1", "imageBuildStatus": status}}
missing = {{"message": "No image or stack associated with ParallelCluster image id: pd."}}
print(json.dumps(image if status else missing))
sys.exit(not status)"""
    image = Pcluster(env_of(tmp_path, body), "ap-south-1", environment={}).describe_image("pd")
    assert (image and image.status) == told
    assert queue.read_text() == "END"


def test_next_steps_name_settings_that_exist() -> None:
    from toolkit.remote.pcluster_error import _KNOWN
    from toolkit.settings.target import ParallelClusterTarget

    named = {key for known in _KNOWN for key in re.findall(r"\b([a-z]+)\.([a-z_]+) ", known.next_step)}
    assert named
    assert {(part, key) for part, key in named if part != "target"} == set()
    assert {key for _, key in named} <= set(ParallelClusterTarget.model_fields)


def test_configuration_goes_through_a_private_file_that_is_removed(tmp_path: Path) -> None:
    body = """
path = sys.argv[sys.argv.index("--cluster-configuration") + 1]
print(json.dumps({"message": path + " " + oct(os.stat(path).st_mode & 0o777) + " " + open(path).read()}))"""
    outcome = Pcluster(env_of(tmp_path, body), "ap-south-1").create_cluster("pd", "Region: x")
    path, mode, *text = outcome.message.split()
    assert (mode, text) == ("0o600", ["Region:", "x"])
    assert not Path(path).exists()


def test_a_good_dry_run_ends_with_1(tmp_path: Path) -> None:
    document = {
        "message": "Request would have succeeded, but DryRun flag is set.",
        "validationMessages": [{"level": "WARNING", "type": "A", "message": "m"}],
    }
    outcome = answering(tmp_path, document).create_cluster("pd", "x", dry_run=True)
    assert outcome == Outcome(True, document["message"], (ValidationMessage("WARNING", "A", "m"),))  # type: ignore[arg-type]


def test_a_notice_of_node_before_the_answer_is_passed_over(tmp_path: Path) -> None:
    env = env_of(
        tmp_path, "print(\"b'!!  {end of life} !!'\")\nprint(json.dumps({'clusters': []}, indent=2))"
    )
    assert Pcluster(env, "ap-south-1").list_clusters() == ()


def test_pages_are_read_to_the_end(tmp_path: Path) -> None:
    body = """
more = "--next-token" in sys.argv
each = {"clusterName": "b" if more else "a", "clusterStatus": "s", "cloudformationStackStatus": "s",
        "cloudformationStackArn": "arn", "version": "3.14.2", "region": "r"}
print(json.dumps({"clusters": [each], **({} if more else {"nextToken": "t"})}))"""
    clusters = Pcluster(env_of(tmp_path, body), "ap-south-1").list_clusters()
    assert [cluster.name for cluster in clusters] == ["a", "b"]


def test_a_refusal_tells_each_message_with_level_and_type(tmp_path: Path) -> None:
    document = {
        "message": "Invalid cluster configuration.",
        "configurationValidationErrors": [{"level": "ERROR", "type": "EfaValidator", "message": "no EFA"}],
    }
    with pytest.raises(PclusterRefused) as refused:
        answering(tmp_path, document).create_cluster("pd", "x")
    assert "Invalid cluster configuration.\n  ERROR EfaValidator: no EFA" in refused.value.what
    assert "ERROR lines" in refused.value.next_step


def test_a_refused_update_tells_what_can_not_change(tmp_path: Path) -> None:
    change = {
        "parameter": "HeadNode.InstanceType",
        "currentValue": "a",
        "requestedValue": "b",
        "message": "no",
    }
    document = {"message": "Update failure", "updateValidationErrors": [change]}
    with pytest.raises(PclusterRefused, match=r"HeadNode\.InstanceType: a -> b \(no\)"):
        answering(tmp_path, document).update_cluster("pd", "x")


def test_arguments_that_it_does_not_know_are_told(tmp_path: Path) -> None:
    env = env_of(
        tmp_path, "print('usage: pcluster\\npcluster: error: invalid choice', file=sys.stderr); sys.exit(2)"
    )
    with pytest.raises(ToolkitError, match="invalid choice"):
        Pcluster(env, "ap-south-1").list_clusters()


def test_an_environment_that_is_gone_is_told(tmp_path: Path) -> None:
    env = PclusterEnv("3.14.2", tmp_path, tmp_path / "bin" / "pcluster", tmp_path / "node")
    with pytest.raises(ToolkitError, match="can't be started") as error:
        Pcluster(env, "ap-south-1").list_clusters()
    assert str(tmp_path) in error.value.next_step


def test_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    told = str(tmp_path / "child")
    child = f"import time, os; open({told!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    env = env_of(tmp_path, f"import subprocess\nsubprocess.run([sys.executable, '-c', {child!r}])")
    code = f"""
from pathlib import Path
from toolkit.remote.pcluster import Pcluster
from toolkit.remote.pcluster_env import PclusterEnv
folder = Path({str(tmp_path)!r})
Pcluster(PclusterEnv("3.14.2", folder, folder / "bin" / "pcluster", folder), "ap-south-1").list_clusters()
"""
    assert env.executable.exists()
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as caller:
        deadline = time.monotonic() + 60
        while not ((tmp_path / "child").exists() and (tmp_path / "child").read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        caller.send_signal(signal.SIGINT)
        _, stderr = caller.communicate(timeout=60)
    assert "KeyboardInterrupt" in stderr
    grandchild = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 30
    while running(grandchild):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def running(pid: int) -> bool:
    """False also for one that has ended and waits for its parent to notice."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("message", "meaning"),
    [
        ("Unable to find node executable. Node.js is required by the AWS CDK library", "runs in Node.js"),
        ("Unable to locate credentials", "No AWS credentials were found"),
        ("An error occurred (ExpiredToken) when calling the GetCallerIdentity operation", "have expired"),
        ("The security token included in the request is invalid", "does not accept these credentials"),
        ("User: arn:aws:iam::1:user/a is not authorized to perform: ec2:DescribeSubnets", "may not do this"),
        ("Bad Request: region needs to be set", "No region reached pcluster"),
        ('Could not connect to the endpoint URL: "http://127.0.0.1:1/"', "AWS was not reached"),
        (
            "the update can be performed only with the same ParallelCluster version (3.14.2) used to create",
            "updated only by the version that created it",
        ),
        ("Invalid cluster configuration: Unable to parse response (syntax error: line 1)", "not one of AWS"),
        ("Invalid cluster configuration: list index out of range", "knows nothing by that id"),
        ("KeyPairValidator: 'KeyType'", "key pair's type"),
        ("Bad Request: Cluster pd already exists.", "cluster, image or stack of that name"),
        ("Rate exceeded", "too many calls"),
    ],
)
def test_an_unhelpful_message_is_kept_and_explained(message: str, meaning: str) -> None:
    error = explain("pcluster create-cluster", message)
    assert message in error.what
    assert meaning in error.what
    assert error.next_step


def test_an_unknown_message_is_told_as_it_is() -> None:
    assert str(explain("pcluster x", "odd")).startswith("`pcluster x` failed: odd\nNext: ")


@pytest.mark.parametrize(
    ("message", "missing"),
    [
        ("Cluster 'pd' does not exist or belongs to an incompatible ParallelCluster major version.", True),
        ("Cluster pd does not exist.", True),
        ("No image or stack associated with ParallelCluster image id: pd.", True),
        ("The specified log stream a.b.c does not exist.", True),
        ("Unexpected error when retrieving cluster's logs: The specified log group does not exist.", True),
        ("The subnet ID 'subnet-1' does not exist", False),
        ("The capacity reservation 'cr-1' does not exist", False),
    ],
)
def test_only_its_own_things_are_missing(message: str, missing: bool) -> None:
    assert is_missing(message) is missing
