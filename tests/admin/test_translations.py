"""The catalogues have every text that a person reads, in each language, and are compiled."""

import gettext
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.utils import translation

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
