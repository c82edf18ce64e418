"""The walls between the packages, and the sizes and names that the house rules allow."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("engine", "lua", "persistence", "api")
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 60
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "managers", "misc"}

FORBIDDEN = {
    "lua": set(PACKAGES),
    "engine": {"api", "persistence", "fastapi", "starlette", "uvicorn", "sqlalchemy", "alembic", "psycopg", "typer"},
    "persistence": {"api", "fastapi", "starlette", "uvicorn", "typer"},
    "api": set[str](),
}
"""Imports point one way: api → persistence → engine; lua is data."""

TOP_LEVEL = {
    *("engine", "lua", "persistence", "api", "tests", "benchmarks", "docs", ".ci"),
    *("README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "constraints.txt"),
    *(".gitignore", ".luacheckrc"),
}


def files_of(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((REPOSITORY / folder).rglob("*")):
            if path.suffix in {".py", ".lua"} and "__pycache__" not in path.parts:
                yield path


def named(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


SOURCES = [path for path in files_of(*PACKAGES) if path.suffix == ".py"]
ALL_FILES = [*files_of(*PACKAGES, "tests", "benchmarks")]


def imported_packages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and top-level name of every import, wherever in the file it stands; relative ones name nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            yield node.lineno, node.module.split(".")[0]


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_imports_point_one_way(path: Path) -> None:
    package = path.relative_to(REPOSITORY).parts[0]
    imports = list(imported_packages(ast.parse(path.read_text(encoding="utf-8"))))
    wrong = [f"line {line}: {name}" for line, name in imports if name in FORBIDDEN[package]]
    assert not wrong, f"{package} must not import these"


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_no_package_reads_what_only_tests_have(path: Path) -> None:
    imports = {name for _, name in imported_packages(ast.parse(path.read_text(encoding="utf-8")))}
    assert not imports & {"pytest", "hypothesis", "tests", "benchmarks"}


@pytest.mark.parametrize("path", ALL_FILES, ids=named)
def test_files_have_one_subject(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MOST_LINES_OF_A_FILE, f"{lines} lines: a second subject wants a file of its own"
    assert path.stem not in VAGUE_NAMES, "this name says nothing about what is in it"
    assert path.stem.islower(), "modules are written in small letters"


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_functions_fit_a_screen(path: Path) -> None:
    long = [
        f"{node.name} has {length} lines"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.end_lineno is not None
        if (length := node.end_lineno - node.lineno + 1) > MOST_LINES_OF_A_FUNCTION
    ]
    assert not long


def test_top_level_holds_what_is_agreed() -> None:
    ignored = {line.strip("/\n") for line in (REPOSITORY / ".gitignore").read_text().splitlines()}
    found = {path.name for path in REPOSITORY.iterdir()} - ignored - {".git"}
    # Hidden files are an editor's or a shell's own business.
    assert {name for name in found - TOP_LEVEL if not name.startswith(".")} == set()
    missing = {name for name in TOP_LEVEL if not (REPOSITORY / name).exists()}
    assert missing == set()


def test_the_check_sees_imports_inside_functions() -> None:
    tree = ast.parse("def f():\n    from api.app import create_app\n    import sqlalchemy.ext.asyncio as s\n")
    assert list(imported_packages(tree)) == [(2, "api"), (3, "sqlalchemy")]


def test_the_engine_loads_without_the_others() -> None:
    modules = [
        named(path).removesuffix(".py").replace("/", ".") for path in files_of("engine") if path.stem != "__init__"
    ]
    code = "import importlib, sys\n" + "".join(f"importlib.import_module({module!r})\n" for module in modules)
    code += "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    run = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert set(run.stdout.split()) & FORBIDDEN["engine"] == set()
