"""Gives packages the README that can stand by itself, see `scripts/standalone.py`."""

import runpy
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Readme(MetadataHookInterface):
    """Hatchling's metadata hook."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme."""
        root = Path(self.root)
        standalone = runpy.run_path(str(root / "scripts" / "standalone.py"))["standalone"]
        text = standalone((root / "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
