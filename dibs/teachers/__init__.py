"""Stage I: one teacher per training index, by ARS, PPO or any other RL algorithm (paper, section 4.1)."""

VERSION = 3
"""Raised manually when the teachers of all algorithms change; each algorithm has its own version, too."""
