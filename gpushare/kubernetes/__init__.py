"""Kubernetes: the node's half of Dynamic Resource Allocation.

A pod asks for a part of a GPU with a ResourceClaim. Kubernetes books it; nothing in Kubernetes enforces it.
`gpushare-dra` runs on each node beside the node daemon and the kubelet. It publishes the node's GPUs as shareable
devices (slices.py, publish.py). When the kubelet prepares a claim, it makes a placement of it at the node daemon
(claim.py, prepare.py) and a CDI file that puts the library into the claim's containers (cdi.py).

    names.py      names that both sides know         amounts.py   Kubernetes' amounts
    budget.py     limit, grace, ... of a claim       claim.py     an allocated claim as a placement
    cgroups.py    where the claim's pods run         records.py   what has been prepared, on disk
    wire.py       the kubelet's messages             plugin.py    the sockets that the kubelet calls
    server.py     the API server                     sync.py      what is repeated until it is so
    program.py    what its programs share            webhook/      annotations of pods as claims
    handover.py   what containers are given          events.py     what a pod's user is told

Before Kubernetes 1.34 an API server has no claims. There pods carry theirs in annotations (carried.py), and the plugin
watches the pods of its node, in place of being asked by the kubelet (pods.py).
"""
