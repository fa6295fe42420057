"""The one exception whose message is written for the person at the keyboard."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DibsError(Exception):
    """Bad input or a failed stage: names the culprit, what was found, and what to do.

    The command line prints the message without a traceback and exits with status 1.
    """


def unknown(kind: str, name: object, known: Iterable[str], note: str = "") -> DibsError:
    """Build the error for a name that is not in `known`; suggest the nearest one and add a `note`, if there is one."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    shown = ", ".join(names) if len(names) <= 40 else ", ".join(names[:40]) + ", …"
    also = f" {note[0].upper()}{note[1:]}." if note else ""
    return DibsError(f"unknown {kind} '{name}'.{hint}{also} Known: {shown}.")
