"""The reference leaves nothing out, and names no setting or option that there is not."""

import argparse
import re
from pathlib import Path

from django.core.management import BaseCommand, get_commands, load_command_class

from django_workqueue import conf

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"


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
