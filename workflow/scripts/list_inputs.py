"""Write the paths that a table or figure is made of, one a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

snakemake: Any

Path(snakemake.output[0]).write_text("".join(f"{path}\n" for path in snakemake.params.paths))
