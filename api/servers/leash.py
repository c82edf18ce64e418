"""Run a command that ends when the process that started it does, under an account that the command accepts.

Run by path, not imported: ``python leash.py --parent PID --signal N [--how HOW --uid U --gid G] -- COMMAND``.
It changes the account first and ties the process to its parent second, because Linux forgets the tie when
credentials change; then it becomes the command, so its process id is the command's. Where the system has no
such tie (anything but Linux) it stays as the command's parent and watches instead.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
from types import FrameType

CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAP_DAC_OVERRIDE = 1
CAPABILITY_VERSION_3 = 0x20080522
WATCH_EVERY_SECONDS = 0.2
KILL_AFTER_SECONDS = 10.0


def _checked(name: str, *arguments: object) -> None:
    """Call the C library; raises OSError with what it says."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def enter_namespace(uid: int, gid: int) -> None:
    """Go on as ``uid`` in a new user namespace; outside it, files and signals see the account we had."""
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    _checked("unshare", CLONE_NEWUSER)
    for name, text in (
        ("setgroups", "deny"),  # the kernel takes a group mapping from the unprivileged only after this
        ("uid_map", f"{uid} {outer_uid} 1"),
        ("gid_map", f"{gid} {outer_gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def change_account(uid: int, gid: int, *, reach_everything: bool) -> None:
    """Go on as another account; ``reach_everything`` keeps the right to enter what only root may."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    if not reach_everything:
        os.setresuid(uid, uid, uid)
        return
    _checked("prctl", PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setresuid(uid, uid, uid)
    bit = 1 << CAP_DAC_OVERRIDE
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)
    _checked("capset", header, sets)
    _checked("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE, 0, 0)


def tie_to_parent(parent: int, number: int) -> None:
    """Have the kernel signal us when the parent's thread ends; leaves at once if that already happened."""
    _checked("prctl", PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(0)


def watch(command: list[str], parent: int, number: int) -> int:
    """Run the command as a child, pass signals on, and end it when the parent is gone."""
    child: subprocess.Popen[bytes] | None = None
    received: list[int] = []

    def pass_on(signalled: int, _frame: FrameType | None) -> None:
        if child is None:
            received.append(signalled)
        else:
            child.send_signal(signalled)

    # Before the command runs: whoever sees it running may signal us at once.
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(name, pass_on)
    child = subprocess.Popen(command)
    for early in received:
        child.send_signal(early)
    while child.poll() is None and os.getppid() == parent:
        time.sleep(WATCH_EVERY_SECONDS)
    if child.poll() is None:
        child.send_signal(number)
        try:
            child.wait(KILL_AFTER_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
    return child.wait()


def main() -> None:
    """Read the arguments and become the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--signal", type=int, required=True)
    parser.add_argument("--how", choices=("same", "namespace", "account", "account_reaching"), default="same")
    parser.add_argument("--uid", type=int, default=-1)
    parser.add_argument("--gid", type=int, default=-1)
    parser.add_argument("--watch", action="store_true", default=not sys.platform.startswith("linux"))
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    if options.how == "namespace":
        enter_namespace(options.uid, options.gid)
    elif options.how != "same":
        change_account(options.uid, options.gid, reach_everything=options.how == "account_reaching")
    if options.watch:
        sys.exit(watch(options.command, options.parent, options.signal))
    tie_to_parent(options.parent, options.signal)
    os.execvp(options.command[0], options.command)  # noqa: S606 - no shell between us and it


if __name__ == "__main__":
    main()
