"""What a controller makes of the answers of several routers."""

from __future__ import annotations

from twolane.deploy.launch.router_clients import alive_everywhere
from twolane.v1 import cluster_pb2


def answer(**states: str) -> cluster_pb2.SuperviseResponse:
    told = cluster_pb2.SuperviseResponse()
    for name, state in states.items():
        told.workers.add(state=state).worker.epoch = int(name[1:])
    return told


def test_worker_is_everywhere_where_every_router_that_answers_calls_it_alive() -> None:
    one = answer(w1="alive", w2="alive", w3="alive", w4="draining")
    other = answer(w1="alive", w2="suspect", w4="alive")
    assert alive_everywhere([one, other]) == {1}
    assert alive_everywhere([one]) == {1, 2, 3}
    assert alive_everywhere([]) == frozenset()
