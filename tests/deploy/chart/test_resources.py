"""What the chart renders is what Kubernetes, KEDA, cert-manager, Prometheus' operator and Ray
take."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import helm_python as helm
import kubernetes_validate
import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)

from tests.deploy.chart.rendered import (
    CHART,
    NAMESPACE,
    SETS,
    Manifest,
    all_values,
    of_kind,
    render,
    rendered,
    templates,
    values_of,
)
from tests.deploy.chart.shapes import SPECS, strangers
from tests.docs.blocks import all_blocks
from tests.npm import npm_packages

NPM = Path(__file__).parent / "crds_npm"
_INFO = 1  # a severity of Helm's
VERSIONS = ("1.29", "1.37")  # the oldest that Chart.yaml names, and the newest there is


def customs() -> list[Manifest]:
    return [m for name in SETS for m in rendered(name) if m["kind"] in SPECS]


def test_helm_finds_nothing_to_complain_of() -> None:
    found = helm.lint(str(CHART))
    assert found["errors"] == []
    assert [each for each in found["messages"] if each["severity"] > _INFO] == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SETS)
def test_kubernetes_knows_every_field(name: str, version: str) -> None:
    for manifest in rendered(name):
        if manifest["kind"] not in SPECS:
            kubernetes_validate.validate(manifest, version, strict=True)
    for title, template in templates(name):
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        pod["metadata"] = {**pod["metadata"], "name": title}
        kubernetes_validate.validate(pod, version, strict=True)


def test_custom_resources_have_no_unknown_field() -> None:
    assert {m["kind"] for m in customs()} == {*SPECS}
    for manifest in customs():
        assert [*strangers(manifest["spec"], SPECS[manifest["kind"]])] == []


def test_an_unknown_field_of_a_custom_resource_is_found() -> None:
    spec = {"triggers": [{"type": "external", "metadataa": {}}], "maxReplicas": 3}
    found = [*strangers(spec, SPECS["ScaledObject"])]
    assert found == ["spec.triggers[0].metadataa", "spec.maxReplicas"]


@pytest.mark.timeout(180)
def test_custom_resources_are_what_their_definitions_say() -> None:
    packages = npm_packages(NPM)
    asked = [m for m in customs() if m["kind"] != "RayCluster"]

    def refused(resources: list[Manifest]) -> list[str]:
        command = ["node", str(NPM / "validate.mjs"), str(packages)]
        text = json.dumps(resources)
        answer = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        return answer.stdout.splitlines()

    assert refused(asked) == []
    spec = {"scaleTargetRef": {"name": "x"}, "maxReplicaCount": "3", "triggers": []}
    wrong = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "spec": spec}
    (text,) = refused([{**wrong, "metadata": {"name": "wrong"}}])
    assert "maxReplicaCount must be integer" in text


def test_ray_reads_its_groups() -> None:
    (cluster,) = of_kind("RayCluster", "kuberay-scaled")
    cluster["metadata"]["namespace"] = NAMESPACE
    config = _derive_autoscaling_config_from_ray_cr(cluster)
    head, gpu = (config["available_node_types"][name] for name in ("headgroup", "gpu"))
    assert head["resources"]["CPU"] == 0
    assert (gpu["min_workers"], gpu["max_workers"]) == (0, 8)
    assert gpu["resources"]["GPU"] == 2
    assert gpu["resources"]["twolane_gpu"] == 1
    assert config["idle_timeout_minutes"] == 2.0


@pytest.mark.parametrize("name", SETS)
def test_values_alone_decide_what_is_rendered(name: str) -> None:
    """Argo and Flux render without a cluster, at each sync."""
    assert render(values_of(name)) == render(values_of(name))
    for path in (CHART / "templates").rglob("*.*"):
        assert not re.search(r"\b(lookup|rand\w+|gen\w+|now|uuidv4)\b *[\"(]", path.read_text()), (
            path
        )


@pytest.mark.parametrize("name", SETS)
def test_who_owns_the_number_of_pods_is_the_only_one_to_set_it(name: str) -> None:
    sets = {f"llm-{its['name']}": its["replicas"] for its in all_values(name)["hostSets"]}
    said = {
        m["metadata"]["name"]: m["spec"].get("replicas")
        for m in of_kind("StatefulSet", name)
        if m["metadata"]["name"] != "llm-router"
    } | {
        f"llm-{group['groupName']}": group.get("replicas")
        for m in of_kind("RayCluster", name)
        for group in m["spec"]["workerGroupSpecs"]
    }
    is_ours = all_values(name)["executor"] == "none"
    assert said == (sets if is_ours else dict.fromkeys(sets))


def test_the_charts_scaled_objects_are_those_of_the_document() -> None:
    (block,) = [each for each in all_blocks(["yaml"]) if "scaleTargetRef" in each.text]
    documented = yaml.safe_load(block.text)["spec"]
    values = {**values_of("plain-keda"), "keda": {"zeroTolerance": True}}
    found = [m["spec"] for m in render(values) if m["kind"] == "ScaledObject"]
    assert found
    for spec in found:
        assert spec["pollingInterval"] == documented["pollingInterval"]
        assert {it["type"] for it in spec["triggers"]} == {"external-push"}
        assert {it["type"] for it in documented["triggers"]} == {"external-push"}
        ours, its = (
            each["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
            for each in (spec, documented)
        )
        for way in ("scaleUp", "scaleDown"):
            assert ours[way].items() >= its[way].items()
            assert ours[way]["tolerance"] == 0


def test_without_a_tolerance_of_zero_keda_sizes_sets_of_at_most_nine_pods() -> None:
    values = values_of("plain-keda")
    for m in of_kind("ScaledObject", "plain-keda"):
        assert "tolerance" not in str(m), "older servers do not know the field"
    read, write = values["hostSets"]
    assert render({**values, "hostSets": [{**read, "most": 9}, write]})
    larger = {**values, "hostSets": [{**read, "most": 10}, write]}
    with pytest.raises(helm.HelmRenderError, match=r"read has at most 10 pods.*zeroTolerance"):
        render(larger)
    assert render({**larger, "keda": {"zeroTolerance": True}})


@pytest.mark.parametrize("name", SETS)
def test_no_two_resources_of_a_kind_have_one_name(name: str) -> None:
    names = Counter((m["kind"], m["metadata"]["name"]) for m in rendered(name))
    assert [each for each, n in names.items() if n > 1] == []


@pytest.mark.parametrize("name", SETS)
def test_with_tls_no_port_is_said_to_speak_plain_text(name: str) -> None:
    values = values_of(name)
    if values.get("tls", {}).get("mode", "secret") == "none":
        pytest.skip("without TLS")
    for service in of_kind("Service", name):
        said = [port.get("appProtocol") for port in service["spec"]["ports"]]
        assert "kubernetes.io/h2c" not in said
