"""Lines of a ParallelCluster head node's logs that name a known fault, newest version of their text. Pure."""

from __future__ import annotations

from dataclasses import dataclass

NODE_DAEMON = "aws-parallelcluster-node, src/slurm_plugin"
TROUBLESHOOTING = (
    "https://docs.aws.amazon.com/parallelcluster/latest/ug/troubleshooting-v3-scaling-issues.html"
)


@dataclass(frozen=True)
class LogPattern:
    """`pattern`: a regular expression for one line."""

    pattern: str
    symptom: str
    cause: str
    next_step: str
    source: str


LOG_PATTERNS = (
    LogPattern(
        r"Failed to execute OnNode(Start|Configured|Updated) script",
        "a script that runs when a node starts ended with an error",
        "ParallelCluster takes any exit status but 0 as the node's failure, and repeated ones as the fleet's",
        "read the script's output in the node's cloud-init-output log stream; it must end with exit 0",
        "https://github.com/aws/aws-parallelcluster/issues/5511",
    ),
    LogPattern(
        r"Insufficient(Instance|ReservedInstance|Host)Capacity",
        "EC2 had no capacity for a node",
        "the reservation is full, of another type or zone, or is not targeted by the queue",
        "compare the reservation's free instances with the queue's settings: `toolkit doctor cluster`",
        "https://github.com/terraform-aws-modules/terraform-aws-eks/issues/3730",
    ),
    LogPattern(
        r"ReservationCapacityExceeded",
        "the capacity reservation is full",
        "other instances run in it, perhaps ones that match it without targeting it",
        "see which instances use it: `aws ec2 describe-instances` filtered by its id",
        TROUBLESHOOTING,
    ),
    LogPattern(
        r"(VcpuLimitExceeded|InstanceLimitExceeded|MaxSpotInstanceCountExceeded)",
        "an EC2 quota is used up",
        "the account's limit for this family of instances is below what the queue asks for",
        "ask for a higher quota in the Service Quotas console",
        TROUBLESHOOTING,
    ),
    LogPattern(
        r"UnauthorizedOperation",
        "the head node may not start instances as configured",
        "its IAM role lacks a permission, often for the capacity reservation, a key or a pass-role",
        "decode the message with `aws sts decode-authorization-message` and add the permission",
        TROUBLESHOOTING,
    ),
    LogPattern(
        r"Node bootstrap error",
        "a node was started but did not join",
        "its start-up script, mounts or network failed within the bootstrap time (2100 s)",
        "read the node's cloud-init-output and slurmd log streams: "
        "`aws logs tail /aws/parallelcluster/CLUSTER-DATE`",
        NODE_DAEMON,
    ),
    LogPattern(
        r"Waiting for static fleet capacity provisioning",
        "the head node waits for nodes that are always up",
        "static nodes do not come, so the creation ends in HeadNodeWaitCondition's timeout",
        "create the cluster with gpu.min_nodes 0, then look why the nodes do not start",
        "https://github.com/aws/aws-parallelcluster/issues/3373",
    ),
)
