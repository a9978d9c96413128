"""The nodes' network: a bridge with the machine's own address, and one namespace with an `eth0` per node.

`up` and `down` need root; what exists is read without it.
"""

from __future__ import annotations

import json
import subprocess
from ipaddress import IPv4Interface, IPv4Network

from toolkit.embedded.places import DEVICES, NAMESPACES, Places, places
from toolkit.embedded.tools import tool
from toolkit.errors import ToolkitError
from toolkit.plan.embedded import EmbeddedPlan


def our_devices(where: Places) -> set[str]:
    return {path.name for path in DEVICES.iterdir() if where.owns_device(path.name)}


def our_namespaces(where: Places) -> set[str]:
    if not NAMESPACES.is_dir():
        return set()
    return {path.name for path in NAMESPACES.iterdir() if where.owns_namespace(path.name)}


def is_up(plan: EmbeddedPlan) -> bool:
    """True if exactly the plan's devices and namespaces exist, and the bridge has the plan's address."""
    where = places(plan)
    devices = {where.bridge, *(where.veth(i) for i in range(len(plan.nodes)))}
    names = {where.namespace(node.name) for node in plan.nodes}
    if our_devices(where) != devices or our_namespaces(where) != names:
        return False
    head = IPv4Interface(f"{plan.head_address}/{plan.prefix_length}")
    return (where.bridge, head) in _addresses()


def check_network_is_free(plan: EmbeddedPlan) -> None:
    """Raises ToolkitError if a device that is not this cluster's has an address that overlaps the plan's."""
    where, wanted = places(plan), IPv4Network(plan.network)
    for device, address in _addresses():
        if address.network.overlaps(wanted) and not where.owns_device(device):
            raise ToolkitError(
                f"network {wanted} of the embedded cluster is in use: device {device} has {address}",
                next_step="set target.network to a free private network, such as 10.79.0.0/24, or, if the "
                "device is another embedded cluster's (pd...), delete that cluster",
            )


def up(plan: EmbeddedPlan) -> None:
    """Makes the network, replacing a half-made one. Raises ToolkitError if another device uses it."""
    check_network_is_free(plan)
    if is_up(plan):
        return
    down(plan)
    where = places(plan)
    _ip_batch(
        f"link add {where.bridge} type bridge",
        f"address add {plan.head_address}/{plan.prefix_length} dev {where.bridge}",
        f"link set {where.bridge} up",
    )
    for index, node in enumerate(plan.nodes):
        namespace, veth = where.namespace(node.name), where.veth(index)
        _ip("netns", "add", namespace)
        _ip_batch(
            f"link add {veth} type veth peer name eth0 netns {namespace}",
            f"link set {veth} master {where.bridge} up",
        )
        _ip_batch(
            f"address add {node.address}/{plan.prefix_length} dev eth0",
            "link set eth0 up",
            "link set lo up",
            namespace=namespace,
        )


def down(plan: EmbeddedPlan) -> None:
    """Removes every device and namespace with the plan's tag, also those of an earlier plan of this root."""
    where = places(plan)
    for namespace in sorted(our_namespaces(where)):
        _ip("netns", "delete", namespace)
    # A veth goes with its namespace, which the kernel tears down a little later: so it may go by itself here.
    for device in sorted(our_devices(where), reverse=True):
        subprocess.run([tool("ip"), "link", "delete", device], capture_output=True, check=False)
    left = our_devices(where) | our_namespaces(where)
    if left:
        raise ToolkitError(
            f"could not remove: {', '.join(sorted(left))}",
            next_step="remove it with `ip link delete` or `ip netns delete`",
        )


def _addresses() -> list[tuple[str, IPv4Interface]]:
    listed = json.loads(_ip("-json", "-4", "address", "show"))
    return [
        (device["ifname"], IPv4Interface(f"{info['local']}/{info['prefixlen']}"))
        for device in listed
        for info in device.get("addr_info", [])
        if "local" in info
    ]


def _ip_batch(*commands: str, namespace: str | None = None) -> None:
    within = ["-netns", namespace] if namespace else []
    _ip(*within, "-batch", "-", stdin="\n".join(commands) + "\n")


def _ip(*arguments: str, stdin: str | None = None) -> str:
    done = subprocess.run([tool("ip"), *arguments], input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolkitError(
            f"`ip {' '.join(arguments)}` failed: {done.stderr.strip() or done.returncode}"
            + (f" (commands: {stdin.strip()})" if stdin else ""),
            next_step="network namespaces, veth and bridge devices must be allowed here (in a container: "
            "--privileged, or CAP_NET_ADMIN and CAP_SYS_ADMIN)",
        )
    return done.stdout
