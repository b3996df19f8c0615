"""How Spark works through plans in tests."""

from typing import Final

INTERPRETED: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""To compile a plan takes longer than to work through a few rows. The Connect server compiles its plans, and so do the
commands that a user types."""
