"""The `soctk` command line."""

from soctk_evaluation.cli.command_line import main

__all__ = ["main"]
