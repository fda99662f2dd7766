"""Importing the package, or what needs only numpy, stays light."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "matplotlib", "transformers", "pandas", "plotly"}


def heavy_after(statement):
    code = f"import sys; {statement}; print(*({HEAVY!r} & set(sys.modules)))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("statement", ["import norm_geometry", "from norm_geometry import arrays, norms, statistics"])
def test_import_is_light(statement):
    assert not heavy_after(statement)


def test_this_test_can_fail():
    assert heavy_after("from norm_geometry import hooks") >= {"torch"}
