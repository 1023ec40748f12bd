from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

from rich.console import Console

from tests.deploy.clusters import cluster_with, model_with
from twolane.deploy.bundled import model_path
from twolane.deploy.cli.progress import Progress
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.spec.cluster_spec import ClusterSpec
from twolane.security.tls import TlsFiles


def shown_when_ready(model_dir: Path, host: str = "127.0.0.1") -> str:
    out = StringIO()
    cluster = cluster_with(model_with(model_dir=str(model_dir), name="m"), prefill=2, colocated=1)
    progress = Progress(Console(file=out, highlight=False), cluster, Path("/logs"))
    progress(Event(kind=Kind.READY, endpoint=f"{host}:7300", http="127.0.0.1:7302"))
    return out.getvalue()


def test_what_is_shown_can_be_pasted_into_a_shell() -> None:
    shown = shown_when_ready(model_path(), "[::1]")
    assert "twolane chat --endpoint '[::1]:7300'" in shown  # bare brackets are a pattern to a shell


def test_a_model_with_a_tokenizer_is_offered_prompts() -> None:
    shown = shown_when_ready(model_path())
    assert 'twolane generate "Once upon a time" --endpoint 127.0.0.1:7300' in shown
    assert "twolane chat" in shown
    assert "http://127.0.0.1:7302/v1" in shown
    assert "token-ids" not in shown


def test_the_headline_says_what_is_started_and_on_how_many_gpus() -> None:
    def headline(cluster: ClusterSpec) -> str:
        out = StringIO()
        Progress(Console(file=out, highlight=False), cluster, Path("/logs"))
        return out.getvalue().strip()

    model = model_with(model_dir="", name="m", dtype="bfloat16", exact=True)
    cluster = cluster_with(model, prefill=2, colocated=1)
    end = "Ctrl-C stops it; logs in /logs"
    assert (
        headline(cluster) == f"m (bfloat16, exact): 2 prefill workers and 1 colocated worker; {end}"
    )
    readers = replace(cluster.pools[0], name="readers", devices=(("0",), ("1",)))
    assert headline(replace(cluster, pools=(readers,))) == (
        f"m (bfloat16, exact): 2 readers (prefill) workers on 2 GPUs; {end}"
    )


def test_a_model_without_a_tokenizer_is_offered_token_ids_alone(tmp_path: Path) -> None:
    shown = shown_when_ready(tmp_path)
    assert "token ids alone" in shown
    assert "twolane generate --token-ids 1,2,3 --endpoint 127.0.0.1:7300" in shown
    assert "Once upon" not in shown
    assert "chat" not in shown


def test_with_tls_what_is_shown_names_files_and_an_address_that_can_be_dialled() -> None:
    out = StringIO()
    model = model_with(model_dir=str(model_path()), name="m")
    files = TlsFiles(Path("/c/ca.crt"), Path("/c/router-0.crt"), Path("/c/router-0.key"))
    cluster = replace(cluster_with(model, prefill=1), tls=files)
    progress = Progress(Console(file=out, highlight=False), cluster, Path("/logs"))
    progress(Event(kind=Kind.READY, endpoint="0.0.0.0:7300", http="0.0.0.0:7302"))
    shown = out.getvalue()
    assert "https://localhost:7302/v1" in shown
    named = "--endpoint localhost:7300 --ca /c/ca.crt --cert CLIENT.crt --key CLIENT.key"
    assert f"twolane chat {named}" in shown


def test_a_stop_tells_how_long_running_answers_have() -> None:
    out = StringIO()
    cluster = cluster_with(model_with(model_dir="", name="m"), prefill=1)
    progress = Progress(Console(file=out, highlight=False), cluster, Path("/logs"))
    progress(Event(kind=Kind.READY, endpoint="127.0.0.1:7300"))
    progress(Event(kind=Kind.STOPPING))
    assert "stopping   running answers have 5 s" in out.getvalue()
