"""How long things took, as counts by buckets that grow by a fifth each: small, quick to add, fit for percentiles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

_STEPS: Final = 4
"""Buckets until a duration has doubled."""
_MOST: Final = 200
_PAIR: Final = np.dtype([("bucket", "<u2"), ("count", "<u4")])
SHARES: Final = (0.5, 0.95, 0.99)


def bucket_of(duration: int) -> int:
    """The bucket of a duration in microseconds; the first is for less than one."""
    return 0 if duration < 1 else min(1 + int(_STEPS * math.log2(duration)), _MOST)


def packed(counts: Mapping[int, int]) -> bytes:
    pairs = np.array([(bucket, min(count, 0xFFFFFFFF)) for bucket, count in sorted(counts.items())], _PAIR)
    return pairs.tobytes()


def added(blobs: Iterable[bytes]) -> dict[int, int]:
    """The sum of packed counts."""
    pairs = np.frombuffer(b"".join(blobs), _PAIR)
    summed = np.bincount(pairs["bucket"], weights=pairs["count"])
    return {int(bucket): int(summed[bucket]) for bucket in np.flatnonzero(summed)}


def percentiles(counts: Mapping[int, int]) -> tuple[int | None, ...]:
    """The durations below which half, 95 % and 99 % lie, in microseconds, each to a tenth or so."""
    total = sum(counts.values())
    if not total:
        return (None,) * len(SHARES)
    found: list[int | None] = []
    for share in SHARES:
        left = math.ceil(share * total)
        for bucket in sorted(counts):
            left -= counts[bucket]
            if left <= 0:
                found.append(round(2 ** ((bucket - 0.5) / _STEPS)) if bucket else 0)
                break
    return tuple(found)
