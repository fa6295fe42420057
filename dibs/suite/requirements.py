"""What the suite's benchmarks require; each by `dibs requires ID --output dibs/suite/requirements.json`."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

from dibs.files import read_json

answers = cache(partial(read_json, Path(__file__).with_suffix(".json")))
