"""Observers in another unit than the producer's."""

from __future__ import annotations

import pytest

from streamctx.core.session.client_session import ClientSettings
from streamctx.vocabulary import Unit
from streamctx.wire.changes import Change
from streamctx.wire.messages import ClientInfo, Cursor
from tests.sim.pair import TOKEN, World

__all__: list[str] = []


@pytest.mark.parametrize("min_interval_ms", [0, 50])
def test_presence_that_has_no_position_in_the_other_unit_is_left_out(min_interval_ms: int) -> None:
    world = World(1)
    info = ClientInfo(name="test")
    producer = world.client(ClientSettings(client=info, role="produce", unit=Unit.UTF_8, token=TOKEN))
    observer = world.client(ClientSettings(client=info, role="observe", unit=Unit.UTF_16, token=TOKEN))
    observer.session.subscribe("*", world.now, min_interval_ms=min_interval_ms)
    document = producer.session.open("file:///a", "é long line", world.now)
    producer.pump()
    world.run(1.0)
    producer.session.edit(1, (Change(0, 0, 0, 12, "é"),), world.now)
    # A cursor in the text before, which is gone: it leaves behind the edit.
    producer.session.put(Cursor(document=1, version=document.version - 1, position=(0, 9)), world.now)
    producer.pump()
    world.run(1.0)
    ((_, observed),) = observer.session.observed.items()
    assert observed.text(1) == "é"
    assert not observed.presence
    # No connection failed on the way.
    assert observer.session.resumes == observer.session.resets == observer.session.resubscribed == 0
