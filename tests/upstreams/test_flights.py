from __future__ import annotations

import pytest

from server.errors import HomebaseError, ServerEnding, StreamStopped
from server.upstreams.flights import Flights


def test_one_is_stopped_by_its_id_and_only_while_it_is_there() -> None:
    flights, told = Flights(), list[HomebaseError]()
    flights.add("a", told.append)
    error = StreamStopped("x")
    assert not flights.stop("b", error)
    assert flights.stop("a", error)
    assert told == [error]
    flights.remove("a")
    flights.remove("a")
    assert not flights.stop("a", error)


def test_the_end_stops_all_and_takes_no_more() -> None:
    flights, told = Flights(), list[str]()
    for name in ("a", "b"):
        flights.add(name, lambda _, name=name: (told.append(name), flights.remove(name))[0])
    flights.close(ServerEnding())
    assert told == ["a", "b"]
    with pytest.raises(ServerEnding):
        flights.add("c", lambda _: None)
