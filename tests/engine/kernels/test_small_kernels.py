"""Norm, rotation and write, silu, page copy and small products, in the interpreter."""

from typing import Any

import pytest

pytest.importorskip("triton")

import numpy as np
import torch

from twolane.engine.kernels.pages.kv_view import allocate_view
from twolane.engine.kernels.pages.page_checksum import checksum_pages
from twolane.engine.kernels.pages.page_copy import copy_pages
from twolane.engine.kernels.pages.rope_write import reference_rope, rope_write
from twolane.engine.kernels.rows.embed import embed, reference_embed
from twolane.engine.kernels.rows.norm import reference_rms_norm, rms_norm
from twolane.engine.kernels.rows.silu import reference_silu_mul, silu_mul
from twolane.engine.model_files.fp8 import FP8
from twolane.engine.model_files.rope import Rope
from twolane.kvtransfer.digests import mix64


def assert_close(got: torch.Tensor, expected: torch.Tensor, bound: float = 1e-6) -> None:
    error = (got.double() - expected.double()).norm() / expected.double().norm()
    assert error < bound, float(error)


@pytest.mark.parametrize("width", [64, 96, 3584])
@pytest.mark.parametrize("adds", [True, False])
def test_norm_matches_float64(width: int, adds: bool) -> None:
    x, weight = torch.randn(3, 2 * width)[:, :width], torch.randn(width)
    residual = torch.randn(3, width) if adds else None
    normed, total = reference_rms_norm(x, weight, 1e-5, residual)
    out = torch.full((3, width), torch.nan)
    rms_norm(x, weight, out=out, epsilon=1e-5, residual=residual)
    assert_close(out, normed)
    if residual is not None:
        assert_close(residual, total)


def test_silu_matches_float64() -> None:
    gate_up = torch.randn(2, 2 * 2064) * 4
    out = torch.full((2, 2064), torch.nan)
    silu_mul(gate_up, out=out)
    assert_close(out, reference_silu_mul(gate_up))


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 16), (7, 1, 64), (17, 1, 80)])
@pytest.mark.parametrize("full", [True, False])
def test_rotated_heads_and_pages_match_float64(
    heads: int, kv_heads: int, dim: int, full: bool
) -> None:
    view = allocate_view(
        3, layers=2, kv_heads=kv_heads, head_dim=dim, dtype=torch.float32, device="cpu"
    )
    before = view.planes().fill_(7.0).clone()
    qkv = torch.randn(4, (heads + 2 * kv_heads) * dim)
    extras: dict[str, Any] = (
        {"bias": torch.randn(qkv.shape[1]), "query_norm": torch.randn(dim),
         "key_norm": torch.randn(dim), "epsilon": 1e-5}
        if full
        else {}
    )  # fmt: skip
    positions = torch.tensor([0, 70, 5, 99])
    slots = torch.tensor([2 * 64 + 63, 0, -1, 64])
    cos, sin = (torch.from_numpy(t) for t in Rope(10000.0).tables(100, dim))
    queries = torch.full((4, heads, dim), torch.nan)
    rope_write(qkv, view, 1, positions, slots, cos, sin, queries=queries, **extras)
    expected = reference_rope(qkv, positions, cos, sin, heads=heads, kv_heads=kv_heads, **extras)
    assert_close(queries, expected[0])
    written = torch.ones_like(before, dtype=torch.bool)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            place = view.planes()[slot // 64, 1, :, :, slot % 64]
            assert_close(place, torch.stack([expected[1][token], expected[2][token]]))
            written[slot // 64, 1, :, :, slot % 64] = False
    assert torch.equal(view.planes()[written], before[written])


def test_fp8_pages_get_a_scale_for_each_token_and_head() -> None:
    view = allocate_view(1, layers=1, kv_heads=2, head_dim=16, dtype=FP8, device="cpu")
    qkv = torch.randn(1, (2 + 4) * 16) * 300
    cos, sin = (torch.from_numpy(t) for t in Rope(10000.0).tables(9, 16))
    queries = torch.empty(1, 2, 16)
    rope_write(qkv, view, 0, torch.tensor([8]), torch.tensor([5]), cos, sin, queries=queries)
    _, keys, values = reference_rope(qkv, torch.tensor([8]), cos, sin, heads=2, kv_heads=2)
    scales = view.plane_scales()[0, 0, :, :, 5].double()
    for i, (part, expected) in enumerate(zip(view.parts(), (keys, values), strict=True)):
        held = part[0, 0, :, 5].double() * scales[i, :, None]
        assert_close(held, expected[0], 0.03)
        assert scales[i].mul(448).allclose(expected[0].abs().amax(-1), rtol=1e-6)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
def test_no_byte_of_an_fp8_page_spells_nan(broken: float) -> None:
    view = allocate_view(1, layers=1, kv_heads=2, head_dim=16, dtype=FP8, device="cpu")
    qkv = torch.randn(1, (2 + 4) * 16)
    qkv[0, 3 * 16 + 4] = qkv[0, 4 * 16 + 9] = broken  # of one key head, and of one value head
    cos, sin = (torch.from_numpy(t) for t in Rope(10000.0).tables(9, 16))
    queries = torch.empty(1, 2, 16)
    rope_write(qkv, view, 0, torch.tensor([8]), torch.tensor([5]), cos, sin, queries=queries)
    assert view.plane_scales()[0, 0, :, :, 5].isnan().tolist() == [[False, True], [True, False]]
    assert not any(part.float().isnan().any() for part in view.parts())


def test_scattered_pages_arrive_and_nothing_else_changes() -> None:
    page_bytes = 40 * 1024
    source = torch.randint(0, 256, (5, page_bytes), dtype=torch.uint8)
    target = torch.zeros(6, page_bytes, dtype=torch.uint8)
    taken, put = torch.tensor([4, 0, 2]), torch.tensor([1, 5, 0])
    copy_pages(
        source.data_ptr(), target.data_ptr(), taken.int(), put.int(),
        page_bytes=page_bytes, programs=4,
    )  # fmt: skip
    expected = torch.zeros_like(target)
    expected[put] = source[taken]
    assert torch.equal(target, expected)


@pytest.mark.parametrize("page_bytes", [128, 40 * 1024])
def test_sums_of_pages_are_those_that_a_cpu_takes(page_bytes: int) -> None:
    pool = torch.randint(0, 256, (5, page_bytes), dtype=torch.uint8)
    pages = torch.tensor([4, 0, 4], dtype=torch.int32)
    out = torch.zeros(3, dtype=torch.int64)
    checksum_pages(pool.data_ptr(), pages, page_bytes=page_bytes, out=out, programs=4)
    expected = mix64(pool.numpy(), np.array([4, 0, 4]))
    assert out.numpy().view(np.uint64).tolist() == expected.tolist()


def test_sums_of_parts_add_up_to_that_of_the_whole_page() -> None:
    whole = torch.randint(0, 256, (4, 3 * 640), dtype=torch.uint8)
    parts = [part.contiguous() for part in torch.split(whole, 640, dim=1)]
    pages = torch.tensor([3, 1], dtype=torch.int32)
    apart, inside = torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    for i, part in enumerate(parts):
        first = 640 * i
        checksum_pages(part.data_ptr(), pages, page_bytes=640, out=apart, bytes_before=first)
        at = whole.data_ptr() + first
        checksum_pages(at, pages, page_bytes=640, out=inside, stride=3 * 640, bytes_before=first)
    expected = mix64(whole.numpy(), np.array([3, 1])).tolist()
    assert apart.numpy().view(np.uint64).tolist() == expected
    assert inside.numpy().view(np.uint64).tolist() == expected


def test_parts_of_pages_are_copied_between_pools_that_lay_them_apart() -> None:
    source = torch.randint(0, 256, (5, 3, 256), dtype=torch.uint8)
    target = torch.zeros(6, 256, dtype=torch.uint8)
    taken, put = torch.tensor([4, 0, 2]), torch.tensor([1, 5, 0])
    copy_pages(
        source.data_ptr() + 256, target.data_ptr(), taken.int(), put.int(),
        page_bytes=256, source_stride=3 * 256, programs=4,
    )  # fmt: skip
    back = torch.zeros_like(source)
    copy_pages(
        target.data_ptr(), back.data_ptr() + 512, put.int(), taken.int(),
        page_bytes=256, target_stride=3 * 256, programs=4,
    )  # fmt: skip
    expected = torch.zeros_like(target)
    expected[put] = source[taken, 1]
    assert torch.equal(target, expected)
    assert torch.equal(back[taken, 2], source[taken, 1])
    assert not back[:, :2].any()


def test_embed_looks_up_known_and_just_sampled_tokens() -> None:
    embedding = torch.randn(9, 1100)
    ids = torch.tensor([4, 0, 0, 8], dtype=torch.int32)
    follow = torch.tensor([-1, 2, 1, -1], dtype=torch.int32)
    latest = torch.tensor([3, -1, 7], dtype=torch.int32)  # -1: nothing could be sampled
    expected = reference_embed(ids, follow, latest, embedding)
    out = torch.full((4, 1100), torch.nan)
    embed(ids, follow, latest, embedding, out=out)
    assert torch.equal(out, expected)
    assert ids.tolist() == [4, 7, 0, 8]
