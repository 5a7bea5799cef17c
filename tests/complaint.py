"""What a user reads of a mistake."""

from collections.abc import Callable
from typing import Any

import pytest

from sepkit.errors import UserError


def complaint(call: Callable[[], Any], match: str | None = None) -> str:
    """The message of the UserError that the call raises: one line, in which the regular expression `match` is found."""
    with pytest.raises(UserError, match=match) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)
