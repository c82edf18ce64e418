"""Which account a Postgres server runs under: it refuses root, and needs a name for its user id."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

LEASH = Path(__file__).with_name("leash.py")
PREFERRED_NAMES = ("postgres", "nobody")


class How(StrEnum):
    """Ways of becoming another account, as ``leash.py`` spells them."""

    SAME = "same"
    NAMESPACE = "namespace"
    """Another user id in a user namespace; outside it the process and its files are still ours."""
    ACCOUNT = "account"
    """Another user id for real; the data belongs to it."""
    ACCOUNT_REACHING = "account_reaching"
    """As ACCOUNT, keeping the right to pass folders that only root may enter."""


@dataclass(frozen=True, slots=True)
class Account:
    """Who a server runs as, and how it gets there."""

    how: How = How.SAME
    uid: int = -1
    gid: int = -1

    @property
    def owner(self) -> tuple[int, int]:
        """User and group id that its data must belong to, as seen from here."""
        if self.how in (How.ACCOUNT, How.ACCOUNT_REACHING):
            return self.uid, self.gid
        return os.geteuid(), os.getegid()

    @property
    def leash_arguments(self) -> list[str]:
        if self.how is How.SAME:
            return []
        return ["--how", self.how.value, "--uid", str(self.uid), "--gid", str(self.gid)]


class NoAccount(RuntimeError):
    """Postgres can't be started under this account, and there is no way into another one."""


def leash_command(command: list[str], account: Account, death_signal: int, parent: int) -> list[str]:
    """The command line that runs ``command`` as ``account`` for as long as process ``parent`` lives."""
    return [
        *(sys.executable, "-I", "-S", str(LEASH)),
        *("--parent", str(parent), "--signal", str(int(death_signal))),
        *account.leash_arguments,
        *("--", *command),
    ]


def unprivileged() -> tuple[int, int]:
    """User and group id of an account without rights: postgres, nobody, or the first that is not root."""
    for name in PREFERRED_NAMES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    for entry in sorted(pwd.getpwall(), key=lambda entry: entry.pw_uid):
        if entry.pw_uid != 0:
            return entry.pw_uid, entry.pw_gid
    raise NoAccount("Postgres refuses to run as root, and this machine has no other account.")


def postgres_account(needed: Iterable[Path]) -> Account:
    """How Postgres is started here so that it can reach the ``needed`` paths; raises NoAccount.

    An ordinary user runs it as they are. Root, and a user id without a name, go into a user namespace: the
    data stays theirs and any folder that they can enter will do. Where namespaces are forbidden (some
    containers), root becomes another account for real.
    """
    named = _has_name(os.geteuid())
    if os.geteuid() != 0 and named:
        return Account()
    uid, gid = unprivileged()
    inside = Account(How.NAMESPACE, uid, gid)
    if sys.platform.startswith("linux") and _works(inside):
        return inside
    if os.geteuid() != 0:
        raise NoAccount(
            f"Postgres needs a name for user id {os.geteuid()}: add it to /etc/passwd, "
            "or name a server in LASTPORTION_DATABASE_URL."
        )
    reachable = all(open_to_others(path) for path in needed)
    return Account(How.ACCOUNT if reachable else How.ACCOUNT_REACHING, uid, gid)


def open_to_others(path: Path) -> bool:
    """Whether an account that owns nothing on the way may pass every folder above ``path``."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.resolve().parents)


def give_to(path: Path, owner: tuple[int, int]) -> None:
    """Make a folder and all in it belong to ``owner``; does nothing where they do, or without root."""
    if os.geteuid() != 0 or (path.stat().st_uid, path.stat().st_gid) == owner:
        return
    # From the inside out: after an interruption the outermost still differs, and the next call begins again.
    for inner in _inside_out(path):
        os.chown(inner, *owner, follow_symlinks=False)


def _inside_out(path: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(path, topdown=False):
        for name in (*files, *folders):
            yield os.path.join(folder, name)
    yield str(path)


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _works(account: Account) -> bool:
    probe = leash_command(["true"], account, 9, os.getpid())
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0
