"""The commands of `dibs COMMAND …`: thin wrappers that read arguments, call the library, and print.

Each module has `register(subparsers)`, which adds parsers, and imports its stage only when a command runs.
"""
