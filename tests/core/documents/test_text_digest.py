from __future__ import annotations

import pytest

from streamctx.core.documents.text_digest import hash_of_parts, text_hash
from streamctx.vocabulary import HashAlgorithm

__all__: list[str] = []


@pytest.mark.parametrize(
    ("text", "algorithm", "expected"),
    [
        ("", HashAlgorithm.XXH3_64, "xxh3-64:2d06800538d394c2"),
        (
            "abc",
            HashAlgorithm.SHA_256,
            "sha-256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        ),
        ("abc", HashAlgorithm.XXH3_64, "xxh3-64:78af5f94892f3950"),
    ],
)
def test_the_hash_is_the_published_one_and_names_its_algorithm(
    text: str, algorithm: HashAlgorithm, expected: str
) -> None:
    assert text_hash(text, algorithm) == expected


@pytest.mark.parametrize("algorithm", HashAlgorithm)
def test_parts_hash_like_the_whole(algorithm: HashAlgorithm) -> None:
    assert hash_of_parts(["é".encode(), b"", b"a\r\n"], algorithm) == text_hash("éa\r\n", algorithm)


def test_line_ends_and_the_form_of_characters_count() -> None:
    texts = ["a\n", "a\r\n", "a\r", "a", "\u00e9", "e\u0301", "\ufeffa"]
    assert len({text_hash(text, HashAlgorithm.XXH3_64) for text in texts}) == len(texts)
