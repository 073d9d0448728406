"""The documentation keeps up: limits, codes, commands and paths that it must name."""

from __future__ import annotations

import json
import re
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from server import errors
from server.api.chat.wire import ChatBody
from server.api.completions.wire import CompletionBody
from server.api.generation import unbuilt as openai_unbuilt
from server.api.generation.sampling import SamplingFields
from server.api.messages import unbuilt as messages_unbuilt
from server.api.messages.wire import MessagesBody
from server.api.operations import OPERATIONS
from server.api.responses import unbuilt as responses_unbuilt
from server.api.responses.wire import ResponsesBody
from server.api.tokens import DetokenizeBody, TokenizeBody
from server.history.file import open_for_writing
from server.history.schema import TABLES
from server.metrics.families import FAMILIES
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


def test_every_request_error_code_stands_in_the_api_page() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    kinds = [*_all_errors(errors.RequestError), *_all_errors(errors.EngineError), *_all_errors(errors.HistoryError)]
    missing = {kind.code for kind in kinds if f"`{kind.code}`" not in page}
    assert missing == set()


def read_section(page: str, heading: str) -> str:
    """A page of the documentation, or what stands under one of its headings."""
    text = (ROOT / "docs" / page).read_text()
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0] if heading else text


def list_parameters(section: str) -> dict[str, str]:
    """The parameters of a section's table, each with what is said of it; of `a.b` the first part is one."""
    table = section.partition("| parameter | |\n|---|---|\n")[2].partition("\n\n")[0]
    cells = [line.split(" | ", 1) for line in table.splitlines()]
    return {name: said for names, said in cells for name in re.findall(r"`(\w+)", names)}


OWN = {"suffix", "best_of"}
"""What a completion's body reads itself, to refuse it."""


@pytest.mark.parametrize(
    ("body", "page", "heading", "refused"),
    [
        (ChatBody, "api.md", "Chat completions", openai_unbuilt.UNBUILT.keys()),
        (CompletionBody, "api.md", "Completions", openai_unbuilt.UNBUILT.keys() - OWN),
        (ResponsesBody, "api-responses.md", "", {*responses_unbuilt.UNBUILT, *responses_unbuilt.MOVED}),
        (MessagesBody, "api-messages.md", "", messages_unbuilt.UNBUILT),
    ],
)
def test_what_a_dialect_honours_stands_in_its_table_and_what_it_refuses_does_not(
    body: Any, page: str, heading: str, refused: set[str]
) -> None:
    section, fields = read_section(page, heading), set(body.__struct_fields__)
    told = list_parameters(section)
    assert told.keys() <= fields, "these are told and not read"
    assert not told.keys() & set(refused)
    sampling = set(SamplingFields.__struct_fields__)
    silent = {name for name in fields - sampling if f"`{name}" not in section}
    assert silent == set()
    assert sampling <= list_parameters(read_section("api.md", "Chat completions")).keys()


def test_what_a_completion_refuses_is_told_as_refused() -> None:
    assert list_parameters(read_section("api.md", "Completions"))["suffix"].startswith("refused")


@pytest.mark.parametrize(
    ("page", "names", "opening"),
    [
        ("api.md", openai_unbuilt.UNBUILT.keys(), "Refused with `unsupported_parameter`"),
        ("api.md", openai_unbuilt.HARMLESS, "Accepted, without effect:"),
        ("api-responses.md", responses_unbuilt.UNBUILT.keys(), "Refused\nwith `unsupported_parameter`"),
        ("api-responses.md", responses_unbuilt.HARMLESS, "Accepted, without effect:"),
        ("api-messages.md", messages_unbuilt.UNBUILT, "Refused\nwith `unsupported_parameter`"),
    ],
)
def test_what_is_refused_and_what_has_no_effect_is_told_by_name(page: str, names: set[str], opening: str) -> None:
    told = (ROOT / "docs" / page).read_text().partition(opening)[2].partition("\n\n")[0]
    assert {name for name in names if f"`{name}" not in told} == set()


def test_bodies_of_tokens_and_every_route_stand_in_the_api_page() -> None:
    tokens = read_section("api.md", "Tokens")
    fields = {*TokenizeBody.__struct_fields__, *DetokenizeBody.__struct_fields__} - {"model"}
    assert {name for name in fields if f"`{name}`" not in tokens} == set()
    page = (ROOT / "docs" / "api.md").read_text()
    routes = {re.sub(r"\{\w+\}", "{id}", operation.path) for operation in OPERATIONS}
    assert {route for route in routes if f"{route}`" not in page} == set()


def test_metrics_page_is_what_the_families_say() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert list(rows) == [family.name for family in FAMILIES]
    for family in FAMILIES:
        for part in (family.kind, family.help, *(f"`{label}`" for label in family.labels)):
            assert part in rows[family.name], family.name
        assert (f"{family.bounds[0]:g} to {family.bounds[-1]:g}" in rows[family.name]) if family.bounds else True


def test_queries_of_the_metrics_page_ask_for_what_there_is() -> None:
    queries = re.findall(r"```promql\n(.*?)```", (ROOT / "docs" / "metrics.md").read_text(), re.DOTALL)
    asked = set(re.findall(r"(?:vllm:|homebase_)\w+", "".join(queries)))
    told = {f"{family.name}_bucket" if family.kind == "histogram" else family.name for family in FAMILIES}
    assert asked
    assert asked <= told


def test_history_page_has_every_column_and_its_queries_work(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "history.md").read_text()
    for kind, table in TABLES.items():
        told = page.partition(f"### {table}\n")[2].partition("\n##")[0]
        assert {name for name in kind.__struct_fields__ if f"`{name}`" not in told} == set()
    queries = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    assert len(queries) == 3
    with closing(open_for_writing(tmp_path / "history.sqlite3")) as connection:
        for query in queries:
            connection.execute(query).fetchall()


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


def test_clients_page_names_the_packages_that_the_tests_install() -> None:
    page = (ROOT / "docs" / "clients.md").read_text()
    wanted = json.loads((ROOT / "tests" / "flows" / "clients" / "package.json").read_text())["dependencies"]
    assert wanted
    for name, version in wanted.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), "exact, since no lock file is kept"
        rows = [line for line in page.splitlines() if line.startswith("|") and f"`{name}`" in line]
        assert any(version in row for row in rows), name


def test_changelog_has_the_current_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
