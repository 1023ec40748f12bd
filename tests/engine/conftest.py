"""Small random models, written once a run, and a driver that answers prompts on any engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from twolane.engine.step import Engine, Page, RowWork, SampledToken
from twolane.engine.testing import write_random_model
from twolane.params import SamplingParams


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """family -> a directory with a two-layer random model of it, or of another shape."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    root = tmp_path_factory.mktemp("models")

    def written(family: str, **shape: Any) -> Path:
        folder = root / "-".join([family, *(f"{name}-{n}" for name, n in shape.items())])
        if not folder.exists():
            write_random_model(folder, family, seed=1, **shape)
        return folder

    return written


@pytest.fixture(scope="session")
def answer() -> Callable[..., list[SampledToken]]:
    """The first n tokens of one prompt, alone on an engine; `chunk_tokens` cuts the prefill."""

    def answered(
        engine: Engine,
        prompt: Sequence[int],
        params: SamplingParams,
        n: int,
        *,
        chunk_tokens: int = 1 << 30,
        pages: Sequence[Page] | None = None,
    ) -> list[SampledToken]:
        tokens, found, start = list(prompt), list[SampledToken](), 0
        pages = pages or [Page(i) for i in range(engine.spec.n_pages)]
        while len(found) < n:
            n_new = min(chunk_tokens, len(tokens) - start)
            last = start + n_new == len(tokens)
            work = RowWork(0, tokens, start, n_new, pages, len(prompt), params, last)
            (result,) = engine.run([work])
            assert not result.error, result.error
            start += n_new
            found += result.tokens
            tokens += [token.token for token in result.tokens]
        return found

    return answered
