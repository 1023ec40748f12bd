import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks.results import save


def test_a_result_says_where_when_and_how_it_was_measured(tmp_path: Path) -> None:
    path = save("speed", {"rate_gb_s": 5.0, "rows": [[1, 2], [3, 4]]}, folder=tmp_path / "new")
    document = json.loads(path.read_text())
    assert path == tmp_path / "new" / "speed.json"
    assert document["figures"] == {"rate_gb_s": 5.0, "rows": [[1, 2], [3, 4]]}
    assert {"cpu", "cores", "memory_gib", "gpus"} <= document["machine"].keys()
    assert {"python", "numpy", "grpcio"} <= document["versions"].keys()
    assert {"name", "date", "command", "commit", "dirty"} <= document.keys()


def test_a_plot_lands_beside_its_figures(tmp_path: Path) -> None:
    path = save("speed", {}, plot=Figure(), folder=tmp_path)
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_a_figure_that_is_not_a_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        save("speed", {"rate": float("nan")}, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
