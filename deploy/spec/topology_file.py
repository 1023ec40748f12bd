"""Reads and writes a topology as a YAML file. Errors have the line that they are about.

twolane.yaml:7: pools[1].kv_dtype is 'fp4'; it should be 'auto' or 'fp8'
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from twolane.deploy.errors import WrongTopologyError
from twolane.deploy.spec.parse_topology import (
    Place,
    Problem,
    TopologyError,
    parse_topology,
    written,
)
from twolane.deploy.spec.topology import Topology

SHIPPED = Path(__file__).parents[1] / "topologies"
_MOST_DEEP = 50


def find_topology(name: str) -> Path:
    """The path of a topology: a file, or the name of one that is shipped. Raises
    `WrongTopologyError`."""
    for path in (Path(name).expanduser(), SHIPPED / f"{name}.yaml"):
        if path.exists() and not path.is_dir():
            return path
    ours = ", ".join(sorted(path.stem for path in SHIPPED.glob("*.yaml")))
    raise WrongTopologyError(f"no file {name}; a topology is a YAML file, or one of {ours}")


def read_topology(path: Path, *, is_whole: bool = True) -> Topology:
    """Read and parse a file (`parse_topology`). Raises `WrongTopologyError` with a line for each
    error."""
    try:
        text = path.read_text(encoding="utf-8")
        _refuse_endless(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        twice = list(_given_twice(root, ()))
        if twice:
            raise TopologyError(twice)
        value = {} if root is None else yaml.safe_load(text)
        return parse_topology(value, is_whole=is_whole)
    except (OSError, UnicodeDecodeError) as error:
        raise WrongTopologyError(f"{path}: {error}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if error.context_mark is not None and mark.line >= len(text.splitlines()):
            mark = error.context_mark  # where it began what does not end
        raise WrongTopologyError(f"{_at(path, mark)}: not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise WrongTopologyError(f"{path}: not YAML: {error}") from error
    except TopologyError as error:
        found = sorted(
            ((_mark(root, p.place), written(p.text, str)) for p in error.problems), key=_line
        )
        lines = [f"{_at(path, mark)}: {text}" for mark, text in found]
        raise WrongTopologyError("\n".join(lines)) from error


def write_topology(topology: Topology) -> str:
    """YAML from which `read_topology` makes the same topology; unset fields are left out."""
    value = topology.model_dump(mode="json", exclude_none=True)
    value = {name: part for name, part in value.items() if part or name == "pools"}
    first = ("role", "name", "workers")
    value["pools"] = [
        {name: pool[name] for name in (*first, *pool) if name in pool} for pool in value["pools"]
    ]
    return str(yaml.dump(value, Dumper=_Indented, sort_keys=False, allow_unicode=True))


class _Indented(yaml.SafeDumper):  # type: ignore[misc]
    """Dumps lists further indented than their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _line(found: tuple[Any, str]) -> int:
    return -1 if found[0] is None else int(found[0].line)


def _at(path: Path, mark: Any) -> str:
    return f"{path}:{mark.line + 1}" if mark is not None else str(path)


def _mark(root: Any, place: Place) -> Any:
    """The position of a field in the file, or of the nearest field around it."""
    mark = None if root is None else root.start_mark
    node = root
    for part in place:
        if isinstance(node, yaml.MappingNode):
            found = [pair for pair in node.value if pair[0].value == part]
            if not found:
                break
            key, node = found[-1]
            mark = key.start_mark
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
            mark = node.start_mark
    return mark


def _refuse_endless(text: str) -> None:
    """Raise `yaml.MarkedYAMLError` for a document that has no end or nests too deeply: an alias
    inside its own anchor, or lists in lists in lists."""
    around: list[str | None] = []
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        problem = ""
        if isinstance(event, yaml.CollectionStartEvent):
            around.append(event.anchor)
            if len(around) > _MOST_DEEP:
                problem = f"it is nested more than {_MOST_DEEP} deep"
        elif isinstance(event, yaml.CollectionEndEvent):
            around.pop()
        elif isinstance(event, yaml.AliasEvent) and event.anchor in around:
            problem = f"the alias *{event.anchor} stands within what it stands for"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def _given_twice(node: Any, place: Place) -> list[Problem]:
    """Refuse duplicate keys, of which YAML would silently take the last."""
    found: list[Problem] = []
    if isinstance(node, yaml.MappingNode):
        names = [key.value for key, _ in node.value]
        twice = sorted({name for name in names if names.count(name) > 1})
        found += [Problem((*place, name), f"{name} is given twice") for name in twice]
        for key, value in node.value:
            found += _given_twice(value, (*place, key.value))
    if isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            found += _given_twice(value, (*place, i))
    return found
