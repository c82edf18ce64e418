"""What dies is started again, sooner or later depending on how it has been doing, and stopped in the opposite order."""

from __future__ import annotations

import pytest

from api.dev.supervisor import LONGEST_PAUSE_SECONDS, STEADY_AFTER_SECONDS, Supervisor
from api.servers import ChildProcess, ServerFailed


class Puppet(ChildProcess):
    """A child that lives and dies as it is told."""

    def __init__(self, name: str, diary: list[str]) -> None:
        super().__init__()
        self.name = name
        self.diary = diary
        self.lives = False
        self.fails = False

    def command(self) -> list[str]:
        return []

    @property
    def alive(self) -> bool:
        return self.lives

    @property
    def pid(self) -> int:
        return 1

    def start(self) -> None:
        if self.fails:
            raise ServerFailed("no")
        self.diary.append(f"start {self.name}")
        self.lives = True

    def stop(self) -> None:
        self.diary.append(f"stop {self.name}")
        self.lives = False


class Stage:
    """A supervisor with a clock that stands still, and one child."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.diary: list[str] = []
        self.supervisor = Supervisor(clock=lambda: self.now)
        self.child = Puppet("server", self.diary)
        self.supervisor.start(self.child)

    def pause_after_death(self) -> float:
        """Seconds from a death to the next start, in steps of 0.1."""
        self.child.lives = False
        self.supervisor.look()
        begun = self.now
        while not self.child.lives:
            self.now += 0.1
            self.supervisor.look()
            assert self.now - begun < 60
        return round(self.now - begun, 1)


def test_what_lives_is_left_alone() -> None:
    stage = Stage()
    stage.supervisor.look()
    stage.now += 100
    stage.supervisor.look()
    assert stage.diary == ["start server"]


def test_the_pause_grows_while_it_keeps_dying_and_has_a_bound() -> None:
    stage = Stage()
    pauses = [stage.pause_after_death() for _ in range(9)]
    assert pauses[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8], abs=0.11)
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE_SECONDS, abs=0.11)


def test_a_child_that_stood_a_while_is_started_at_once_again() -> None:
    stage = Stage()
    for _ in range(5):
        stage.pause_after_death()
    stage.now += STEADY_AFTER_SECONDS + 1
    stage.supervisor.look()
    assert stage.pause_after_death() == pytest.approx(0.1, abs=0.11)


def test_a_start_that_fails_is_tried_again() -> None:
    stage = Stage()
    stage.child.lives, stage.child.fails = False, True
    for _ in range(20):
        stage.supervisor.look()
        stage.now += 0.5
    assert stage.diary == ["start server"]
    stage.child.fails = False
    for _ in range(20):
        stage.supervisor.look()
        stage.now += 0.5
    assert stage.diary == ["start server", "start server"]


def test_they_are_stopped_in_the_opposite_order_of_their_start() -> None:
    stage = Stage()
    stage.supervisor.start(Puppet("role", stage.diary))
    stage.supervisor.stop()
    assert stage.diary == ["start server", "start role", "stop role", "stop server"]


def test_a_first_start_that_fails_is_told_and_still_stopped() -> None:
    stage = Stage()
    broken = Puppet("broken", stage.diary)
    broken.fails = True
    with pytest.raises(ServerFailed):
        stage.supervisor.start(broken)
    stage.supervisor.stop()
    assert stage.diary == ["start server", "stop broken", "stop server"]
