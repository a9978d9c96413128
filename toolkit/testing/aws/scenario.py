"""What the stand-in lets happen, and how fast: set by `Standin.script`, read when a stack is made."""

from __future__ import annotations

from dataclasses import dataclass

OUTCOMES = (
    "complete",
    "bootstrap-script",  # the head node's OnNodeConfigured script ends with 3
    "mount",  # /fsx can't be mounted on the head node
    "bad-ami",  # the head node's AMI was not made by ParallelCluster
    "insufficient-capacity",  # static nodes get InsufficientInstanceCapacity; PROTECTED mode
    "node-script",  # static nodes fail the check of their software at their start; PROTECTED mode
    "head-capacity",  # the head node's instance gets InsufficientInstanceCapacity
    "timeout",  # the head node never signals: WaitCondition timed out
    "denied",  # IAM refuses a role
    "limit",  # a quota refuses a resource
)
IMAGE_OUTCOMES = ("complete", "component-failed")


@dataclass(frozen=True)
class Scenario:
    """Times in seconds of the wall clock; 0 means at once.

    `host_keys`: public key lines (`ssh-ed25519 AAAA...`) that the head node's console output fingerprints.
    `head_address`: public address that new head nodes get, such as 127.0.0.1 in front of a real sshd.
    `leave_instances`: a deletion leaves the nodes running, as a failed one may.
    `hold`, which is read all the time: nothing that is under way ends until this is taken back.
    """

    create_seconds: float = 0.0
    update_seconds: float = 0.0
    delete_seconds: float = 0.0
    outcome: str = "complete"
    image_seconds: float = 0.0
    image_outcome: str = "complete"
    nvidia_version: str = "580.126.16"
    cuda_version: str = "13.0.2"
    efa_version: str = "3.3.0-1.amzn1"  # of the package, as the tag has it; the module is 3.3.0g
    kernel_version: str = "6.14.0-1018-aws"
    host_keys: tuple[str, ...] = ()
    head_address: str = ""
    leave_instances: bool = False
    hold: bool = False

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"outcome {self.outcome!r} is none of {', '.join(OUTCOMES)}")
        if self.image_outcome not in IMAGE_OUTCOMES:
            raise ValueError(f"image_outcome {self.image_outcome!r} is none of {', '.join(IMAGE_OUTCOMES)}")
