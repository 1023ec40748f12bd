"""How many pages a pool on a card has is known before loading where it was given, and else after.
No card here: the engine is a double."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.deploy.clusters import changed, model_with
from twolane.deploy.bundled import model_path
from twolane.deploy.errors import StartError
from twolane.deploy.process.engine_host import open_engine
from twolane.engine.fake import FakeEngine, FakeEngineConfig

GPU = model_with(model_dir=str(model_path()), name="m", device="cuda")


class Double(FakeEngine):
    is_closed = False

    def close(self) -> None:
        self.is_closed = True
        super().close()


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[Double]]:
    """Makes this a machine with a card, on which engines have so many pages; lists them."""

    def with_room_for(n_pages: int) -> list[Double]:
        made: list[Double] = []

        def load(*given: Any, **named: Any) -> Double:
            made.append(Double(FakeEngineConfig(n_pages=n_pages, page_tokens=64)))
            return made[-1]

        monkeypatch.setattr("twolane.engine.load.pick_device", lambda device: device)
        monkeypatch.setattr("twolane.engine.load.load_engine", load)
        return made

    return with_room_for


def test_a_card_with_room_for_too_few_pages_is_refused_and_its_engine_closed(
    loads: Callable[[int], list[Double]],
) -> None:
    made = loads(2)
    with (
        pytest.raises(StartError, match="a pool of 2 pages of 64 tokens is too small"),
        open_engine(GPU, name="w", is_shared=True),
    ):
        pass
    assert [engine.is_closed for engine in made] == [True]


def test_a_card_with_room_serves(loads: Callable[[int], list[Double]]) -> None:
    made = loads(3)
    with open_engine(GPU, name="w", is_shared=True) as power:
        assert power.on_gpu
        assert power.runs_on == "cuda bfloat16"
        assert power.memory is None
        assert power.engine.spec.n_pages == 3
    assert made[0].is_closed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_pages": 2}, "a pool of 2 pages of 64 tokens is too small"),
        ({"kv_bytes": 5}, "kv_bytes is 5; one page takes"),
    ],
)
def test_too_few_pages_that_were_asked_for_are_refused_before_anything_is_loaded(
    changes: dict[str, Any], message: str, loads: Callable[[int], list[Double]]
) -> None:
    made = loads(3)
    with (
        pytest.raises(StartError, match=message),
        open_engine(changed(GPU, **changes), name="w", is_shared=False),
    ):
        pass
    assert made == []
