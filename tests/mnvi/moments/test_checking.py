"""The check of numbers: what it accepts, and what it says of the rest."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch

from mnvi.moments.checking import check_number


@pytest.mark.parametrize("value", [0, 0.5, np.float32(0.25), np.int64(1)])
def test_a_number_within_its_bounds_passes(value: Any) -> None:
    check_number("x", value, least=0, most=1)


@pytest.mark.parametrize("value", [2, np.int64(2), 10**400])
def test_a_whole_number_passes(value: Any) -> None:
    check_number("x", value, least=1, whole=True)


@pytest.mark.parametrize(
    ("value", "bounds", "message"),
    [
        (-1, {"least": 0}, "x=-1 must be a finite number >= 0"),
        (0.0, {"above": 0}, "x=0.0 must be a finite number > 0"),
        (1, {"least": 0, "below": 1}, "x=1 must be a finite number >= 0 and < 1"),
        (2, {"most": 1}, "x=2 must be a finite number <= 1"),
        (math.nan, {}, "x=nan must be a finite number"),
        (math.inf, {}, "x=inf must be a finite number"),
        (True, {}, "x=True must be a finite number"),
        ("1", {}, "x='1' must be a finite number"),
        (None, {}, "x=None must be a finite number"),
        (1.0, {"whole": True}, "x=1.0 must be a whole number"),
        (0, {"least": 1, "because": "so it is"}, "x=0 must be a finite number >= 1; so it is"),
        (torch.tensor(1.0), {}, "x=tensor(1.) must be a finite number; take the number out of the tensor with .item()"),
    ],
)
def test_anything_else_is_named_with_what_was_expected(value: Any, bounds: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_number("x", value, **bounds)
