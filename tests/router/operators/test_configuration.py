"""The two rounds of a change of settings, at one router."""

from __future__ import annotations

import pytest

from tests.router.operators.written_options import Written
from twolane.errors import InvalidRequestError, PreconditionError
from twolane.router.operators.configuration import READY_S, Configuration, NoOptions
from twolane.router.operators.event_log import EventLog
from twolane.v1 import admin_pb2, cluster_pb2


def made() -> tuple[Configuration, Written]:
    events = EventLog("router-0", unix_time=lambda: 0.0)
    configuration, options = Configuration(events), Written()
    configuration.options = options
    return configuration, options


def asked(revision: int, **values: str) -> cluster_pb2.PrepareConfigRequest:
    return cluster_pb2.PrepareConfigRequest(revision=revision, values=values, who="operator/anna")


def test_what_is_prepared_holds_when_it_is_applied_and_not_before() -> None:
    configuration, options = made()
    configuration.prepare(asked(1, other="7"), 0.0)
    assert options.held == {}
    configuration.apply(1)
    assert (options.held, configuration.revision) == ({"other": "7"}, 1)
    configuration.prepare(asked(2, more="8"), 1.0)
    configuration.apply(2)
    assert options.held == {"other": "7", "more": "8"}, "what was set before stays"


def test_what_is_forgotten_never_holds_and_lets_the_next_one_in() -> None:
    configuration, options = made()
    configuration.prepare(asked(1, other="7"), 0.0)
    configuration.forget(1)
    configuration.forget(1)
    with pytest.raises(PreconditionError, match="was not prepared"):
        configuration.apply(1)
    configuration.prepare(asked(1, other="9"), 0.0)
    configuration.apply(1)
    assert options.held == {"other": "9"}


def test_two_changes_at_once_are_one_and_a_refusal() -> None:
    configuration, _ = made()
    configuration.prepare(asked(1, other="7"), 0.0)
    with pytest.raises(PreconditionError, match="operator/anna changes the configuration now"):
        configuration.prepare(asked(1, other="8"), READY_S - 1)
    configuration.prepare(asked(1, other="8"), READY_S + 1)  # whoever prepared is gone


@pytest.mark.parametrize("revision", [0, 2])
def test_a_change_of_another_revision_is_refused(revision: int) -> None:
    configuration, _ = made()
    with pytest.raises(PreconditionError, match="at revision 0 here"):
        configuration.prepare(asked(revision, other="7"), 0.0)


def test_a_change_that_cannot_be_keeps_nobody_out() -> None:
    configuration, _ = made()
    with pytest.raises(InvalidRequestError):
        configuration.prepare(asked(1, bad="7"), 0.0)
    configuration.prepare(asked(1, other="7"), 0.0)


def test_a_router_that_starts_later_takes_what_the_controller_has_kept_once() -> None:
    configuration, options = made()
    kept = cluster_pb2.ConfigState(revision=3, values={"other": "7"})
    configuration.hold(kept)
    assert (options.held, configuration.revision) == ({"other": "7"}, 3)
    options.held = {}
    configuration.hold(kept)
    configuration.hold(cluster_pb2.ConfigState(revision=2, values={"other": "6"}))
    assert options.held == {}


def test_what_the_controller_tells_between_the_rounds_is_the_change_itself() -> None:
    configuration, options = made()
    configuration.prepare(asked(1, other="7"), 0.0)
    configuration.hold(cluster_pb2.ConfigState(revision=1, values={"other": "7"}))
    configuration.apply(1)
    assert (options.held, configuration.revision) == ({"other": "7"}, 1)


def test_what_the_controller_has_kept_holds_and_not_another_change_that_is_ready() -> None:
    configuration, options = made()
    configuration.prepare(asked(1, other="7"), 0.0)
    configuration.hold(cluster_pb2.ConfigState(revision=1, values={"other": "8"}))
    assert (options.held, configuration.revision) == ({"other": "8"}, 1)


def test_what_is_the_controllers_own_is_shown_and_is_no_option_of_a_router() -> None:
    configuration, options = made()
    own = cluster_pb2.ConfigField(name="scaler.budget", value="6")
    values = {"other": "7", "scaler.budget": "6"}
    kept = cluster_pb2.ConfigState(revision=1, values=values, controllers=[own])
    configuration.hold(kept)
    assert options.held == {"other": "7"}
    assert configuration.is_controllers("scaler.budget")
    assert [its.value for its in configuration.fields(["scaler"])] == ["6"]
    configuration.prepare(asked(2, **{"scaler.budget": "5"}), 0.0)
    configuration.apply(2)
    assert options.held == {"other": "7"}
    assert configuration.values == {"other": "7", "scaler.budget": "5"}


def test_a_controller_that_tells_of_no_settings_of_its_own_hands_none_to_the_router() -> None:
    """As one of an older version."""
    configuration, options = made()
    own = cluster_pb2.ConfigField(name="scaler.budget", value="6")
    values = {"other": "7", "scaler.budget": "6"}
    configuration.hold(cluster_pb2.ConfigState(revision=1, values=values, controllers=[own]))
    configuration.hold(cluster_pb2.ConfigState(revision=1, values=values))
    configuration.prepare(asked(2, other="8"), 0.0)
    configuration.apply(2)
    assert options.held == {"other": "8"}
    assert configuration.is_controllers("scaler.budget")


def test_kept_settings_that_do_not_fit_are_an_event_and_no_end() -> None:
    events = EventLog("router-0", unix_time=lambda: 0.0)
    configuration = Configuration(events)
    configuration.options = written = Written()
    written.refused = "other"
    configuration.hold(cluster_pb2.ConfigState(revision=1, values={"other": "1"}))
    (event,) = events.page(admin_pb2.ListEventsRequest()).events
    assert event.kind == "config.refused"
    assert configuration.values == {}


def test_a_change_holds_also_where_an_earlier_one_was_refused() -> None:
    configuration, options = made()
    options.refused = "other"
    configuration.hold(cluster_pb2.ConfigState(revision=1, values={"other": "1"}))
    configuration.prepare(asked(2, more="8"), 0.0)
    configuration.hold(cluster_pb2.ConfigState(revision=2, values={"other": "1", "more": "8"}))
    configuration.apply(2)
    assert options.held == {"more": "8"}


def test_kept_settings_that_only_another_version_has_do_not_keep_the_others_from_holding() -> None:
    events = EventLog("router-0", unix_time=lambda: 0.0)
    configuration = Configuration(events)
    configuration.options = written = Written()
    configuration.hold(cluster_pb2.ConfigState(revision=1, values={"bad": "1", "other": "7"}))
    assert written.held == {"other": "7"}
    configuration.prepare(asked(2, other="8"), 0.0)
    configuration.apply(2)
    assert written.held == {"other": "8"}
    assert configuration.values == {"bad": "1", "other": "8"}, "they stay for who knows them"
    with pytest.raises(InvalidRequestError):
        configuration.prepare(asked(3, bad="2"), 0.0)
    kinds = [event.kind for event in events.page(admin_pb2.ListEventsRequest()).events]
    assert sorted(kinds) == ["config.ignored", "config.taken"]


def test_settings_are_found_by_name_or_its_beginning() -> None:
    configuration, _ = made()
    assert [its.name for its in configuration.fields(["limits"])] == ["limits.a", "limits.b"]
    assert len(configuration.fields([])) == 3


def test_a_router_without_options_shows_none_and_takes_none() -> None:
    assert NoOptions().fields({}) == []
    with pytest.raises(PreconditionError):
        NoOptions().plan({"a": "1"})
