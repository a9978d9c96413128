"""EC2 instances as a ParallelCluster node is one: from a launch template, with 16 or 17 interfaces, in a
capacity reservation, with cloud-init's console output. Each replaced part says what moto does instead."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from moto.core.responses import ActionResult
from moto.core.types import Base64EncodedString
from moto.core.utils import utcnow
from moto.ec2.models import ec2_backends
from moto.ec2.models.elastic_network_interfaces import Attachment
from moto.ec2.models.instances import Instance
from moto.ec2.responses import EC2Response
from moto.ec2.responses.instances import InstanceResponse

from toolkit.testing.aws.moto_capacity import capacity_of
from toolkit.testing.aws.simulation import simulation

# A public key whose private half was thrown away.
DEFAULT_HOST_KEYS = ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAII30lpQFW3+GkZJmJJ+jZzYORRTrbJr9uzwuGPZoGbSf",)
_PRIMARY = "parallelcluster:node-type"


def install() -> None:
    _allow_instance_store()
    _build_from_launch_template()
    _keep_every_interface()
    _show_the_reservation()
    _print_the_console()


def _allow_instance_store() -> None:
    """Moto wants a size in every block device mapping. AWS takes instance-store disks (pcluster maps 24 as
    ephemeralN) and a root volume as large as the AMI's snapshot."""
    response: Any = InstanceResponse
    original = response._validate_block_device_mapping

    def validate(mapping: Mapping[str, Any]) -> None:
        instance_store = str(mapping.get("VirtualName") or "").startswith("ephemeral")
        disk = mapping.get("Ebs") or {}
        of_the_ami = bool(disk) and not {"VolumeSize", "SnapshotId"} & set(disk)
        if not instance_store and not of_the_ami:
            original(mapping)

    response._validate_block_device_mapping = staticmethod(validate)


def _build_from_launch_template() -> None:
    """CloudFormation's AWS::EC2::Instance: moto wants ImageId inline, pcluster names a template."""
    model: Any = Instance
    original = model.create_from_cloudformation_json.__func__

    def create(
        cls: type[Any],
        /,
        resource_name: str,
        document: Mapping[str, Any],
        account_id: str,
        region_name: str,
        **rest: Any,
    ) -> Any:
        properties = document["Properties"]
        if template := properties.get("LaunchTemplate"):
            backend = ec2_backends[account_id][region_name]
            data = backend._get_template_from_args(template).data
            document = {"Properties": _inline(backend, data, properties)}
        instance = original(cls, resource_name, document, account_id, region_name, **rest)
        _give_address(instance)
        return instance

    model.create_from_cloudformation_json = classmethod(create)


def _inline(backend: Any, data: Mapping[str, Any], properties: Mapping[str, Any]) -> dict[str, Any]:
    inline = {key: data[key] for key in ("ImageId", "InstanceType", "KeyName", "UserData") if key in data}
    first = (data.get("NetworkInterfaces") or [{}])[0]
    if interface := first.get("NetworkInterfaceId"):
        inline["SubnetId"] = backend.get_network_interface(interface).subnet.id
    elif subnet := first.get("SubnetId"):
        inline["SubnetId"] = subnet
    specifications = data.get("TagSpecifications") or []
    tags = [tag for each in specifications if each.get("ResourceType") == "instance" for tag in each["Tags"]]
    inline["Tags"] = [*tags, *properties.get("Tags", [])]
    return inline


def _give_address(instance: Any) -> None:
    address = simulation.scenario.head_address
    if address and any(tag["key"] == _PRIMARY and tag["value"] == "HeadNode" for tag in instance.get_tags()):
        instance.nics[0].public_ip = address


def _keep_every_interface() -> None:
    """Moto keys an instance's interfaces by DeviceIndex, so of 16 network cards it keeps two."""
    model: Any = Instance
    original = model.prep_nics

    def prepare(self: Any, nics: Sequence[dict[str, Any]], **rest: Any) -> None:
        first = [nic for nic in nics if int(nic.get("DeviceIndex", 0)) == 0 and not _card(nic)]
        original(self, first, **rest)
        for position, nic in enumerate((nic for nic in nics if nic not in first), start=1):
            interface = self.ec2_backend.create_network_interface(
                nic.get("SubnetId") or self.subnet_id, [], group_ids=list(nic.get("Groups") or [])
            )
            self.attach_eni(interface, position)
            interface.device_index = int(nic["DeviceIndex"])
        for interface, nic in zip(self.nics.values(), nics, strict=False):
            interface.interface_type = nic.get("InterfaceType") or "interface"
            interface.network_card_index = _card(nic)

    model.prep_nics = prepare
    attachment: Any = Attachment
    attach = attachment.__init__

    def init(self: Any, interface: Any) -> None:
        attach(self, interface)
        self.network_card_index = getattr(interface, "network_card_index", 0)

    attachment.__init__ = init


def _card(nic: Mapping[str, Any]) -> int:
    return int(nic.get("NetworkCardIndex") or 0)


def _show_the_reservation() -> None:
    """RunInstances: moto drops CapacityReservationSpecification, so nothing shows where a node runs."""
    response: Any = EC2Response
    original = response.run_instances

    def run(self: Any) -> Any:
        answer = original(self)
        wanted = self._get_param("CapacityReservationSpecification", {}) or {}
        name = (wanted.get("CapacityReservationTarget") or {}).get("CapacityReservationId")
        reservation = capacity_of(self.ec2_backend).reservations.get(str(name))
        if reservation:
            for instance in answer.result.instances:
                instance.capacity_reservation_id = name
                instance.capacity_reservation_specification = wanted
        return answer

    response.run_instances = run


def _print_the_console() -> None:
    """GetConsoleOutput: moto gives a fixed sample; cloud-init's block has the head node's host keys."""
    response: Any = EC2Response

    def console(self: Any) -> ActionResult:
        instance = self.ec2_backend.get_instance(self._get_param("InstanceId"))
        keys = simulation.scenario.host_keys or DEFAULT_HOST_KEYS
        text = console_output(instance.private_ip_address, keys)
        return ActionResult(
            {
                "InstanceId": instance.id,
                "Timestamp": utcnow(),
                "Output": Base64EncodedString.from_raw_string(text),
            }
        )

    response.get_console_output = console


def console_output(private_ip: str, host_keys: Sequence[str]) -> str:
    """The end of a boot on Ubuntu 24.04, with both blocks of cloud-init's config module keys_to_console.

    Format: cloud-init, tools/write-ssh-key-fingerprints.
    """
    host = "ip-" + private_ip.replace(".", "-")
    stamp = "<14>Jan  1 00:01:12 cloud-init: "
    keys = [tuple(line.split()[:2]) for line in host_keys]
    lines = ["[    0.000000] Linux version 6.14.0-1018-aws (buildd@lcy02-amd64-001)", f"{host} login: "]
    lines.append(f"{stamp}{'#' * 61}")
    lines.append(f"{stamp}-----BEGIN SSH HOST KEY FINGERPRINTS-----")
    lines += [f"{stamp}{_BITS[kind]} {fingerprint(key)} root@{host} ({_LABEL[kind]})" for kind, key in keys]
    lines.append(f"{stamp}-----END SSH HOST KEY FINGERPRINTS-----")
    lines.append(f"{stamp}{'#' * 61}")
    lines.append("-----BEGIN SSH HOST KEY KEYS-----")
    lines += [f"{kind} {key} root@{host}" for kind, key in keys]
    lines.append("-----END SSH HOST KEY KEYS-----")
    lines.append("[   71.204418] cloud-init[1620]: Cloud-init v. 25.2 finished")
    return "\r\n".join(lines) + "\r\n"


_BITS = {"ssh-ed25519": 256, "ecdsa-sha2-nistp256": 256, "ssh-rsa": 3072}
_LABEL = {"ssh-ed25519": "ED25519", "ecdsa-sha2-nistp256": "ECDSA", "ssh-rsa": "RSA"}


def fingerprint(key: str) -> str:
    """`SHA256:...` of a public key's base64, as ssh-keygen -l prints it."""
    digest = hashlib.sha256(base64.b64decode(key)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
