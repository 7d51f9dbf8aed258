"""The reference leaves nothing out, and names no setting or option that there is not."""

import re
from pathlib import Path

from django.core.management import get_commands, load_command_class

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
    for name in ours:
        parser = load_command_class("django_workqueue", name).create_parser("manage.py", name)
        inherited = load_command_class("django.core", "check").create_parser("manage.py", "check")
        known = {option for action in inherited._actions for option in action.option_strings} - {"--database"}
        options = {option for action in parser._actions for option in action.option_strings} - known
        assert options == set(re.findall(r"(--[a-z][a-z-]*)", sections[name])), name
