"""AWS on this machine, simulated: moto's server with what ParallelCluster needs besides, and an account.

`aws_standin()` starts it as a process of its own on a free loopback port:

    with aws_standin() as standin:
        standin.script(create_seconds=20, outcome="bootstrap-script")
        Pcluster(env, "ap-south-1", environment=standin.environment).create_cluster(...)
        assert not standin.creating_calls()

Nothing here checks what AWS checks: capacity, quotas, permissions, subnet sizes, whether a template is valid.
"""

from __future__ import annotations

from toolkit.testing.aws.calls import Call
from toolkit.testing.aws.scenario import OUTCOMES, Scenario
from toolkit.testing.aws.standin import Standin, aws_standin

__all__ = ["OUTCOMES", "Call", "Scenario", "Standin", "aws_standin"]
