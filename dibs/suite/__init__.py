"""Our own suite of benchmarks that require induction by construction (docs/suite.md); not part of the paper.

The families and reports register themselves through entry points, as those of any other package.
"""
