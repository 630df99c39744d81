from __future__ import annotations

from dataclasses import replace

import pytest

from streamctx.core.documents.document import Document
from streamctx.core.documents.text_digest import text_hash
from streamctx.errors import ErrorCode, EventRefused
from streamctx.limits import DEFAULT_LIMITS
from streamctx.vocabulary import HashAlgorithm, Unit
from streamctx.wire.changes import Change
from streamctx.wire.messages import Edit, Open, Part, Save, Snapshot, Version

__all__: list[str] = []

LIMITS = replace(DEFAULT_LIMITS, document_bytes_max=8, part_text_bytes_max=4)


def hash_of(text: str) -> str:
    return text_hash(text, HashAlgorithm.SHA_256)


def announced(text: str, parts: int | None = None, *, version: int = 1, language: str = "py") -> Open:
    return Open(
        document=1,
        uri="u",
        version=version,
        length=len(text),
        hash=hash_of(text),
        text=None if parts else text,
        parts=parts,
        language=language,
    )


def document(text: str = "abc") -> Document:
    message = announced(text)
    made = Document(message, unit=Unit.UTF_16, hash_algorithm=HashAlgorithm.SHA_256, limits=LIMITS)
    made.begin_text(message)
    return made


def text(made: Document) -> str | None:
    return None if made.buffer is None else made.buffer.text()


def part(index: int, piece: str, *, version: int = 2) -> Part:
    return Part(document=1, version=version, index=index, text=piece)


def refusal(call: object, *arguments: object) -> ErrorCode:
    with pytest.raises(EventRefused) as raised:
        call(*arguments)  # type: ignore[operator]
    return raised.value.code


def test_metadata_of_another_open_is_taken_with_its_text_and_not_before() -> None:
    made = document()
    made.begin_text(announced("wxyz", 2, version=2, language="js"))
    assert (made.metadata.language, text(made)) == ("py", "abc")
    made.add_part(part(0, "wx"))
    assert made.add_part(part(1, "yz"))
    assert (made.metadata.language, text(made), made.version) == ("js", "wxyz", 2)
    assert made.metadata.text is None


@pytest.mark.parametrize(("index", "version"), [(1, 2), (0, 3)])
def test_a_part_that_is_not_the_next_one_ends_the_text(index: int, version: int) -> None:
    made = document()
    made.begin_text(announced("wxyz", 2, version=2))
    assert refusal(made.add_part, part(index, "wx", version=version)) is ErrorCode.BAD_PART
    assert not made.is_receiving
    assert refusal(made.add_part, part(0, "wx")) is ErrorCode.BAD_PART
    assert text(made) == "abc"


def test_parts_that_do_not_fit_their_hash_leave_the_text_before() -> None:
    made = document()
    made.begin_text(announced("wxyz", 2, version=2))
    made.add_part(part(0, "wx"))
    assert refusal(made.add_part, part(1, "yy")) is ErrorCode.HASH_MISMATCH
    assert (text(made), made.version, made.is_receiving) == ("abc", 1, False)


def test_the_limit_of_a_document_is_taken_and_one_byte_more_is_not() -> None:
    made = document()
    made.begin_text(announced("12345678", 2, version=2))
    made.add_part(part(0, "1234"))
    made.add_part(part(1, "5678"))
    assert text(made) == "12345678"
    assert refusal(made.begin_text, announced("123456789", 3, version=3)) is ErrorCode.TOO_LARGE
    made.begin_text(announced("1234", 3, version=3))
    for index in range(2):
        made.add_part(part(index, "éé", version=3))
    assert refusal(made.add_part, part(2, "1", version=3)) is ErrorCode.TOO_LARGE


def test_an_edit_may_fill_the_document_and_swap_its_text_at_the_limit() -> None:
    made = document("1234")
    made.edit(Edit(document=1, base=1, version=2, changes=(Change(0, 0, 0, 0, "5678"),)))
    made.edit(Edit(document=1, base=2, version=3, changes=(Change(0, 0, 0, 8, "abcdefgh"),)))
    more = Edit(document=1, base=3, version=4, changes=(Change(0, 0, 0, 0, "x"),))
    assert refusal(made.edit, more) is ErrorCode.TOO_LARGE
    assert (text(made), made.version) == ("abcdefgh", 3)


def test_a_version_may_jump_and_never_goes_back() -> None:
    made = document()
    made.verify(Version(document=1, version=7, length=3, hash=hash_of("abc")))
    assert (made.version, made.verified_version) == (7, 7)
    assert (
        refusal(made.verify, Version(document=1, version=6, length=3, hash=hash_of("abc")))
        is ErrorCode.BAD_VERSION
    )
    old = Snapshot(document=1, version=6, length=1, hash=hash_of("x"), text="x")
    assert refusal(made.begin_text, old) is ErrorCode.BAD_VERSION
    assert refusal(made.save, Save(document=1, version=8)) is ErrorCode.BAD_VERSION
    made.save(Save(document=1, version=6))
    assert made.saved_version == 6


def test_a_document_knows_since_when_it_has_its_text_and_since_when_all_units_count_alike_in_it() -> None:
    def insert(made: Document, base: int, inserted: str, *, end: int = 0) -> tuple[int, int | None]:
        made.edit(Edit(document=1, base=base, version=base + 1, changes=(Change(0, 0, 0, end, inserted),)))
        return made.text_since, made.plain_since

    made = document("ab")
    assert (made.text_since, made.plain_since) == (1, 1)
    made.verify(Version(document=1, version=3, length=2, hash=hash_of("ab")))
    assert (made.text_since, made.plain_since) == (1, 1)
    assert insert(made, 3, "x") == (4, 1)
    assert insert(made, 4, "é") == (5, None)
    assert insert(made, 5, "", end=1) == (6, 6)
    made.begin_text(Snapshot(document=1, version=9, length=2, hash=hash_of("xy"), text="xy"))
    assert (made.text_since, made.plain_since) == (9, 9)
    message = announced("ab")
    counted_in_bytes = Document(message, unit=Unit.UTF_8, hash_algorithm=HashAlgorithm.SHA_256, limits=LIMITS)
    counted_in_bytes.begin_text(message)
    assert counted_in_bytes.plain_since is None
