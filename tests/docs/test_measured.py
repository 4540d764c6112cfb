"""Tables of what was measured on a CPU are those of the committed results."""

import pytest

from tools import measured_doc
from tools.marked import filled


@pytest.mark.parametrize("page", measured_doc.PAGES, ids=lambda page: page.name)
def test_the_page_is_up_to_date(page):
    assert page.read_text() == filled(page, measured_doc.MAKERS)
