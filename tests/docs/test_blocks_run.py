"""Every block of commands and of Python in the documents that can run here does, as it stands.

`make test-docs` runs all of it. What stands for names that a reader replaces, too, is in
`STAND_INS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.revisions import another_revision
from tests.docs.blocks import SHELLS, Block, all_blocks
from tests.docs.stage import Stage, stage

pytestmark = pytest.mark.timeout(600)
RUN = [block for block in all_blocks((*SHELLS, "python")) if not block.why]
PAGES = sorted({block.page for block in RUN})
STAND_INS = {
    "DIR_OR_HUB_ID": "bundled",
    ". .venv/bin/activate": "",
    "pip install 'twolane[otel]'": "",
    "pip install 'twolane[plan]'": "",
    "--concurrent 64": "--concurrent 64 > key",
    "TWOLANE_API_KEY=tl_3f9a2c71d04b_Yd0…": "TWOLANE_API_KEY=$(cat key)",
    "redis://10.0.0.9": "redis://127.0.0.1:1",  # routers serve without it, too
    "start_local(prefill=2)": "start_local(prefill=2, launcher='process', engine='fake')",
}
NEW_REVISION = "/models/fox-v2"
ALONE = {"auth", "certs", "cp", "pip", "plan", "--version"}  # what needs no cluster


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as made:
        yield made


QUICK = {"README.md"}  # in `make test`, too
FRESH = {"docs/guide.md"}  # each block has a cluster of its own: some kill workers


@pytest.mark.parametrize(
    "page",
    [pytest.param(its, marks=() if its in QUICK else pytest.mark.soak) for its in PAGES],
)
def test_the_blocks_of_a_page_run_in_their_order(page: str, here: Stage) -> None:
    for block in (block for block in RUN if block.page == page):
        if needs_a_cluster(block) and (page in FRESH or not here.is_up()):
            here.run("twolane up --prefill 2 --decode 2")
        here.run(typed(block, here), "python" if block.tag == "python" else "bash")


def needs_a_cluster(block: Block) -> bool:
    if block.tag == "python":
        return "localhost" in block.text
    names = [words[1] if words[0] == "twolane" else words[0] for words in block.commands()]
    return "up" not in names and not {*names} <= ALONE


def typed(block: Block, here: Stage) -> str:
    grpc, http = here.ports
    ports = {
        "gpu-a:7200": f"localhost:{grpc}",
        "localhost:7200": f"localhost:{grpc}",
        "localhost:7202": f"localhost:{http}",
    }
    text = block.script
    if NEW_REVISION in text:
        text = text.replace(NEW_REVISION, str(another_revision(here.folder / "new")))
    for name, instead in {**STAND_INS, **ports}.items():
        text = text.replace(name, instead)
    return text
