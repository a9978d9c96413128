"""Checks of the scripts that nodes run when they start, and of the buckets they come from."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from toolkit.plan import cluster_document as document_of
from toolkit.plan.aws_facts import Bucket, Forbidden
from toolkit.preflight.problem import Problem
from toolkit.preflight.subject import Check, Subject

BUCKET = "target.bucket"
SCRIPTS = "target.scripts"


def bucket_is_ours(s: Subject) -> Iterator[Problem]:
    """A bucket that is missing is made; its name may still be taken by somebody else, who shows nothing."""
    name = s.target.bucket
    if name and isinstance(s.asked(s.facts.buckets, name), Forbidden):
        yield s.error(
            BUCKET,
            "belongs to another account, or these credentials may not use it",
            "allow these credentials s3:ListBucket on it if it is yours, or choose another name",
        )


def bucket_region(s: Subject) -> Iterator[Problem]:
    for name in s.facts.buckets:
        found = s.asked(s.facts.buckets, name)
        if isinstance(found, Bucket) and found.region not in (None, s.region):
            where = f"bucket {name} is in {found.region}, not in {s.region}"
            if name == s.target.bucket:
                yield s.error(
                    BUCKET,
                    f"{where}, and it is not used from afar",
                    f"choose a new name, and the bucket is made in {s.region}; or name one that is there",
                )
            else:
                yield s.warning(
                    SCRIPTS,
                    f"{where}: nodes read their scripts from afar, and may not find them",
                    f"use a bucket in {s.region}",
                    value=name,
                )


def script_exists(s: Subject) -> Iterator[Problem]:
    ours = {script.url for script in s.plan.scripts if script.content is not None}
    for _, key, url in _scripts(s):
        if url in ours or not document_of.bucket_and_key(url):
            continue
        found = s.asked(s.facts.objects, url)
        if found is None:
            yield s.error(
                key,
                "there is no such object: nodes would fail when they fetch it",
                f"`aws s3 cp SCRIPT {url}`, or correct the address",
                value=url,
            )
        elif isinstance(found, Forbidden):
            yield s.warning(
                key,
                "could not be checked: these credentials may not read it",
                f"see that `aws s3 ls {url}` shows it to somebody who may",
                value=url,
            )


def script_address(s: Subject) -> Iterator[Problem]:
    for nodes, key, url in _scripts(s):
        if not url.startswith(("s3://", "https://")):
            yield s.error(
                key,
                f"the {nodes.name} can fetch scripts by s3:// or https:// only",
                "upload it with `aws s3 cp`, and name it by its s3:// address",
                value=url,
            )


def script_readable(s: Subject) -> Iterator[Problem]:
    """ParallelCluster does not check this, and the node fails with 403 when it starts."""
    for nodes, key, url in _scripts(s):
        place = document_of.bucket_and_key(url)
        iam = document_of.section(nodes.section, "Iam")
        own_role = iam.get("InstanceRole") or iam.get("InstanceProfile")
        if not place or own_role or _by_policy(iam):
            continue
        bucket, name = place
        allowed = (
            access
            for access in document_of.items(iam, "S3Access")
            if isinstance(access, dict) and access.get("BucketName") == bucket
        )
        if not any(fnmatchcase(name, str(access.get("KeyName") or "*")) for access in allowed):
            yield s.error(
                key,
                f"the {nodes.name} may not read {url}: its Iam.S3Access does not hold it",
                f"add bucket {bucket} to {nodes.path}.Iam.S3Access (target.overrides), or a policy that "
                "allows s3:GetObject on it to AdditionalIamPolicies",
                value=url,
            )


def _by_policy(iam: object) -> bool:
    """Whether a managed policy for S3 is attached, or one that can't be looked into here."""
    policies = [str(each.get("Policy")) for each in document_of.items(iam, "AdditionalIamPolicies")]
    return any("AmazonS3" in policy or ":aws:policy/" not in policy for policy in policies)


def _scripts(s: Subject) -> Iterator[tuple[document_of.NodeGroup, str, str]]:
    """(nodes, setting, address) of every script of the final configuration."""
    own = {script.script for script in s.target.scripts}
    for nodes in document_of.node_groups(s.document):
        for path, url in nodes.scripts:
            ours = any(url == script.url and script.content for script in s.plan.scripts)
            yield nodes, BUCKET if ours else SCRIPTS if url in own else f"target.overrides.{path}", url


CHECKS: tuple[Check, ...] = (bucket_is_ours, bucket_region, script_exists, script_address, script_readable)
