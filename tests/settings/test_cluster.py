"""Settings of an AWS ParallelCluster: what is refused, with key, value, source and reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from toolkit.errors import SettingsError
from toolkit.settings.deployment import Deployment
from toolkit.settings.load import load
from toolkit.settings.target import ParallelClusterTarget

P5EN = Path(__file__).parents[2] / "deployments" / "qwen3-32b-p5en.yaml"


def refused(*assignments: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(P5EN, assignments)
    assert caught.value.exit_code == 2
    return caught.value.what


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("target.cluster_name=1st", "must be 1 to 60 letters, digits and '-', a letter first"),
        ("target.cluster_name=a_b", "must be 1 to 60 letters, digits and '-', a letter first"),
        ("target.region=mumbai", "must be an AWS region, such as ap-south-1"),
        ("target.version=latest", "must be a ParallelCluster version, such as 3.14.2"),
        ("target.network.head_subnet=subnet-xyz", "must be subnet- and 17 hex digits"),
        ("target.network.compute_subnet=vpc-0123456789abcdef0", "must be subnet- and 17 hex digits"),
        ("target.network.security_groups=[sg-1]", "must be sg- and 17 hex digits"),
        ("target.capacity.reservation=cr-123", "must be cr- and 17 hex digits"),
        ("target.capacity.kind=odcr", "'reservation', 'capacity-block', 'on-demand' or 'spot'"),
        ("target.image.ami=ami-zz", "must be ami- and 17 hex digits"),
        ("target.image.name=my_image", "must be letters, digits and '-', starting with a letter"),
        ("target.gpu.instance_type=p5en", "must be an instance type, such as p5en.48xlarge"),
        ("target.gpu.max_nodes=0", "greater than or equal to 1"),
        ("target.gpu.min_nodes=-1", "greater than or equal to 0"),
        ("target.storage.file_system=fs-0123abcd", "must be fs- and 17 hex digits"),
        ("target.storage.capacity_gb=5000", "must be 1200 or a multiple of 2400"),
        ("target.storage.throughput=300", "125, 250, 500 or 1000"),
        ("target.storage.mount=/home", "/home and what lies below is the node's own"),
        ("target.storage.mount=fsx", "must be an absolute folder, such as /fsx"),
        ("target.ssh.fingerprint=MD5:00", "must be SHA256: and 43 characters"),
        ("target.bucket=s3://mine", "must be a bucket's name, without s3://"),
        ("target.scripts=[{script: ./local.sh}]", "must be an address such as s3://bucket/folder/script.sh"),
        ("target.scripts=[{script: 's3://b-1/x.sh', args: [1]}]", "should be a valid string"),
        ("target.scripts=[{script: 's3://b-1/x.sh', nodes: [all]}]", "'head', 'gpu' or 'router'"),
        ("target.tags={'aws:x': y}", "the tag name aws:x is reserved"),
        ("target.log_retention_days=15", "14"),
        ("target.gpu_partition=GPU", "must be 1 to 25 lower-case letters, digits and '-'"),
        ("target.overrides={Scheduling: {SlurmQueues: []}}", "Scheduling.SlurmQueues is decided by settings"),
        ("target.hf_home=huggingface", "must be an absolute path on the cluster's nodes"),
    ],
)
def test_a_wrong_value_is_refused_with_key_source_and_reason(assignment: str, told: str) -> None:
    what = refused(assignment)
    key = assignment.partition("=")[0]
    assert key in what
    assert f"--set {key}" in what
    assert told in what


@cache
def shipped_target() -> dict[str, Any]:
    return load(P5EN).deployment.target.model_dump()


def given(**values: Any) -> ParallelClusterTarget:
    """A target with these values, as Python has them, in place of the shipped deployment's."""
    return ParallelClusterTarget.model_validate({**shipped_target(), **values})


def refused_by_rule(key: str, value: Any) -> bool:
    """Whether the settings' own rules refuse it, for this key and no other one."""
    with pytest.raises(ValidationError) as caught:
        given(**{key: value})
    return {each["loc"][0] for each in caught.value.errors()} == {key}


# S3 guide, "General purpose bucket naming rules".
@pytest.mark.parametrize(
    "name",
    [
        *("ab", "a" * 64, "Bucket", "my_bucket", "-bucket", "bucket-", ".bucket", "bucket.", "my bucket"),
        *("a..b", "my...bucket", "192.168.5.4", "1.2.3.4", "xn--bucket", "sthree-bucket", "amzn-s3-demo-a"),
        *("bucket-s3alias", "bucket--ol-s3", "bucket.mrap", "bucket--x-s3", "bucket--table-s3", "bücket"),
    ],
)
def test_no_bucket_is_named_as_s3_refuses(name: str) -> None:
    assert refused_by_rule("bucket", name)
    assert refused_by_rule("scripts", [{"script": f"s3://{name}/x.sh"}])


@pytest.mark.parametrize(
    "name", ["abc", "a" * 63, "my.bucket", "1.2.3", "192.168.5.4a", "pd-toolkit-1-ap-south-1"]
)
def test_other_buckets_are_taken(name: str) -> None:
    assert given(bucket=name, scripts=[{"script": f"s3://{name}/x.sh"}]).bucket == name


FOLDERS = (
    *("bin", "boot", "dev", "etc", "home", "lib", "lib64", "opt", "proc", "root", "run", "sbin", "scratch"),
    *("snap", "sys", "tmp", "usr", "var"),
)


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("form", ["/{}", "/{}/", "/{}/x", "/{}/x/y.z", "/fsx/../{}", "/./{}", "//{}"])
def test_no_mount_hides_what_the_node_has(folder: str, form: str) -> None:
    assert refused_by_rule("storage", {"mount": form.format(folder)})
    assert refused_by_rule("storage", {"mount": Path(form.format(folder))})


@pytest.mark.parametrize(
    "mount",
    [
        *(
            "/",
            "//",
            "fsx",
            "",
            ".",
            "/fsx/..",
            "/my fsx",
            "/fsx\t",
            "/fsx\n",
            "/fs\\040x",
            "/fsx,ro",
            "/fsx:x",
        ),
        *("/$HOME", "/f'sx", '/f"sx', "/fsx;id", "/fsx*", "/füx", "/fsx//x", "~/fsx"),
    ],
)
def test_no_mount_has_a_name_that_proc_mounts_writes_otherwise(mount: str) -> None:
    assert refused_by_rule("storage", {"mount": mount})


@pytest.mark.parametrize(
    "mount", ["/fsx", "/fsx/", "/data/models", "/mnt/x", "/optional", "/home2", "/.fsx", "/f_s-x.1"]
)
def test_other_mounts_are_taken(mount: str) -> None:
    assert given(storage={"mount": mount}).storage.mount == Path(mount)


@pytest.mark.parametrize("sign", [*"&,;!?#%*()[]{}<>|'\"\\^`~$§", "😀", "\u2028", "\n", "\t", "\xa0"])
def test_a_tag_has_no_sign_that_iam_refuses(sign: str) -> None:
    for tags in ({f"a{sign}b": "x"}, {"x": f"a{sign}b"}):
        with pytest.raises(ValidationError) as caught:
            given(tags=tags)
        told = str(caught.value)
        assert f"'{sign}'" in told if sign.isprintable() else f"U+{ord(sign):04X}" in told


@pytest.mark.parametrize(
    ("tags", "told"),
    [
        ({"a" * 129: "x"}, "has 129 characters; AWS takes 128"),
        ({"x": "a" * 257}, "has 257 characters; AWS takes 256"),
        ({"": "x"}, "at least 1 character"),
        ({"AWS:x": "y"}, "the tag name AWS:x is reserved"),
        ({"Aws:": "y"}, "reserved"),
        ({"parallelcluster:version": "y"}, "reserved"),
        ({"Project": "a", "project": "b"}, "the tag names Project and project differ in case only"),
    ],
)
def test_a_tag_that_aws_refuses_is_refused(tags: dict[str, str], told: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(told)):
        given(tags=tags)


def test_other_tags_are_taken() -> None:
    tags = {"a" * 128: "b" * 256, "cost centre": "R+D_1.2:/=-@ é東", "empty": "", "awsome": "x"}
    assert given(tags=tags).tags == tags


@pytest.mark.parametrize(
    "overrides",
    [
        {"HeadNode": None},
        {"HeadNode": []},
        {"HeadNode": {"Ssh": None}},
        {"HeadNode": {"Ssh": {"AllowedIps": None}}},
        {"HeadNode": {"Ssh": {"AllowedIps": "0.0.0.0/0"}}},
        {"HeadNode": {"Networking": {"SecurityGroups": ["sg-0123456789abcdef0"]}}},
        {"HeadNode": {"LocalStorage": {"RootVolume": {"Encrypted": False}}}},
        {"HeadNode": {"LocalStorage": "none"}},
        {"HeadNode": {"Iam": None}},
        {"HeadNode": {"Iam": {"AdditionalIamPolicies": None}}},
        {"HeadNode": {"Iam": {"S3Access": {}}}},
        {"Imds": {"ImdsSupport": "v1.0"}},
        {"Scheduling": None},
        {"Monitoring": {"Logs": {"CloudWatch": None}}},
    ],
)
def test_an_override_takes_the_place_of_no_setting(overrides: dict[str, Any]) -> None:
    assert refused_by_rule("overrides", overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        {"HeadNode": {"Ssh": {}}},
        {"HeadNode": {"Networking": {"ElasticIp": True}}},
        {"HeadNode": {"Iam": {"AdditionalIamPolicies": []}}},
        {"Monitoring": {"DetailedMonitoring": True}},
        {"DevSettings": None},
    ],
)
def test_an_override_may_stand_beside_them(overrides: dict[str, Any]) -> None:
    assert given(overrides=overrides).overrides == overrides


@pytest.mark.parametrize(
    ("assignments", "told"),
    [
        (("target.capacity.kind=spot",), "capacity of kind spot can't use reservation cr-0123456789abcdef0"),
        (("target.capacity.kind=on-demand",), "capacity of kind on-demand can't use reservation"),
        (("target.gpu.min_nodes=3",), "min_nodes 3 is more than max_nodes 2"),
        (("target.router.min_nodes=3",), "min_nodes 3 is more than max_nodes 1"),
        (("target.network.create=true",), "network.create makes the subnets, so none can be named"),
        (("target.gpu_partition=router",), "gpu_partition and router_partition must differ"),
        (("target.image.official=true", "target.image.ami=ami-0123456789abcdef0"), "exclude each other"),
        (
            ("target.storage.file_system=fs-0123456789abcdef0", "target.storage.capacity_gb=4800"),
            "capacity_gb belongs to a new file system",
        ),
    ],
)
def test_values_that_exclude_each_other_are_told_with_both_sources(
    assignments: tuple[str, ...], told: str
) -> None:
    what = refused(*assignments)
    assert told in what
    assert f"--set {assignments[0].partition('=')[0]}" in what


def test_a_misspelt_key_is_refused_with_the_right_one() -> None:
    assert "did you mean 'target.capacity.reservation'?" in refused("target.capacity.resevation=x")
    assert "did you mean 'target.network.compute_subnet'?" in refused("target.network.compute_subnets=x")


def test_a_cluster_that_exists_needs_only_its_name_and_region(tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    file.write_text(
        "name: a\ntarget: {kind: parallelcluster, cluster_name: pd, region: ap-south-1}\n"
        "model: {name: m, served_name: s}\n"
    )
    target = load(file).deployment.target
    assert isinstance(target, ParallelClusterTarget)
    assert (target.gpu.instance_type, target.capacity.kind) == ("p5en.48xlarge", "reservation")


def test_the_shipped_deployments_describe_the_published_environment(
    deployment: Callable[..., Deployment],
) -> None:
    for name in ("qwen3-32b-p5en", "glm-5-fp8-p5en"):
        target = deployment(name).target
        assert isinstance(target, ParallelClusterTarget)
        assert target.region == "ap-south-1"
        assert (target.gpu.instance_type, target.gpu.min_nodes, target.gpu.max_nodes) == (
            "p5en.48xlarge",
            2,
            2,
        )
        assert target.gpu.efa
        assert (target.capacity.kind, target.capacity.placement_group) == ("reservation", None)
