"""EC2 Image Builder's part in build-image: moto has no imagebuilder, and no build ever ends in an AMI."""

from __future__ import annotations

import json
import time
from typing import Any

from toolkit.testing.aws.account import Clients
from toolkit.testing.aws.amis import PLAIN_UBUNTU_AMI
from toolkit.testing.aws.scenario import Scenario
from toolkit.testing.aws.stack_life import lives
from toolkit.testing.aws.timeline import Fault

_IMAGE = "AWS::ImageBuilder::Image"
_FAILED = (
    "Workflow Execution ID: 'wf-00000000-0000-4000-8000-000000000000' failed with reason: Document "
    "arn:aws:imagebuilder:"
    "ap-south-1:123456789012:component/upgrade/0.0.1/1 failed: Step 'Script' failed: exit status 1"
)
_WORKING = "TOE has started execution. Phase: build, document: parallelcluster-3.x"
# As the component's steps say it (ami-setup/lib.sh), behind the stream's name.
_BEGUN = (
    "Stdout: 2026-01-01 00:10:00 [10-hold-kernel] begin: kernel 6.14.0-1018-aws is installed and held "
    "(kernel packages that are not held: expected none, found linux-image-6.14.0-1018-aws)",
    "Stdout: 2026-01-01 00:10:02 [10-hold-kernel] done: kernel 6.14.0-1018-aws is installed and held",
    "Stdout: 2026-01-01 00:12:00 [30-driver] begin: NVIDIA driver 580.126.16 with open kernel modules",
)
_BUILT = (
    *_BEGUN,
    "Stdout: 2026-01-01 00:19:00 [30-driver] done: NVIDIA driver 580.126.16 with open kernel modules",
)
_BROKEN = (
    *_BEGUN,
    "Stdout: Error! Bad return status for module build on kernel: 6.14.0-1018-aws (x86_64)",
    "Stderr: 2026-01-01 00:16:40 [30-driver] ERROR: dkms module nvidia for 6.14.0-1018-aws: expected "
    "580.126.16 installed, found absent; read /var/lib/dkms/nvidia/580.126.16/build/make.log",
)


class Build:
    """One run of Image Builder for the image stack of pcluster."""

    def __init__(self, clients: Clients, stack: Any, scenario: Scenario) -> None:
        self._clients = clients
        self._stack = stack
        self._scenario = scenario
        self.fault = Fault(_IMAGE, _FAILED) if scenario.image_outcome == "component-failed" else None

    def write_log(self) -> None:
        logs, group = self._clients.logs, f"/aws/imagebuilder/ParallelClusterImage-{self._stack.name}"
        known = logs.describe_log_groups(logGroupNamePrefix=group)["logGroups"]
        if not any(each["logGroupName"] == group for each in known):
            logs.create_log_group(logGroupName=group)
        stream = f"{self._stack.tags['parallelcluster:version']}/1"
        logs.create_log_stream(logGroupName=group, logStreamName=stream)
        lines = [_WORKING, *(_BUILT if self.fault is None else (*_BROKEN, _FAILED))]
        events = [{"timestamp": int(time.time() * 1000), "message": line} for line in lines]
        logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)

    def publish(self) -> None:
        """The AMI with pcluster's tags; then the stack deletes itself, as the real one does."""
        ec2, name = self._clients.ec2, self._stack.name
        # Any subnet: the account may have no default VPC.
        subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
        started = ec2.run_instances(
            ImageId=PLAIN_UBUNTU_AMI, InstanceType="g4dn.4xlarge", MinCount=1, MaxCount=1, SubnetId=subnet
        )
        instance = started["Instances"][0]["InstanceId"]
        # Not RegisterImage, which in moto forgets the architecture.
        ami = ec2.create_image(InstanceId=instance, Name=f"{name} 2026-01-01T00-00-00.000Z")["ImageId"]
        ec2.terminate_instances(InstanceIds=[instance])
        tags = [{"Key": key, "Value": value} for key, value in self._tags().items()]
        ec2.create_tags(Resources=[ami], Tags=tags)
        self._clients.cloudformation.delete_stack(StackName=name)
        self._clients.cloudformation.describe_stacks(StackName=name)

    def _tags(self) -> dict[str, str]:
        """As resources/imagebuilder/parallelcluster_tag.yaml of aws-parallelcluster sets them."""
        scenario, version = self._scenario, self._stack.tags["parallelcluster:version"]
        own = {
            "build_status": "available",
            "os": "ubuntu2404",
            "parent_image": PLAIN_UBUNTU_AMI,
            "bootstrap_file": f"aws-parallelcluster-cookbook-{version}",
            "nvidia_version": scenario.nvidia_version,
            "cuda_version": scenario.cuda_version,
            "efa_version": scenario.efa_version,
            "kernel_version": scenario.kernel_version,
            "slurm_version": "25.05.7",
        }
        return {**self._stack.tags, **{f"parallelcluster:{key}": value for key, value in own.items()}}


def answer(operation: str, arguments: dict[str, list[str]]) -> bytes:
    """imagebuilder's GetImage, the one call that pcluster makes; the state of the build that is under way."""
    arn = arguments.get("imageBuildVersionArn", [""])[0]
    reason = lives.failure_of(arn)
    state = {"status": "FAILED", "reason": reason} if reason else {"status": "BUILDING"}
    return json.dumps({"requestId": operation, "image": {"arn": arn, "state": state}}).encode()
