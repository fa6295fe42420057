"""Policies of any method at any index, judged by SPECTRL; oracles."""

VERSION = 1
"""Raised by hand when the results of an evaluation change."""
