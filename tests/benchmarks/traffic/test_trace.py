from pathlib import Path

import pytest

from benchmarks.traffic.trace import TraceError, read_trace, write_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 23:59:59.9000000,374,44
2023-11-17 00:00:01.4004000,396,109
2023-11-17 00:00:01.4004000,10,1
"""


@pytest.fixture
def azure_file(tmp_path: Path) -> Path:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    return path


def test_the_published_form_is_read_across_midnight(azure_file: Path) -> None:
    trace = read_trace(azure_file)
    assert trace.arrivals_s.tolist() == pytest.approx([0.0, 1.5004, 1.5004], abs=1e-6)
    assert trace.prompt_tokens.tolist() == [374, 396, 10]
    assert trace.output_tokens.tolist() == [44, 109, 1]


def test_the_compact_form_says_the_same_to_the_millisecond(
    azure_file: Path, tmp_path: Path
) -> None:
    compact = tmp_path / "compact.csv.gz"
    write_trace(read_trace(azure_file), compact)
    trace = read_trace(compact)
    assert trace.arrivals_s.tolist() == [0.0, 1.5, 1.5]
    assert trace.prompt_tokens.tolist() == [374, 396, 10]
    write_trace(trace, tmp_path / "again.csv.gz")
    assert compact.read_bytes() == (tmp_path / "again.csv.gz").read_bytes()


def test_a_window_starts_at_zero_and_keeps_its_gaps(azure_file: Path) -> None:
    window = read_trace(azure_file).window(1, 2)
    assert window.arrivals_s.tolist() == [0.0, 0.0]
    assert window.prompt_tokens.tolist() == [396, 10]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("when,in,out\n1,2,3\n", "the first line is"),
        ("", "the first line is"),
        ("arrival_ms,prompt_tokens,output_tokens\n", "no request"),
        ("arrival_ms,prompt_tokens,output_tokens\n0,5,5\n7,many,5\n", "line 3"),
        ("arrival_ms,prompt_tokens,output_tokens\n0,5\n", "line 2"),
        ("arrival_ms,prompt_tokens,output_tokens\n9,5,5\n3,5,5\n", "before the line above"),
        ("arrival_ms,prompt_tokens,output_tokens\n0,5,0\n", "at least one token"),
    ],
)
def test_a_broken_trace_is_refused_with_what_is_wrong(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "broken.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=complaint):
        read_trace(path)
