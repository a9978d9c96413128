"""How `toolkit cluster` tells of a cluster on AWS: what would be made, what is there, what stays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.flows.cluster_delete import Deletion, NetworkDeletion
    from toolkit.flows.cluster_update import UpdateProposal
    from toolkit.flows.cluster_view import ClusterView
    from toolkit.flows.provision import Proposal
    from toolkit.plan.cluster import ClusterPlan, Queue
    from toolkit.preflight.problem import Problem
    from toolkit.remote.pcluster_answer import ValidationMessage


def proposal_lines(proposal: Proposal) -> Iterator[str]:
    """What will exist, what it is billed by, what outlives it, and what was found odd."""
    from toolkit.plan.cluster_cost import NO_PRICES, cost_drivers, kept_after_delete

    plan = proposal.plan
    yield f"cluster {plan.name} in {plan.region}, ParallelCluster {plan.version}:"
    yield from _plan_lines(plan, proposal.zone)
    yield f"billed ({NO_PRICES}):"
    for driver in cost_drivers(plan):
        yield f"  {driver.what}: {driver.billed}"
    yield "`toolkit cluster delete` will keep:"
    for kept in kept_after_delete(plan):
        yield f"  {kept}"
    yield from warning_lines(proposal.problems, proposal.validation)
    if proposal.zone:
        yield "pcluster's own validation follows when the network is there; it makes nothing."


def warning_lines(problems: Iterable[Problem], validation: Iterable[ValidationMessage]) -> Iterator[str]:
    found = [line for each in problems for line in str(each).splitlines()]
    found += [f"pcluster {each}" for each in validation]
    if found:
        yield "found by the checks:"
        yield from (f"  {line}" for line in found)


def offline_lines(proposal: Proposal) -> Iterator[str]:
    """What a configuration made without AWS leaves open."""
    for word in proposal.plan.unknown:
        yield f"{word} stands for what AWS tells when the cluster is made"
    for problem in proposal.problems:
        if not problem.is_error:
            yield str(problem)


def update_lines(update: UpdateProposal) -> Iterator[str]:
    plan = update.proposal.plan
    yield f"cluster {plan.name} in {plan.region} would change:"
    for change in update.changes:
        yield f"  {change}"
    yield from warning_lines(update.proposal.problems, update.validation)


def deletion_lines(deletion: Deletion, name: str) -> Iterator[str]:
    """What goes and what stays."""
    if deletion.state:
        yield f"goes: stack {name} ({deletion.state.status}) with {len(deletion.resources)} resources"
    for instance in deletion.instances:
        role = "head node" if instance.role == "HeadNode" else f"node of queue {instance.queue}"
        yield f"goes: {instance.id} ({instance.type}, {role}, {instance.state})"
    yield from leftover_lines(deletion.stays)


def network_stays_lines(network: NetworkDeletion, same: str) -> Iterator[str]:
    yield f"network {network.stack} stays, since this will still be in it: {', '.join(network.held)}"
    yield (
        "when that is deleted, by its command above, the network goes by: "
        f"toolkit cluster delete {same} --delete-network"
    )


def network_line(cluster: str, same: str) -> str:
    """Of a network that was made, or may have been."""
    from toolkit.plan.network import stack_name

    return (
        f"network stack {stack_name(cluster)}, if it was begun, stays, and its NAT gateway is billed: "
        f"toolkit cluster delete {same} --delete-network"
    )


def deletion_question(deletion: Deletion, name: str, network: NetworkDeletion | None) -> str:
    """For `confirm`: what will be deleted."""
    parts = [f"cluster {name}, with every job on it"] if deletion.cluster_is_there else []
    if network:
        parts += [f"security group {group} of the cluster" for group in network.groups]
        parts += [f"network {network.stack}"]
    return f"delete {', and '.join(parts)}"


def leftover_lines(stays: Iterable[Any]) -> Iterator[str]:
    for each in stays:
        yield f"stays: {each.kind} {each.id}; {each.removal}"


def view_lines(view: ClusterView) -> Iterator[str]:
    """All but the nodes."""
    version = f", ParallelCluster {view.version}" if view.version else ""
    yield f"cluster {view.name} in {view.region}{version}: {view.state}"
    if view.network:
        yield (
            f"  network stack {view.network.stack} in {view.network.zone}: {view.network.status}; its NAT "
            "gateway is billed until `toolkit cluster delete --delete-network`"
        )
    if view.state == "absent":
        yield from _reservation_lines(view)
        yield from (f"  unknown, {part}" for part in view.unread)
        return
    yield f"  compute fleet: {view.fleet}"
    yield f"  head node: {view.address or 'unknown'}"
    yield from _reservation_lines(view)
    if view.failure:
        yield f"  failed: {view.failure.cause} ({view.failure.kind})"
        for line in view.failure.evidence:
            yield f"    | {line}"
        yield f"  next: {view.failure.next_step}"
    for part in view.unread:
        yield f"  unknown, {part}"
    if view.address:
        yield f"  log in: {view.login}"


def view_data(view: ClusterView) -> dict[str, Any]:
    """For -o json; times in ISO 8601."""
    from dataclasses import asdict

    data = asdict(view)
    data["target"] = "parallelcluster"
    data["unread"] = list(view.unread)
    for instance in data["instances"] or ():
        instance["launched"] = instance["launched"].isoformat()
    if data["reservation"] and data["reservation"]["ends"]:
        data["reservation"]["ends"] = data["reservation"]["ends"].isoformat()
    return data


def view_rows(view: ClusterView) -> Iterator[tuple[object, ...]]:
    for each in view.instances or ():
        queue = each.queue or ("head" if each.role == "HeadNode" else each.role)
        yield (each.id, queue, each.type, each.state, each.private_ip, each.zone, each.reservation or None)


VIEW_COLUMNS = ("instance", "queue", "type", "state", "address", "zone", "reservation")


def next_commands(same: str) -> Iterator[str]:
    yield f"log in:          toolkit cluster ssh {same}"
    yield f"stage the model: toolkit job stage {same}"
    yield f"start serving:   toolkit job submit {same}"


def _reservation_lines(view: ClusterView) -> Iterator[str]:
    if reservation := view.reservation:
        used = reservation.total - reservation.available
        ends = f", until {reservation.ends:%Y-%m-%d %H:%M} UTC" if reservation.ends else ""
        yield (
            f"  capacity reservation {reservation.id}: {reservation.state}, {used} of {reservation.total} "
            f"{reservation.instance_type} used in {reservation.zone}{ends}"
        )


def _plan_lines(plan: ClusterPlan, zone: str | None) -> Iterator[str]:
    if zone:
        yield f"  network: a new VPC in {zone}, a public and a private subnet, a NAT gateway"
    yield f"  head node: {plan.head.instance_type} in {plan.head.subnet}, key pair {plan.head.key_name}"
    for queue in plan.queues:
        yield f"  partition {queue.name}: {_queue_words(queue)}"
    image = f"{plan.image} ({plan.ami})" if plan.image else plan.ami or "ParallelCluster's official one"
    yield f"  image: {image}"
    volume = plan.volume
    new = f"a new FSx for Lustre of {volume.capacity_gb} GB"
    yield f"  {volume.mount}: {volume.file_system or new}"


def _queue_words(queue: Queue) -> str:
    from toolkit.plan.cluster_cost import node_count

    efa = sum(nic.kind != "interface" for nic in queue.nics)
    words = [f"{node_count(queue)} x {queue.instance.name} in {queue.subnet}"]
    words += [f"{efa} EFA interfaces and {queue.addresses_per_node} addresses a node"] if efa else []
    words += [queue.capacity_type.lower().replace("_", " ")]
    words += [f"reservation {queue.reservation}"] if queue.reservation else []
    words += [f"placement group {queue.placement_group}"] if queue.placement_group else []
    return ", ".join(words)
