"""What holds for each of the demo's pages."""

import re


def holds_nothing_inline(page: str) -> None:
    """Nothing that a strict Content-Security-Policy forbids, and nothing from elsewhere."""
    assert "<style" not in page
    assert "style=" not in page
    assert not re.search(r"\son\w+=", page)
    for script in re.findall("<script[^>]*>", page):
        assert "src=" in script or 'type="application/json"' in script
    assert "https://" not in page
