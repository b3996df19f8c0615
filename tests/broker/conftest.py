"""Failures inside the conformance suite show what was compared."""

import pytest

pytest.register_assert_rewrite("tests.conformance", "tests.broker.kit")
