"""Write what an ablation or a sweep is made from, with a checksum: the file changes if one of its inputs does."""
# ruff: noqa: F821 (`snakemake` is defined by Snakemake)

import hashlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dibs.studies.checks import parse_config
from dibs.studies.variants import Variants

found = hashlib.sha256()
for file in snakemake.input:
    found.update(hashlib.sha256(Path(file).read_bytes()).digest())
config = {key: value for key, value in snakemake.config.items() if key not in ("captions", "opens_with")}
study = Variants(parse_config(config)).described(snakemake.wildcards.kind, snakemake.wildcards.study)
text = json.dumps({**study, "digest": found.hexdigest()}, indent=1, ensure_ascii=False)
Path(snakemake.output[0]).write_text(f"{text}\n")
