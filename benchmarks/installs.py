"""Makes each contestant an environment of its own, once, and says why where it cannot.

Owns `.venvs/`. A stamp in each environment says what it was made from; another wish makes it anew.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ENVIRONMENTS = Path(__file__).parent / ".venvs"
LIMIT = 600  # seconds for one installation
NODE = "node@22"


class Unavailable(Exception):
    """A contestant cannot be installed or run here; the message is for the table."""


def python(name: str, requirements: Sequence[str]) -> tuple[list[str], str]:
    """The command of a Python with the requirements installed, and what was installed of them."""
    home = ENVIRONMENTS / name
    binary = home / "bin" / "python"
    if stale(home, requirements):
        run([sys.executable, "-m", "venv", str(home)])
        run(
            [
                str(binary),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--retries",
                "2",
                *requirements,
            ]
        )
        stamp(home, requirements)
    distribution = requirements[0].partition("[")[0].partition("==")[0]
    code = f"import importlib.metadata; print(importlib.metadata.version({distribution!r}))"
    return [str(binary)], run([str(binary), "-c", code])


def node(name: str, package: str) -> tuple[list[str], Path, str]:
    """The command of a Node that can run the package, where the package lies, and its version."""
    home = ENVIRONMENTS / name
    modules = home / "node_modules"
    if stale(home, [NODE, package]):
        if shutil.which("npm") is None:
            raise Unavailable("npm is not installed")
        home.mkdir(parents=True)
        (home / "package.json").write_text('{"private": true}')
        install = ["npm", "install", "--silent", "--no-audit", "--no-fund"]
        run([*install, NODE], cwd=home)
        # On an older Node, npm would silently choose an older version of the package.
        run([*install, package], cwd=home, path=f"{modules / '.bin'}{os.pathsep}{os.environ['PATH']}")
        stamp(home, [NODE, package])
    binary = modules / ".bin" / "node"
    run([str(binary), "--version"])
    installed = json.loads((modules / package / "package.json").read_text())
    return [str(binary)], home / "package.json", str(installed["version"])


def stale(home: Path, wish: Sequence[str]) -> bool:
    """Whether an environment must be made, which clears away what is there."""
    marker = home / ".installed"
    if marker.exists() and marker.read_text() == "\n".join(wish):
        return False
    shutil.rmtree(home, ignore_errors=True)
    return True


def stamp(home: Path, wish: Sequence[str]) -> None:
    """Note that the environment is complete."""
    (home / ".installed").write_text("\n".join(wish))


def run(command: Sequence[str], *, cwd: Path | None = None, path: str | None = None) -> str:
    """Run a command to its end; its output, or `Unavailable` with its last words."""
    env = {**os.environ, "PATH": path} if path else None
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT, cwd=cwd, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(str(error)) from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(lines[-1] if lines else f"exit code {done.returncode}")
    return done.stdout.strip()
