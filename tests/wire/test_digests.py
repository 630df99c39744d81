"""Digests and hashes; `protocol/vectors/` has their values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamctx.vocabulary import DigestAlgorithm, HashAlgorithm
from streamctx.wire.digests import DIGEST_BYTES, DIGESTS, crc32_digest, hash_bytes

__all__: list[str] = []


def test_every_algorithm_has_its_digest() -> None:
    assert set(DIGESTS) == set(DigestAlgorithm)


@pytest.mark.parametrize("algorithm", DigestAlgorithm)
@given(data=st.binary(max_size=300))
def test_a_digest_has_eight_bytes_and_takes_bytes_and_views_alike(
    algorithm: DigestAlgorithm, data: bytes
) -> None:
    digest = DIGESTS[algorithm](data)
    assert len(digest) == DIGEST_BYTES
    assert DIGESTS[algorithm](memoryview(b"x" + data)[1:]) == digest


@given(st.binary(max_size=300))
def test_a_crc32_fills_the_last_four_bytes(data: bytes) -> None:
    assert crc32_digest(data)[:4] == bytes(4)


@pytest.mark.parametrize(("algorithm", "digits"), [(HashAlgorithm.XXH3_64, 16), (HashAlgorithm.SHA_256, 64)])
@given(data=st.binary(max_size=300))
def test_a_hash_names_its_algorithm_and_is_lowercase(
    algorithm: HashAlgorithm, digits: int, data: bytes
) -> None:
    name, _, value = hash_bytes(data, algorithm).partition(":")
    assert name == algorithm
    assert len(value) == digits
    assert set(value) <= set("0123456789abcdef")
