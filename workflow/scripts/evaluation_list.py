"""List a benchmark's evaluations, each after a comment with its checksum: the list changes if one of them does."""
# ruff: noqa: F821 (`snakemake` is defined by Snakemake)

import hashlib
from pathlib import Path

lines = [f"# {hashlib.sha256(Path(file).read_bytes()).hexdigest()}\n{file}\n" for file in snakemake.input]
Path(snakemake.output[0]).write_text("".join(lines))
