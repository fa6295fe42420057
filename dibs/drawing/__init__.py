"""Drawings of tasks and recorded rollouts, for any family."""
