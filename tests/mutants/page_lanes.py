"""Guards of page lanes: who may send pages, how they are protected, and between which hosts."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LANES = "tests/kvtransfer/test_page_lanes.py::"
_HOSTS = "tests/kvtransfer/link/test_between_hosts.py::"

PAGE_LANES = (
    Mutant(
        "page lane",
        "kvtransfer/transports/common/key_proof.py",
        "if not hmac.compare_digest(taken, expected):",
        "if False:",
        (
            _LANES + "test_a_sender_without_the_key_gets_no_byte_in_and_is_counted",
            _LANES + "test_a_connection_that_was_recorded_opens_no_second_one",
        ),
    ),
    Mutant(
        "page lane",
        "kvtransfer/transports/common/key_proof.py",
        "if not hmac.compare_digest(proof, expected):",
        "if False:",
        (_LANES + "test_a_sender_without_the_key_gets_no_byte_in_and_is_counted",),
    ),
    Mutant(
        "page lane",
        "kvtransfer/transports/stream/connection.py",
        "if hello.lane is not lane.name:",
        "if False:",
        (_LANES + "test_a_sender_without_the_key_gets_no_byte_in_and_is_counted",),
    ),
    Mutant(
        "page lane",
        "kvtransfer/transports/registry.py",
        "if theirs != ours:",
        "if False:",
        (_LANES + "test_a_receiver_cannot_talk_a_sender_into_less_protection",),
    ),
    Mutant(
        "one host",
        "kvtransfer/transports/registry.py",
        "assert is_near or not landing.sender_writes, _UNPROVABLE",
        "pass",
        (_HOSTS + "test_a_transport_whose_sender_writes_is_never_open_to_other_hosts",),
    ),
)
