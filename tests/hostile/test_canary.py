"""Nothing of a secret document comes out anywhere, and no token or resume secret is logged (SEC-3, ERR-3)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from streamctx.server.embedding import serve
from streamctx.vocabulary import Encoding
from streamctx.wire.messages import (
    Close,
    DesignClose,
    Focus,
    Open,
    Part,
    Resume,
    Subscribe,
    Synced,
    Workspace,
)
from tests.hostile.arena import LIMITS, Arena, log_faults, neighbour
from tests.hostile.canaries import CANARY, Canaries, design_of, events_of
from tests.hostile.raw import HELLO, Closed, Raw, hash_of, opening

__all__: list[str] = []

pytestmark = pytest.mark.asyncio

_SHOWN = "shown-to-all"


async def _read_all(raw: Raw, frames: list[bytes], resume: asyncio.Event) -> None:
    """Keep every byte that an observer receives."""
    original = raw.client.frame

    async def recording() -> tuple[int, bytes]:
        first, payload = await original()
        frames.append(payload)
        return first, payload

    raw.client.frame = recording  # type: ignore[method-assign]
    while True:
        if isinstance(await raw.next(), Synced):
            resume.set()


async def test_canaries_of_excluded_documents_come_out_nowhere(
    log: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "run").mkdir(mode=0o700)
    canaries = Canaries()
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / ".streamctxignore").write_text("*.plan\nprivate/\n")
    token = canaries.new("token") + "-" + "t" * 32
    folder = (tmp_path / "w").as_uri()
    workspace = Workspace(folders=(folder,), trusted=True)
    names = [
        f"{folder}/{canaries.new('path')}/.env",
        f"{folder}/.env.{canaries.new('path')}",
        f"{folder}/{canaries.new('path')}/id_rsa",
        f"{folder}/{canaries.new('path')}/prod-credentials.json",
        f"{folder}/{canaries.new('path')}/server.PEM",
        f"{folder}/{canaries.new('path')}.plan",
        f"{folder}/private/{canaries.new('path')}.py",
        f"/w/c#/{canaries.new('path')}/.env",
        f"C:\\{canaries.new('path')}\\.ENV",
    ]
    secrets: list[str] = []
    surfaces: dict[str, bytes] = {}
    frames: list[bytes] = []
    async with serve(token=token, limits=LIMITS, discovery=True) as server:
        arena = Arena(server.port, token, LIMITS)
        async with (
            neighbour(arena),
            arena.raw() as raw,
            arena.raw(Encoding.JSON) as early,
            arena.raw(Encoding.JSON) as late,
        ):
            secrets.append((await early.greet()).secret)
            await early.push(Subscribe(subscription=1, session="*"))
            early_synced, late_synced = asyncio.Event(), asyncio.Event()
            reading = [asyncio.create_task(_read_all(early, frames, early_synced))]
            welcome = await raw.greet(msgspec.structs.replace(HELLO, workspace=workspace))
            secrets.append(welcome.secret)
            await raw.push(opening(100, _SHOWN))

            # Refused from the start: one ERROR each, and silence about everything after.
            for alias, name in enumerate(names, 1):
                text = canaries.new("text")
                number = await raw.push(opening(alias, text, uri=name))
                error = await raw.error(number)
                assert (error.code, error.document) == ("excluded", alias)
                assert not CANARY.search(error.message)
                await raw.push(*events_of(alias, canaries))
            for alias, uri, file_name in (
                (50, f"figma:///{canaries.new('path')}/.env.design", "x"),
                (51, f"figma:///{canaries.new('path')}", f".env.{canaries.new('file')}"),
            ):
                number = await raw.push(design_of(alias, uri, file_name, canaries))
                assert (await raw.error(number)).code == "excluded"
                await raw.push(
                    *events_of(alias, canaries), DesignClose(document=alias, reason="plugin_closed")
                )

            # Everything about an alias comes ahead of the open that is refused.
            first = next(raw.numbers)
            ahead = [raw.frame_of(event, sequence=next(raw.numbers)) for event in events_of(60, canaries)]
            await raw.send_frames(*ahead)
            refused = opening(60, canaries.new("text"), uri=f"/{canaries.new('path')}/.env")
            await raw.send(refused, sequence=first)
            assert (await raw.error(first)).code == "excluded"

            # An alias that was shown, and is now another document's.
            await raw.push(opening(61, _SHOWN))
            uri = f"/{canaries.new('path')}/.env"
            number = await raw.push(opening(61, canaries.new("text"), uri=uri), *events_of(61, canaries))

            # In parts, with what the open itself says.
            whole = canaries.new("text")
            await raw.push(
                Open(
                    document=62,
                    uri=f"/{canaries.new('path')}/.env",
                    version=1,
                    length=len(whole),
                    hash=hash_of(whole),
                    parts=1,
                    language=canaries.new("language"),
                    encoding=canaries.new("encoding"),
                ),
                Part(document=62, version=1, index=0, text=whole),
                *events_of(62, canaries),
            )
            last = await raw.push(opening(101, _SHOWN), Focus(document=1, view=canaries.new("focus")))
            errors_before = len(raw.errors)
            await raw.applied(last)
            assert len(raw.errors) <= errors_before + 2
            assert {error.code for error in raw.errors} == {"excluded"}

            # Who comes later is shown the state.
            secrets.append((await late.greet()).secret)
            reading.append(asyncio.create_task(_read_all(late, frames, late_synced)))
            await late.push(Subscribe(subscription=1, session="*"))
            async with asyncio.timeout(10):
                await early_synced.wait()
                await late_synced.wait()

            session = f"/v1/sessions/{welcome.session}"
            paths = ["/v1/sessions", session, "/metrics", "/version", "/healthz", "/readyz", "/v1/stream"]
            paths += [f"{session}/documents/{alias}" for alias in (*range(1, 10), 50, 51, 60, 61, 62)]
            for path in paths:
                surfaces[path] = (await arena.get(path)).body
                surfaces[f"{path} without token"] = (await arena.get(path, token=None)).body
                surfaces[f"{path} with another"] = (await arena.get(path, token="x" * 40)).body
            for name in names:
                response = await arena.get(f"{session}/documents/{quote(name, safe='')}")
                assert response.status == 404
                surfaces[f"document {name[-12:]}"] = response.body
            for file in (tmp_path / "run").rglob("*"):
                if file.is_file():
                    surfaces[f"file {file.name}"] = file.read_bytes()
            assert [name for name in surfaces if name.startswith("file ")]

            # Closing them is acknowledged and shown to nobody; a wrong resume logs no secret.
            await raw.applied(await raw.push(*(Close(document=alias) for alias in (*range(1, 10), 60, 62))))
            resume = Resume(
                session=welcome.session, secret=canaries.new("secret"), epoch="e", expects=1, next=1
            )
            async with arena.raw() as thief:
                secrets.append((await thief.greet(msgspec.structs.replace(HELLO, resume=resume))).secret)
            async with arena.raw(token=None) as stranger:
                await stranger.send(msgspec.structs.replace(HELLO, auth=canaries.new("auth")))
                with pytest.raises(Closed):
                    while True:
                        await stranger.next()
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)

    surfaces["frames"] = b"\n".join(frames)
    surfaces["log"] = "\n".join(log).encode()
    assert _SHOWN.encode() in surfaces["frames"]
    assert json.loads(surfaces["/v1/sessions"])["sessions"]
    found = {
        name: sorted(set(CANARY.findall(content.decode("utf-8", "replace"))))
        for name, content in surfaces.items()
    }
    assert {name: canaries for name, canaries in found.items() if canaries} == {}
    for secret in (token, *secrets):
        assert secret.encode() not in surfaces["log"]
        assert not [name for name, content in surfaces.items() if secret.encode() in content]
    assert log_faults(log) == []
