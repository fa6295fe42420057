"""Confidence-filtered, teacher-labeled datasets, from which templates are cloned (paper, section 4.1)."""

VERSION = 2
"""Raised manually when datasets change."""
