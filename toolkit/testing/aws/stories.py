"""What each outcome of a creation looks like from outside: the failing resource, its reason, the log lines.

Texts are those of the ParallelCluster cookbook (custom_action_executor.py, write_chef_error_handler.rb,
wait_static_fleet_running), of pcluster's head_node/user_data.sh and of aws-parallelcluster-node's fleet
manager. Only names, ids and times are made up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from toolkit.testing.aws.timeline import HEAD_NODE, HEAD_WAIT, Fault

_LOGS = (
    "Please check /var/log/cfn-init.log in the head node, or check the cfn-init.log in CloudWatch logs. "
    "Please refer to https://docs.aws.amazon.com/parallelcluster/latest/ug/troubleshooting-v3.html"
    "#troubleshooting-v3-get-logs for more details on ParallelCluster logs."
)
_CHEF_LOGS = _LOGS.replace("cfn-init.log", "chef-client.log")
_PROTECTED = "Cluster has been set to PROTECTED mode due to failures detected in static node provisioning."
_TIME = "2026-01-01 00:20:00,000"

Lines = tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    """What a story's texts name."""

    head_id: str
    head_type: str
    zone: str
    head_script: str
    node_script: str
    node: str
    node_type: str
    account: str


@dataclass(frozen=True)
class Story:
    """`head` and `node` hold lines by kind of log stream; `nodes`: do compute nodes get instances;
    `fleet`: the compute fleet's status in the end, empty while there is none."""

    fault: Fault | None = None
    head: dict[str, Lines] = field(default_factory=dict)
    node: dict[str, Lines] = field(default_factory=dict)
    nodes: bool = True
    fleet: str = "RUNNING"


def tell(outcome: str, setting: Setting) -> Story:
    return _STORIES[outcome](setting)


def _complete(setting: Setting) -> Story:
    return Story(head=_HEALTHY, node={"slurmd": (f"slurmd: node {setting.node} registered",)})


def _bootstrap_script(setting: Setting) -> Story:
    told = "Failed to execute OnNodeConfigured script 1"
    return Story(
        fault=_signalled(setting, f"fetch_and_run - {told}, return code: 3. {_LOGS}"),
        head={
            **_BOOTING,
            "cfn-init": (
                f"{_TIME} [ERROR] Command shellRunPostInstall "
                "(/opt/parallelcluster/scripts/fetch_and_run -c) failed",
                f"fetch_and_run - {told} {setting.head_script}, return code: 3. {_LOGS}",
                f"{_TIME} [ERROR] Error encountered during build of shellRunPostInstall: Command "
                "shellRunPostInstall failed",
            ),
        },
        nodes=False,
        fleet="",
    )


def _mount(setting: Setting) -> Story:
    return Story(
        fault=_signalled(setting, f"Failed to mount FSX. {_CHEF_LOGS}"),
        head={
            **_BOOTING,
            "chef-client": (
                "mount[mount fsx] (aws-parallelcluster-environment::fsx line 53) had an error: "
                "Mixlib::ShellOut::ShellCommandFailed: Expected process to exit with [0], but received '5'",
                "STDERR: mount.lustre: mount fs-0123456789abcdef0.fsx.ap-south-1.amazonaws.com@tcp:/standin1 "
                "at /fsx failed: Input/output error",
                "Is the MGS running?",
            ),
        },
        nodes=False,
        fleet="",
    )


def _bad_ami(setting: Setting) -> Story:
    told = (
        "This AMI was not baked by ParallelCluster. Please use pcluster build-image command to create an "
        "AMI by "
        "providing your AMI as parent image."
    )
    return Story(_signalled(setting, told), {"cloud-init-output": (told,)}, nodes=False, fleet="")


def _insufficient_capacity(setting: Setting) -> Story:
    return Story(
        fault=_signalled(setting, f"{_PROTECTED} {_CHEF_LOGS}"),
        head={
            **_BOOTING,
            "clustermgtd": (
                f"{_TIME} - [slurm_plugin.fleet_manager:launch_ec2_instances] - ERROR - Failed "
                "RunInstances request: "
                "00000000-0000-4000-8000-000000000000",
                f"{_TIME} - [slurm_plugin.instance_manager:_launch_instances] - ERROR - Encountered "
                "exception when "
                f"launching instances for nodes (x1) ['{setting.node}']: An error occurred "
                "(InsufficientInstanceCapacity) when calling the RunInstances operation (reached max "
                "retries: 1): "
                f"We currently do not have sufficient {setting.node_type} capacity in the Availability "
                "Zone you "
                f"requested ({setting.zone}). Our system will be working on provisioning additional "
                "capacity.",
                *_protected_lines(setting),
            ),
            "chef-client": (f"RuntimeError: {_PROTECTED.removesuffix('.')}",),
        },
        nodes=False,
        fleet="PROTECTED",
    )


def _node_script(setting: Setting) -> Story:
    told = f"Failed to execute OnNodeConfigured script 1 {setting.node_script}, return code: 3."
    return Story(
        fault=_signalled(setting, f"{_PROTECTED} {_CHEF_LOGS}"),
        head={
            **_BOOTING,
            "clustermgtd": (
                f"{_TIME} - [slurm_plugin.clustermgtd:_handle_unhealthy_static_nodes] - WARNING - Node "
                "state check: "
                f"static node {setting.node} in replacement is not backed by a healthy instance",
                *_protected_lines(setting),
            ),
            "chef-client": (f"RuntimeError: {_PROTECTED.removesuffix('.')}",),
        },
        node={
            "cloud-init-output": (
                *_OLD_DRIVER,
                f"fetch_and_run - {told} {_LOGS}",
                "Failed to run node bootstrap",
            )
        },
        fleet="PROTECTED",
    )


def _head_capacity(setting: Setting) -> Story:
    told = (
        f"We currently do not have sufficient {setting.head_type} capacity in the Availability Zone you "
        "requested "
        f"({setting.zone}). Our system will be working on provisioning additional capacity. (Service: "
        "Ec2, Status "
        "Code: 500, Request ID: 00000000-0000-4000-8000-000000000000) (RequestToken: "
        "00000000-0000-4000-8000-000000000001, HandlerErrorCode: InternalFailure)"
    )
    return Story(Fault(HEAD_NODE, told), nodes=False, fleet="")


def _timeout(setting: Setting) -> Story:
    waiting = "Waiting for static fleet capacity provisioning"
    return Story(
        Fault(HEAD_WAIT, "WaitCondition timed out. Received 0 conditions when expecting 1"),
        {**_BOOTING, "chef-client": (f"INFO: {waiting}", f"INFO: {waiting} ({setting.node})")},
        nodes=False,
        fleet="STARTING",
    )


def _denied(setting: Setting) -> Story:
    told = (
        'Resource handler returned message: "User: arn:aws:iam::'
        f"{setting.account}:user/somebody is not authorized to perform: iam:CreateRole on resource: "
        "arn:aws:iam::"
        f"{setting.account}:role/parallelcluster/pd because no identity-based policy allows the "
        "iam:CreateRole "
        'action (Service: Iam, Status Code: 403, Request ID: 00000000-0000-4000-8000-000000000000)" '
        "(RequestToken: 00000000-0000-4000-8000-000000000001, HandlerErrorCode: AccessDenied)"
    )
    return Story(Fault("AWS::IAM::Role", told), nodes=False, fleet="")


def _limit(setting: Setting) -> Story:
    told = (
        "You have requested more vCPU capacity than your current vCPU limit of 4 allows for the instance "
        "bucket that "
        f"the specified instance type ({setting.head_type}) belongs to. Please visit "
        "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit. (Service: "
        "Ec2, Status "
        "Code: 400, Request ID: 00000000-0000-4000-8000-000000000000) (RequestToken: "
        "00000000-0000-4000-8000-000000000001, HandlerErrorCode: ServiceLimitExceeded)"
    )
    return Story(Fault(HEAD_NODE, told), nodes=False, fleet="")


def _signalled(setting: Setting, message: str) -> Fault:
    """What CloudFormation says when the head node itself signals that it failed."""
    told = f"WaitCondition received failed message: '{message}' for uniqueId: {setting.head_id}"
    return Fault(HEAD_WAIT, told)


def _protected_lines(setting: Setting) -> Lines:
    queue = setting.node.split("-st-")[0]
    return (
        f"{_TIME} - [slurm_plugin.clustermgtd:_handle_protected_mode_process] - WARNING - Setting "
        "cluster into "
        "protected mode due to failures detected in node provisioning. Please investigate the issue and "
        "then use "
        "'pcluster update-compute-fleet --status START_REQUESTED' command to re-enable the fleet.",
        f"{_TIME} - [slurm_plugin.clustermgtd:_enter_protected_mode] - WARNING - Setting failing "
        f"partitions {queue} "
        "to INACTIVE",
    )


# What ami-setup/verify.sh says on a node of ParallelCluster's own image.
_OLD_DRIVER = (
    "pd-verify: loaded nvidia module: expected 580.126.16, found 570.172.08; see dmesg for NVRM; build the "
    "image again (toolkit image build)",
    "pd-verify: CUDA toolkit: expected 13.0, found 12.8; build the image again (toolkit image build)",
)
_BOOTING: dict[str, Lines] = {
    "cloud-init": ("Cloud-init v. 25.2 running 'modules:final'",),
    "chef-client": ("INFO: Chef Infra Client, version 18.8.54",),
}
_HEALTHY: dict[str, Lines] = {
    **_BOOTING,
    "cfn-init": ("[INFO] Build complete",),
    "clustermgtd": (f"{_TIME} - [slurm_plugin.clustermgtd:main] - INFO - ClusterManager Startup",),
    "slurmctld": ("[2026-01-01T00:00:00.000] slurmctld version 25.05.7 started on cluster parallelcluster",),
}
_STORIES = {
    "complete": _complete,
    "bootstrap-script": _bootstrap_script,
    "mount": _mount,
    "bad-ami": _bad_ami,
    "insufficient-capacity": _insufficient_capacity,
    "node-script": _node_script,
    "head-capacity": _head_capacity,
    "timeout": _timeout,
    "denied": _denied,
    "limit": _limit,
}
