"""Studies: configs, plans, variants, tables and figures over any families and methods."""

VERSION = 1
"""Raised manually when what all tables and figures are computed from changes (the frames of `dibs.studies.collect`, the
bootstrap intervals), or the summary of an ablation or sweep; each report has its own version, too."""
