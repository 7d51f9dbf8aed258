"""The catalogues have every text that a person reads, in each language, and are compiled."""

import ast
import gettext
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command
from django.utils import translation

from django_workqueue import Queue, doctor, partitions
from tests.admin import scene
from tests.admin.conftest import address

PACKAGE = Path(__file__).resolve().parent.parent.parent / "django_workqueue"
LANGUAGES = ("de", "es", "fr")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A copy of the package with the catalogues brought up to date with the sources."""
    if shutil.which("msgmerge") is None:
        reason = "THE TRANSLATIONS WERE NOT CHECKED: there is no gettext. apt-get install gettext"
        if os.environ.get("WORKQUEUE_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    copy = tmp_path_factory.mktemp("translations") / "django_workqueue"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    languages = [option for language in LANGUAGES for option in ("-l", language)]
    command = [sys.executable, "-m", "django", "makemessages", "--no-location", *languages]
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    subprocess.run(command, cwd=copy, env=environment, check=True, capture_output=True, timeout=100)
    return copy


def catalogue(package, language, suffix):
    return package / "locale" / language / "LC_MESSAGES" / f"django.{suffix}"


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("which", ["--untranslated", "--only-fuzzy", "--only-obsolete"])
def test_a_catalogue_lacks_nothing_guesses_nothing_and_keeps_nothing_old(fresh, language, which):
    command = ["msgattrib", which, "--no-wrap", str(catalogue(fresh, language, "po"))]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert [line for line in found.splitlines() if line.lstrip("#~ ").startswith("msgid") and line != 'msgid ""'] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_catalogue_fills_the_same_holes_and_is_compiled(fresh, language, tmp_path):
    made = tmp_path / "django.mo"
    command = ["msgfmt", "--check-format", "-o", str(made), str(catalogue(PACKAGE, language, "po"))]
    subprocess.run(command, check=True, capture_output=True)
    with made.open("rb") as now, catalogue(PACKAGE, language, "mo").open("rb") as shipped:
        assert gettext.GNUTranslations(now)._catalog == gettext.GNUTranslations(shipped)._catalog


@pytest.mark.django_db
@pytest.mark.parametrize(("language", "text"), [("de", "Was geschah"), ("fr", "Les tendances"), ("es", "Qué ocurrió")])
def test_the_dashboard_speaks_the_language(admin_client, language, text):
    scene.whole()
    with translation.override(language):
        shown = admin_client.get(address("dashboard"))
    assert text in shown.content.decode()


WORDS = re.compile(r"(?<!\.)\b[A-Z]?[a-z]{2,} [a-z]{2,}")


def untranslated(node):
    """The texts in an expression that reach the reader as they are."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("_", "ngettext", "pgettext"):
        return []
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) and WORDS.search(node.value) else []
    return [text for child in ast.iter_child_nodes(node) for text in untranslated(child)]


def calls(module, name):
    tree = ast.parse(module.read_text(encoding="utf-8"))
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call for call in found if isinstance(call.func, ast.Name) and call.func.id == name]


def test_what_the_doctor_finds_and_what_is_wrong_with_a_partition_is_translated():
    findings = [call for module in (PACKAGE / "doctor").glob("*.py") for call in calls(module, "Finding")]
    errors = calls(PACKAGE / "partitions.py", "PartitionError")
    assert len(findings) > 20
    assert len(errors) == 8
    assert [text for call in (*findings, *errors) for text in untranslated(call)] == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("language", "title", "advice"),
    [
        ("de", "Kein Worker scheint die Warteschlange 'p' zu bearbeiten", "außer wenn ein Programm"),
        ("fr", "Aucun worker ne semble traiter la file 'p'", "sauf si un de vos programmes"),
        ("es", "No se ve ningún worker que atienda la cola 'p'", "salvo que un programa suyo"),
        ("en", "No worker is seen to work queue 'p'", "unless a program of yours"),
    ],
)
def test_the_doctor_speaks_the_language_in_the_admin_and_at_the_console(
    admin_client, monkeypatch, language, title, advice
):
    monkeypatch.setattr("django_workqueue.engine.registered", list)  # some other test's handlers may be left
    scene.jobs("p", wait="1 hour", ready=2)
    with translation.override(language):
        shown = admin_client.get(address("findings")).content.decode().replace("&#x27;", "'")
        out = io.StringIO()
        with pytest.raises(SystemExit):
            call_command("workqueue_doctor", stdout=out)
        serious = doctor.Severity.SERIOUS.label
    assert title in shown
    assert f">{serious}<" in shown
    assert f"{serious.upper()}: {title}" in out.getvalue()
    assert advice in out.getvalue()


@pytest.mark.django_db
def test_what_is_refused_in_the_admin_is_told_in_the_language(admin_client):
    queue = Queue("products", key=int)
    scene.items("products", ready=1)
    with translation.override("de"), pytest.raises(partitions.PartitionError, match="keine eigene Partition"):
        partitions.drop(queue.name, "items")
    for key, told in (("ä" * 300, "höchstens 512 Bytes"), ("no number", "versteht den Schlüssel nicht")):
        with translation.override("de"):
            answer = admin_client.post(
                address("items_enqueue"), {"queue": "products", "key": key, "priority": 0, "delay": 0}
            )
        assert told in answer.content.decode()
