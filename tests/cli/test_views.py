"""Sessions and documents are named in short, and never by guess."""

from __future__ import annotations

import pytest

from streamctx.cli.rest import RequestFailed
from streamctx.cli.sessions import session_rows
from streamctx.cli.views import (
    DocumentHead,
    NotFound,
    SessionView,
    find_by_prefix,
    find_document,
    name_of,
    parse_sessions,
)
from streamctx.vocabulary import Unit
from streamctx.wire.messages import ClientInfo


def document(alias: int, uri: str, *, stale: bool = False) -> DocumentHead:
    return DocumentHead(document=alias, uri=uri, version=1, stale=stale, complete=True, unit=Unit.UTF_16)


def session(session_id: str, *documents: DocumentHead, name: str = "editor") -> SessionView:
    return SessionView(
        session=session_id,
        client=ClientInfo(name=name),
        role="produce",
        connected=True,
        idle_ms=1500,
        unit=Unit.UTF_16,
        offset=0,
        observers=0,
        documents=documents,
    )


ONE = session(
    "abcd",
    document(1, "file:///a/x.py"),
    document(2, "file:///b/x.py"),
    document(3, "file:///b/2"),
    name="a\x1b",
)
OTHER = session("abce", document(1, "file:///a.py", stale=True))


def test_session_is_found_by_the_beginning_of_its_id() -> None:
    assert find_by_prefix([ONE, OTHER], "abcd") is ONE
    assert find_by_prefix([session("ab"), ONE], "ab").session == "ab"


@pytest.mark.parametrize(
    ("prefix", "message"), [("", "is empty"), ("abc", "2 sessions begin"), ("x", "no session begins")]
)
def test_doubtful_beginning_is_refused(prefix: str, message: str) -> None:
    with pytest.raises(NotFound, match=message):
        find_by_prefix([ONE, OTHER], prefix)


@pytest.mark.parametrize(
    ("name", "alias"), [("2", 2), ("file:///b/x.py", 2), ("a/x.py", 1), ("/a/x.py", 1), ("file:///b/2", 3)]
)
def test_document_is_found_by_number_uri_or_end(name: str, alias: int) -> None:
    assert find_document(ONE, name).document == alias


@pytest.mark.parametrize(("name", "message"), [("x.py", "2 open documents"), (".py", "no document")])
def test_doubtful_document_is_refused(name: str, message: str) -> None:
    with pytest.raises(NotFound, match=message):
        find_document(ONE, name)


@pytest.mark.parametrize(
    ("uri", "name"), [("file:///a/b.py", "b.py"), ("untitled:1", "untitled:1"), ("/", "/")]
)
def test_name_is_the_last_part(uri: str, name: str) -> None:
    assert name_of(uri) == name


def test_rows_show_as_much_of_ids_as_tells_them_apart() -> None:
    rows = session_rows([session("0123456789a"), session("0123456789b")])
    assert [row[0] for row in rows] == ["0123456789a", "0123456789b"]
    assert session_rows([session("0123456789a")])[0][0] == "01234567"


def test_rows_count_stale_documents_and_drive_no_terminal() -> None:
    one, other = session_rows([ONE, OTHER])
    assert one == ("abcd", "a␛", "produce", "connected", "1 s", "3", "0")
    assert other[5] == "1 (1 stale)"


def test_what_another_version_tells_is_refused_in_words() -> None:
    with pytest.raises(RequestFailed, match="in another way"):
        parse_sessions([{"session": 1}])
