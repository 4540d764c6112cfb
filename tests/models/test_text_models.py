"""Every text architecture, listed or not, as a tiny checkpoint against transformers."""

import pytest

from models.checkpoints import BEYOND, LISTED
from models.criteria import problems
from models.evidence import gather, marked, wanted

TAGS = [tag for tag in LISTED + BEYOND if "ForConditionalGeneration" not in tag]
pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def evidence(request, tmp_path_factory):
    return gather(wanted(request), tmp_path_factory.mktemp("evidence"))


@pytest.mark.parametrize("tag", marked(TAGS))
def test_states_logits_and_depths_are_those_of_transformers(tag, evidence):
    assert problems(evidence[tag]) == []
