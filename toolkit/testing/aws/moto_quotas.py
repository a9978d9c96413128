"""Moto's Service Quotas know only VPC; our checks ask for EC2's vCPU quotas."""

from __future__ import annotations

from typing import Any

from moto.servicequotas.models import ServiceQuotasBackend

# "Running On-Demand ... instances", in vCPUs; large enough for the seeded account's reservations.
_VCPUS = {
    "L-1216C47A": ("Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", 1152.0),
    "L-417A185B": ("Running On-Demand P instances", 1152.0),
    "L-DB2E81BA": ("Running On-Demand G and VT instances", 256.0),
    "L-7212CCBC": ("All P4, P3 and P2 Spot Instance Requests", 0.0),
    "L-C4BD4855": ("All P5 Spot Instance Requests", 0.0),
}


def install() -> None:
    backend: Any = ServiceQuotasBackend
    original = backend.get_service_quota

    def get(self: Any, service_code: str, quota_code: str) -> dict[str, Any]:
        if service_code == "ec2" and quota_code in _VCPUS:
            name, value = _VCPUS[quota_code]
            return {"ServiceCode": "ec2", "QuotaCode": quota_code, "QuotaName": name, "Value": value}
        known: dict[str, Any] = original(self, service_code, quota_code)
        return known

    backend.get_service_quota = get
