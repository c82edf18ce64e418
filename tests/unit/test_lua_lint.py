"""Every composed script compiles as Lua 5.1 and touches no global but those that all servers offer."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from lupa import lua51

from engine.admission import Admitted
from engine.scripts import ADMITTED_SCRIPTS, BEGIN_EPOCH, Script, composed

SERVER_GLOBALS = {"redis", "KEYS", "ARGV", "cjson"}
LANGUAGE_GLOBALS = {
    *("assert", "error", "ipairs", "math", "next", "pairs", "pcall", "select"),
    *("string", "table", "tonumber", "tostring", "type", "unpack"),
}
OP_GETGLOBAL = 5
OP_SETGLOBAL = 7
HEADER_BYTES = 12


@dataclass
class Dump:
    """A reader of the bytes that ``string.dump`` gives; their layout is that of Lua 5.1 on a 64-bit machine."""

    data: bytes
    at: int = HEADER_BYTES

    def take(self, form: str) -> int:
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return int(value)

    def text(self) -> str:
        length = self.take("Q")
        self.at += length
        return self.data[self.at - length : self.at - 1].decode() if length else ""

    def constant(self) -> str:
        kind = self.take("B")
        if kind == 4:
            return self.text()
        self.at += {0: 0, 1: 1, 3: 8}[kind]
        return ""

    def function(self) -> Iterator[tuple[int, str]]:
        """Pairs of (opcode, name) for every access to a global, in this function and those inside it."""
        self.text()
        self.at += 4 + 4 + 4  # first and last line; upvalues, parameters, vararg flag, stack size
        code = [self.take("I") for _ in range(self.take("I"))]
        constants = [self.constant() for _ in range(self.take("I"))]
        for instruction in code:
            if (opcode := instruction & 0x3F) in (OP_GETGLOBAL, OP_SETGLOBAL):
                yield opcode, constants[instruction >> 14]
        for _ in range(self.take("I")):
            yield from self.function()
        for _ in range(self.take("I")):
            self.take("I")
        for _ in range(self.take("I")):
            self.text()
            self.at += 8
        for _ in range(self.take("I")):
            self.text()


def globals_of(text: str) -> tuple[set[str], set[str]]:
    """The globals that a script reads and those that it writes; raises ``lupa.LuaSyntaxError``."""
    lua = lua51.LuaRuntime(encoding=None)
    dump = lua.eval(b"function(text) return string.dump(assert(loadstring(text))) end")(text.encode())
    accesses = list(Dump(dump).function())
    read = {name for opcode, name in accesses if opcode == OP_GETGLOBAL}
    return read, {name for opcode, name in accesses if opcode == OP_SETGLOBAL}


@pytest.mark.parametrize("sandbox", [False, True], ids=["production", "sandbox"])
@pytest.mark.parametrize("script", [*ADMITTED_SCRIPTS, BEGIN_EPOCH], ids=lambda script: script.name)
def test_scripts_compile_and_write_no_global(script: Script, sandbox: bool) -> None:
    read, written = globals_of(composed(script, Admitted(1, 1), sandbox))
    assert written == set()
    assert read <= SERVER_GLOBALS | LANGUAGE_GLOBALS


def test_the_check_sees_globals_in_nested_functions() -> None:
    read, written = globals_of(
        "local a = KEYS[1]; local function f() return function() leaked = bit.bor(a, 1.5) end end"
    )
    assert read == {"KEYS", "bit"}
    assert written == {"leaked"}


def test_the_check_sees_a_syntax_error() -> None:
    with pytest.raises(lua51.LuaError, match="unexpected symbol"):
        globals_of("local a = = 1")
