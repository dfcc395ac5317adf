"""Hides passwords in every text that is shown, kept or sent: in one place, so that no caller forgets it."""

from __future__ import annotations

import os
import re

HIDDEN = "***"
SHORTEST = 8  # characters: replacing every `admin` would spoil texts and hide nothing
_USER = re.compile(r"//[^\s\"'<>]*@")  # greedy, as a password may contain / and @
_NAMED = re.compile(r"(?i)(\b[\w-]*(?:password|passwd|token|secret|signature|credential)=)[^&\s\"']+")
_VARIABLE = re.compile(r"PASSWORD|PASSWD|TOKEN|SECRET|ACCESS_KEY|API_KEY")
_POINTS_TO_A_FILE = ("_PATH", "_FILE")


def masked(text: str) -> str:
    """The text without secrets: neither those in addresses nor the values of secret environment variables.

    >>> masked("cannot reach https://someone:pass/word@host/path")
    'cannot reach https://***@host/path'
    >>> masked("postgresql://host/runs?user=someone&password=word")
    'postgresql://host/runs?user=someone&password=***'
    """
    for secret in _secrets():
        text = text.replace(secret, HIDDEN)
    return _NAMED.sub(rf"\1{HIDDEN}", _USER.sub(f"//{HIDDEN}@", text))


def _secrets() -> list[str]:
    found = {
        value
        for name, value in os.environ.items()
        if _VARIABLE.search(name.upper()) and not name.upper().endswith(_POINTS_TO_A_FILE) and len(value) >= SHORTEST
    }
    return sorted(found, key=len, reverse=True)  # one may be the beginning of another
