"""Wherever a connection breaks, the text that arrives is the editor's: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.request

import pytest

import streamctx
from streamctx import Encoding
from streamctx.server.serve import Server
from tests.chaos.faults import Fault
from tests.chaos.proxy import fault_proxy

__all__: list[str] = []

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(120)]

_WORDS = ("one", "two\n", "três ", "😀", "five\r\n")


async def type_through_a_cut(server: Server, cut_after: int, encoding: Encoding) -> int:
    """One short session through a proxy that cuts; returns how many bytes passed in all."""
    async with (
        fault_proxy(server.port, strike=(cut_after, Fault.CUT)) as proxy,
        streamctx.connect(proxy.url, token=server.token, encoding=encoding) as client,
    ):
        document = await client.open("file:///work/a.txt", "start\n")
        for index in range(10):
            document.edit((0, 0, 0, 0, f"{index}{_WORDS[index % len(_WORDS)]}"))
            document.cursor((0, 1))
            if index % 4 == 3:
                await asyncio.sleep(0)
        document.save()
        async with asyncio.timeout(20):
            await client.flush()
        expected = (document.text, document.version)
        assert client.session_id is not None
        view = await asyncio.to_thread(_document, server, client.session_id)
        assert (view["text"], view["version"], view["stale"]) == (*expected, False)
        assert isinstance(edits := view["edits"], int) and edits <= 10
        return proxy.passed


def _document(server: Server, session_id: str) -> dict[str, object]:
    request = urllib.request.Request(
        f"{server.http_url}/v1/sessions/{session_id}/documents/1",
        headers={"Authorization": f"Bearer {server.token}"},
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        view: dict[str, object] = json.load(response)
    return view


@pytest.mark.asyncio
@pytest.mark.parametrize("encoding", Encoding)
async def test_a_cut_after_any_byte_loses_and_doubles_nothing(encoding: Encoding) -> None:
    async with streamctx.serve(port=0) as server:
        total = await type_through_a_cut(server, cut_after=10**9, encoding=encoding)
        # All bytes take minutes: STREAMCTX_CUT_STEP=1 does that. A prime step meets every kind of place.
        step = int(os.environ.get("STREAMCTX_CUT_STEP", "23"))
        for start in range(0, total + step, step * 10):
            await asyncio.gather(
                *(
                    type_through_a_cut(server, cut_after=cut_after, encoding=encoding)
                    for cut_after in range(start, min(start + step * 10, total + step), step)
                )
            )


class Killed(Exception):
    """The client dies here."""


@pytest.mark.asyncio
@pytest.mark.parametrize("edits", range(12))
async def test_a_killed_client_opens_its_documents_anew(edits: int) -> None:
    text = "start\n"
    async with streamctx.serve(port=0) as server:
        with pytest.raises(Killed):
            async with streamctx.connect(server.url, token=server.token) as client:
                document = await client.open("file:///work/a.txt", text)
                for index in range(edits):
                    document.edit((0, 0, 0, 0, f"{index}{_WORDS[index % len(_WORDS)]}"))
                    if index % 3 == 0:
                        await asyncio.sleep(0.001)
                text = document.text
                client.abort()
                raise Killed
        async with streamctx.connect(server.url, token=server.token) as client:
            document = await client.open("file:///work/a.txt", text, version=edits)
            document.edit((0, 0, 0, 0, "again "))
            await client.flush()
            assert client.session_id is not None
            view = await asyncio.to_thread(_document, server, client.session_id)
        assert (view["text"], view["version"], view["stale"]) == ("again " + text, edits + 1, False)
