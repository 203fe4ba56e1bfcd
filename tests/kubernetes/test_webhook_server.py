"""The webhook's process: asked over HTTPS as the API server asks, with certificate and rights of its own."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from datetime import timedelta

import pytest
from api_double import SERVED
from cluster_double import ClusterDouble
from kube_stage import until
from webhook_cases import cluster, pod
from webhook_stage import (
    CONFIGURATION,
    DEPLOY,
    SECRET,
    TEMPLATES,
    Webhook,
    deploy,
    objects,
    published,
    webhook_at,
)

from gpushare.kubernetes.carried import CLAIM
from gpushare.kubernetes.server import Access, Answer, Server
from gpushare.kubernetes.webhook import serve
from gpushare.kubernetes.webhook.asked import ANNOTATIONS
from gpushare.kubernetes.webhook.limits import Rules
from gpushare.kubernetes.webhook.makers import Templates
from gpushare.kubernetes.webhook.of_container import ASKS
from gpushare.kubernetes.webhook.review import claimed
from gpushare.kubernetes.webhook.template import USED

VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete", "WATCH": "watch"}
FRACTION = {"gpu-fraction": "0.5"}


@pytest.fixture
def api(tmp_path):
    made = ClusterDouble(tmp_path)
    deploy(made)
    published(made)
    yield made
    made.stop()


@pytest.fixture
def webhook(api, tmp_path):
    with webhook_at(api, tmp_path) as made:
        made.ready()
        yield made


def templates(api: ClusterDouble) -> list[str]:
    return [one["metadata"]["name"] for one in api.of("resourceclaimtemplates")]


def test_a_pod_comes_back_with_a_claim_and_its_template_is_there(api, webhook):
    stored = webhook.admit(pod(FRACTION))
    (claim,) = stored["spec"]["resourceClaims"]
    assert templates(api) == [claim["resourceClaimTemplateName"]]
    assert webhook.admit(pod({"gpu-fraction": "50%"}))["spec"]["resourceClaims"] == [claim]
    assert len(templates(api)) == 1
    assert webhook.admit(pod({"other": "x"})) == pod({"other": "x"})


def test_a_refusal_is_one_sentence_and_nothing_is_made(api, webhook):
    response = webhook.review(pod({"gpu-fraction": "1.5"}))
    assert not response["allowed"] and response["status"]["code"] == 403
    assert response["status"]["message"].startswith("annotation gpu-fraction: cannot read '1.5'")
    assert templates(api) == []


def test_a_dry_run_makes_nothing(api, webhook):
    assert webhook.review(pod(FRACTION), dry=True)["allowed"]
    assert templates(api) == []


def test_a_new_node_and_a_new_queue_count_at_once(api, webhook):
    assert not webhook.review(pod(FRACTION, nodeSelector={"size": "none"}))["allowed"]
    api.change("/api/v1/nodes/small", lambda node: node["metadata"]["labels"].update(size="none"))
    until(lambda: webhook.review(pod(FRACTION, nodeSelector={"size": "none"}))["allowed"], "the node's label to count")


def test_the_whole_cluster_s_limits_are_options(api, tmp_path):
    with webhook_at(api, tmp_path, "--interactive-limit", "1", "--max-limit", "0.9", "--interactive", "lab") as webhook:
        webhook.ready()
        webhook.admit(pod(FRACTION, priorityClassName="lab"))
        (made,) = api.of("resourceclaimtemplates")
        assert made["spec"]["spec"]["devices"]["config"][0]["opaque"]["parameters"]["limit"] == "0.9"


@pytest.mark.parametrize("words", [["--max-limit", "2"], ["--port", "x"], ["--every", "0"]])
def test_options_that_make_no_sense_are_named(words, tmp_path):
    line = [sys.executable, "-m", "gpushare.kubernetes.webhook", "--kubeconfig", str(tmp_path / "none"), *words]
    ended = subprocess.run(line, capture_output=True, text=True)
    field = {"--max-limit": "maxLimit"}.get(words[0], words[0])
    assert ended.returncode == 2 and field in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/pods", b"{", 400),
        ("POST", "/pods", b"[" * 100_000, 400),
        ("POST", "/pods", b"{}", 400),
        ("POST", "/pods", b'{"request": {"uid": 1}}', 400),
        ("POST", "/pods", b" " * (9 * 2**20), 413),
        ("GET", "/pods", None, 405),
        ("GET", "/other", None, 404),
    ],
)
def test_what_is_no_review_is_refused_and_the_next_one_answered(webhook, method, path, body, status):
    assert webhook.request(method, path, body)[0] == status
    assert webhook.review(pod(FRACTION))["allowed"] and "Traceback" not in webhook.log


# ---- what others do ------------------------------------------------------------------------------------


def test_a_server_that_is_away_is_waited_for(api, tmp_path):
    api.stop()
    with webhook_at(api, tmp_path) as webhook:
        until(lambda: "does not answer" in webhook.log, "it to say so")
        assert webhook.process.poll() is None
        api.start()
        webhook.ready()
        api.stop()
        response = webhook.review(pod(FRACTION))
        assert (response["allowed"], response["status"]["code"]) == (False, 503)
        assert "does not answer" in response["status"]["message"]
        assert "allowed" in webhook.review(pod({"other": "x"})), "what needs nothing"
        api.start()
        until(lambda: webhook.review(pod(FRACTION))["allowed"], "it to go on")
        assert webhook.end() == 0 and "Traceback" not in webhook.log


def test_a_server_that_refuses_is_quoted(api, webhook):
    api.refuses = lambda method, path, _: (403, {"message": "quota"}) if method == "POST" else None
    response = webhook.review(pod(FRACTION))
    assert not response["allowed"] and response["status"]["message"].endswith("resourceclaimtemplates: quota")


def test_a_template_of_that_name_with_other_words_is_not_taken(api, webhook):
    name = webhook.admit(pod(FRACTION))["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    exactly = {"count": 8}
    api.change(f"{TEMPLATES}/{name}", lambda one: one["spec"]["spec"]["devices"]["requests"][0].update(exactly=exactly))
    response = webhook.review(pod(FRACTION))
    message = f"ResourceClaimTemplate team-a/{name} says something else; delete it"
    assert (response["allowed"], response["status"]["message"]) == (False, message)


def test_a_moved_clock_brings_a_new_certificate_that_is_trusted(api, webhook):
    assert webhook.is_trusted()
    for days in (25, 300, 700, -3):
        served = webhook.served()
        api.ahead = timedelta(days=days).total_seconds()
        until(lambda served=served: webhook.served() != served, f"another certificate: {webhook.log}")
        until(webhook.is_trusted, f"it to be trusted: {webhook.log}")
    assert "begins only at" in webhook.log and "expired at" in webhook.log
    api.ahead = 0.0
    assert until(lambda: webhook.review(pod(FRACTION))["allowed"], "an answer")


def test_a_certificate_that_somebody_has_garbled_is_made_again(api, webhook):
    old = webhook.served()
    api.change(SECRET, lambda one: one["data"].update({"ca.crt": "?", "tls.key": "eA=="}))
    until(lambda: webhook.served() != old, "another")
    assert webhook.review(pod(FRACTION))["allowed"]


def test_two_replicas_serve_one_certificate_and_write_no_more(api, webhook, tmp_path):
    with webhook_at(api, tmp_path) as second:
        second.ready()
        assert webhook.served() == second.served()
        paths = (SECRET, CONFIGURATION)
        versions = [api.objects[path]["metadata"]["resourceVersion"] for path in paths]
        asked = len(api.requests)
        until(lambda: sum(path == SECRET for _, path in api.requests[asked:]) > 10, "ten looks")
        assert versions == [api.objects[path]["metadata"]["resourceVersion"] for path in paths]
        first, other = webhook.admit(pod(FRACTION)), second.admit(pod(FRACTION))
        assert first == other and len(templates(api)) == 1
        webhook.end(signal.SIGKILL)
        assert second.admit(pod(FRACTION)) == first


def test_a_secret_that_is_not_there_is_said_once(api, tmp_path):
    kept = api.objects.pop(SECRET)
    with webhook_at(api, tmp_path) as webhook:
        until(lambda: sum(path == SECRET for _, path in api.requests) > 2, "it to look again")
        assert webhook.log.count(f"there is no {SECRET}") == 1 and webhook.process.poll() is None
        api.put(SECRET, kept)
        webhook.ready()


# ---- templates that nobody uses ------------------------------------------------------------------------


@pytest.fixture
def made(api):
    """Templates as the webhook makes them, and a way to make one."""
    templates_ = Templates(Server(Access.of_kubeconfig(api.kubeconfig)))

    def make(memory: str) -> str:
        found = claimed(pod({"gpu-memory": memory}), "team-a", cluster(), Rules())
        assert found is not None
        templates_.make(found[0])
        return str(found[0]["metadata"]["name"])

    return templates_, make


def run(api: ClusterDouble, name: str, template: str) -> None:
    claims = [{"name": "gpushare", "resourceClaimTemplateName": template}]
    meta = {"name": name, "namespace": "team-a"}
    api.put(f"/api/v1/namespaces/team-a/pods/{name}", {"metadata": meta, "spec": {"resourceClaims": claims}})


def test_a_template_that_no_pod_names_is_removed_an_hour_after_its_last_use(api, made):
    kept, make = made
    used, unused = make("1Gi"), make("2Gi")
    run(api, "notebook", used)
    api.put("/api/v1/namespaces/team-a/pods/web", {"metadata": {"name": "web", "namespace": "team-a"}, "spec": {}})
    other = {"metadata": {"name": "own", "namespace": "team-a"}, "spec": {}}
    api.put(f"{TEMPLATES}/own", other)
    api.ahead = 3500.0
    kept.clean()
    kept.clean()  # it has the clock by then
    assert set(templates(api)) == {used, unused, "own"}
    api.ahead = 3700.0
    kept.clean()
    kept.clean()
    assert set(templates(api)) == {used, "own"}


def test_a_template_that_a_pod_is_coming_for_stays(api, made):
    kept, make = made
    name = make("1Gi")
    api.ahead = 7200.0
    api.refuses = lambda method, *_: (500, {"message": "no"}) if method == "DELETE" else None
    with pytest.raises(Answer):
        kept.clean()  # it has the clock by then
        kept.clean()

    def meanwhile(method, path, _body):
        if method == "GET" and path.endswith("/pods"):
            api.objects[f"{TEMPLATES}/{name}"]["metadata"]["resourceVersion"] = "changed"

    api.refuses = meanwhile
    kept.clean()
    assert templates(api) == [name], "it was read before, and the pod came after"
    api.refuses = lambda *_: None
    before = api.objects[f"{TEMPLATES}/{name}"]["metadata"]["annotations"][USED]
    make("1Gi")
    assert api.objects[f"{TEMPLATES}/{name}"]["metadata"]["annotations"][USED] > before
    kept.clean()
    assert templates(api) == [name], "it was used just now"


# ---- as it is deployed ---------------------------------------------------------------------------------


def resource(path: str) -> tuple[str, str]:
    """Group and resource of a path."""
    kinds = "nodes|pods|resourceslices|resourceclaimtemplates|queues|secrets|mutatingwebhookconfigurations"
    group = re.match(r"/apis/([^/]+)/", path)
    found = re.search(rf"/({kinds})(/|$)", path)
    assert found, path
    return group[1] if group else "", found[1]


def test_it_may_do_what_it_does_and_nothing_else(api, tmp_path):
    api.put("/apis/gpushare.dev/v1/queues/vision", {"metadata": {"name": "vision"}, "spec": {}})
    with webhook_at(api, tmp_path) as webhook:
        webhook.ready()
        name = webhook.admit(pod(FRACTION))["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
        api.change(f"{TEMPLATES}/{name}", lambda one: one["metadata"].pop("annotations"))
        webhook.admit(pod(FRACTION))
        until(lambda: sum(method == "WATCH" for method, _ in api.requests) >= 3, "its watches")
        webhook.end()
        api.ahead = 7200.0
    with webhook_at(api, tmp_path) as webhook:
        until(lambda: not templates(api), "what is old to be removed")
    lists = ("nodes", "pods", "resourceslices", "queues", "resourceclaimtemplates")
    asked = set()
    for method, path in [one for one in api.requests if one[1] != SERVED]:
        group, kind = resource(path)
        verb = "list" if method == "GET" and path.endswith(f"/{kind}") and kind in lists else VERBS[method]
        asked.add((verb, group, kind))
    rules = [rule for one in objects("rbac.yaml") if one["kind"] in ("ClusterRole", "Role") for rule in one["rules"]]
    granted = {
        (verb, group, kind)
        for rule in rules
        for group in rule["apiGroups"]
        for kind in rule["resources"]
        for verb in rule["verbs"]
    }
    assert asked == granted
    named = {kind: rule.get("resourceNames") for rule in rules for kind in rule["resources"]}
    assert named["secrets"] == named["mutatingwebhookconfigurations"] == ["gpushare-webhook"]


def test_the_manifests_are_a_whole():
    (kustomization,) = objects("kustomization.yaml")
    by_kind = {one["kind"]: one for name in kustomization["resources"] for one in objects(name)}
    spec = by_kind["Deployment"]["spec"]["template"]
    (container,), labels = spec["spec"]["containers"], spec["metadata"]["labels"]
    (webhook,) = by_kind["MutatingWebhookConfiguration"]["webhooks"]
    service = webhook["clientConfig"]["service"]
    assert service == {"name": by_kind["Service"]["metadata"]["name"], "namespace": "gpushare", "path": "/pods"}
    assert by_kind["Service"]["spec"]["selector"].items() <= labels.items()
    assert by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (port,) = container["ports"]
    assert by_kind["Service"]["spec"]["ports"][0]["targetPort"] == port["name"] and port["containerPort"] == 8443
    assert {one["subjects"][0]["name"] for kind, one in by_kind.items() if "Binding" in kind} == {
        spec["spec"]["serviceAccountName"]
    }
    assert webhook["failurePolicy"] == "Fail" and webhook["sideEffects"] == "NoneOnDryRun"
    expression = webhook["matchConditions"][0]["expression"]
    assert tuple(re.findall(r'"([^"]+)"', expression)) == (*ANNOTATIONS, CLAIM, ASKS)
    marks = (DEPLOY.parent / "scheduler" / "marks.yaml").read_text()
    assert f'name.matches("{ASKS}")' in marks, "such pods have a claim of the webhook's"


def test_the_manifest_s_command_is_taken(api, tmp_path):
    (deployment,) = (one for one in objects("webhook.yaml") if one["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    program, *words = [*container["command"], *container["args"]]
    assert program == "gpushare-webhook"
    words = [word.replace("$(POD_IP)", "127.0.0.1") for word in words]
    with webhook_at(api, tmp_path, *words) as webhook:
        webhook.ready()


def test_it_listens_on_this_machine_alone_by_default(webhook: Webhook):
    assert f"https://127.0.0.1:{webhook.port}/pods" in webhook.log


def test_trouble_is_told_once_and_again_when_it_comes_back(caplog):
    class Keeper:
        def __init__(self):
            self.told = iter(("away", "away", None, "away", "other"))

        def look(self):
            if (trouble := next(self.told)) is not None:
                raise OSError(trouble)

    one = serve.Webhook(Keeper(), None, None, None)
    assert [asyncio.run(one._look()) for _ in range(5)] == [False, False, True, False, False]
    assert caplog.messages == ["certificate: away", "certificate: away", "certificate: other"]
