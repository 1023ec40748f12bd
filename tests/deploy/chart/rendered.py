"""The chart as Helm renders it, for each set of values in its folder `ci`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

CHART = Path(__file__).parents[3] / "deploy" / "chart" / "twolane"
SETS = tuple(sorted(path.stem for path in (CHART / "ci").glob("*.yaml")))
RELEASE, NAMESPACE = "llm", "prod"
Manifest = dict[str, Any]


def values_of(name: str) -> dict[str, Any]:
    """What that set says."""
    found: dict[str, Any] = yaml.safe_load((CHART / "ci" / f"{name}.yaml").read_text())
    return found


def all_values(name: str) -> dict[str, Any]:
    """With the chart's defaults."""
    with helm.Chart.load(str(CHART)) as chart:
        found: dict[str, Any] = chart.merge_values(values_of(name))
        return found


def render_files(values: dict[str, Any]) -> dict[str, str]:
    """By path. Raises `helm.HelmError`."""
    with helm.Chart.load(str(CHART)) as chart:
        chart.validate_schema(values)
        files: dict[str, str] = chart.render(values, name=RELEASE, namespace=NAMESPACE)
    return {path: text for path, text in sorted(files.items()) if not path.endswith("NOTES.txt")}


def render(values: dict[str, Any]) -> list[Manifest]:
    """Raises `helm.HelmError`."""
    files = render_files(values).values()
    found = (each for text in files for each in yaml.load_all(text, Loader=yaml.CSafeLoader))
    return [manifest for manifest in found if manifest is not None]


@cache
def rendered(name: str) -> list[Manifest]:
    return render(values_of(name))


def of_kind(kind: str, name: str) -> list[Manifest]:
    return [manifest for manifest in rendered(name) if manifest["kind"] == kind]


def templates(name: str) -> Iterator[tuple[str, Manifest]]:
    yield from templates_of(rendered(name))


def templates_of(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Every pod template, and the pods themselves: its name, and an object with `metadata` and
    `spec`."""
    for manifest in manifests:
        spec, title = manifest.get("spec", {}), manifest["metadata"]["name"]
        if manifest["kind"] == "Pod":
            yield title, manifest
        elif manifest["kind"] == "RayCluster":
            yield f"{title}-head", spec["headGroupSpec"]["template"]
            for group in spec["workerGroupSpecs"]:
                yield f"{title}-{group['groupName']}", group["template"]
        elif "template" in spec:
            yield title, spec["template"]


def containers(name: str) -> Iterator[tuple[str, Manifest]]:
    for title, template in templates(name):
        for container in template["spec"]["containers"]:
            yield f"{title}/{container['name']}", container


def topology(name: str) -> str:
    """The file that the controller reads."""
    (found,) = [m for m in of_kind("Secret", name) if m["metadata"]["name"].endswith("-topology")]
    text: str = found["stringData"]["cluster.yaml"]
    return text
