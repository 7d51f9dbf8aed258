"""The documentation's examples, run as they are printed: the Python blocks of a page, from top to bottom."""

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def examples(page: str) -> list[str]:
    """The Python blocks of a page, named from the docs' root."""
    return BLOCK.findall(text(page))


def text(page: str) -> str:
    """The page as it is written."""
    return (DOCS / page).read_text(encoding="utf-8")


def execute(page: str, example: str, namespace: dict[str, Any]) -> None:
    """Run one example of a page; a traceback names the page."""
    exec(compile(example, str(DOCS / page), "exec"), namespace)


def run(page: str, **names: Any) -> dict[str, Any]:
    """Run all of them in one namespace, in which `names` are there already; what it holds afterwards."""
    namespace: dict[str, Any] = {"__name__": f"docs.{Path(page).stem}", **names}
    for example in examples(page):
        execute(page, example, namespace)
    return namespace
