"""What a user reads of a mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sepkit.errors import UserError


def complaint(call: Callable[[], Any]) -> str:
    """The message of the UserError that the call raises, which must be one line."""
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)
