"""What torch 2.11 cannot do yet: the tests of it run from 2.13 on, the version of the lock."""

from __future__ import annotations

import pytest
import torch

IS_OLD = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13)


def newer_torch(reason: str) -> pytest.MarkDecorator:
    """Skip a test where torch is older than 2.13.

    Args:
        reason: what torch 2.11 does instead.
    """
    return pytest.mark.skipif(IS_OLD, reason=reason)
