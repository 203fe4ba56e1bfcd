"""Names that claims, the API server and the kubelet know."""

from __future__ import annotations

import re

__all__ = [
    "API",
    "ATTACH",
    "ATTACHED",
    "ATTACHES",
    "BUDGET",
    "DRIVER",
    "MEMORY",
    "NODE_GPUS",
    "NVIDIA",
    "OWN_CLASS",
    "SCHEDULER",
    "attaches",
    "device_of",
    "placement_of",
]

DRIVER = "gpushare.dev"
"""Of the driver, and of the device class that comes with it."""
OWN_CLASS = f'device.driver == "{DRIVER}"'
"""The selector of a class whose claims gpushare's scheduler allocates."""
API = "gpushare.dev/v1"
SCHEDULER = "gpushare"
"""`schedulerName` of pods that gpushare's scheduler starts."""
BUDGET = "Budget"
"""The kind of the driver's own block in a claim or in a class."""
MEMORY = "memory"
"""The capacity of a device that claims take parts of."""
NVIDIA = "gpu.nvidia.com"
"""NVIDIA's own DRA driver."""
ATTACHES = f"{DRIVER}/attach"
"""Label of a node whose GPUs are those of NVIDIA's driver: "true"."""
ATTACH = "attach"
"""How the names of such a node's devices begin."""
ATTACHED = f"{ATTACH}.{DRIVER}/driver"
"""Their attribute: whose GPUs the node has. A selector finds it by its domain, which no other device has."""
NODE_GPUS = f"/apis/{API}/nodegpus"
"""Where nodes publish their GPUs on a server without ResourceSlices, in objects with the same `spec`."""
LONGEST_LABEL = 63


def attaches(device: str) -> bool:
    """Whether the device of this name is one to attach to. It may be one of several: attach-1."""
    return device.partition("-")[0] == ATTACH


def device_of(uuid: str) -> str:
    """A GPU's name as a device: a DNS label, and the same after a restart of the node."""
    return re.sub("[^a-z0-9-]+", "-", uuid.lower()).strip("-")[:LONGEST_LABEL]


def placement_of(claim: str) -> str:
    """What the names of a claim's placements begin with."""
    return f"kubernetes/{claim}/"
