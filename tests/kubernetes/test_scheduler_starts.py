"""How the scheduler starts pods and stops them: what it writes and obeys, and what it does when it is interrupted."""

from __future__ import annotations

import copy

import pytest
from claims import budget
from kube_cluster import CLAIMS, CLASSES, NAMESPACE, NODES, PODS, SLICES, Program
from scheduler_stage import GIB, Scheduler

from gpushare.cluster.engines.kubernetes.mark import read
from gpushare.cluster.engines.seam import Accepted, Busy, Deposed, Gone, Refused, Start, Unanswered
from gpushare.cluster.model import Place


def writes(cluster, what: str = "") -> list[tuple[str, str]]:
    return [(method, path) for method, path in cluster.api.requests if method not in ("GET", "WATCH") and what in path]


# ---- what is written -----------------------------------------------------------------------------------


def test_the_claim_gets_exactly_the_gpu_and_the_pod_the_node(cluster, scheduler):
    uid = cluster.submit("train", memory="8Gi", said={"limit": "24Gi"})
    cluster.api.change(
        f"{CLASSES}/gpushare.dev", lambda one: one["spec"].update(config=[{"opaque": budget(grace="5s")["opaque"]}])
    )
    scheduler.settle()
    assert scheduler.start(uid, "n2", 1) == Accepted()
    claim, pod = cluster.claim_of("train"), cluster.pod("train")
    assert pod["spec"]["nodeName"] == "n2" and "gpushare.dev/start" in pod["metadata"]["annotations"]
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    share = result.pop("shareID")
    assert len(share) == 36 and result == {
        "request": "gpu",
        "driver": "gpushare.dev",
        "pool": "n2",
        "device": "gpu-n2-1",
        "consumedCapacity": {"memory": "8Gi"},
    }
    sources = [(one["source"], one["requests"]) for one in claim["status"]["allocation"]["devices"]["config"]]
    assert sources == [("FromClass", ["gpu"]), ("FromClaim", [])]
    assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": "train", "uid": uid}]
    assert claim["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
    (term,) = claim["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]
    cluster.tick()
    assert cluster.pod("train")["status"]["phase"] == "Running"


def test_a_claim_of_several_gpus_and_a_whole_one(cluster, scheduler):
    two, whole = cluster.submit("two", memory="100Mi", count=2), cluster.submit("whole", memory=None)
    assert scheduler.job(two).job.tasks[0].memory == 128 * 2**20, "in steps, as the slice says"
    place = Place(0, 0, "n1", (0, 1), 128 * 2**20, 0)
    assert scheduler.start(two, places=(place,)) == Accepted()
    assert scheduler.start(whole, "n2", 0, 80 * GIB) == Accepted()
    given = {
        name: [one["device"] for one in cluster.claim_of(name)["status"]["allocation"]["devices"]["results"]]
        for name in ("two", "whole")
    }
    assert given == {"two": ["gpu-n1-0", "gpu-n1-1"], "whole": ["gpu-n2-0"]}
    cluster.tick()
    assert cluster.pod("two")["status"]["phase"] == cluster.pod("whole")["status"]["phase"] == "Running"


def test_a_claim_that_says_no_number_asks_for_one_gpu(cluster, scheduler):
    uid = cluster.submit("train", count=None)
    (tasks,) = scheduler.job(uid).job.tasks
    assert tasks.gpus == 1
    assert scheduler.start(uid) == Accepted()
    assert cluster.pod("train")["spec"]["nodeName"] == "n1"


def test_a_server_that_shares_no_devices_gives_whole_ones(cluster, scheduler):
    def unshared(one):
        for device in one["spec"]["devices"]:
            device.pop("allowMultipleAllocations")

    cluster.api.change(f"{SLICES}/n1-gpushare.dev", unshared)
    scheduler.settle()
    uid = cluster.submit("whole", memory=None)
    assert scheduler.start(uid, "n1", 0, 80 * GIB) == Accepted()
    (result,) = cluster.claim_of("whole")["status"]["allocation"]["devices"]["results"]
    assert "shareID" not in result and "consumedCapacity" not in result
    cluster.tick()
    assert cluster.pod("whole")["status"]["phase"] == "Running"


def begun(cluster) -> list[tuple[str, str]]:
    """What starts have written: the kind of object, and which part of it."""
    kinds = {"pods": "pod", "resourceclaims": "claim"}
    found = [path.split("/team-a/")[1].split("/") for _, path in writes(cluster, "/team-a/")]
    return [(kinds[kind], *part) for kind, _, *part in found if kind in kinds]


ALONE = [("claim",), ("claim", "status"), ("pod", "binding")]


def test_a_start_is_three_requests_and_its_mark_comes_with_the_binding(cluster, scheduler):
    uid = cluster.submit("train")
    assert scheduler.start(uid, "n2", 1) == Accepted()
    assert begun(cluster) == ALONE
    mark = read(cluster.pod("train")["metadata"]["annotations"]["gpushare.dev/start"])
    assert (mark.job, mark.attempt, mark.node, mark.gpus, mark.amount) == (uid, 1, "n2", (1,), 8 * GIB)


def test_a_start_that_is_repeated_writes_nothing_more(cluster, scheduler):
    uid = cluster.submit("train")
    token = scheduler.token()
    assert scheduler.start(uid, token=token) == Accepted()
    before = writes(cluster)
    assert [scheduler.start(uid, token=token), scheduler.start(uid)] == [Accepted(), Accepted()]
    assert isinstance(scheduler.start(uid, gpu=1), Refused) and scheduler.start(uid, attempt=2) == Busy()
    assert writes(cluster) == before


@pytest.mark.parametrize("status", [400, 403, 422])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PATCH", CLAIMS + "/{}"),
        ("PATCH", CLAIMS + "/{}/status"),
        ("POST", f"{PODS}/train/binding"),
    ],
)
def test_a_write_that_is_refused_is_answered_with_the_servers_own_words(cluster, scheduler, method, path, status):
    """The claim's finalizer, its allocation, the binding: nothing is left of the start."""
    uid = cluster.submit("train")
    path = path.format(cluster.claim_of("train")["metadata"]["name"])
    scheduler.token()
    cluster.api.refuses = lambda *asked: (
        (status, {"message": "policy x forbids it"}) if asked[:2] == (method, path) else None
    )
    said = f"the API server refuses {method} {path}: policy x forbids it"
    assert scheduler.start(uid) == Refused(said)
    cluster.api.refuses = lambda *_: None
    assert "nodeName" not in cluster.pod("train")["spec"]
    assert not (cluster.claim_of("train").get("status") or {}).get("allocation")


# ---- interrupted ---------------------------------------------------------------------------------------


def away_after(cluster, point: int) -> None:
    """The API server answers to so many writes of starts, and to none after these."""
    left = point

    def refuses(method, path, _):
        nonlocal left
        if method in ("PATCH", "POST") and "/leases" not in path:
            left -= 1
            return (503, {"message": "away"}) if left < 0 else None
        return None

    cluster.api.refuses = refuses


@pytest.mark.parametrize("point", range(3))
def test_killed_between_two_writes_the_next_service_starts_it_anew(cluster, scheduler, point):
    """The claim's finalizer, its allocation, the binding: what is there of them nobody needs any more."""
    uid = cluster.submit("train")
    scheduler.token()
    away_after(cluster, point)
    with pytest.raises(Unanswered):
        scheduler.start(uid)
    cluster.api.refuses = lambda *_: None
    other = Scheduler(cluster)
    try:
        assert other.job(uid) is not None
        assert is_allocated(cluster, "train") is (point == 2), "one that does not lead only looks"
        other.token()
        seen = other.engine.snapshot()
        assert [one.tasks for one in seen.jobs] == [()] and not is_allocated(cluster, "train")
        assert not any(node.foreign for node in seen.nodes), "what it has given back is free at once"
        assert other.start(uid, "n2", 1) == Accepted()
        cluster.tick()
        (task,) = other.job(uid).tasks
        assert (task.phase, task.attempt, task.node, task.gpus) == ("running", 1, "n2", (1,))
    finally:
        other.close()


def is_allocated(cluster, pod: str) -> bool:
    return bool((cluster.claim_of(pod).get("status") or {}).get("allocation"))


PAIR = tuple(Place(0, task, "n1", (task,), 8 * GIB, 0) for task in range(2))


@pytest.mark.parametrize("point", range(8))
def test_killed_in_the_start_of_several_the_next_service_goes_on_where_the_marks_are(cluster, scheduler, point):
    """Two marks, a finalizer and an allocation for each claim, two bindings."""
    uid = cluster.submit_group("g", 2)
    scheduler.token()
    away_after(cluster, point)
    with pytest.raises(Unanswered):
        scheduler.start(uid, places=PAIR)
    cluster.api.refuses = lambda *_: None
    other = Scheduler(cluster)
    try:
        other.token()
        begun = [task.phase for task in other.job(uid).tasks if task.phase is not None]
        assert begun == ["starting"] * min(point, 2)
        bound = [cluster.pod(f"g-{number}")["spec"].get("nodeName") for number in range(2)]
        assert bound == (["n1", "n1"] if point > 1 else ["n1", None] if point else [None, None])
        if point < 2:
            assert other.start(uid, places=PAIR) == Accepted(), "what has no mark is started again"
        cluster.tick()
        assert [(task.phase, task.node, task.gpus) for task in other.job(uid).tasks] == [
            ("running", "n1", (0,)),
            ("running", "n1", (1,)),
        ]
    finally:
        other.close()


def late_bindings(cluster) -> list:
    """Bindings that the API server does not answer: calling one is to carry it out, with the status."""
    found = []

    def refuses(_, path, body):
        if not path.endswith("/binding"):
            return None
        pod = path.removesuffix("/binding")
        found.append(lambda: cluster.api._bind(pod, copy.deepcopy(cluster.api.objects[pod]), body)[0])
        return 503, {"message": "away"}

    cluster.api.refuses = refuses
    return found


@pytest.mark.parametrize("failed_before", [False, True])
def test_a_binding_that_is_carried_out_late_does_not_bind_what_has_lost_its_gpu(cluster, scheduler, failed_before):
    """However often: each time the pod is another version when its claim is given back."""
    uid, attempt = cluster.submit("train"), 1
    if failed_before:
        cluster.api.refuses = lambda _, path, __: (403, {"message": "no"}) if path.endswith("binding") else None
        assert isinstance(scheduler.start(uid), Refused)
        attempt = 2
    bindings = late_bindings(cluster)
    for _ in range(2):
        with pytest.raises(Unanswered):
            scheduler.start(uid, attempt=attempt)
        assert is_allocated(cluster, "train")
        assert not [task for task in scheduler.job(uid).tasks if task.holds] and not is_allocated(cluster, "train")
    cluster.api.refuses = lambda *_: None
    assert [late() for late in bindings] == [409, 409]
    assert scheduler.start(uid, "n2", 1, attempt=attempt) == Accepted()
    assert cluster.pod("train")["spec"]["nodeName"] == "n2" and is_allocated(cluster, "train")


def test_a_binding_that_was_carried_out_and_not_answered_is_a_start(cluster, scheduler):
    uid = cluster.submit("train")
    bindings, token = late_bindings(cluster), scheduler.token()
    with pytest.raises(Unanswered):
        scheduler.start(uid, token=token)
    cluster.api.refuses = lambda *_: None
    assert [late() for late in bindings] == [201]
    (task,) = scheduler.job(uid).tasks
    assert (task.phase, task.attempt, task.node, task.gpus) == ("starting", 1, "n1", (0,))
    before = writes(cluster)
    assert scheduler.start(uid) == Accepted() and writes(cluster) == before
    assert is_allocated(cluster, "train")


def test_a_binding_that_was_carried_out_while_its_claim_was_to_be_given_back_keeps_it(cluster, scheduler):
    """The watch has not told of it yet: the API server does, when the pod is written to."""
    uid = cluster.submit("train")
    bindings = late_bindings(cluster)
    with pytest.raises(Unanswered):
        scheduler.start(uid)

    def refuses(method, path, _):
        if (method, path) == ("PATCH", f"{PODS}/train") and bindings:
            assert bindings.pop()() == 201

    cluster.api.refuses = refuses
    scheduler.engine.snapshot()
    assert not bindings
    assert [task.phase for task in scheduler.job(uid).tasks] == ["starting"] and is_allocated(cluster, "train")


@pytest.mark.parametrize("what", ["PATCH", "POST"])
def test_a_pod_that_is_deleted_in_the_middle_of_its_start_leaves_its_claim_free(cluster, scheduler, what):
    """Before the allocation, and before the binding."""
    uid = cluster.submit("train")
    claim = cluster.claim_of("train")["metadata"]["name"]

    def refuses(method, path, _):
        if method == what and path in (f"{CLAIMS}/{claim}/status", f"{PODS}/train/binding"):
            cluster.api.refuses = lambda *_: None
            cluster.api._remove(f"{PODS}/train")

    scheduler.token()
    cluster.api.refuses = refuses
    assert scheduler.start(uid) == Gone()
    assert cluster.pod("train") is None and not cluster.api.objects[f"{CLAIMS}/{claim}"]["status"].get("allocation")


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_pod_that_somebody_binds_in_the_middle_of_its_start_is_theirs(cluster, scheduler, node):
    uid = cluster.submit("train")

    def refuses(_, path, __):
        if path.endswith("/binding"):
            cluster.api.refuses = lambda *_: None
            pod = copy.deepcopy(cluster.pod("train"))
            pod["spec"]["nodeName"] = node
            cluster.api._store(f"{PODS}/train", pod)

    scheduler.token()
    cluster.api.refuses = refuses
    assert scheduler.start(uid) == Refused(f"somebody else has bound it to {node}")
    assert "gpushare.dev/start" not in cluster.pod("train")["metadata"]["annotations"]
    assert scheduler.job(uid) is None


def test_what_has_changed_meanwhile_is_read_again(cluster, scheduler):
    uid, changes = cluster.submit("train"), [3, 3]

    def refuses(method, path, _):
        """Somebody else writes the object just before each of the first requests."""
        for number, prefix in enumerate((f"{PODS}/train", f"{CLAIMS}/train")):
            if method in ("PATCH", "POST") and path.startswith(prefix) and changes[number]:
                changes[number] -= 1
                return 409, {"message": "the object has been modified"}
        return None

    scheduler.token()
    cluster.api.refuses = refuses
    assert scheduler.start(uid) == Accepted() and changes == [0, 0]
    assert cluster.pod("train")["spec"]["nodeName"] == "n1"


def test_a_claim_that_another_scheduler_takes_first_is_left_to_it(cluster, scheduler):
    uid = cluster.submit("train")
    path = next(path for path in cluster.api.objects if path.startswith(f"{CLAIMS}/train"))
    result = {"request": "gpu", "driver": "gpushare.dev", "pool": "n2", "device": "gpu-n2-0"}
    theirs = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [{"resource": "pods", "uid": "x"}]}

    def refuses(method, where, _):
        if method == "PATCH" and where == path:
            cluster.api.objects[path]["status"] = theirs
            cluster.api.objects[path]["metadata"]["resourceVersion"] = "999999"
        return

    scheduler.token()
    scheduler.engine.snapshot()
    cluster.api.refuses = refuses
    answer = scheduler.start(uid)
    assert isinstance(answer, Refused) and "was allocated for another pod" in answer.why and answer.node is None
    assert cluster.api.objects[path]["status"] == theirs and "nodeName" not in cluster.pod("train")["spec"]
    assert [(task.phase, task.why) for task in scheduler.job(uid).tasks] == [("failed", answer.why)]


def test_a_refused_binding_gives_the_claim_back(cluster, scheduler):
    uid = cluster.submit("train")
    cluster.api.refuses = lambda _method, path, _body: (403, {"message": "no"}) if path.endswith("binding") else None
    answer = scheduler.start(uid)
    assert isinstance(answer, Refused)
    assert not cluster.claim_of("train")["status"].get("allocation")
    cluster.api.refuses = lambda *_: None
    scheduler.settle()
    assert scheduler.start(uid, attempt=2, gpu=1) == Accepted()


def test_a_server_that_has_too_much_to_do_is_asked_again(cluster, scheduler):
    uid = cluster.submit("train")
    scheduler.token()
    cluster.api.refuses = lambda method, _path, _body: (429, {"message": "busy"}) if method == "PATCH" else None
    with pytest.raises(Unanswered):
        scheduler.start(uid)
    cluster.api.refuses = lambda *_: None
    assert scheduler.start(uid) == Accepted()


def test_a_pod_that_may_not_be_marked_is_not_started_and_says_why(cluster, scheduler):
    uid = cluster.submit("train")
    scheduler.token()
    cluster.api.refuses = lambda method, _path, _body: (403, {"message": "a policy"}) if method == "PATCH" else None
    answer = scheduler.start(uid)
    assert isinstance(answer, Refused) and "a policy" in answer.why and answer.node is None
    assert not scheduler.job(uid).tasks and "nodeName" not in cluster.pod("train")["spec"]


def test_another_service_that_has_decided_since_is_obeyed(cluster, scheduler):
    uid = cluster.submit("train")
    scheduler.engine.snapshot()
    token = scheduler.token()
    rival = Scheduler(cluster)
    try:
        cluster.now += 10_000.0
        for _ in range(3):
            rival.engine.lead("another", 15.0)
            cluster.now += 10_000.0
        rival.engine.snapshot()
        place = Place(0, 0, "n2", (1,), 8 * GIB, 0)
        term = rival.engine.lead("another", 15.0)
        assert term is not None and term > token[0]
        assert rival.engine.start(Start(uid, 1, (place,), 0), (term, 1)) == Accepted()
        scheduler.settle()
        with pytest.raises(Deposed):
            scheduler.start(uid, "n1", 0, token=token)
    finally:
        rival.close()
    assert cluster.pod("train")["spec"]["nodeName"] == "n2"


# ---- what others have ----------------------------------------------------------------------------------


def test_what_kube_scheduler_has_allocated_is_taken_and_never_touched(cluster, ruled):
    result = {"request": "gpu", "driver": "gpushare.dev", "shareID": "x", "consumedCapacity": {"memory": "70Gi"}}
    for node in ("n1", "n2"):
        for gpu in (0, 1):
            meta = {"name": f"theirs-{node}-{gpu}", "namespace": NAMESPACE}
            given = {**result, "pool": node, "device": f"gpu-{node}-{gpu}"}
            if (node, gpu) != ("n2", 1):
                allocation = {"devices": {"results": [given, {**given, "driver": "nic.example"}]}}
                cluster.api.put(
                    f"{CLAIMS}/{meta['name']}", {"metadata": meta, "spec": {}, "status": {"allocation": allocation}}
                )
    theirs = {path: one for path, one in cluster.api.objects.items() if "/theirs-" in path}
    ruled.settle()
    big, small = cluster.submit("big", memory="40Gi", queue="a"), cluster.submit("small", memory="10Gi", queue="a")
    ruled.go(lambda: cluster.programs["big"].began and cluster.programs["small"].began)
    assert (cluster.pod("big")["spec"]["nodeName"], ruled.job(big).tasks[0].gpus) == ("n2", (1,))
    assert ruled.job(small).tasks
    assert {path: one for path, one in cluster.api.objects.items() if "/theirs-" in path} == theirs
    assert not writes(cluster, "/theirs-")


def test_a_gpu_is_free_when_its_claim_is(cluster, ruled):
    """The pod is over at once; Kubernetes takes the claim back later."""
    uid = cluster.submit("train", Program(seconds=1.0, requeue=False), memory=None)
    assert ruled.start(uid, "n1", 0, 80 * GIB) == Accepted()
    cluster.tick()
    cluster.api.change(f"{PODS}/train", lambda one: one["status"].update(phase="Succeeded"))
    ruled.settle()
    assert [(task.phase, task.holds) for task in ruled.job(uid).tasks] == [("stopping", True)]
    assert not ruled.job(uid).ended
    cluster.tick()
    ruled.settle()
    assert ruled.job(uid).ended and [task.phase for task in ruled.job(uid).tasks] == ["done"]


def test_a_pod_that_somebody_else_has_bound_is_nobodys_job(cluster, scheduler):
    uid = cluster.submit("train")
    cluster.api.change(f"{PODS}/train", lambda one: one["spec"].update(nodeName="n1"))
    scheduler.settle()
    assert scheduler.job(uid) is None and scheduler.start(uid) == Gone()


# ---- evictions -----------------------------------------------------------------------------------------


def evictions(cluster) -> list[str]:
    return [path for method, path in writes(cluster) if path.endswith("/eviction")]


def test_an_eviction_that_a_budget_of_disruption_forbids_is_asked_again_when_it_says(cluster, scheduler):
    uid = cluster.submit("train")
    scheduler.start(uid)
    cluster.tick()
    scheduler.settle()
    cluster.api.refuses = lambda _method, path, _body: (
        (429, {"message": "Cannot evict pod as it would violate the pod's disruption budget."})
        if path.endswith("eviction")
        else None
    )
    answer = scheduler.evict(uid)
    assert isinstance(answer, Refused) and "disruption budget" in answer.why and answer.retry_after == 10.0
    assert [task.phase for task in scheduler.job(uid).tasks] == ["running"]
    cluster.api.refuses = lambda *_: None
    assert scheduler.evict(uid) == Accepted()
    assert [task.phase for task in scheduler.job(uid).tasks] == ["stopping"]


@pytest.mark.parametrize(
    ("said", "grace", "given"), [({"grace": "5s"}, 30.0, 5), ({}, 30.0, 30), ({}, 7.5, 8), ({"grace": "5s"}, 0.0, 1)]
)
def test_the_grace_is_the_claims_then_the_pods_and_never_more_than_the_allocators(
    cluster, scheduler, said, grace, given
):
    uid = cluster.submit("train", said=said or None)
    scheduler.start(uid)
    assert scheduler.evict(uid, grace) == Accepted()
    assert cluster.pod("train")["metadata"]["deletionGracePeriodSeconds"] == given


def test_the_pod_that_its_owner_makes_instead_is_the_same_job(cluster, ruled):
    uid = cluster.submit("train", Program(), memory=None, queue="a")
    ruled.go(lambda: cluster.programs["train"].began)
    submitted = ruled.job(uid).submitted
    assert ruled.evict(uid, 0.0) == Accepted()
    ruled.go(lambda: cluster.programs["train"].began == 2)
    seen = ruled.job(uid)
    assert cluster.pod("train") is None and seen.job.name.startswith("team-a/train-")
    assert (seen.attempt, seen.evictions, seen.submitted) == (2, 1, submitted)
    assert len(evictions(cluster)) == 1


def test_a_pod_without_an_owner_that_is_evicted_is_gone(cluster, ruled):
    uid = cluster.submit("train", memory=None, queue="a")
    ruled.go(lambda: cluster.programs["train"].began)
    ruled.evict(uid, 0.0)
    ruled.go(lambda: ruled.job(uid) is None and uid not in ruled.store.allocator.jobs)


@pytest.mark.parametrize(("policy", "ends"), [("Always", False), ("OnFailure", True)])
def test_a_pod_that_ends_well_when_it_is_evicted_is_done_only_if_it_was_to_end(cluster, scheduler, policy, ends):
    """Its kubelet says how it ended before it is gone. A ReplicaSet makes another, a Job counts it as done."""
    uid = cluster.submit("train", Program(requeue=True), spec={"restartPolicy": policy})
    scheduler.start(uid)
    cluster.tick()
    scheduler.settle()
    assert scheduler.evict(uid) == Accepted()
    ((path, pod),) = cluster.pods_of("train")
    (claim,) = [one for one in cluster.api.objects if "/resourceclaims/" in one]
    cluster.api.change(path, lambda one: one["status"].update(phase="Succeeded"))
    assert [task.phase for task in scheduler.job(uid).tasks] == ["stopping"]
    cluster.api.change(claim, lambda one: one.pop("status"))
    assert scheduler.job(uid).ended is ends
    assert pod["metadata"]["uid"] == uid


# ---- pod groups ----------------------------------------------------------------------------------------


def group(cluster, count: int) -> tuple[str, Program]:
    uid = cluster.submit_group("g", 3, count, memory=None, queue="a")
    return uid, cluster.programs["g"]


def test_a_group_starts_when_all_of_its_pods_are_there_and_all_fit(cluster, ruled):
    uid, program = group(cluster, 2)
    other = cluster.submit("other", memory=None, queue="b")
    ruled.go(lambda: cluster.programs["other"].began)
    assert not program.began and ruled.job(uid) is None
    assert condition(cluster, "g-1")["message"] == "its pod group has 2 of 3 pods"
    cluster.add_node("n3", 1)
    program.make("g-2")
    ruled.settle()
    ruled.go(lambda: program.began)
    assert program.began == 3 and len(ruled.job(uid).tasks) == 3 and ruled.job(other).tasks
    assert len({(task.node, task.gpus) for task in ruled.job(uid).tasks}) == 3


@pytest.mark.parametrize("status", [403, 404])
def test_of_a_group_no_claim_is_touched_where_one_pod_cannot_be_marked(cluster, scheduler, status):
    uid = cluster.submit_group("g", 2)
    cluster.api.refuses = lambda method, path, _body: (
        (status, {"message": "no"}) if (method, path) == ("PATCH", f"{PODS}/g-1") else None
    )
    answer = scheduler.start(uid, places=PAIR)
    assert answer == Gone() if status == 404 else isinstance(answer, Refused)
    assert set(begun(cluster)) == {("pod",)}
    cluster.api.refuses = lambda *_: None
    assert scheduler.start(uid, places=PAIR, attempt=2) == Accepted()


def test_of_a_group_none_is_bound_where_one_claim_cannot_be_had(cluster, scheduler):
    uid, _ = group(cluster, 3)
    places = tuple(
        Place(0, task, node, (gpu,), 80 * GIB, 0) for task, (node, gpu) in enumerate((("n1", 0), ("n1", 1), ("n2", 0)))
    )
    cluster.api.refuses = lambda _method, path, _body: (
        (422, {"message": "invalid"}) if "g-2-gpu" in path and path.endswith("status") else None
    )
    assert isinstance(scheduler.start(uid, places=places), Refused)
    assert not [path for _, path in writes(cluster) if path.endswith("binding")]
    assert not [path for path, one in cluster.api.objects.items() if (one.get("status") or {}).get("allocation")]
    cluster.api.refuses = lambda *_: None
    scheduler.settle()
    assert scheduler.start(uid, places=places, attempt=2) == Accepted()
    assert [cluster.pod(f"g-{number}")["spec"]["nodeName"] for number in range(3)] == ["n1", "n1", "n2"]


def condition(cluster, pod: str):
    (found,) = [one for one in cluster.pod(pod)["status"]["conditions"] if one["type"] == "PodScheduled"]
    return found


# ---- nodes ---------------------------------------------------------------------------------------------


def test_nodes_are_what_their_slices_say(cluster, scheduler):
    gpus = cluster.gpus["n1"]
    gpus[0] = {**gpus[0], "health": {"state": "sick", "ailments": []}}
    gpus.append({**gpus[1], "uuid": "GPU-n1-3", "index": 3})
    cluster.publish("n1")
    cluster.set_ready("n2", ready=False)
    scheduler.settle()
    one, two = scheduler.engine.snapshot().nodes
    assert (one.node.gpus, one.node.broken, one.state) == (4, {0, 2}, "ready"), "2 is not there"
    assert one.node.uuids == ("GPU-n1-0", "GPU-n1-1", "", "GPU-n1-3") and one.node.type == "Some GPU"
    assert one.node.memory == 80 * GIB and two.state == "unknown"
    cluster.api.change(f"{NODES}/n1", lambda node: node["spec"].update(unschedulable=True))
    cluster.api.change(f"{SLICES}/n2-gpushare.dev", lambda one: one["spec"]["pool"].update(resourceSliceCount=2))
    scheduler.settle()
    (one,) = scheduler.engine.snapshot().nodes
    assert one.cordoned and one.node.name == "n1", "the slices of n2 are not complete"


def test_taints_and_affinity_say_where_a_pod_may_run(cluster, ruled):
    cluster.add_node("n3", 2, zone="z")
    taint = {"key": "team", "value": "x", "effect": "NoSchedule"}
    for name in ("n1", "n2"):
        cluster.api.change(f"{NODES}/{name}", lambda one: one["spec"].update(taints=[taint]))
    ruled.settle()
    terms = [{"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    tolerations = [{"key": "team", "operator": "Exists"}]
    specs = {
        "plain": {},
        "outside": {"affinity": affinity, "tolerations": tolerations},
        "named": {"nodeSelector": {"kubernetes.io/hostname": "n2"}, "tolerations": tolerations},
        "nowhere": {"affinity": affinity},
    }
    for name, spec in specs.items():
        cluster.submit(name, memory="1Gi", queue="a", spec=spec)
    ruled.settle()
    ruled.go(lambda: all(cluster.programs[name].began for name in ("plain", "outside", "named")))
    where = {name: cluster.pod(name)["spec"].get("nodeName") for name in specs}
    assert where["outside"] in ("n1", "n2") and not cluster.programs["nowhere"].began
    assert {**where, "outside": ""} == {"plain": "n3", "outside": "", "named": "n2", "nowhere": None}
