"""What keeps hostile bodies cheap by construction: types, stacks, and what of libraries is not used."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from streamctx.vocabulary import Encoding
from streamctx.wire.codec import Malformed, client_decoder
from streamctx.wire.messages import ClientMessage

__all__: list[str] = []

_ROOT = Path(__file__).parents[2]
_SOURCES = sorted((_ROOT / "streamctx").rglob("*.py"))


def _types_in(found: object, seen: set[int]) -> Iterator[object]:
    """Every type that a message can lead to."""
    if id(found) in seen:
        return
    seen.add(id(found))
    if isinstance(found, tuple):
        for item in found:
            yield from _types_in(item, seen)
        return
    if not isinstance(found, msgspec.inspect.Type | msgspec.inspect.Field):
        return
    yield found
    for name in found.__struct_fields__:
        yield from _types_in(getattr(found, name), seen)


def test_no_field_of_a_client_takes_anything_at_all() -> None:
    types = list(_types_in(msgspec.inspect.type_info(ClientMessage), set()))
    assert len(types) > 100
    inspect = msgspec.inspect
    unbounded = (
        inspect.AnyType,
        inspect.DictType,
        inspect.ListType,
        inspect.SetType,
        inspect.RawType,
        inspect.ExtType,
    )
    assert [found for found in types if isinstance(found, unbounded)] == []
    for found in types:
        if isinstance(found, inspect.IntType):
            # Numbers fit into 53 bits, and so into what a database, or JavaScript, can hold.
            assert found.ge is not None
            assert found.le is not None
            assert found.le <= 2**53 - 1
        if isinstance(found, inspect.FloatType):
            assert found.ge is not None
            assert found.le is not None
        if isinstance(found, inspect.VarTupleType):
            assert found.max_length is not None


def _names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Name)
    }


def test_stacks_and_the_limit_of_recursion_are_left_alone() -> None:
    for path in _SOURCES:
        text = path.read_text()
        # A smaller stack, or a higher limit, turns deep nesting into a crash of the process.
        assert not [name for name in ("setrecursionlimit", "stack_size") if name in text], path


def test_no_body_is_decoded_beside_the_main_thread() -> None:
    # The thread of the store decodes what this program encoded, whose nesting is that of its types. What
    # replays a session's past beside the loop is given it decoded, and who reads a backup or a file decodes
    # nothing.
    beside = {("server", name) for name in ("resources.py", "sessions.py", "store.py", "stored.py")}
    for path in _SOURCES:
        parts = path.relative_to(_ROOT).parts
        if parts[1] in ("server", "hub", "core", "wire") and parts[1:] not in beside:
            names = _names_in(path)
            assert not names & {"to_thread", "run_in_executor", "ThreadPoolExecutor", "Thread", "run_sync"}, (
                path
            )


def test_only_the_parser_of_the_websocket_library_is_used_by_the_server() -> None:
    used: set[str] = set()
    for path in _SOURCES:
        if path.relative_to(_ROOT).parts[1] != "server":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("websockets"):
                used |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                assert not [alias.name for alias in node.names if alias.name.startswith("websockets")], path
    # None of them sends, waits or keeps a queue; `broadcast` piles up whatever a peer does not read.
    assert {name.rsplit(".", 1)[0] for name in used} <= {
        "websockets.datastructures",
        "websockets.exceptions",
        "websockets.frames",
        "websockets.http11",
        "websockets.protocol",
        "websockets.server",
        "websockets.speedups",
        "websockets.typing",
        "websockets.utils",
    }
    assert "websockets.server.ServerProtocol" in used


_BOMBS = """
import sys, threading
from streamctx.vocabulary import Encoding
from streamctx.wire.codec import Malformed, client_decoder

def decode():
    heads_of = {Encoding.MSGPACK: (b"\\x91", b"\\x81\\xa1a"), Encoding.JSON: (b"[", b'{"a":')}
    for encoding, heads in heads_of.items():
        start = b'{"type":"focus","x":' if encoding is Encoding.JSON else b"\\x82\\xa4type\\xa5focus\\xa1x"
        for head in heads:
            for body in (head * 100_000, start + head * 100_000):
                assert isinstance(client_decoder(encoding).decode(body), Malformed)

threading.stack_size(int(sys.argv[1]))
thread = threading.Thread(target=decode)
thread.start()
thread.join()
print("alive")
"""


@pytest.mark.parametrize("stack_bytes", [1 << 20, 8 << 20])
def test_deep_nesting_does_not_end_a_server_within_a_thread(stack_bytes: int) -> None:
    # The smallest default of a thread on a platform that the server runs on is half of the first.
    done = subprocess.run(
        [sys.executable, "-c", _BOMBS, str(stack_bytes)],
        cwd=_ROOT, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


@pytest.mark.parametrize("encoding", list(Encoding))
def test_deep_nesting_is_refused_from_deep_within_a_program(encoding: Encoding) -> None:
    head = b"\x91" if encoding is Encoding.MSGPACK else b"["

    def decode_below(levels: int) -> object:
        return client_decoder(encoding).decode(head * 5000) if not levels else decode_below(levels - 1)

    for levels in (0, 100, 500):
        assert isinstance(decode_below(levels), Malformed)
