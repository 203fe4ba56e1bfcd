"""What the engine writes: marks of pods, allocations of claims, bindings, evictions, words for users.

Each write names the version of the object that it was decided on. Where the API server has a later one (409), the
object is read again and looked at again. What is answered is in the caches at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushare.cluster.engines.kubernetes import local_volumes
from gpushare.cluster.engines.kubernetes import mark as marks
from gpushare.cluster.engines.kubernetes.allocation import Device, allocation, for_pod, reserved, results
from gpushare.cluster.engines.kubernetes.cache import Watched
from gpushare.cluster.engines.kubernetes.mark import Mark
from gpushare.cluster.engines.kubernetes.member import Member
from gpushare.cluster.engines.kubernetes.names import (
    CLAIM,
    CLAIMS,
    DISK,
    DISK_CLAIM,
    DISK_CLAIMS,
    DISKS,
    MARK,
    POD,
    PODS,
    Thing,
    key_of,
    of_pod,
)
from gpushare.cluster.engines.kubernetes.volumes import NODE, Unmade
from gpushare.cluster.engines.seam import Deposed, Unanswered
from gpushare.errors import GpushareError, NoSuchJob, UsageError
from gpushare.kubernetes import carried, events, stored
from gpushare.kubernetes.server import JSON, MERGE, STRATEGIC, Answer, Server

__all__ = ["LONGEST", "Conflict", "Gone", "Refusal", "Taken", "Writer"]

TRIES = 4
CONFLICT, TOO_MANY = 409, 429
AGAIN = 10.0
"""Seconds until an eviction that was refused is asked for again, where the API server does not say when."""
FINALIZER = "resource.kubernetes.io/delete-protection"
"""With it a claim that is allocated is not deleted while its pod is there."""
EVICTIONS = "policy/v1"
IMMUTABLE = "field is immutable"
LONGEST = 1024
"""Characters of a message."""


class Refusal(Exception):
    """The API server does not do it."""

    def __init__(self, why: str, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.retry_after = retry_after


class Conflict(Exception):
    """The object has changed meanwhile."""


class Gone(Exception):
    """There is no such object any more."""


class Taken(Exception):
    """Somebody else was sooner."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Each method may raise Unanswered, Refusal and Gone."""

    server: Server
    watched: Mapping[str, Watched]
    """By the path of the collection."""

    # ---- pods ------------------------------------------------------------------------------------------

    def mark(self, member: Member, mark: Mark) -> None:
        """Raises Deposed where another service has decided about the pod meanwhile."""
        for _ in range(TRIES):
            meta = member.pod["metadata"]
            said = {"resourceVersion": meta["resourceVersion"], "annotations": {MARK: mark.text()}}
            try:
                member.pod = self._ask("PATCH", POD.format(*member.key), {"metadata": said}, MERGE)
            except Conflict:
                self._read_again(member)
                continue
            member.mark = mark
            self.watched[PODS].put(member.pod)
            return
        raise Unanswered(f"pod {member.title} changes all the time")

    def _read_again(self, member: Member) -> None:
        """Raises Deposed, and Gone if it is another pod by now."""
        found = self._ask("GET", POD.format(*member.key))
        if found["metadata"]["uid"] != member.uid:
            raise Gone
        if marks.read(of_pod(found, "annotations", MARK)) != member.mark:
            raise Deposed(f"another service has decided about pod {member.title}")
        member.pod = found
        self.watched[PODS].put(found)

    def bind(self, member: Member, mark: Mark) -> None:
        """To the node of this mark. The binding brings what it says of the pod: the mark, and what allocate() has left
        for it."""
        notes = {MARK: mark.text(), **member.given}
        for _ in range(TRIES):
            if member.bound:
                break
            meta = member.pod["metadata"]
            said = {name: meta[name] for name in ("name", "namespace", "uid", "resourceVersion")}
            target = {"apiVersion": "v1", "kind": "Node", "name": mark.node}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {**said, "annotations": notes}, "target": target}
            try:
                self._ask("POST", f"{POD.format(*member.key)}/binding", body)
            except Conflict:
                self._bind_again(member)
                continue
            meta = {**meta, "annotations": {**(meta.get("annotations") or {}), **notes}}
            member.pod = {**member.pod, "metadata": meta, "spec": {**member.pod["spec"], "nodeName": mark.node}}
            member.mark = mark
            self.watched[PODS].put(dict(member.pod))
        if not member.bound:
            raise Unanswered(f"pod {member.title} changes all the time")
        if member.bound != mark.node or member.mark != mark:
            raise Refusal(f"somebody else has bound it to {member.bound}")

    def _bind_again(self, member: Member) -> None:
        if member.given:
            self._claim_again(member, 0)
        else:
            self._read_again(member)

    def evict(self, member: Member, grace: float) -> None:
        """By the eviction API, which may refuse it: Refusal with the time to ask again. `grace`: seconds, at least 1,
        so that the kubelet says when nothing of it runs."""
        options = {"gracePeriodSeconds": max(1, math.ceil(grace)), "preconditions": {"uid": member.uid}}
        meta = {"name": member.key[1], "namespace": member.key[0]}
        try:
            self._evict(member, {"kind": "Eviction", "metadata": meta, "deleteOptions": options})
        except Conflict:
            raise Gone from None  # another pod has its name by now
        meta = {**member.pod["metadata"], "deletionTimestamp": events.now()}
        member.pod = {**member.pod, "metadata": meta}
        self.watched[PODS].put(dict(member.pod))

    def _evict(self, member: Member, body: dict[str, Any]) -> None:
        path = f"{POD.format(*member.key)}/eviction"
        try:
            self._ask("POST", path, {"apiVersion": EVICTIONS, **body})
        except Refusal as error:
            if f'for version "{EVICTIONS}"' not in str(error):
                raise
            self._ask("POST", path, {"apiVersion": f"{EVICTIONS}beta1", **body})  # before Kubernetes 1.22

    # ---- claims ----------------------------------------------------------------------------------------

    def protect(self, member: Member) -> None:
        """Its claims that are to be allocated stay as long as they are."""
        for place, claim in enumerate(member.claims):
            if not ((claim.get("status") or {}).get("allocation") or member.joins or carried.is_carried(claim)):
                try:
                    self._protect(member, place)
                except Conflict:
                    self._claim_again(member, place)  # allocate() looks at it, and tries again

    def allocate(
        self,
        member: Member,
        mark: Mark,
        classes: Mapping[str, Thing],
        devices: Sequence[Device],
        blocks: Sequence[Sequence[Thing]] = (),
    ) -> None:
        """Its claims get these GPUs of the mark's node, in their order. Nothing where they have them already. Where the
        API server has no claims, the pod gets them with its binding. `blocks`: of each, what is added to its config."""
        assert member.asked is not None
        left = list(devices)
        for place, (_, count) in enumerate(member.asked.claims):
            mine, left = left[:count], left[count:]
            self._allocate(member, place, mark, mine, classes=classes, more=blocks[place] if blocks else ())

    def _allocate(
        self,
        member: Member,
        place: int,
        mark: Mark,
        devices: Sequence[Device],
        *,
        classes: Mapping[str, Thing],
        more: Sequence[Thing],
    ) -> None:
        wanted = [(mark.node, device.name) for device in devices]
        for _ in range(TRIES):
            claim = member.claims[place]
            title = "/".join(key_of(claim))
            there = bool((claim.get("status") or {}).get("allocation"))
            same = [(one["pool"], one["device"]) for one in results(claim)] == wanted
            if there and same and for_pod(claim, member.uid):
                return
            if there and not (same and member.joins):
                raise Refusal(f"claim {title} was allocated for another pod meanwhile")
            if member.joins and not there:
                raise Refusal(f"claim {title} was given back meanwhile")
            pod = {"resource": "pods", "name": member.key[1], "uid": member.uid}
            try:
                if member.joins:
                    self._claim_status(member, place, {"reservedFor": [*reserved(claim), pod]})
                    return
                made = allocation(claim, classes, mark.node, devices, mark.amount)
                made["devices"]["config"] += more
                if carried.is_carried(claim):
                    member.given = _given(claim, made, mark, devices)
                    return
                self._protect(member, place)
                self._claim_status(member, place, {"allocation": made, "reservedFor": [pod]})
            except Conflict:
                self._claim_again(member, place)
                continue
            return
        raise Unanswered(f"claim {title} changes all the time")

    def _protect(self, member: Member, place: int) -> None:
        claim = member.claims[place]
        there = list(claim["metadata"].get("finalizers") or ())
        if FINALIZER not in there:
            said = {"resourceVersion": claim["metadata"]["resourceVersion"], "finalizers": [*there, FINALIZER]}
            path = CLAIM.format(*key_of(claim))
            try:
                found = self._ask("PATCH", path, {"metadata": said}, MERGE)
            except Refusal as error:
                if IMMUTABLE not in str(error):
                    raise
                found = self._protect_stored(path)
            self._keep(member, place, found)

    def _protect_stored(self, path: str) -> dict[str, Any]:
        """Of a claim that no patch may touch, because its writer has put white space into the driver's block."""
        try:
            data = stored.with_finalizer(self.server.stored(path), FINALIZER)
        except ValueError as error:
            raise Refusal(f"claim {path.rpartition('/')[2]}: {error}") from None
        except GpushareError as error:
            raise Unanswered(str(error)) from None
        return self._ask("PUT", path, data, stored.PROTOBUF)

    def free(self, member: Member) -> None:
        """Claims that were allocated for a pod that was not bound are as before."""
        for place in range(len(member.claims)):
            for _ in range(TRIES):
                claim = member.claims[place]
                if not for_pod(claim, member.uid):
                    break
                others = [one for one in reserved(claim) if one.get("uid") != member.uid]
                freed = {"reservedFor": others} if others else {"allocation": None, "reservedFor": None}
                try:
                    if carried.is_carried(claim):
                        self._take(member)
                    else:
                        self._claim_status(member, place, freed)
                except Conflict:
                    self._claim_again(member, place)

    def _take(self, member: Member) -> None:
        """What it carries of an allocation and was not bound with."""
        said = {"resourceVersion": member.pod["metadata"]["resourceVersion"], "annotations": carried.taken()}
        member.pod = self._ask("PATCH", POD.format(*member.key), {"metadata": said}, MERGE)
        self.watched[PODS].put(member.pod)
        self._keep_carried(member)

    def _claim_again(self, member: Member, place: int) -> None:
        """It has changed meanwhile. Raises Deposed where another service has decided about its pod."""
        known = member.claims[place]
        if carried.is_carried(known):
            self._read_again(member)
            self._keep_carried(member)
            if member.claims[place]["spec"] != known["spec"]:
                raise Refusal(f"the annotation {carried.CLAIM} of its pod was changed meanwhile")
        else:
            self._keep(member, place, self._ask("GET", CLAIM.format(*key_of(member.claims[place]))))

    def _claim_status(self, member: Member, place: int, status: dict[str, Any]) -> None:
        claim = member.claims[place]
        said = {"metadata": {"resourceVersion": claim["metadata"]["resourceVersion"]}, "status": status}
        self._keep(member, place, self._ask("PATCH", f"{CLAIM.format(*key_of(claim))}/status", said, MERGE))

    def _keep_carried(self, member: Member) -> None:
        claim = carried.of_pod(member.pod)
        if claim is None:
            raise Refusal(f"the annotation {carried.CLAIM} of its pod is gone")
        member.claims = (claim,)

    def _keep(self, member: Member, place: int, found: dict[str, Any]) -> None:
        if found["metadata"]["uid"] != member.claims[place]["metadata"]["uid"]:
            raise Refusal(f"claim {'/'.join(key_of(found))} is another one now")
        member.claims = (*member.claims[:place], found, *member.claims[place + 1 :])
        self.watched[CLAIMS].put(found)

    # ---- volumes ---------------------------------------------------------------------------------------

    def make_volumes(self, unmade: Sequence[Unmade], node: str) -> None:
        """Volumes are to be made on that node, or are given to their claims. Raises Taken where none is left."""
        for one in unmade:
            if one.is_told(node):
                continue
            if one.there is None:
                said = {"metadata": {"annotations": {NODE: node}}}
                self.watched[DISK_CLAIMS].put(self._ask("PATCH", DISK_CLAIM.format(*key_of(one.claim)), said, MERGE))
            elif not any(self._give(volume, one.claim) for volume in one.there):
                raise Taken("others have got the volumes that were free there")

    def _give(self, volume: Thing, claim: Thing) -> bool:
        """False: another claim has it, or it is gone."""
        path = DISK.format(*key_of(volume))
        try:
            for _ in range(TRIES):
                if local_volumes.claim_of(volume) is not None:
                    return local_volumes.is_for(volume, claim)
                try:
                    volume = self._ask("PATCH", path, local_volumes.patch(volume, claim), MERGE)
                except Conflict:
                    volume = self._ask("GET", path)
                self.watched[DISKS].put(dict(volume))
        except Gone:
            return False
        raise Unanswered(f"volume {volume['metadata']['name']} changes all the time")

    # ---- words -----------------------------------------------------------------------------------------

    def tell(self, member: Member, text: str) -> None:
        """Why it waits: a condition of the pod, and an event. At most LONGEST characters."""
        now = events.now()
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": text}
        said = {"status": {"conditions": [{**condition, "lastTransitionTime": now}]}}
        try:
            member.pod = self._ask("PATCH", f"{POD.format(*member.key)}/status", said, STRATEGIC)
            self.watched[PODS].put(member.pod)
            event = events.of_pod(member.pod["metadata"], "Waiting", text, now)
            self._ask("POST", events.EVENTS.format(member.key[0]), event)
        except Conflict:
            return

    def status(self, path: str, status: dict[str, Any], kept: Watched) -> None:
        """Of any object."""
        kept.put(self._ask("PATCH", f"{path}/status", {"status": status}, MERGE))

    # ---- all of these ----------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: object = None, kind: str = JSON) -> dict[str, Any]:
        try:
            return self.server.ask(method, path, body, kind)
        except NoSuchJob:
            raise Gone(path) from None
        except Answer as error:
            if error.status == CONFLICT:
                raise Conflict from None
            busy = error.status == TOO_MANY and not path.endswith("/eviction")
            if busy or error.status >= 500:
                raise Unanswered(str(error)) from None
            late = error.retry_after if error.retry_after is not None else AGAIN
            raise Refusal(error.message, late if error.status == TOO_MANY else None) from None
        except GpushareError as error:
            raise Unanswered(str(error)) from None


def _given(claim: Thing, allocation: Thing, mark: Mark, devices: Sequence[Device]) -> dict[str, str]:
    try:
        return carried.given(claim, allocation, mark.node, mark.amount, [one.uuid for one in devices])
    except UsageError as error:
        raise Refusal(f"{error.message} ({error.hint})" if error.hint else error.message) from None
