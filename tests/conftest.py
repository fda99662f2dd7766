"""What several test modules share."""

import jaxtyping
import pytest
from hypothesis import settings

# The same examples in every run, and no limit on their time: a test says the same on any machine.
settings.register_profile("reproducible", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("reproducible")


@pytest.fixture
def unchecked():
    """Call the library as users do: without the shape checks that the tests switch on everywhere else."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def smollm2():
    """The packaged causal model with RMSNorm, its tokenizer and provenance: the real ones."""
    from norm_geometry import models

    return models.load("smollm2-135m")


@pytest.fixture(scope="session")
def minilm():
    """The packaged encoder with LayerNorm, its tokenizer and provenance: the real ones."""
    from norm_geometry import models

    return models.load("all-minilm-l6-v2")
