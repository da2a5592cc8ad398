"""What the lab says about the machine and the network that this process runs in."""

from __future__ import annotations

import json
import os
from typing import Any

from omnizen.errors import UserError


def lab_facts() -> dict[str, Any]:
    """Return what the lab left in the environment; empty outside of labs.

    Raises:
        UserError: it is damaged.
    """
    text = os.environ.get("OMNIZEN_LAB", "") or "{}"
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UserError(f"OMNIZEN_LAB is what `omnizen lab` tells its hosts, in JSON; got {text!r}, so unset it")
    return found
