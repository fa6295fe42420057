"""`python -m dibs` is `dibs`."""

from __future__ import annotations

import sys

from dibs.cli import main

sys.exit(main())
