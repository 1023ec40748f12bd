from rich.console import Console

from twolane.deploy.cli.ledger_table import Measured, ledger_table
from twolane.values import Ledger


def test_three_requests_fit_a_terminal_of_80_columns() -> None:
    ledger = Ledger(
        queued_s=0.0123, prefill_wait_s=0.0456, prefill_s=0.1234, transfer_s=0.0118,
        decode_wait_s=0.0012, decode_s=12.3456, prompt_tokens=1024, output_tokens=1600,
        transfer_pages=8, transfer_bytes=640 * 1024,
    )  # fmt: skip
    request = Measured("story", ledger, [0.0, 0.0119, 0.1366])
    console = Console(width=80)
    with console.capture() as capture:
        console.print(ledger_table([request] * 3))
    title, *rows = capture.get().splitlines()
    assert title.split() == ["story"] * 3
    assert [row[:28].rstrip() for row in rows] == [
        "queued at the router", "queued at the prefill worker", "prefill",
        "transfer, after first token", "decode", "time to first token",
        "gap between tokens, mean/max", "tokens in / out", "pages moved", "bytes moved",
    ]  # fmt: skip
    assert rows[6].count("68.3 / 124.7 ms") == 3
