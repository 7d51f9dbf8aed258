"""The README where nothing lies beside it, as on a package index: no pictures, and paths in place of links."""

import re

PICTURE = re.compile(r"<picture>.*?</picture>\n*|!\[[^\]]*\]\((?!https?:)[^)]*\)\n*", re.DOTALL)
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)#]+)[^)]*\)")


def standalone(text: str) -> str:
    """What of a page makes sense by itself. Paths are those of the source distribution."""
    return LINK.sub(r"\1 (`\2`)", PICTURE.sub("", text))
