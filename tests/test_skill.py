"""The skill for agents names every code that admission may refuse with, and the settings page every client."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from console.client_settings.clients import CLIENTS
from server.admission.decide import RefusalCode

DOCS = Path(__file__).parent.parent / "docs"
SKILL = (DOCS / "skill" / "homebase-concurrency" / "SKILL.md").read_text()


def test_the_skill_begins_with_its_name_and_when_to_use_it():
    head = re.match(r"---\nname: ([\w-]+)\ndescription: (.+)\n---\n", SKILL)
    assert head is not None
    assert head[1] == "homebase-concurrency"
    assert len(head[2]) <= 1024, "agents cut what is longer"


def test_the_skill_says_of_every_code_what_to_do():
    codes = set(get_args(RefusalCode))
    assert codes
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", SKILL, re.MULTILINE))
    assert codes <= rows.keys()
    assert all(len(row.split(" | ")) == 2 for row in rows.values())
    description = SKILL.partition("description: ")[2].partition("\n")[0]
    assert {code for code in rows if code not in description} == set()


def test_the_settings_page_has_a_row_for_each_client_with_its_file():
    page = (DOCS / "client-settings.md").read_text()
    for name, client in CLIENTS.items():
        row = next(line for line in page.splitlines() if line.startswith("| `") and f"`{name}`" in line)
        file = client.find_file(Path("~"), {})
        assert client.title in row
        assert f"`{file}`" in row if file else "none" in row
