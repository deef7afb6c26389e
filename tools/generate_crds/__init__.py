"""Writes the custom resource definitions and their reference page from one typed description of every field.

Run `uv run python -m tools.generate_crds` after a change; `--check` tells whether the files are up to date.
"""

from tools.generate_crds.agentruns import agentruns
from tools.generate_crds.records import agentrunrecords
from tools.generate_crds.rules import RULES, Rule

__all__ = ["RULES", "Rule", "agentrunrecords", "agentruns"]
