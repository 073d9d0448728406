"""Reading homebase.toml: what it means, where things stand, and refusals that name the line."""

from __future__ import annotations

import pytest

from server.errors import PolicyInvalid, PolicyUnwritable
from server.policy import Policy
from server.policy_file.document import EMPTY, compute_etag, edit_document, read_document, show_diff
from server.policy_file.scan import scan

NAME = "homebase.toml"


def refusal_of(data: bytes) -> PolicyInvalid:
    with pytest.raises(PolicyInvalid) as caught:
        read_document(data, NAME)
    return caught.value


@pytest.mark.parametrize("data", [b"", b"\n\n", b"# only\n# comments", b"\xef\xbb\xbf", b"[policy]\n"])
def test_files_without_a_limit_mean_the_defaults(data: bytes) -> None:
    document = read_document(data, NAME)
    assert document.policy == Policy()
    assert document.lines == {}


def test_lines_are_found_in_every_form() -> None:
    text = (
        "policy.max_in_flight = 3\n"
        "console = { ascii = true, theme = 'x' }\n"
        "[ server ] # c\n"
        "\n"
        "allowed_origins = [\n'http://a',\n]\n"
        '"port" = 1\n'
        "[policy . subagents]\n"
        "max_depth = 2\n"
    )
    assert read_document(text.encode(), NAME).lines == {
        "policy.max_in_flight": 1,
        "console.ascii": 2,
        "console.theme": 2,
        "server.allowed_origins": 5,
        "server.port": 8,
        "policy.subagents.max_depth": 10,
    }


@pytest.mark.parametrize(
    ("text", "line", "key", "said"),
    [
        ("[policy]\nmax_in_flight = \n", 2, None, "The value is missing"),
        ("[policy]\nmax_in_flight = 1\nmax_in_flight = 2\n", 3, None, "a second time"),
        ("[server]\nport = 1\nport = [\n1,\n2,\n]\n", 3, None, "a second time"),
        ("[policy]\n\n[policy]\n", 3, None, "The table [policy] is declared a second time"),
        ("[model]\npath = nano\n", 2, None, "text needs quotes"),
        ("[model]\npath = /models\n", 2, None, "text needs quotes"),
        ('[model]\npath = "nano\n', 2, None, "not closed on its line"),
        ('[model]\npath = """nano\n\n', 2, None, "the file ends in the middle"),
        ("[server]\nallowed_origins = [\n'http://a',\n\n", 2, None, "the file ends in the middle"),
        ("[policy]\nmax_in_flight = ", 2, None, "the file ends in the middle"),
        ("[policy]\n= 2\n", 2, None, "neither a [table] nor a key"),
        ("[policy]\nmax_in_flight = 99\n", 2, "policy.max_in_flight", "99 is not allowed; allowed: 1 to 64."),
        ("[policy]\n\nmax_in_flight = true\n", 3, "policy.max_in_flight", "true is not a whole number"),
        ("# c\npolicy.max_in_flight = '4'\n", 2, "policy.max_in_flight", '"4" is not a whole number'),
        ("\npolicy = {max_in_flight = 0}\n", 2, "policy.max_in_flight", "0 is not allowed"),
        ("[policy]\na = 1\n", 2, "policy.a", "Unknown key policy.a"),
        ("[policy]\nmax_in_fligt = 1\n", 2, "policy.max_in_fligt", "did you mean policy.max_in_flight?"),
        ("[policy]\nx.y.z = 1\n", 2, "policy.x", "Unknown key policy.x"),
        ("[policy]\nsubagents = {max_depth = 1, max_dept = 2}\n", 2, "policy.subagents.max_dept", "did you mean"),
        ("\n[polcy]\nmax_in_flight = 1\n", 2, "polcy", "did you mean policy?"),
        ("[console]\n[polcy.x]\n", 2, "polcy", "did you mean policy?"),
        ("\n[[policy]]\nmax_in_flight = 1\n", 2, "policy", "policy must be a table ([policy]), not a list"),
        ("[notes]\nx = 1\n[server]\nport = nan\n", 4, "server.port", "nan is not"),
        ("[server]\nhost = 1979-05-27 07:32:00 # c\n", 2, "server.host", "a date or time is not text"),
        ("[server]\r\nport = 1\r\n\r\nhost = 5\r\n", 4, "server.host", "5 is not text"),
        ("\ufeff[server]\nhost = 5\n", 2, "server.host", "5 is not text"),
    ],
)
def test_refusal_names_file_line_and_reason(text: str, line: int, key: str | None, said: str) -> None:
    error = refusal_of(text.encode())
    assert error.message.startswith(f"{NAME}:{line}: ")
    assert (error.line, error.key) == (line, key)
    assert said in error.message
    assert "\n" not in error.message


@pytest.mark.parametrize(
    ("data", "line", "said"),
    [
        (b"# a\n# b\r# c\n[policy]\n", 2, "carriage return"),
        (b"[policy]\rmax_in_flight = 1\r", 1, "carriage return"),
        (b"[policy]\r\nmax_in_flight = 1\r", 2, "carriage return"),
        (b"[policy]\n# caf\xe9\n", 2, "not UTF-8"),
        ("[policy]\n".encode("utf-16"), 1, "not UTF-8"),
        (b"[policy]\n\x00\n", 2, "neither"),
    ],
)
def test_bytes_that_are_no_toml_name_their_line(data: bytes, line: int, said: str) -> None:
    error = refusal_of(data)
    assert error.message.startswith(f"{NAME}:{line}: ")
    assert said in error.message


@pytest.mark.parametrize("data", [b"x = " + b"[" * 5000, b"[server]\nport = " + b"9" * 5000])
def test_line_is_left_out_where_it_is_not_certain(data: bytes) -> None:
    error = refusal_of(data)
    assert error.message.startswith(f"{NAME}: ")
    assert error.line is None


def test_line_is_left_out_where_the_scan_sees_another_value(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "[policy]\nmax_in_flight = 2\n"
    monkeypatch.setattr("server.policy_file.document.scan", lambda _: scan(text.replace("2", "3")))
    assert read_document(text.encode(), NAME).lines == {"policy.max_in_flight": None}


def test_foreign_tables_are_kept_and_warned_about() -> None:
    document = read_document(b"[tool.x]\ny = nan\n\n[[runs]]\n[policy]\nmax_in_flight = 3\n", NAME)
    assert document.policy.policy.max_in_flight == 3
    assert document.warnings == (
        "homebase.toml:1: [tool] is no table of ours; it is left alone.",
        "homebase.toml:4: [runs] is no table of ours; it is left alone.",
    )
    edited = edit_document(document, {"policy.max_in_flight": 4}, NAME)
    assert edited.data == document.data.replace(b"= 3", b"= 4")


def test_edit_that_changes_nothing_is_the_same_document() -> None:
    document = read_document(b"[policy]\nmax_in_flight = 0x3\n[console]\nrefresh_hz = 4\n", NAME)
    same = {"policy.max_in_flight": 3, "console.refresh_hz": 4.0, "server.port": 11234}
    assert edit_document(document, same, NAME) is document


def test_byte_order_mark_and_line_ends_survive() -> None:
    data = b"\xef\xbb\xbf[policy]\r\nmax_in_flight = 2 # c\r\n"
    edited = edit_document(read_document(data, NAME), {"policy.max_in_flight": 1, "policy.refusal_status": 503}, NAME)
    assert edited.data == b"\xef\xbb\xbf[policy]\r\nmax_in_flight = 1 # c\r\nrefusal_status = 503\r\n"


@pytest.mark.parametrize(
    "changes", [{"policy.max_in_flight": 0}, {"policy.nothing": 1}, {"notes.x": 1}, {"": 1}, {"policy": 1}]
)
def test_changes_that_are_not_allowed_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(PolicyInvalid):
        edit_document(EMPTY, changes, NAME)


def test_edit_that_would_change_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    document = read_document(b"[policy]\nmax_in_flight = 2\n[server]\nport = 1\n", NAME)
    for wrong in (b"[policy]\nmax_in_flight = 1\n", b"[policy]\nmax_in_flight = 1.0\n[server]\nport = 1\n", b"[policy"):
        monkeypatch.setattr("server.policy_file.document.edit_text", lambda *_, text=wrong: text.decode())
        with pytest.raises(PolicyUnwritable, match="cannot be edited here"):
            edit_document(document, {"policy.max_in_flight": 1}, NAME)


def test_diff_has_the_changed_line_between_two_others() -> None:
    before = read_document(b"# 1\n# 2\n# 3\n[policy]\nmax_in_flight = 2 # c\n# 6\n# 7\n# 8\n", NAME)
    after = edit_document(before, {"policy.max_in_flight": 1}, NAME)
    assert show_diff(before, after).split("\n") == [
        "@@ -3,5 +3,5 @@",
        " # 3",
        " [policy]",
        "-max_in_flight = 2 # c",
        "+max_in_flight = 1 # c",
        " # 6",
        " # 7",
    ]
    assert show_diff(before, before) == ""


@pytest.mark.parametrize(
    "text", ["[server]\napi_key = 'old-key'\nport = 1\n", "server = { api_key = 'old-key', port = 1 }\n"]
)
def test_diff_shows_no_secret(text: str) -> None:
    before = read_document(text.encode(), NAME)
    other = show_diff(before, edit_document(before, {"server.port": 2}, NAME))
    renewed = show_diff(before, edit_document(before, {"server.api_key": "new-key"}, NAME))
    removed = show_diff(before, edit_document(before, {"server.api_key": ""}, NAME))
    assert "-key" not in other + renewed + removed
    assert '••••••"' in other
    assert "(new)" in renewed
    assert "api_key = ''" in removed


def test_etag_tells_no_file_from_an_empty_one() -> None:
    assert compute_etag(None) == ""
    assert len(compute_etag(b"")) == 64
    assert compute_etag(b"a") != compute_etag(b"b")
