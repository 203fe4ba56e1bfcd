"""What people are shown of queues, pods and loans, from the objects of the API server alone. Pure.

Objects may be of others: what cannot be read counts as absent (gpushare/kubernetes/fields.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpushare.cluster.engines.kubernetes import mark as marks
from gpushare.cluster.engines.kubernetes.member import HOLD
from gpushare.cluster.engines.kubernetes.names import MARK, QUEUE, Key, Thing
from gpushare.cluster.engines.kubernetes.queue_objects import ACCEPTED
from gpushare.cluster.engines.kubernetes.seen import seconds
from gpushare.errors import UsageError
from gpushare.kubernetes import carried, fields
from gpushare.kubernetes.amounts import parse
from gpushare.kubernetes.names import DRIVER, MEMORY
from gpushare.quantity import format_bytes

__all__ = [
    "Device",
    "Loan",
    "Pod",
    "Queue",
    "Use",
    "claims_of",
    "devices",
    "loans",
    "pod",
    "queues",
    "uses",
    "uses_of_pods",
]

OVER = {"Succeeded": "done", "Failed": "failed"}
NOT_LOOKED_AT = "the scheduler has not said why yet"


# ---- queues --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Queue:
    """Amounts are GPUs, as the object has them."""

    name: str
    depth: int
    quota: str
    limit: str
    priority: int
    held: str
    share: str
    running: int
    waiting: int
    wrong: str
    """Why what its object says does not count; "": it does."""


def queues(found: Iterable[Thing]) -> Iterator[Queue]:
    """Each below its parent, by name. One whose parent is not there, or that is in a circle, stands at the top."""
    known = {fields.text(one, "metadata/name"): one for one in found}
    below: dict[str, list[str]] = {}
    for name, one in known.items():
        parent = fields.text(one, "spec/parent")
        below.setdefault(parent if parent in known else "", []).append(name)
    shown: set[str] = set()

    def tree(name: str, depth: int) -> Iterator[Queue]:
        if name not in shown:
            shown.add(name)
            yield _queue(name, depth, known[name])
            for child in sorted(below.get(name, ())):
                yield from tree(child, depth + 1)

    for name in [*sorted(below.get("", ())), *sorted(known)]:
        yield from tree(name, 0)


def _queue(name: str, depth: int, one: Thing) -> Queue:
    accepted = [each for each in fields.objects(one, "status/conditions") if each.get("type") == ACCEPTED]
    refused = [each for each in accepted if each.get("status") == "False"]
    wrong = fields.text(refused[0], "message") or "no reason is given" if refused else ""
    return Queue(
        name=name,
        depth=depth,
        quota=fields.text(one, "spec/quota") or "0",
        limit=fields.text(one, "spec/limit") or "-",
        priority=fields.number(one, "spec/priority"),
        held=fields.text(one, "status/held") or "-",
        share=fields.text(one, "status/share") or "-",
        running=fields.number(one, "status/running"),
        waiting=fields.number(one, "status/waiting"),
        wrong=wrong.removeprefix(f"queue {name}: ") if accepted else "the scheduler has not read it yet",
    )


# ---- pods ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pod:
    namespace: str
    name: str
    uid: str
    queue: str
    state: str
    gpus: int
    memory: str
    """Of each GPU; "": all of it."""
    limit: str
    node: str
    where: str
    why: str
    """It does not run."""
    created: float | None
    """Seconds since 1970."""

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"


def pod(one: Thing, claims: Mapping[Key, Thing]) -> Pod:
    mark = marks.read(fields.named(one, "annotations", MARK))
    own = carried.of_pod(one) if not fields.objects(one, "spec/resourceClaims") else None
    its = [claims[key] for key in claims_of(one) if key in claims] if own is None else [own]
    state, why = _state(one, mark)
    node = fields.text(one, "spec/nodeName") or (mark.node if state == "starting" else "")
    numbers = ", ".join(map(str, mark.gpus)) if node and node == mark.node else ""
    requests = [request for claim in its for request in fields.objects(claim, "spec/devices/requests")]
    memory = {fields.text(request, f"exactly/capacity/requests/{MEMORY}") for request in requests}
    limits = {limit for claim in its for limit in _limits(claim)}
    namespace = fields.text(one, "metadata/namespace")
    return Pod(
        namespace=namespace,
        name=fields.text(one, "metadata/name"),
        uid=fields.text(one, "metadata/uid"),
        queue=mark.queue_of(fields.named(one, "labels", QUEUE), bound=bool(fields.text(one, "spec/nodeName")))
        or namespace,
        state=state,
        gpus=sum(fields.number(request, "exactly/count") or 1 for request in requests),
        memory=", ".join(sorted(memory)),
        limit=", ".join(sorted(limits)),
        node=node,
        where=f"{node}: GPU {numbers}" if numbers else node,
        why=why,
        created=_seconds(fields.text(one, "metadata/creationTimestamp")),
    )


def claims_of(one: Thing) -> list[Key]:
    """Those that are made already."""
    namespace = fields.text(one, "metadata/namespace")
    made = {
        fields.text(each, "name"): fields.text(each, "resourceClaimName")
        for each in fields.objects(one, "status/resourceClaimStatuses")
    }
    wanted = fields.objects(one, "spec/resourceClaims")
    names = [fields.text(each, "resourceClaimName") or made.get(fields.text(each, "name"), "") for each in wanted]
    return [(namespace, name) for name in names if name]


def _state(one: Thing, mark: marks.Mark) -> tuple[str, str]:
    """And why it does not run."""
    phase = fields.text(one, "status/phase")
    if phase in OVER:
        return OVER[phase], fields.text(one, "status/message")
    if fields.text(one, "metadata/deletionTimestamp"):
        return "stopping", ""
    if fields.text(one, "spec/nodeName"):
        return ("running" if phase == "Running" else "starting"), ""
    if mark.node and not mark.failed and not mark.stop:
        return "starting", ""
    gates = [fields.text(gate, "name") for gate in fields.objects(one, "spec/schedulingGates")]
    if gates:
        return "held", f"schedulingGates: {', '.join(gates)}"
    if fields.named(one, "annotations", HOLD) == "true":
        return "held", f"its annotation {HOLD}"
    told = [
        fields.text(each, "message")
        for each in fields.objects(one, "status/conditions")
        if each.get("type") == "PodScheduled" and each.get("status") == "False"
    ]
    return "waiting", (told[0] if told else "") or NOT_LOOKED_AT


def _limits(claim: Thing) -> Iterator[str]:
    for one in fields.objects(claim, "spec/devices/config"):
        limit = fields.text(one, "opaque/parameters/limit")
        if fields.text(one, "opaque/driver") == DRIVER and limit:
            yield limit


def _seconds(text: str) -> float | None:
    try:
        return seconds(text)
    except ValueError:
        return None


# ---- loans ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Use:
    """How a claim uses a GPU, as the node's plugin says it."""

    node: str
    device: str
    who: str
    """Its pod, else the claim."""
    request: int
    """Bytes, as the three below."""
    limit: int
    usage: int
    loan: int
    state: str
    text: str


@dataclass(frozen=True, slots=True)
class Loan:
    use: Use
    lenders: tuple[tuple[str, int], ...]
    """Whose memory of that GPU is idle, and how many bytes. "": nobody has claimed it."""


def uses(claims: Iterable[Thing]) -> Iterator[Use]:
    for claim in claims:
        namespace = fields.text(claim, "metadata/namespace")
        pods = [fields.text(one, "name") for one in fields.objects(claim, "status/reservedFor")]
        who = pods[0] if len(pods) == 1 else fields.text(claim, "metadata/name")
        for one in fields.objects(claim, "status/devices"):
            if one.get("driver") != DRIVER or not fields.part(one, "data"):
                continue
            yield _use(one, f"{namespace}/{who}")


def uses_of_pods(nodes: Iterable[Thing]) -> Iterator[Use]:
    """Of pods that carry their claims: their node's object says so."""
    for node in nodes:
        for one in fields.objects(node, "status/uses"):
            yield _use(one, f"{fields.text(one, 'pod/namespace')}/{fields.text(one, 'pod/name')}")


def _use(one: Thing, who: str) -> Use:
    words = [fields.text(each, "message") for each in fields.objects(one, "conditions")]
    return Use(
        node=fields.text(one, "pool"),
        device=fields.text(one, "device"),
        who=who,
        request=_bytes(one, "request"),
        limit=_bytes(one, "limit"),
        usage=_bytes(one, "usage"),
        loan=_bytes(one, "loan"),
        state=fields.text(one, "data/state").replace("_", " "),
        text=words[0] if words else f"uses {format_bytes(_bytes(one, 'usage'))}",
    )


@dataclass(frozen=True, slots=True)
class Device:
    index: str
    """The node's number for the GPU; "": it does not say."""
    memory: int
    """Bytes that may be claimed; 0: it does not say."""


def devices(slices: Iterable[Thing]) -> dict[tuple[str, str], Device]:
    """By node and name; of several generations the newest."""
    found: dict[tuple[str, str], Device] = {}
    for one in sorted(slices, key=lambda one: fields.number(one, "spec/pool/generation")):
        if fields.text(one, "spec/driver") != DRIVER:
            continue
        for device in fields.objects(one, "spec/devices"):
            index = fields.text(device, "attributes/index/int")
            memory = _amount(fields.text(device, f"capacity/{MEMORY}/value"))
            found[fields.text(one, "spec/nodeName"), fields.text(device, "name")] = Device(index, memory)
    return found


def loans(found: Sequence[Use], known: Mapping[tuple[str, str], Device]) -> Iterator[Loan]:
    """Who borrows, and who could be asked for it. `known`: devices whose claims are all in `found`."""
    on: dict[tuple[str, str], list[Use]] = {}
    for use in found:
        on.setdefault((use.node, use.device), []).append(use)
    for where, those in sorted(on.items()):
        idle = [(use.who, use.request - use.usage) for use in those if use.usage < use.request]
        whole = known[where].memory if where in known else 0
        free = whole - sum(use.request for use in those)
        if where in known and not whole:  # it stands for GPUs of another driver, and not for one GPU
            idle = []
        lenders = [*sorted(idle, key=lambda one: -one[1]), *([("", free)] if free > 0 else [])]
        for use in sorted(those, key=lambda one: (-one.loan, one.who)):
            if use.loan:
                yield Loan(use, tuple(one for one in lenders if one[0] != use.who))


def _bytes(one: Thing, name: str) -> int:
    return _amount(fields.text(one, f"data/{name}"))


def _amount(text: str) -> int:
    """Bytes; 0 of what is none."""
    try:
        return parse(text)
    except UsageError:
        return 0
