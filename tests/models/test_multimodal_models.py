"""Every multimodal wrapper, with text and with an image, as a tiny checkpoint against transformers."""

import pytest

from models.checkpoints import BEYOND, LISTED
from models.criteria import problems
from models.evidence import gather, marked, wanted
from models.images import FAMILIES

TAGS = [tag for tag in LISTED + BEYOND if "ForConditionalGeneration" in tag]
pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def evidence(request, tmp_path_factory):
    return gather(wanted(request), tmp_path_factory.mktemp("evidence"), "--images")


@pytest.mark.parametrize("tag", marked(TAGS))
def test_states_logits_and_depths_are_those_of_transformers(tag, evidence):
    assert problems(evidence[tag]) == []
    assert ("image" in evidence[tag]) == (tag in FAMILIES)
