"""Checks of the cluster's name, the key pair and who may reach the head node."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.plan.cluster_document import node_groups, section, value_at
from toolkit.preflight.problem import Problem
from toolkit.preflight.subject import Check, Subject

KEY = "target.ssh.key_name"
NAME = "target.cluster_name"
EVERYWHERE = "0.0.0.0/0"
# ParallelCluster's ClusterNameValidator: Slurm's accounting database takes no longer one.
LONGEST_WITH_DATABASE = 40


def key_exists(s: Subject) -> Iterator[Problem]:
    name = s.plan.head.key_name
    if s.asked(s.facts.keys, name) is None:
        yield s.error(
            KEY,
            f"there is no key pair of that name in {s.region} of account {s.facts.account}",
            f"`aws ec2 create-key-pair --region {s.region} --key-type ed25519 --key-name NAME "
            "--query KeyMaterial --output text`, and keep what it prints in a file only you can read",
        )


def key_type(s: Subject) -> Iterator[Problem]:
    found = s.asked(s.facts.keys, s.plan.head.key_name)
    if found and found.type != "ed25519":
        kind = f"an {found.type.upper()} key" if found.type else "a key of unknown type"
        yield s.error(
            KEY,
            f"is {kind}; {s.plan.os} nodes take ed25519 keys only",
            "make an ed25519 key pair and name it",
        )


def ssh_from_everywhere(s: Subject) -> Iterator[Problem]:
    """Read from the final configuration. Without a value of their own, login nodes have the head node's."""
    for nodes in node_groups(s.document):
        head = nodes.path == "HeadNode"
        if section(nodes.section, "Ssh").get("AllowedIps", EVERYWHERE if head else None) == EVERYWHERE:
            key = "target.ssh.allowed_from" if head else f"target.overrides.{nodes.path}.Ssh.AllowedIps"
            yield s.warning(
                key,
                f"the whole internet may try the ssh port of the {nodes.name}",
                f"set {key} to your own network, such as 203.0.113.0/24",
                value=EVERYWHERE,
            )


def name_free(s: Subject) -> Iterator[Problem]:
    status = None if s.updates else s.known(s.facts.stack)
    if status:
        yield s.error(
            NAME,
            f"a CloudFormation stack of that name exists already in {s.region} ({status})",
            "`toolkit cluster describe` shows it if it is a cluster; update or delete it, or choose another "
            "name",
        )


def name_length(s: Subject) -> Iterator[Problem]:
    settings = ("Scheduling.SlurmSettings.Database", "Scheduling.SlurmSettings.ExternalSlurmdbd")
    given = [path for path in settings if value_at(s.document, path)]
    if given and len(s.plan.name) > LONGEST_WITH_DATABASE:
        yield s.error(
            NAME,
            f"has {len(s.plan.name)} characters; with {given[0]} it may have {LONGEST_WITH_DATABASE}",
            "choose a shorter name",
        )


def tags(s: Subject) -> Iterator[Problem]:
    """ParallelCluster keeps ten of AWS's fifty tags to itself (its MAX_TAGS_COUNT)."""
    if len(s.plan.tags) > 40:
        yield s.error(
            "target.tags",
            f"holds {len(s.plan.tags)} tags; a cluster may have 40 beside ParallelCluster's own",
            "take some out",
            value=f"{len(s.plan.tags)} tags",
        )


CHECKS: tuple[Check, ...] = (key_exists, key_type, ssh_from_everywhere, name_free, name_length, tags)
