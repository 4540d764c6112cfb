"""docs/performance.md shows the committed results."""

from tools import performance_doc


def test_the_page_is_up_to_date():
    assert performance_doc.PAGE.read_text() == performance_doc.page()
    assert performance_doc.CHART.exists()
