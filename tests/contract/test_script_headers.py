"""Every script against its header, its header against ``engine.scripts``, and the words against ``Outcome``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

import pytest

from engine.admission import Admitted
from engine.domain import Outcome
from engine.scripts import ADMITTED_SCRIPTS, BEGIN_EPOCH, Script, composed

FOLDER = files("lua")
SCRIPTS = {script.name: script for script in (*ADMITTED_SCRIPTS, BEGIN_EPOCH)}
INCLUDES = {
    entry.name.removesuffix(".lua"): entry.read_text(encoding="utf-8")
    for entry in FOLDER.joinpath("includes").iterdir()
}
SECTION = re.compile(r"^(KEYS|ARGV|REPLIES)( \(one for each .+, in order\))?$")
ENTRY = re.compile(r"^  (?P<name>[a-z_]+…?)(?P<details>(?:\|[a-z_]+)*)(?:\s+(?P<told>\S.*))?$")
OTHER_NAMES = {
    ("restore", "record"): "text",
    ("define_pool", "pool"): "name",
    ("define_pool", "clock"): "clock_offset",
    ("remove_pool", "pool"): "name",
}
"""Arguments bound to another name than their own, because that name means the parsed thing in the includes."""


@dataclass(frozen=True)
class Source:
    """A script's file, taken apart."""

    keys: tuple[str, ...]
    args: tuple[str, ...]
    replies: tuple[str, ...]
    includes: tuple[str, ...]
    body: str

    @property
    def reachable(self) -> str:
        """The body and what it includes."""
        return "\n".join([self.body, *(INCLUDES[name] for name in self.includes)])


def parse(name: str, text: str) -> Source:
    """Take a file apart by the grammar in lua/README.md; an AssertionError says what is not in it."""
    assert text.startswith("--[[\n"), "the header comes first"
    header, closing, rest = text.removeprefix("--[[\n").partition("\n]]\n")
    assert closing, "the header ends with ]] on a line of its own"
    sections: dict[str, list[str]] = {}
    sentence = current = ""
    for line in header.splitlines():
        section = SECTION.match(line)
        if section:
            current = section[1]
            assert current not in sections
            sections[current] = []
        elif not current:
            sentence += line
        else:
            entry = ENTRY.match(line)
            assert entry, f"{current}: {line!r} is no entry"
            assert bool(entry["told"]) != (current == "REPLIES"), f"{line!r}: keys and arguments are explained"
            assert current == "REPLIES" or not entry["details"]
            sections[current].append(entry["name"])
    assert list(sections) == ["KEYS", "ARGV", "REPLIES"], "in this order, all of them"
    assert sentence.startswith(f"{name}: ")
    includes = re.match(r"(?:--@include \w+\n)*", rest)
    assert includes
    body = rest[includes.end() :].lstrip("\n")
    assert "--@include" not in body, "includes stand together, before the body"
    return Source(
        keys=tuple(sections["KEYS"]),
        args=tuple(sections["ARGV"]),
        replies=tuple(sections["REPLIES"]),
        includes=tuple(re.findall(r"--@include (\w+)", includes[0])),
        body=body,
    )


def without_comments(text: str) -> str:
    return re.sub(r"--(?!\[\[).*", "", text)


SOURCES = {
    entry.name.removesuffix(".lua"): entry.read_text(encoding="utf-8")
    for entry in FOLDER.iterdir()
    if entry.name.endswith(".lua")
}
every_script = pytest.mark.parametrize("name", sorted(SOURCES))


def source(name: str) -> Source:
    return parse(name, SOURCES[name])


def words(text: str) -> set[str]:
    """Outcome words among the string literals of a text, alone or followed by details."""
    literals = re.findall(r"'([^'\n]*)'", without_comments(text))
    return {literal.partition("|")[0] for literal in literals} & {outcome.value for outcome in Outcome}


def test_each_file_is_a_script_that_python_calls() -> None:
    assert set(SOURCES) == set(SCRIPTS)


def test_each_include_is_used() -> None:
    used = {include for name in SOURCES for include in source(name).includes}
    assert set(INCLUDES) - {"clock_sandbox"} == used


@every_script
def test_header_names_what_the_caller_gives_and_gets(name: str) -> None:
    parsed, script = source(name), SCRIPTS[name]
    assert parsed.keys == script.keys
    assert parsed.args == script.args
    assert len(set(parsed.replies)) == len(parsed.replies)
    assert set(parsed.replies) == {outcome.value for outcome in script.replies}


@every_script
def test_keys_and_arguments_are_bound_once_in_order_at_the_top(name: str) -> None:
    parsed = source(name)
    code = without_comments(parsed.body)
    for table, names, bound_as in (
        ("KEYS", parsed.keys, [f"{key}_key" for key in parsed.keys]),
        ("ARGV", parsed.args, [OTHER_NAMES.get((name, arg), arg) for arg in parsed.args]),
    ):
        read = re.findall(rf"{table}\[(\d+)\]", code)
        fixed = [each for each in names if not each.endswith("…")]
        assert read == [str(position) for position in range(1, len(fixed) + 1)], f"{table} by number, once, in order"
        if fixed:
            binding = re.search(rf"^local ([\w, ]+) = (?:tonumber\()?{table}\[1\].*$", code, re.MULTILINE)
            assert binding, f"{table} is bound by one statement"
            assert binding[0].count(f"{table}[") == len(fixed)
            assert binding[1].split(", ") == bound_as[: len(fixed)]
            assert code.index(binding[0]) < (code.find("redis.call") if "redis.call" in code else len(code))
        if len(fixed) < len(names):
            assert len(fixed) == len(names) - 1, "what stands for any number comes last"
            assert re.search(rf"\b{table}\b(?!\[\d)", code), f"{names[-1]} is read"


@every_script
def test_no_key_is_built_in_lua(name: str) -> None:
    commands = re.findall(r"redis\.call\('([A-Z]+)'(?:, ([^,)]+))?", without_comments(source(name).reachable))
    assert commands
    for command, key in commands:
        if command == "TIME":
            continue
        assert re.fullmatch(r"\w+_key|KEYS\[RECORDS_BEFORE \+ [\w\[\]]+\]", key), f"{command} {key}"


@every_script
def test_every_answer_is_a_word_of_the_header(name: str) -> None:
    parsed = source(name)
    assert words(parsed.body) <= set(parsed.replies)
    assert set(parsed.replies) <= words(parsed.reachable)


@every_script
def test_time_is_read_in_one_place(name: str) -> None:
    parsed = source(name)
    assert "'TIME'" not in without_comments(parsed.body)
    reads = without_comments(parsed.body).count("read_clock(")
    assert reads == (1 if "clock" in parsed.includes else 0)
    assert "read_clock" not in "".join(INCLUDES[each] for each in parsed.includes if each != "clock")


def test_only_the_clock_reads_the_time() -> None:
    assert {name for name, text in INCLUDES.items() if "'TIME'" in text} == {"clock", "clock_sandbox"}


@pytest.mark.parametrize("script", ADMITTED_SCRIPTS, ids=lambda script: script.name)
def test_a_text_belongs_to_its_epoch_and_build(script: Script) -> None:
    texts = {composed(script, Admitted(epoch, build)) for epoch in (1, 2) for build in (1, 2)}
    assert len(texts) == 4
    for text in texts:
        assert "@" not in text
        assert "include" not in text


def test_the_sandbox_has_a_clock_of_its_own_and_nothing_else() -> None:
    for script in ADMITTED_SCRIPTS:
        production, sandbox = (composed(script, Admitted(1, 1), sandbox) for sandbox in (False, True))
        assert "'!clock'" not in production or script.name in {"define_pool", "move_clock"}
        assert production.replace(INCLUDES["clock"], "") == sandbox.replace(INCLUDES["clock_sandbox"], "")


GOOD = (
    "--[[\nx: does.\nKEYS\n  tenant  hash\nARGV\n  id  the id\nREPLIES\n  found|now\n]]\n"
    "--@include clock\nlocal a = 1\n"
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x: ", "y: "),
        ("KEYS\n", ""),
        ("ARGV\n  id  the id\nREPLIES\n  found|now\n", "REPLIES\n  found|now\nARGV\n  id  the id\n"),
        ("  tenant  hash", "  tenant"),
        ("  tenant  hash", " tenant  hash"),
        ("  found|now", "  found|now  tells"),
        ("local a = 1\n", "local a = 1\n--@include pools\n"),
        ("\n]]\n", " ]] "),
    ],
)
def test_the_grammar_is_a_grammar(old: str, new: str) -> None:
    assert parse("x", GOOD).includes == ("clock",)
    with pytest.raises(AssertionError):
        parse("x", GOOD.replace(old, new, 1))
