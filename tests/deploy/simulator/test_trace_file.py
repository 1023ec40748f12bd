"""Trace files: two formats, and a clear refusal of everything else."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from twolane.deploy.simulator.trace_file import TraceError, read_trace

OURS = "arrival_ms,prompt_tokens,output_tokens"
DAY_MS = 86_400_000
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_arrivals_count_from_the_first_request(tmp_path: Path) -> None:
    found = read_trace(written(tmp_path / "t.csv", f"{OURS}\n500,10,20\n1500.5,30,40\n"))
    assert found.arrivals_s.tolist() == pytest.approx([0.0, 1.0005])
    assert (found.prompt_tokens.tolist(), found.output_tokens.tolist()) == ([10, 30], [20, 40])
    assert found.rate_per_s == pytest.approx(1 / 1.0005)


def test_an_azure_trace_is_read_as_published(tmp_path: Path) -> None:
    text = f"{AZURE}\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    found = read_trace(written(tmp_path / "t.csv", text))
    assert found.arrivals_s.tolist() == pytest.approx([0.0, 4.314579], abs=1e-5)


@pytest.mark.parametrize("zone", ["+00:00", "Z", ""])
def test_an_azure_trace_of_2024_is_read_as_published(tmp_path: Path, zone: str) -> None:
    """Whole seconds have no fraction there."""
    times = ("2024-05-10 00:00:00", "2024-05-10 00:00:00.009930", "2024-05-10 00:00:02")
    text = "\n".join([AZURE, *(f"{each}{zone},2162,5" for each in times)])
    found = read_trace(written(tmp_path / "t.csv", text))
    assert found.arrivals_s.tolist() == pytest.approx([0.0, 0.00993, 2.0], abs=1e-5)


@pytest.mark.parametrize("name", ["t.csv.gz", "t.csv"])
def test_a_gzipped_file_is_read_whatever_its_name(tmp_path: Path, name: str) -> None:
    packed = gzip.compress(f"{OURS}\n0,1,1\n".encode())
    assert len(read_trace(written(tmp_path / name, packed))) == 1


def test_a_trace_of_30_days_is_read(tmp_path: Path) -> None:
    found = read_trace(written(tmp_path / "t.csv", f"{OURS}\n5000,1,1\n{30 * DAY_MS},1,1\n"))
    assert found.arrivals_s[-1] == 30 * DAY_MS / 1000 - 5


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "t.csv: the first line is '', not arrival_ms"),
        ("a,b,c\n1,2,3\n", "t.csv: the first line is 'a,b,c', not arrival_ms"),
        (f"{OURS}\n", "t.csv: no request"),
        (f"{OURS}\n0,1\n", "t.csv, line 2: 2 fields instead of 3"),
        (f"{OURS}\n0,1,1\n1,x,1\n", "t.csv, line 3: invalid literal"),
        (f"{OURS}\nnan,1,1\n", "t.csv, line 2: 'nan' is no time"),
        (f"{OURS}\n-1,1,1\n", "t.csv, line 2: '-1' is no time"),
        (f"{OURS}\n0,0,1\n", "t.csv, line 2: a request has at least one token each way"),
        (f"{OURS}\n0,1,-4\n", "t.csv, line 2: a request has at least one token each way"),
        (f"{OURS}\n5,1,1\n4,1,1\n", "t.csv, line 3: it arrives before the line above it"),
        (f"{OURS}\n0,99999999999,1\n", "t.csv, line 2: 100000000000 tokens in one request"),
        (f"{OURS}\n1e300,1,1\n", "t.csv, line 2: '1e300' is no time in milliseconds"),
        (
            f"{OURS}\n0,1,1\n{31 * DAY_MS},1,1\n",
            "t.csv, line 3: it arrives 31 days after the first request, and 30 are the most; "
            "arrival_ms is in milliseconds",
        ),
        (
            f"{AZURE}\n2024-05-10 00:00:00,1,1\n2024-06-10 00:00:00,1,1\n",
            "t.csv, line 3: it arrives 31 days after the first request, and 30 are the most",
        ),
        (f"{OURS}\n0,1,1\n{'1' * 131_073},1,1\n", "t.csv, line 3: field larger than field limit"),
        (f'{OURS}\n0,1,1\n"1,1,1\n2,1,1\n3,1,1\n', "t.csv, line 3: unexpected end of data"),
        (f"{OURS}\n\n0,1\n", "t.csv, line 3: 2 fields instead of 3"),
        (f"{AZURE}\nyesterday,1,1\n", "t.csv, line 2: Invalid isoformat string"),
        (f"{AZURE}\n2023-11-16 18:17:04.5e400,1,1\n", "t.csv, line 2: Invalid isoformat string"),
        (b"\xff\xfe\x00", "t.csv: not a CSV file in UTF-8"),
    ],
)
def test_a_bad_trace_is_refused_with_the_line_and_the_reason(
    tmp_path: Path, text: str | bytes, complaint: str
) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(written(tmp_path / "t.csv", text))
    assert str(caught.value).startswith(complaint)


def test_a_missing_folder_or_broken_archive_is_a_trace_error_too(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(TraceError, match="Is a directory"):
        read_trace(tmp_path)
    cut = gzip.compress(f"{OURS}\n0,1,1\n".encode())[:-9]
    with pytest.raises(TraceError, match="not a CSV file"):
        read_trace(written(tmp_path / "t.csv.gz", cut))
