"""Every value of the chart is in its schema, has an effect, and is refused if it is misspelt."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from typing import Any

import helm_python as helm
import pytest
import yaml

from tests.deploy.chart.rendered import CHART, SETS, all_values, render, render_files, values_of
from tests.docs.blocks import all_blocks
from tests.docs.chart_schema import schema

Place = tuple[str | int, ...]

# Where another value must be set for one to count: the set of values that does so.
NEEDS = {
    ("tls", "secretName"): "plain",
    ("tls", "issuer"): "plain-scaled",
    ("model", "mountPath"): "plain",
    ("scaler",): "plain-scaled",
    ("ray",): "kuberay-scaled",
    ("monitoring", "targets"): "plain-scaled",
    ("monitoring", "labels"): "plain-gpus",
    ("monitoring", "docs"): "plain-gpus",
    ("tls", "viewerSecret"): "plain-keda",
    ("keda",): "plain-keda",
    ("networkPolicy", "keda"): "plain-keda",
    ("networkPolicy", "kubernetesApi"): "plain-keda",
    ("hostSets", 0, "most"): "plain-keda",
    ("hostSets", 0, "pools"): "plain-keda",
}
OTHERS: dict[Place, Any] = {  # than what can be guessed from the type
    ("mode",): None,  # of its own test: it changes everything
    ("tls", "mode"): "certManager",
    ("tls", "issuer", "kind"): "Issuer",
    ("executor",): "kubernetes",
    ("monitoring", "targets"): "scrapeConfig",
    ("router", "service", "type"): "NodePort",
    ("workers",): {"decode_rows": 7},
    ("timing",): {"lease_s": 7.5},
    ("scaler",): {"idle_s": 77.0},
    ("router", "options"): {"max_queued": 77},
    ("pools",): [{"role": "prefill", "workers": 1}, {"role": "decode", "workers": 3}],
    ("hostSets", 0, "pools"): ["write"],
    ("hostSets", 0, "replicas"): 0,
    ("hostSets", 0, "seats"): 5,
    ("hostSets", 0, "tolerations"): [{"key": "other"}],
    ("networkPolicy", "kubernetesApi"): [8443],
    ("terminationGracePeriodSeconds",): 301,
    ("drainSeconds",): 239,
}


def leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every value that is no object of fields with a fixed meaning."""
    if place == ("hostSets",):
        yield from leaves(value[0], ("hostSets", 0))
    elif isinstance(value, dict) and value and place[-1:] not in (("requests",), ("limits",)):
        for key, part in value.items():
            yield from leaves(part, (*place, key))
    else:
        yield place, value


def another(place: Place, value: Any) -> Any:
    if place in OTHERS:
        return OTHERS[place]
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            if place[-1] == "pullPolicy":
                return "Always"
            return "9Gi" if value.endswith("Gi") else f"{value}9"
        case dict():
            amounts = {"cpu": "3", "memory": "5Gi"}
            others = {"affinity": {"podAffinity": {}}, "requests": amounts, "limits": amounts}
            return others.get(str(place[-1]), {"other": "yes"})
        case list():
            return {
                "imagePullSecrets": ["other"],
                "tolerations": [{"key": "other", "operator": "Exists"}],
                "egress": [{"ports": [{"port": 99}]}],
            }.get(str(place[-1]), [{"podSelector": {"matchLabels": {"other": "yes"}}}])
    raise AssertionError(place)


def changed(values: dict[str, Any], place: Place, value: Any) -> dict[str, Any]:
    found: Any = copy.deepcopy(values)
    inner = found
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return dict(found)


@cache
def shown_of(name: str) -> dict[str, str]:
    return render_files(all_values(name))


DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
PLACES = [place for place, _ in leaves(DEFAULTS)]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_every_value_has_an_effect(place: Place) -> None:
    if place == ("mode",):
        return  # the sets of values have both
    needed = [NEEDS[place[:n]] for n in range(1, len(place) + 1) if place[:n] in NEEDS]
    name = needed[0] if needed else "plain"
    values = all_values(name)
    value: Any = values
    for key in place:
        value = value[key]
    other = another(place, value)
    assert other != value
    assert shown_of(name) != render_files(changed(values, place, other))


def objects(value: Any, place: Place = ()) -> Iterator[Place]:
    """Every object whose fields the schema names."""
    if value.get("additionalProperties") is False:
        yield place
    for key, part in value.get("properties", {}).items():
        yield from objects(part, (*place, key))


PARTS = [place for place in objects(schema()) if place[:1] not in (("pools",), ("hostSets",))]


@pytest.mark.parametrize("place", PARTS, ids=lambda place: ".".join(map(str, place)) or "whole")
def test_a_misspelt_value_is_refused(place: Place) -> None:
    with pytest.raises(helm.HelmValuesError, match="mispelt"):
        render(changed(DEFAULTS, (*place, "mispelt"), 1))


@pytest.mark.parametrize("place", [("pools", 0), ("hostSets", 0)])
def test_a_misspelt_value_in_a_list_is_refused(place: Place) -> None:
    with pytest.raises(helm.HelmValuesError, match="mispelt"):
        render(changed(DEFAULTS, (*place, "mispelt"), 1))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"mode": "kuberay", "executor": "keda"}, "/executor"),
        ({"executor": "ray"}, "/executor"),
        ({"workers": {"kv_dtype": "fp4"}}, "/workers/kv_dtype"),
        ({"router": {"options": {"port": 80}}}, "port"),
        ({"hostSets": []}, "/hostSets"),
    ],
)
def test_values_that_cannot_work_are_refused(values: dict[str, Any], why: str) -> None:
    with pytest.raises(helm.HelmValuesError, match=why):
        render(values)


@pytest.mark.parametrize(
    ("its", "why"),
    [
        ({"pools": ["read"]}, "names the pool read, which is none of prefill, decode"),
        ({"name": "router"}, "router is the name of other pods already"),
        ({"replicas": 2}, "has 2 replicas, but at most 1"),
    ],
)
def test_host_sets_that_cannot_work_are_refused(its: dict[str, Any], why: str) -> None:
    with pytest.raises(helm.HelmRenderError, match=why):
        render({"hostSets": [{**DEFAULTS["hostSets"][0], **its}]})


def test_hosts_on_ray_are_not_named_like_workers_where_names_have_certificates() -> None:
    values = {"mode": "kuberay", "hostSets": [{**DEFAULTS["hostSets"][0], "name": "prefill"}]}
    assert render({**values, "tls": {"mode": "none"}})
    with pytest.raises(helm.HelmRenderError, match="prefill is the name of a pool, too"):
        render(values)


def test_the_values_of_the_document_are_some() -> None:
    (block,) = [block for block in all_blocks(["yaml"]) if "hostSets:" in block.text]
    assert render(yaml.safe_load(block.text))


def test_there_are_six_sets_of_values() -> None:
    assert len(SETS) == 6
    assert {(all_values(name)["mode"], all_values(name)["executor"]) for name in SETS} == {
        ("plain", "none"),
        ("plain", "kubernetes"),
        ("plain", "keda"),
        ("kuberay", "none"),
        ("kuberay", "ray"),
    }
    assert {all_values(name)["tls"]["mode"] for name in SETS} == {"secret", "certManager", "none"}
    assert values_of("plain-scaled")["tls"]["issuer"]["name"]
