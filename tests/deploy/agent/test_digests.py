"""Which specs an agent takes for the same process."""

from __future__ import annotations

from dataclasses import replace

from tests.deploy.clusters import model_with
from twolane.deploy.process.evidence import digest
from twolane.deploy.spec.specs import WorkerSpec, new_epoch


def spec() -> WorkerSpec:
    model = model_with(model_dir="", name="m")
    return WorkerSpec(worker_id="w", epoch=new_epoch(), roles=("decode",), model=model, routers=())


def test_specs_that_differ_in_epoch_and_ports_alone_have_one_digest() -> None:
    first = spec()
    assert digest(first) == digest(replace(first.reborn(), routers=("h:1",), state_dir="/s"))
    assert digest(first) != digest(replace(first, roles=("prefill",)))


def test_what_a_host_is_asked_before_a_start_replaces_no_process() -> None:
    first = spec()
    assert digest(first) == digest(replace(first, fingerprint="3f2a"))


def test_worker_that_flipped_is_the_one_that_was_started() -> None:
    first = replace(spec(), roles=("decode",), pool="decode", flips=True)
    assert digest(first) == digest(replace(first, roles=("prefill",), pool="prefill"))
    assert digest(first) != digest(replace(first, flips=False))
