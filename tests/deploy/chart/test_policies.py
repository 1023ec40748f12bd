"""Rules that every pod of the chart obeys, whatever the values."""

from __future__ import annotations

from typing import Any

import helm_python as helm
import pytest
import yaml

from tests.deploy.chart.rendered import (
    SETS,
    Manifest,
    all_values,
    containers,
    of_kind,
    render,
    rendered,
    templates,
    templates_of,
    topology,
    values_of,
)
from tests.deploy.chart.test_commands import unknown
from twolane.deploy.__main__ import main as deploy
from twolane.rpc.listen import port_range

MARGIN_S = 10  # from the end of a drain to SIGKILL
Peer = dict[str, Any]  # a NetworkPolicyPeer
ANYBODY: Peer = {}
PROMETHEUS, CLIENT, STRANGER = (
    {"namespaceSelector": {"matchLabels": {"name": name}}} for name in ("p", "c", "s")
)
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
all_sets = pytest.mark.parametrize("name", SETS)


def is_long_lived(title: str) -> bool:
    return not title.startswith(("llm-test", "llm-start"))


@all_sets
def test_no_pod_runs_as_root_or_with_more_than_it_needs(name: str) -> None:
    for title, template in templates(name):
        its = template["spec"]["securityContext"]
        assert its["runAsNonRoot"] is True, title
        assert its["runAsUser"] > 0, title
        assert its["seccompProfile"] == {"type": "RuntimeDefault"}, title
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            assert key not in template["spec"], title
        assert not [v for v in template["spec"].get("volumes", ()) if "hostPath" in v], title
    for title, container in containers(name):
        its = container["securityContext"]
        assert its["readOnlyRootFilesystem"] is True, title
        assert its["allowPrivilegeEscalation"] is False, title
        assert its["capabilities"] == {"drop": ["ALL"]}, title


@all_sets
def test_only_who_scales_has_a_token_of_kubernetes(name: str) -> None:
    with_token = {
        title for title, template in templates(name)
        if template["spec"]["automountServiceAccountToken"]
    }  # fmt: skip
    expected = {"kubernetes": {"llm-controller"}, "keda": {"llm-controller"}, "ray": {"llm-head"}}
    assert with_token == expected.get(all_values(name)["executor"], set())
    for account in of_kind("ServiceAccount", name):
        assert account["automountServiceAccountToken"] is False


@all_sets
def test_nobody_shares_the_account_of_who_scales(name: str) -> None:
    """KubeRay binds its autoscaler's role to the account that the head names, by default one with
    the cluster's name."""
    accounts = {title: its["spec"].get("serviceAccountName") for title, its in templates(name)}
    made = {account["metadata"]["name"] for account in of_kind("ServiceAccount", name)}
    assert {*accounts.values()} <= made
    for title, template in templates(name):
        if template["spec"]["automountServiceAccountToken"]:
            assert [it for it in accounts if accounts[it] == accounts[title]] == [title]
            assert accounts[title] != "llm", "all others have it"


@all_sets
def test_every_container_has_requests_and_a_limit_of_memory(name: str) -> None:
    for title, container in containers(name):
        its = container["resources"]
        assert {"cpu", "memory"} <= {*its["requests"]}, title
        assert "memory" in its["limits"], title


@all_sets
def test_every_process_that_stays_has_three_probes(name: str) -> None:
    probed = {title: its for title, its in containers(name) if is_long_lived(title)}
    assert probed
    for title, container in probed.items():
        assert {*PROBES} <= {*container}, title


@all_sets
def test_pods_have_longer_to_end_than_their_requests(name: str) -> None:
    drain_s = all_values(name)["drainSeconds"]
    assert yaml.safe_load(topology(name))["timing"]["stop_grace_s"] == drain_s
    agents = [
        (template["spec"]["terminationGracePeriodSeconds"], container)
        for _, template in templates(name)
        for container in template["spec"]["containers"]
        if "agent" in container.get("args", ())
    ]
    for grace_s, container in agents:
        assert f"--drain-s={drain_s}" in container["args"]
        hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {})
        waited_s = float(hook["command"][1]) if hook else 0.0
        assert grace_s >= drain_s + waited_s + MARGIN_S
    for title, template in templates(name):
        if title.startswith(("llm-gpu", "llm-workers", "llm-router")):
            assert template["spec"]["terminationGracePeriodSeconds"] > drain_s + MARGIN_S


@pytest.mark.parametrize("name", [name for name in SETS if name.startswith("kuberay")])
def test_workers_on_ray_finish_before_their_pod_ends(name: str) -> None:
    """Ray kills the agent and what it has started when its pod gets SIGTERM."""
    drain_s = all_values(name)["drainSeconds"]
    folder = f"{environment_of(name)['HOME']}/.twolane"
    on_ray = [(title, its) for title, its in containers(name) if "/ray-" in title]
    assert len(on_ray) > 1
    for title, container in on_ray:
        command = container["lifecycle"]["preStop"]["exec"]["command"]
        assert command[:4] == ["python", "-m", "twolane.deploy", "drain"], title
        assert command[4:] == [f"--state-dir={folder}", f"--drain-s={drain_s}"]
        assert unknown(deploy, command[3:]) == ""
    for title, template in templates(name):
        if any("ray-" in its["name"] for its in template["spec"]["containers"]):
            grace_s = template["spec"]["terminationGracePeriodSeconds"]
            assert grace_s > drain_s + MARGIN_S, title


def environment_of(name: str) -> dict[str, str]:
    """Of Ray's head: the agents' state is in its home folder."""
    (head,) = [its for title, its in containers(name) if title == "llm-head/ray-head"]
    return {each["name"]: each.get("value", "") for each in head["env"]}


@all_sets
def test_no_router_is_on_rays_head_unless_that_is_asked_for(name: str) -> None:
    value = yaml.safe_load(topology(name))
    routers = [its for its in value.get("hosts", ()) if its["routers"]]
    pods = [m["spec"]["replicas"] for m in of_kind("StatefulSet", name)
            if m["metadata"]["name"] == "llm-router"]  # fmt: skip
    if routers_on_the_head(name):
        assert (routers, pods) == ([], [])
    else:
        assert [len(routers)] == pods == [all_values(name)["router"]["replicas"]]
    found = {m["metadata"]["name"]: m["spec"]["selector"] for m in of_kind("Service", name)}
    of_routers = found["llm"]["app.kubernetes.io/component"]
    assert of_routers == ("head" if routers_on_the_head(name) else "router")


def routers_on_the_head(name: str) -> bool:
    values = all_values(name)
    return bool(values["mode"] == "kuberay" and values["ray"]["head"]["router"])


def test_too_short_a_grace_is_refused() -> None:
    with pytest.raises(helm.HelmRenderError, match="at least 11 more"):
        render(values_of("plain") | {"drainSeconds": 290})


@all_sets
def test_every_port_is_in_a_network_policy(name: str) -> None:
    """Each port that a container names, and those of the processes that its agent starts."""
    for title, template in templates(name):
        named = {
            port["containerPort"]
            for container in template["spec"]["containers"]
            for port in container.get("ports", ())
        }
        has_routers = title == "llm-router" or (title == "llm-head" and routers_on_the_head(name))
        if has_routers:
            its = yaml.safe_load(topology(name))["router"]
            named |= {value for key, value in its.items() if key.endswith("port")}
        admitted = admissions(rendered(name), template, ANYBODY)
        assert not named - admitted, title


@all_sets
def test_prometheus_reaches_every_page_of_metrics_and_no_other_port(name: str) -> None:
    """Whether the values say who it is or admit everybody. A worker's gRPC and pages have ports
    of another range than its metrics."""
    its = yaml.safe_load(topology(name))
    metrics = {*port_range(its["workers"]["worker_metrics_ports"])}
    assert not metrics & {*port_range(its["ports"])}
    of_ray = {8080} if all_values(name)["mode"] == "kuberay" else set()
    values = values_of(name)
    for peers in ([], [PROMETHEUS]):
        policy = {**values.get("networkPolicy", {}), "prometheus": peers, "clients": [CLIENT]}
        manifests = render({**values, "networkPolicy": {**policy, "keda": [CLIENT]}})
        for title, template in templates_of(manifests):
            found = admissions(manifests, template, PROMETHEUS)
            assert found == metrics | {9100} | of_ray, title
            others = admissions(manifests, template, STRANGER)
            assert others == (set() if peers else found), title


@all_sets
def test_pods_without_ports_admit_nobody_from_outside(name: str) -> None:
    everybody = {
        manifest["metadata"]["name"]
        for manifest in of_kind("NetworkPolicy", name)
        for rule in manifest["spec"].get("ingress", ())
        if "from" not in rule
    }
    assert everybody <= {"llm", "llm-clients", "llm-controller"}
    for manifest in of_kind("NetworkPolicy", name):
        for rule in manifest["spec"].get("ingress", ()):
            assert rule["ports"], "never all ports"


@pytest.mark.parametrize(
    ("router", "ports"),
    [
        ({"store": "redis://redis"}, {6379}),
        ({"store": "rediss://u:p%2F:7@redis.example:6380/2?ca=/x:5"}, {6380}),
        ({"store": "redis+sentinel://u:p@a,b:26380/tw/1"}, {26379, 26380, 6379}),
        ({"store": "redis://[fd00::1]:6390/0"}, {6390}),
        ({"options": {"otlp_endpoint": "http://collector.traces:4317"}}, {4317}),
        ({"options": {"otlp_endpoint": "https://collector"}}, {443}),  # as gRPC reads it
        ({}, set()),
    ],
)
def test_routers_reach_the_store_and_the_collector_that_they_have(
    router: dict[str, Any], ports: set[int]
) -> None:
    manifests = render({"router": router})
    for title, template in templates_of(manifests):
        found = ports if title == "llm-router" else set()
        assert destinations(manifests, template) == {53} | found, title


def test_rays_head_reaches_its_redis() -> None:
    for name, ports in (("kuberay-scaled", {6379, 443, 6443}), ("kuberay", set())):
        heads = [template for title, template in templates(name) if title == "llm-head"]
        (found,) = (destinations(rendered(name), head) for head in heads)
        assert found == {53} | ports


def destinations(manifests: list[Manifest], template: Manifest) -> set[int]:
    """The ports outside the cluster that a pod reaches."""
    return {
        port
        for policy in selecting(manifests, template)
        for rule in policy.get("egress", ())
        if "to" not in rule
        for port in ports_of(rule)
    }


def admissions(manifests: list[Manifest], template: Manifest, peer: Peer) -> set[int]:
    """The ports of a pod that the peer reaches; those that somebody reaches for `ANYBODY`."""
    return {
        port
        for policy in selecting(manifests, template)
        for rule in policy.get("ingress", ())
        if peer is ANYBODY or "from" not in rule or peer in rule["from"]
        for port in ports_of(rule)
    }


def selecting(manifests: list[Manifest], template: Manifest) -> list[Manifest]:
    labels = template["metadata"]["labels"]
    return [
        manifest["spec"]
        for manifest in manifests
        if manifest["kind"] == "NetworkPolicy"
        and manifest["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    ]


def ports_of(rule: Manifest) -> set[int]:
    return {
        number
        for port in rule["ports"]
        for number in range(port["port"], port.get("endPort", port["port"]) + 1)
    }


@all_sets
def test_every_pod_that_stays_and_has_others_beside_it_is_in_a_disruption_budget(name: str) -> None:
    budgets = [m["spec"]["selector"]["matchLabels"] for m in of_kind("PodDisruptionBudget", name)]
    for title, template in templates(name):
        if title in ("llm-controller", "llm-test") or not is_long_lived(title):
            continue  # the cluster runs without its controller
        labels = template["metadata"]["labels"]
        is_alone = labels.get("app.kubernetes.io/component") == "head"  # "one at a time" is all
        found = [b for b in budgets if b.items() <= labels.items()]
        assert bool(found) is not is_alone, title


@all_sets
def test_selectors_find_the_pods_that_they_are_for(name: str) -> None:
    pods = [template["metadata"]["labels"] for _, template in templates(name)]
    for manifest in rendered(name):
        its = manifest.get("spec", {}).get("selector", {})
        if manifest["kind"] in ("Service", "StatefulSet", "Deployment", "PodDisruptionBudget"):
            wanted = its.get("matchLabels", its)
            assert [p for p in pods if wanted.items() <= p.items()], manifest["metadata"]


@pytest.mark.parametrize("name", ["plain-scaled", "plain-keda"])
def test_the_controller_looks_at_the_pods_of_its_host_sets_alone(name: str) -> None:
    said = yaml.safe_load(topology(name))["kubernetes"]["pod_selector"]
    selector = dict(each.split("=") for each in said.split(","))
    found = {
        title
        for title, template in templates(name)
        if selector.items() <= template["metadata"]["labels"].items()
    }
    assert found == {f"llm-{its['name']}" for its in all_values(name)["hostSets"]}
    assert selector["app.kubernetes.io/instance"] == "llm", "another release's pods are not ours"


@all_sets
def test_the_controllers_rights_are_these(name: str) -> None:
    roles = of_kind("Role", name)
    if all_values(name)["executor"] not in ("kubernetes", "keda"):
        assert roles == []
        return
    (role,) = roles
    sets = {f"llm-{its['name']}" for its in all_values(name)["hostSets"]}
    rights = {tuple(r["resources"]): r for r in role["rules"]}
    assert {*rights["statefulsets/scale",]["resourceNames"]} == sets
    assert {*rights["statefulsets/scale",]["verbs"]} == {"get", "patch"}
    assert {*rights["pods",]["verbs"]} == {"list", "watch"}
    for rule in role["rules"]:
        assert not {"delete", "deletecollection", "*"} & {*rule["verbs"]}, "a pod goes by /scale"
        assert "secrets" not in rule["resources"]
