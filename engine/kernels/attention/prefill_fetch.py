"""The task schedule of `prefill_hopper`'s programs, and the warp that loads their data.

    queries of a tile | keys of pages 0, 1 | values of 0, 1 | keys of 2, 3 | ... | next tile's ...

Each is loaded into shared memory as soon as both groups have released its buffer.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from twolane.engine.kernels.gluon_names import async_load


@gluon.jit
def task(turn, n_tasks, tiles, window, HEADS: gl.constexpr, PAGE: gl.constexpr,
         BLOCK: gl.constexpr, RECORD: gl.constexpr, WINDOWED: gl.constexpr):  # fmt: skip
    """The task of this program in iteration `turn`: (whether there is one, query head, row, first
    and end token, first position, first and end page).

    Tiles are sorted by cost, highest first. Every other round is assigned in reverse, and every
    other pair of rounds starts half way, so that programs get about equal work.
    """
    programs = gl.num_programs(0)
    nth = gl.program_id(0)
    if turn % 2 == 1:
        nth = programs - 1 - nth
    if turn % 4 >= 2:
        nth = (nth + programs // 2) % programs
    nth += turn * programs
    there = nth < n_tasks
    nth = gl.minimum(nth, n_tasks - 1)
    record = tiles + (nth // HEADS) * RECORD
    row = gl.load(record)
    first_token = gl.load(record + 1)
    end_token = gl.minimum(gl.load(record + 2), first_token + 2 * BLOCK)
    first_position = gl.load(record + 3)
    first = 0
    if WINDOWED:
        first = gl.maximum(first_position - window + 1, 0) // PAGE
    end = gl.cdiv(first_position + end_token - first_token, PAGE)
    return there, nth % HEADS, row, first_token, end_token, first_position, first, end


@gluon.jit
def fetch(
    n_tasks, tiles, tables, table_stride, queries, pages, asked, ring, layer, window,
    LAYERS: gl.constexpr, KV_HEADS: gl.constexpr, GROUP: gl.constexpr, PAGE: gl.constexpr,
    BLOCK: gl.constexpr, RECORD: gl.constexpr, WINDOWED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Load the queries of all tasks, and their pages in pairs: pair i is pages 2 i and 2 i + 1. A
    page before the window or past the end is replaced by its neighbour."""
    tile, tile_full, tile_free = asked
    keys, values, key_full, key_free, value_full, value_free = ring
    DIM: gl.constexpr = queries.block_type.shape[1]
    done = 0
    for turn in range(gl.cdiv(n_tasks, gl.num_programs(0))):
        there, head, row, first_token, _, _, first, end = task(
            turn, n_tasks, tiles, window, KV_HEADS * GROUP, PAGE, BLOCK, RECORD, WINDOWED
        )
        if there:
            mbarrier.wait(tile_free, (turn & 1) ^ 1)
            mbarrier.expect(tile_full, 2 * queries.block_type.nbytes)
            for group in gl.static_range(2):
                place = [first_token + group * BLOCK, head * DIM]
                async_load(queries, place, tile_full, tile.index(group))
            table = tables + row * table_stride
            begin = first // 2
            pairs_end = gl.cdiv(end, 2)
            next_left = gl.load(table + first)
            next_right = gl.load(table + gl.minimum(2 * begin + 1, end - 1))
            for i in range(begin, pairs_end):
                nth = done + i - begin
                slot = nth % STAGES
                free = ((nth // STAGES) & 1) ^ 1
                left = (((next_left * LAYERS + layer) * 2) * KV_HEADS + head // GROUP) * PAGE
                right = (((next_right * LAYERS + layer) * 2) * KV_HEADS + head // GROUP) * PAGE
                next_left = gl.load(table + gl.minimum(2 * i + 2, end - 1))
                next_right = gl.load(table + gl.minimum(2 * i + 3, end - 1))
                full = key_full.index(slot)
                mbarrier.wait(key_free.index(slot), free)
                mbarrier.expect(full, 2 * pages.block_type.nbytes)
                async_load(pages, [left, 0], full, keys.index(2 * slot))
                async_load(pages, [right, 0], full, keys.index(2 * slot + 1))
                left += KV_HEADS * PAGE
                right += KV_HEADS * PAGE
                full = value_full.index(slot)
                mbarrier.wait(value_free.index(slot), free)
                mbarrier.expect(full, 2 * pages.block_type.nbytes)
                async_load(pages, [left, 0], full, values.index(2 * slot))
                async_load(pages, [right, 0], full, values.index(2 * slot + 1))
            done += pairs_end - begin
