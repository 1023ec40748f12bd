"""Random clusters, crowds and misfortunes: see `fuzz.py`. A seed that fails is a test of its own:
`pytest tests/cluster/test_fuzz.py -k 'seed-17'`. A hundred seeds take 11 s of CPU."""

from __future__ import annotations

import pytest

from tests.cluster.fuzz import play

N_QUICK, N_SOAK = 200, 5_000


@pytest.mark.parametrize("seed", range(N_QUICK), ids=lambda seed: f"seed-{seed}")
def test_whatever_happens_each_client_gets_its_own_answer_and_nothing_is_left(seed: int) -> None:
    play(seed, checks_tables=seed % 10 == 0)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("block", range(N_QUICK, N_SOAK, 100))
def test_the_same_for_thousands_of_seeds(block: int) -> None:
    for seed in range(block, block + 100):
        try:
            play(seed, checks_tables=True)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
