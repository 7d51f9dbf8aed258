"""Fixtures of the fault scenarios: a stage each, and its figures, printed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from testproject import postgres

from .stage import Stage

MakeStage = Callable[..., Stage]
Report = Callable[[Mapping[str, Any]], None]

_lines: list[str] = []


@pytest.fixture
def make_stage(tmp_path: Path) -> Iterator[MakeStage]:
    """`make_stage(settings=…, **options)`: a stage on a server of its own, which ends with the test."""
    made: list[Stage] = []

    def make(settings: Mapping[str, str] | None = None, server: postgres.Server | None = None, **options: Any) -> Stage:
        server = server or postgres.throwaway(settings=postgres.QUICK | dict(settings or {})).start()
        folder = tmp_path / f"stage-{len(made)}"
        folder.mkdir()
        made.append(Stage(folder, server, **options))
        return made[-1]

    yield make
    for stage in made:
        stage.close()
    if (kept := os.environ.get("FAULTS_LOGS")) and made:
        Path(kept).mkdir(parents=True, exist_ok=True)
        for number, stage in enumerate(made):
            (Path(kept) / f"{tmp_path.name}-{number}.log").write_text(stage.said())


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    return make_stage()


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """`report(figures)`: have them printed at the end."""

    def say(figures: Mapping[str, Any]) -> None:
        told = ", ".join(f"{name} {figure}" for name, figure in figures.items())
        _lines.append(f"{request.node.name.removeprefix('test_')}: {told}")

    return say


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _lines:
        terminalreporter.section("figures")
        for line in _lines:
            terminalreporter.write_line(line)
