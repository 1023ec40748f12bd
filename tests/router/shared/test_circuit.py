"""When the store is asked."""

from twolane.router.shared.circuit import Circuit


def test_a_store_that_fails_is_left_alone_for_ever_longer_up_to_five_seconds() -> None:
    circuit, now, pauses = Circuit(), 0.0, []
    assert circuit.may_try(now), "at the start"
    assert circuit.answered()
    assert not circuit.answered()
    assert circuit.failed("it is down", now), "it was up"
    for _ in range(5):
        before = now
        while not circuit.may_try(now):
            now += 0.25
        pauses.append(now - before)
        assert not circuit.failed("it is down", now)
    assert pauses == [1, 2, 4, 5, 5]
    assert (circuit.is_up, circuit.why) == (False, "it is down")
    assert circuit.answered()
    assert (circuit.is_up, circuit.why) == (True, "")
    assert circuit.failed("again", now)
    assert circuit.may_try(now + 1), "the next time begins anew"


def test_failures_of_what_began_before_lengthen_no_pause() -> None:
    circuit = Circuit()
    circuit.answered()
    for _ in range(8):
        circuit.failed("one of eight that were asked together", 0.0)
    assert circuit.may_try(1.0)
