"""The reference leaves nothing out, and names no setting or option that there is not."""

import argparse
import ast
import builtins
import inspect
import re
import shutil
import struct
import symtable
from pathlib import Path

import pytest
from django.core.management import BaseCommand, get_commands, load_command_class
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import django_workqueue
from django_workqueue import conf, testing
from tests import pages

PROJECT = Path(__file__).resolve().parent.parent
REFERENCE = PROJECT / "docs" / "reference"
PAGES = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")


def test_the_reference_of_settings_lists_each_setting():
    rows = re.findall(r"^\| `(WORKQUEUE_\w+)`", (REFERENCE / "settings.md").read_text(), re.MULTILINE)
    assert rows == list(conf.DEFAULTS)


def test_the_reference_of_commands_lists_each_command_with_each_option():
    text = (REFERENCE / "commands.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    ours = [name for name, app in get_commands().items() if app == "django_workqueue"]
    assert set(ours) <= set(sections)
    inherited = options(BaseCommand())
    for name in ours:
        own = options(load_command_class("django_workqueue", name)) - inherited
        assert own == set(re.findall(r"(--[a-z][a-z-]*)", sections[name])), name


def options(command: BaseCommand) -> set[str]:
    parsers = [command.create_parser("manage.py", "any")]
    found = set()
    for parser in parsers:
        for action in parser._actions:
            found.update(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                parsers.extend(action.choices.values())
    return found


def bullets(text: str) -> dict[str, str]:
    """What a list documents: each name with its arguments as they are printed."""
    return dict(re.findall(r"^- `(\w+)(?:\((.*?)\))?`:", text, re.MULTILINE | re.DOTALL))


def arguments(printed: str) -> list[str]:
    """The arguments of a printed call: names with their stars, the bare star left out, without defaults."""
    call = ast.parse(f"def call({printed}): ...").body[0].args
    starred = ["*" + call.vararg.arg] if call.vararg else []
    keyed = ["**" + call.kwarg.arg] if call.kwarg else []
    return [each.arg for each in call.args] + starred + [each.arg for each in call.kwonlyargs] + keyed


def signature(function) -> list[str]:
    """The same of a function, or of a class as it is made."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [stars.get(each.kind, "") + name for name, each in inspect.signature(function).parameters.items()]


def methods(of: type) -> dict[str, object]:
    return {name: member for name, member in inspect.getmembers(of, inspect.isfunction) if not name.startswith("_")}


def test_the_api_lists_every_public_name_with_its_arguments():
    text = (REFERENCE / "api.md").read_text(encoding="utf-8")
    functions = {name: value for name, value in vars(testing).items() if inspect.isfunction(value)}
    helpers = {name for name in functions if name.startswith("_") or functions[name].__module__ != testing.__name__}
    named = {name: getattr(django_workqueue, name) for name in django_workqueue.__all__}
    named |= {name: value for name, value in functions.items() if name not in helpers}
    assert {name for name in named if f"`{name}`" not in text and f"`{name}(" not in text} == set()
    for name, printed in bullets(text).items():
        if printed and name in named:
            assert arguments(printed) == signature(named[name]), name


@pytest.mark.parametrize("of", ["Queue", "JobQueue", "Worker", "Subscriber"])
def test_the_api_lists_every_public_method_with_its_arguments(of):
    text = (REFERENCE / "api.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^##+ {of}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    listed = bullets(section)
    there = methods(getattr(django_workqueue, of))
    twins = {name for name in there if name.removeprefix("a") in there and f"`{name}`" in section}
    assert set(there) - {"await_wake"} == twins | (set(listed) - {of, "using"})
    assert ("`await_wake(poll)`" in section) == ("await_wake" in there)
    for name in set(there) & set(listed):
        assert ["self", *arguments(listed[name])] == signature(there[name]), name


def prose(page: Path) -> str:
    """A page without its code."""
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What a link may point at within a page: its headings, as GitHub and the documentation both name them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    """The relative links of a page."""
    found = [first or second for first, second in LINK.findall(prose(page))]
    return [link for link in found if not re.match(r"https?:|mailto:", link)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_link_leads_somewhere_anchors_too(page):
    lost = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.is_file() or (anchor and anchor not in anchors(there)):
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_an_example_that_is_headed_as_a_file_imports_what_it_uses(page):
    for example in pages.BLOCK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"# [\w/]+\.py\n", example):
            assert missing(symtable.symtable(example, str(page), "exec")) == set(), example


def missing(module: symtable.SymbolTable) -> set[str]:
    """The names that a module's code asks for and that are neither its own nor Python's."""
    own = {each.get_name() for each in module.get_symbols() if each.is_assigned() or each.is_imported()}
    own |= {each.get_name() for each in module.get_symbols() if each.is_namespace()}
    asked: set[str] = set()
    tables = [module]
    for table in tables:
        tables.extend(table.get_children())
        for each in table.get_symbols():
            if each.is_referenced() and (each.is_global() or table is module):
                asked.add(each.get_name())
    return asked - own - set(dir(builtins))


def test_what_is_promised_is_proved_by_tests_that_there_are():
    folder = PROJECT / "tests" / "faults"
    page = (PROJECT / "docs" / "explanation" / "guarantees.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \*\*.*\| (.*) \|$", page, re.MULTILINE)
    assert len(rows) > 20
    for proof in rows:
        named = re.findall(r"`(?:(test_\w+\.py)(?:::)?|…)(test_\w+)?`", proof)
        assert named or proof == "every scenario", proof
        file = ""
        for another, test in named:
            file = another or file  # an ellipsis stands for the one before
            assert (folder / file).is_file(), proof
            assert not test or f"def {test}(" in (folder / file).read_text(encoding="utf-8"), proof


def test_the_readme_shows_the_admin_and_links_to_its_page():
    readme = links(PROJECT / "README.md")
    assert {"docs/how-to/admin.md#the-dashboard", "docs/images/admin-dashboard-dark.png"} <= set(readme)
    shown = {link.rpartition("/")[2] for page in PAGES for link in links(page)}
    assert {path.name for path in (PROJECT / "docs" / "images").iterdir()} <= shown  # none is there in vain


def test_pictures_of_the_admin_are_light_to_load():
    for path in (PROJECT / "docs" / "images").glob("admin-*.png"):
        head = path.read_bytes()[:24]
        assert head.startswith(b"\x89PNG"), path
        assert path.stat().st_size < 150_000, path
        assert struct.unpack(">I", head[16:20])[0] <= 1280, path


def test_a_package_index_shows_a_readme_without_links_that_lead_nowhere_there(tmp_path, monkeypatch):
    kept = "[one](https://example.org/a) and [another](#here)"
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(PROJECT / name, tmp_path)
    (tmp_path / "README.md").write_text((PROJECT / "README.md").read_text(encoding="utf-8") + kept, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    text = ProjectMetadata(str(tmp_path), PluginManager()).core.readme
    assert "The quickstart (`docs/quickstart.md`) goes on from here" in text
    assert "its page (`docs/how-to/admin.md`)" in text
    assert text.endswith(kept)
    assert LINK.findall(text.removesuffix(kept)) == []
    assert "<" not in re.sub(r"^```.*?^```|`[^`]*`", "", text, flags=re.MULTILINE | re.DOTALL)
