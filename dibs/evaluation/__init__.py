"""Policies of any method at any index, judged by SPECTRL; oracles."""

VERSION = 1
"""Raised manually when the results of an evaluation change."""
