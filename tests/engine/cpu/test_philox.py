"""The generator against the known answers that its authors publish (Random123's kat_vectors)."""

from __future__ import annotations

import numpy as np
import pytest

from twolane.engine.cpu.philox import philox, token_bits, uniform

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    c0, c1, c2, c3 = (np.array([word, word], np.uint64) for word in counter)
    words = philox((c0, c1, c2, c3), key[0] | key[1] << 32)
    assert words[:, 0].tolist() == list(expected)
    assert words[:, 1].tolist() == list(expected)


def test_a_tokens_bits_do_not_depend_on_which_others_are_drawn() -> None:
    everything = token_bits(np.arange(100), seed=2**63 - 1, sample_index=3, position=70_000)
    some = token_bits(np.array([7, 99]), seed=2**63 - 1, sample_index=3, position=70_000)
    assert np.array_equal(some, everything[[7, 99]])


def test_seed_sample_and_position_each_change_the_bits() -> None:
    groups = np.arange(4)
    draws = [
        token_bits(groups, seed=seed, sample_index=sample, position=position).tobytes()
        for seed, sample, position in [(0, 0, 0), (1, 0, 0), (1 << 32, 0, 0), (0, 1, 0), (0, 0, 1)]
    ]
    assert len(set(draws)) == 5


def test_uniforms_are_exact_and_never_reach_the_ends() -> None:
    low, high = uniform(np.array([0, ONES], np.uint32)).tolist()
    assert low == 2.0**-24
    assert high == 1 - 2.0**-24
    some = token_bits(np.arange(50_000), seed=5, sample_index=0, position=0)
    values = uniform(some).astype(np.float64).reshape(-1)
    assert abs(values.mean() - 0.5) < 4 / np.sqrt(12 * len(values))
    counts = np.bincount((values * 64).astype(int), minlength=64)
    chi_square = ((counts - len(values) / 64) ** 2 / (len(values) / 64)).sum()
    assert chi_square < 63 + 4 * np.sqrt(2 * 63)
