"""A cluster's own network: one CloudFormation stack from pcluster-config/network.yaml, made, told, removed.

Making it again finds it; a run that was stopped is followed by the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from toolkit.data import shipped
from toolkit.errors import ToolkitError
from toolkit.plan.network import NetworkPlan, stack_name
from toolkit.remote.aws_session import aws_errors, client
from toolkit.remote.aws_stack import stack_events, stack_state

Progress = Callable[[str], None]

# On our stacks, so that one of the same name which somebody else made is neither used nor deleted.
TAG = "pd-toolkit:network"
# A NAT gateway takes about two minutes; CloudFormation itself gives up on one after much longer.
LONGEST = 1800.0  # seconds
# The reason of a resource that was only stopped because another one failed.
CANCELLED = "Resource creation cancelled"
USABLE = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")


@dataclass(frozen=True)
class NetworkIds:
    """`security_group` lets its members reach each other, EFA included, and everything outside."""

    vpc: str
    head_subnet: str
    compute_subnet: str
    security_group: str


@dataclass(frozen=True)
class Network:
    """`status` is CloudFormation's; `ids` are None unless it can be used."""

    stack: str
    status: str
    reason: str
    zone: str
    ids: NetworkIds | None


def ensure_network(plan: NetworkPlan, tell: Progress, *, poll: float = 5.0) -> NetworkIds:
    """The network of `plan`, made if it isn't there: some three minutes, with a line for each part.

    Raises ToolkitError: a stack of that name that is not ours, is in another zone, has failed, or fails now,
    with CloudFormation's reason.
    """
    found = describe_network(plan.name, plan.region)
    if found and found.status == "DELETE_IN_PROGRESS":
        tell(f"network {plan.stack}: an earlier one is being deleted")
        _follow(plan.stack, plan.stack, plan.region, tell, poll)
        found = describe_network(plan.name, plan.region)
    if found is None:
        tell(f"network {plan.stack}: making a VPC {plan.cidr} in {plan.zone} with a NAT gateway")
        arn = _create(plan)
    else:
        arn = found.stack
        if found.zone != plan.zone:
            raise ToolkitError(
                f"network {plan.stack} is in zone {found.zone}, but the GPU nodes are in {plan.zone}.",
                next_step="choose a reservation in that zone, or give the cluster another name",
            )
    if found is None or found.status == "CREATE_IN_PROGRESS":
        _follow(arn, plan.stack, plan.region, tell, poll)
        found = describe_network(plan.name, plan.region)
    if found is None or found.ids is None:
        status, reason = (found.status, found.reason) if found else ("gone", "")
        raise ToolkitError(
            f"network {plan.stack} can't be used: {status}. {reason or _reasons(arn, plan.region)}".rstrip(),
            next_step=f"remove it with `aws cloudformation delete-stack --region {plan.region} --stack-name "
            f"{plan.stack}`, then run the command again",
        )
    tell(f"network {plan.stack}: {found.ids.vpc}, {found.ids.head_subnet}, {found.ids.compute_subnet}")
    return found.ids


def describe_network(name: str, region: str) -> Network | None:
    """The network of cluster `name`; None if there is none. ToolkitError for a stack that is not ours."""
    stack = _stack(stack_name(name), region)
    if stack is None:
        return None
    outputs = {each["OutputKey"]: each["OutputValue"] for each in stack.get("Outputs", ())}
    zone = next((p["ParameterValue"] for p in stack["Parameters"] if p["ParameterKey"] == "Zone"), "")
    ids = None
    if stack["StackStatus"] in USABLE:
        ids = NetworkIds(
            vpc=outputs["Vpc"],
            head_subnet=outputs["HeadSubnet"],
            compute_subnet=outputs["ComputeSubnet"],
            security_group=outputs["SecurityGroup"],
        )
    return Network(stack["StackName"], stack["StackStatus"], stack.get("StackStatusReason", ""), zone, ids)


@dataclass(frozen=True)
class NetworkUser:
    """Something in a VPC that keeps it from being deleted."""

    kind: str
    id: str
    purpose: str

    def __str__(self) -> str:
        return f"{self.kind} {self.id} ({self.purpose})"


def network_users(vpc: str, region: str) -> tuple[NetworkUser, ...]:
    """What is in the VPC beside the network's own parts, each with its name or purpose: instances,
    interfaces and security groups. The NAT gateway's own interface does not count."""
    ec2 = client("ec2", region)
    inside = [{"Name": "vpc-id", "Values": [vpc]}]
    with aws_errors(f"looking for users of {vpc}"):
        instances = list(_instances(ec2, inside))
        gateways = ec2.describe_nat_gateways(Filters=inside)["NatGateways"]
        interfaces = _all(ec2, "describe_network_interfaces", "NetworkInterfaces", inside)
        groups = _all(ec2, "describe_security_groups", "SecurityGroups", inside)
    of_gateways = {at.get("NetworkInterfaceId") for each in gateways for at in each["NatGatewayAddresses"]}
    users = [NetworkUser("instance", each["InstanceId"], _name(each)) for each in instances]
    for each in interfaces:
        of_instance = each.get("Attachment", {}).get("InstanceId")
        if each["NetworkInterfaceId"] not in of_gateways and not of_instance:
            purpose = each.get("Description") or "no description"
            users.append(NetworkUser("interface", each["NetworkInterfaceId"], purpose))
    for each in groups:
        if each["GroupName"] != "default" and TAG not in {tag["Key"] for tag in each.get("Tags", ())}:
            users.append(NetworkUser("security group", each["GroupId"], each["GroupName"]))
    return tuple(users)


def network_vpc(name: str, region: str) -> str:
    """Id of the VPC of cluster `name`'s own network; empty if it has none."""
    found = describe_network(name, region)
    if found is None:
        return ""
    return found.ids.vpc if found.ids else _vpc(stack_name(name), region)


def delete_group(group: str, region: str) -> None:
    """A security group that nothing uses any more; ToolkitError if something does."""
    with aws_errors(f"deleting security group {group}"):
        client("ec2", region).delete_security_group(GroupId=group)


def delete_network(name: str, region: str, tell: Progress, *, poll: float = 5.0) -> bool:
    """Removes the network of cluster `name` and waits until it is gone. False if there was none. Raises
    ToolkitError with whatever still runs in it, before anything is removed."""
    found = describe_network(name, region)
    if found is None:
        return False
    stack = stack_name(name)
    state = stack_state(stack, region)
    vpc = network_vpc(name, region)
    users = network_users(vpc, region) if vpc else ()
    if users:
        told = ", ".join(map(str, users[:8]))
        raise ToolkitError(
            f"network {stack} ({vpc}) is in use and stays as it is: {told}{', ...' * (len(users) > 8)}.",
            next_step="remove what is in it, then delete the network again; its NAT gateway is billed",
        )
    tell(f"network {stack}: deleting {vpc or 'its stack'}")
    with aws_errors(f"deleting stack {stack}"):
        client("cloudformation", region).delete_stack(StackName=stack)
    _follow(state.arn if state else stack, stack, region, tell, poll)
    left = describe_network(name, region)
    if left is not None:
        raise ToolkitError(
            f"network {stack} could not be deleted: {left.status}. {left.reason}".rstrip(),
            next_step="remove what its reason names, then run the command again",
        )
    return True


def _create(plan: NetworkPlan) -> str:
    parameters = {
        "Cluster": plan.name,
        "Zone": plan.zone,
        "Cidr": str(plan.cidr),
        "HeadCidr": str(plan.head_cidr),
        "ComputeCidr": str(plan.compute_cidr),
    }
    tags = {**dict(plan.tags), TAG: plan.name}
    with aws_errors(f"making network {plan.stack}"):
        answer = client("cloudformation", plan.region).create_stack(
            StackName=plan.stack,
            TemplateBody=shipped("pcluster-config", "network.yaml").read_text(encoding="utf-8"),
            Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
            Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
            # A network that failed halfway would go on costing; its events stay readable by ARN.
            OnFailure="DELETE",
        )
    return str(answer["StackId"])


def _follow(arn: str, stack: str, region: str, tell: Progress, poll: float) -> None:
    """Tells what is done until nothing moves any more; raises for a creation that ends as a deletion."""
    started = time.monotonic()
    told: set[str] = {event.event_id for event in stack_events(arn, region) if event.resource == stack}
    creating = None
    while True:
        state = stack_state(arn, region)
        if state is None:
            return
        creating = state.status.startswith("CREATE_") if creating is None else creating
        for event in stack_events(arn, region):
            if event.event_id not in told and event.status.endswith("_COMPLETE") and event.resource != stack:
                tell(f"  {time.monotonic() - started:4.0f} s  {event.resource}: {event.status}")
            told.add(event.event_id)
        if not state.moving:
            break
        if time.monotonic() - started > LONGEST:
            raise ToolkitError(
                f"network {stack} is still {state.status} after {LONGEST / 60:.0f} minutes.",
                next_step="run the command again to go on waiting, or look at the stack in the AWS console",
            )
        time.sleep(poll)
    if creating and not state.status.startswith("CREATE_COMPLETE"):
        raise ToolkitError(
            f"network {stack} could not be made ({state.status}): {_reasons(arn, region) or state.reason}",
            next_step="CloudFormation takes back what it had made; correct the cause, then try again",
        )


def _reasons(arn: str, region: str) -> str:
    """Why resources failed, without those that were only cancelled."""
    failed = (event for event in stack_events(arn, region) if event.status.endswith("_FAILED"))
    return "; ".join(
        f"{event.resource}: {event.reason}"
        for event in failed
        if event.reason and not event.reason.startswith(CANCELLED)
    )


def _stack(stack: str, region: str) -> Mapping[str, Any] | None:
    with aws_errors(f"reading stack {stack}"):
        try:
            found: Mapping[str, Any] = client("cloudformation", region).describe_stacks(StackName=stack)[
                "Stacks"
            ][0]
        except ClientError as error:
            if "does not exist" in str(error.response.get("Error", {}).get("Message", "")):
                return None
            raise
    if TAG not in {tag["Key"] for tag in found.get("Tags", ())}:
        raise ToolkitError(
            f"there is a CloudFormation stack {stack}, but the toolkit did not make it.",
            next_step="give the cluster another name, or name subnets in target.network instead of create",
        )
    return found


def _vpc(stack: str, region: str) -> str:
    """Of a network that is not complete, from its resources; empty if it has none."""
    with aws_errors(f"reading stack {stack}"):
        resources = client("cloudformation", region).describe_stack_resources(StackName=stack)[
            "StackResources"
        ]
    return next(
        (each.get("PhysicalResourceId", "") for each in resources if each["LogicalResourceId"] == "Vpc"), ""
    )


def _all(ec2: Any, operation: str, key: str, inside: list[dict[str, Any]]) -> list[Mapping[str, Any]]:
    pages = ec2.get_paginator(operation).paginate(Filters=inside)
    return [each for page in pages for each in page[key]]


def _instances(ec2: Any, inside: list[dict[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for page in ec2.get_paginator("describe_instances").paginate(Filters=inside):
        for reservation in page["Reservations"]:
            yield from (each for each in reservation["Instances"] if each["State"]["Name"] != "terminated")


def _name(instance: Mapping[str, Any]) -> str:
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}
    return tags.get("parallelcluster:cluster-name") or tags.get("Name") or "no name"
