"""Nothing is made before everything is right and somebody said yes."""

from __future__ import annotations

import os
import pty
from typing import Any

import pytest

pytestmark = [pytest.mark.aws, pytest.mark.slow]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("target.capacity.reservation=cr-0aaaaaaaaaaaaaaa1",), "target.capacity.reservation"),
        (("target.ssh.key_name=rsa-key", "target.ssh.allowed_from=0.0.0.0/0"), "target.ssh.key_name"),
        # Only pcluster knows this one: it is for CentOS.
        (
            ('target.overrides={"AdditionalPackages": {"IntelSoftware": {"IntelHpcPlatform": true}}}',),
            "pcluster 3.14.2 refuses the configuration",
        ),
    ],
)
def test_a_mistake_stops_before_anything_is_made(toolkit: Any, settings: tuple[str, ...], words: str) -> None:
    told = toolkit.having(*settings)("create", "--yes", expect=2).stderr
    assert words in told
    assert toolkit.standin.creating_calls() == ()


def test_without_yes_and_terminal_nothing_is_made(toolkit: Any) -> None:
    told = toolkit("create", expect=2).stderr
    assert "Add --yes" in told
    # The plan was shown before.
    assert "billed (prices are not asked" in told
    assert toolkit.standin.creating_calls() == ()


def test_a_no_makes_nothing(toolkit: Any) -> None:
    master, slave = pty.openpty()
    os.write(master, b"n\n")
    told = toolkit("create", expect=1, stdin=slave).stderr
    os.close(slave)
    os.close(master)
    assert "nothing was done" in told
    assert toolkit.standin.creating_calls() == ()


@pytest.mark.parametrize("verb", ["update", "diff"])
def test_a_cluster_that_is_not_there(toolkit: Any, verb: str) -> None:
    assert "there is no cluster pd-p5en" in toolkit(verb, expect=2).stderr
    assert toolkit.standin.creating_calls() == ()


def test_ssh_without_a_head_node(toolkit: Any) -> None:
    assert "it has no head node" in toolkit("ssh", "--", "true", expect=1).stderr


def test_a_stack_that_is_no_cluster_is_left_alone(toolkit: Any) -> None:
    template = '{"Resources": {"T": {"Type": "AWS::SNS::Topic"}}}'
    toolkit.client("cloudformation").create_stack(StackName="pd-p5en", TemplateBody=template)
    toolkit.standin.forget_calls()
    assert "is no ParallelCluster" in toolkit("create", "--yes", expect=2).stderr
    assert "left alone" in toolkit("delete", "--yes", expect=1).stderr
    assert toolkit.standin.creating_calls() == ()
