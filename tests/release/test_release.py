"""What a release check refuses."""

from __future__ import annotations

import pytest

from tests.release.__main__ import LEFT_OUT, tracked, version_problems
from tests.release.contents import MOST_BYTES, NEEDED, in_wheel, sdist_problems, wheel_problems
from tests.release.licences import Licence, licences, page
from twolane import __version__

INFO = f"twolane-{__version__}.dist-info/"
TRACKED = tracked()
WHEEL = dict.fromkeys(filter(None, map(in_wheel, TRACKED)), 1) | dict.fromkeys(
    (
        f"{INFO}{name}"
        for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    ),
    1,
)


def test_a_wheel_of_what_git_has_is_right() -> None:
    assert {*NEEDED} <= {*WHEEL}
    assert [*wheel_problems(WHEEL, TRACKED)] == []


@pytest.mark.parametrize(
    ("name", "size", "problem"),
    [
        ("tests/pki.py", 1, "is outside twolane/"),
        ("twolane/engine/kernel.so", 1, "has no place there"),
        ("twolane/certs/ca.key", 1, "has no place there"),
        ("twolane/deploy/.env", 1, "has no place there"),
        ("twolane/router/left_over.py", 1, "is not in git"),
        ("twolane/deploy/bundled/model/model.safetensors", MOST_BYTES + 1, "has 64 MiB"),
    ],
)
def test_what_has_no_place_in_a_wheel_is_found(name: str, size: int, problem: str) -> None:
    assert f"{name} {problem}" in [*wheel_problems(WHEEL | {name: size}, TRACKED)]


@pytest.mark.parametrize("name", [*NEEDED, "twolane/router/router.py", f"{INFO}METADATA"])
def test_what_is_missing_in_a_wheel_is_found(name: str) -> None:
    without = {its: size for its, size in WHEEL.items() if its != name}
    (problem,) = wheel_problems(without, TRACKED)
    assert problem.startswith(name.removeprefix(INFO) + " is missing")


def test_an_sdist_holds_what_git_has_but_what_concerns_the_repository_alone() -> None:
    whole = {path: 1 for path in TRACKED if path.partition("/")[0] not in LEFT_OUT} | {
        "PKG-INFO": 1
    }
    assert [*sdist_problems(whole, TRACKED, LEFT_OUT)] == []
    del whole["mkdocs.yml"]
    assert [*sdist_problems(whole, TRACKED, LEFT_OUT)] == ["mkdocs.yml is missing"]


def test_a_tag_is_the_version() -> None:
    assert [*version_problems("main")] == [*version_problems(f"v{__version__}")] == []
    assert [*version_problems("v99.0.0")] == [f"the tag is v99.0.0, twolane is {__version__}"]


def test_licences_are_those_of_what_servers_need_and_not_of_the_tests() -> None:
    found = {each.name: each for each in licences()}
    assert {"torch", "grpcio", "opentelemetry-sdk", "starlette", "certifi"} <= {*found}
    assert not {"twolane", "pytest", "hypothesis", "mypy"} & {*found}
    assert not [each.problem for each in found.values() if each.problem]
    assert f"| grpcio | {found['grpcio'].version} | Apache-2.0 |" in page(found.values(), "1")


@pytest.mark.parametrize(
    "text", ["", "GPL-3.0-only", "AGPL-3.0-or-later", "GNU General Public License v3 (GPLv3)"]
)
def test_a_licence_that_binds_whoever_passes_twolane_on_is_refused(text: str) -> None:
    assert Licence("it", "1", text, "").problem
    assert not Licence("it", "1", "GNU Lesser General Public License v3 (LGPLv3)", "").problem
