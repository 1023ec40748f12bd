"""Which directories may be a revision of a model."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.until import until
from twolane.deploy.spec.revision import (
    READ_S,
    SLOWEST_BYTES_S,
    Fit,
    Revision,
    fit_everywhere,
    read_in_time,
    read_revision,
    seconds_to_read,
)


def model(
    folder: Path, *, vocab_size: int = 8, tokenizer: str = "{}", weights: bytes = b"12", **more: Any
) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": vocab_size, **more}))
    (folder / "tokenizer.json").write_text(tokenizer)
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def read(ours: Path, other: Path | str, *, with_weights: bool = True) -> Revision:
    return read_revision(ours, str(other), with_weights=with_weights)


def test_directory_with_the_same_tokens_may_be_one(tmp_path: Path) -> None:
    ours, other = model(tmp_path / "a"), model(tmp_path / "b")
    assert read(ours, other).why_not == ""
    assert len(read(ours, other).fingerprint) == 64


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"vocab_size": 9}, "has a vocabulary of 9, the model one of 8"),
        ({"tokenizer": "[]"}, "has another tokenizer"),
    ],
)
def test_model_with_other_tokens_is_refused(tmp_path: Path, how: dict[str, Any], why: str) -> None:
    ours, other = model(tmp_path / "a"), model(tmp_path / "b", **how)
    assert why in read(ours, other).why_not


def test_directory_that_cannot_be_loaded_is_refused_with_the_file(tmp_path: Path) -> None:
    ours, other = model(tmp_path / "a"), model(tmp_path / "b")
    assert read(ours, "b").why_not == "b is not an absolute path"
    missing = tmp_path / "nowhere"
    assert read(ours, missing).why_not == f"there is no directory {missing}"
    (tmp_path / "empty").mkdir()
    assert f"{tmp_path}/empty/config.json is missing" in read(ours, tmp_path / "empty").why_not
    weights = other / "model.safetensors"
    weights.write_text("version https://git-lfs.github.com/spec/v1")
    assert "git lfs pull" in read(ours, other).why_not
    weights.unlink()
    assert "has no model.safetensors" in read(ours, other).why_not
    assert read(ours, other, with_weights=False).why_not == "", "its engine reads none"
    weights.mkdir()
    assert read(ours, other).why_not == f"{weights} cannot be read: Is a directory"


@pytest.mark.parametrize("how", [{"weights": b"13"}, {"rope_theta": 5}, {}])
def test_fingerprint_is_of_configuration_and_weights_and_of_no_path(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    ours, other = model(tmp_path / "a"), model(tmp_path / "b", **how)
    (other / "notes.txt").write_text("nothing")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config, indent=4))
    is_equal = read(ours, ours).fingerprint == read(ours, other).fingerprint
    assert is_equal is (not how)


GOOD, OTHER = Revision(fingerprint="3f2a9c1e77"), Revision(fingerprint="91c0ffee77")
BAD = Revision(why_not="there is no directory /m")


def test_all_hosts_must_have_the_same_files() -> None:
    assert fit_everywhere("/m", {"a": GOOD, "b": GOOD}) == Fit(fingerprint=GOOD.fingerprint)
    assert fit_everywhere("/m", {"": BAD}).why_not == "there is no directory /m"
    one_lacks_it = fit_everywhere("/m", {"a": GOOD, "b": BAD, "c": OTHER})
    assert one_lacks_it.why_not == "b: there is no directory /m"
    differs = fit_everywhere("/m", {"a": GOOD, "b": OTHER, "c": GOOD}).why_not
    assert differs == "hosts have different files in /m: 3f2a9c1e on a and c, 91c0ffee on b"


def test_hosts_that_were_not_asked_are_named() -> None:
    assert (
        fit_everywhere("/m", {"a": GOOD}, {"d", "c"}).unchecked == "whether there is /m on c and d"
    )


MIB = 1 << 20


def shards(folder: Path, *sizes: int) -> Path:
    """A model with weights of these sizes, which take no room on the disk."""
    folder = model(folder)
    (folder / "model.safetensors").unlink()
    names = [f"model-{n}.safetensors" for n in range(len(sizes))]
    for name, size in zip(names, sizes, strict=True):
        with (folder / name).open("wb") as file:
            file.truncate(size)
    index = {"weight_map": {name: name for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def read_bytes() -> int:
    """That this process has read so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_of_large_weights_little_is_read_and_time_follows_what_is(tmp_path: Path) -> None:
    """As of a model of 70 billion parameters: 30 shards of 4.7 GB."""
    other = shards(tmp_path / "b", *[4_700_000_000] * 3, 10 * MIB)
    n_bytes = (3 * 16 + 10) * MIB
    before = read_bytes()
    assert read(model(tmp_path / "a"), other).why_not == ""
    assert n_bytes <= read_bytes() - before < n_bytes + MIB
    assert seconds_to_read(other, with_weights=True) == READ_S + n_bytes / SLOWEST_BYTES_S
    assert seconds_to_read(other, with_weights=False) == READ_S
    assert seconds_to_read(tmp_path / "nowhere", with_weights=True) == READ_S


@pytest.mark.parametrize("hangs", ["read_revision", "seconds_to_read"])
async def test_disk_that_hangs_is_an_answer_and_keeps_one_thread(
    hangs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, other = model(tmp_path / "a"), model(tmp_path / "b")
    may_end = threading.Event()
    n_calls = 0

    def hang(*_: Any, **__: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        may_end.wait(60.0)
        return Revision() if hangs == "read_revision" else 0.0

    with monkeypatch.context() as patched:
        patched.setattr(f"twolane.deploy.spec.revision.{hangs}", hang)
        patched.setattr("twolane.deploy.spec.revision.READ_S", 0.05)
        before = {*threading.enumerate()}
        try:
            first = await read_in_time(ours, str(other), with_weights=True)
            assert "its disk is too slow" in first.why_not
            for _ in range(5):
                later = await read_in_time(ours, "/v3", with_weights=True)
                assert later.why_not.startswith("/v3 was not read: this host has been reading")
                assert "and its disk hangs" in later.why_not
            await until(lambda: n_calls)
            (stuck,) = {*threading.enumerate()} - before
            assert (n_calls, stuck.name) == (1, "revision")
            assert stuck.daemon, "it would hold up the end of the process"
        finally:
            may_end.set()
        stuck.join(60.0)
    assert await read_in_time(ours, str(other), with_weights=True) == read(ours, other)


async def test_readings_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, others = model(tmp_path / "a"), [model(tmp_path / f"b{n}") for n in range(3)]
    reading, most = 0, 0

    def read_alone(*args: Any, **how: Any) -> Revision:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        time.sleep(0.01)
        reading -= 1
        return read_revision(*args, **how)

    monkeypatch.setattr("twolane.deploy.spec.revision.read_revision", read_alone)
    found = await asyncio.gather(
        *(read_in_time(ours, str(other), with_weights=True) for other in others)
    )
    assert [its.why_not for its in found] == ["", "", ""]
    assert most == 1


async def test_disk_that_is_in_time_answers(tmp_path: Path) -> None:
    ours, other = model(tmp_path / "a"), model(tmp_path / "b")
    assert await read_in_time(ours, str(other), with_weights=True) == read(ours, other)
