"""The documentation keeps up: limits, codes, commands and paths that it must name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from server import errors
from server.policy import list_limits
from server.policy_file.template import write_default

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]


def _all_errors(base: type[errors.HomebaseError]) -> list[type[errors.HomebaseError]]:
    return [base] + [kind for child in base.__subclasses__() for kind in _all_errors(child)]


def test_policy_page_is_what_the_limits_say() -> None:
    page = (ROOT / "docs" / "policy.md").read_text()
    for limit in list_limits():
        row = next((line for line in page.splitlines() if line.startswith(f"| `{limit.key}`")), "")
        for part in (limit.description, limit.allowed, str(limit.effect), write_default(limit)):
            assert part in row, limit.key
        assert ("not enforced yet" in row) is not limit.enforced, limit.key


def test_every_request_error_code_stands_in_the_api_page() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    kinds = [*_all_errors(errors.RequestError), *_all_errors(errors.EngineError)]
    missing = {kind.code for kind in kinds if f"`{kind.code}`" not in page}
    assert missing == set()


def test_what_is_not_there_yet_is_named() -> None:
    assert "`/metrics`" in (ROOT / "docs" / "api.md").read_text()


def test_readme_has_the_two_commands_and_their_pip_form() -> None:
    readme = (ROOT / "README.md").read_text()
    for command in ("uv run homebase-console", "uv run pytest", "pip install"):
        assert command in readme


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_named_files_exist(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (document.parent / target).exists(), target
    for target in re.findall(r"`((?:server|console|tests|bench|docs|themes)/[\w./-]*\w(?:\.\w+|/))`", text):
        assert (ROOT / target).exists(), target


def test_changelog_has_the_current_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
