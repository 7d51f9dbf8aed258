"""The tables, in Markdown.

Owns their wording. Knows nothing of how anything was measured.
"""

from __future__ import annotations

import inspect
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

from benchmarks.contestants import catalog
from benchmarks.goals import Line, lines
from benchmarks.results import Key, Ratio, Results


def markdown(
    results: Results,
    *,
    scenarios: Mapping[str, ModuleType],
    versions: Mapping[str, str],
    unavailable: Mapping[str, str],
    server: str,
    rounds: int,
    seconds: float,
    scale: float,
) -> str:
    """Everything that a run found."""
    return "\n".join(
        [
            *machine(server, rounds, seconds, scale),
            *goals(results),
            *(row for name, module in scenarios.items() for row in scenario(results, name, module)),
            *settings(versions, unavailable),
            *remarks(results),
        ]
    )


def machine(server: str, rounds: int, seconds: float, scale: float) -> Iterator[str]:
    """Where and how."""
    kernel = ".".join(platform.release().split(".")[:2])
    yield "# Benchmark"
    yield ""
    yield (
        f"{os.cpu_count()} cores ({processor()}), {memory()} of memory, shared by server, workers and harness; "
        f"PostgreSQL {server}, fsync on, 512 MB of shared buffers; Python {platform.python_version()}; "
        f"{platform.system()} {kernel}. {rounds} round{'s' * (rounds > 1)}, contestants interleaved, "
        f"{seconds / 60:.0f} minutes. A cell is the median of the rounds (lowest to highest)."
    )
    if scale != 1:
        yield ""
        yield f"**Scaled to {scale}: good for trying out, not for quoting.**"
    yield ""


def goals(results: Results) -> Iterator[str]:
    """Each goal with what was reached."""
    found = lines(results)
    if not found:
        return
    yield "## Goals"
    yield ""
    yield "| what | against | ratio | goal | |"
    yield "|---|---|---|---|---|"
    for line in found:
        yield f"| {line.what} | {line.against} | {ratio(line.ratio)} | {bound(line)} | {VERDICTS[line.met]} |"
    yield ""


VERDICTS = {True: "met", False: "**missed**", None: "not measured"}


def bound(line: Line) -> str:
    """The goal as it is written."""
    return f"{'≥' if line.at_least else '≤'} {line.bound:g} {line.unit}"


def scenario(results: Results, name: str, module: ModuleType) -> Iterator[str]:
    """One scenario's table: a row for each contestant and setup, a column for each variant."""
    keys = results.keys(name)
    if not keys:
        return
    variants = list(dict.fromkeys(key.variant for key in keys))
    order = {contestant.name: at for at, contestant in enumerate(catalog.everybody())}
    rows = sorted(
        dict.fromkeys((key.contestant, key.setup) for key in keys),
        key=lambda row: (order.get(row[0], len(order)), row[1] != "defaults"),
    )
    title, _, explanation = inspect.cleandoc(module.__doc__ or name).partition("\n")
    yield f"## {title}"
    yield ""
    yield " ".join(explanation.split())
    yield ""
    yield f"| {module.UNIT} | settings | {' | '.join(variants)} |"
    yield "|---|---|" + "---|" * len(variants)
    for contestant, setup in rows:
        cells = [cell(results, Key(name, contestant, setup, variant)) for variant in variants]
        yield f"| {contestant} | {setup} | {' | '.join(cells)} |"
    yield ""


def cell(results: Results, key: Key) -> str:
    """A median with its range."""
    median = results.median(key)
    if median is None:
        return ""
    values = results.values[key].values()
    return number(median) + (f" ({number(min(values))} to {number(max(values))})" if len(values) > 1 else "")


def ratio(value: Ratio | None) -> str:
    """A ratio with its range."""
    if value is None:
        return ""
    return f"{value.median:.2f}" + (f" ({value.low:.2f} to {value.high:.2f})" if value.low != value.high else "")


def number(value: float) -> str:
    """Three significant digits or whole."""
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 100 else f"{value:.3g}"


def settings(versions: Mapping[str, str], unavailable: Mapping[str, str]) -> Iterator[str]:
    """Who took part, with what; and who could not."""
    yield "## Contestants"
    yield ""
    yield "| contestant | version | settings | jobs drained |"
    yield "|---|---|---|---|"
    for contestant in catalog.everybody():
        if contestant.name in unavailable:
            yield f"| {contestant.name} | | **not measured**: {plain(unavailable[contestant.name])} | |"
        elif contestant.name in versions:
            for setup in contestant.setups:
                says = f"{setup.label}{': ' if setup.says else ''}{setup.says}"
                yield f"| {contestant.name} | {versions[contestant.name]} | {says} | {number(setup.jobs)} |"
    yield ""


def remarks(results: Results) -> Iterator[str]:
    """What went wrong, and what to know."""
    notes = [
        f"- {name}, {contestant} ({setup}): not measured: {plain(reason)}"
        for (name, contestant, setup), reason in results.failures.items()
    ]
    for (name, contestant), texts in results.remarks.items():
        notes += [f"- {name}, {contestant}: {text}" for text in texts]
    if notes:
        yield "## Remarks"
        yield ""
        yield from notes
        yield ""


def plain(text: str) -> str:
    """Text that does not break a table."""
    return " ".join(text.replace("|", "/").split())


def processor() -> str:
    """The processor's name, where the system tells."""
    try:
        told = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in told if line.startswith("model name")]
    return names[0] if names else platform.machine()


def memory() -> str:
    """The machine's memory."""
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
