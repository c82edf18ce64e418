"""A closed loop over many sockets from one thread: each connection sends its next request when its answer came.

Plain sockets and prepared bytes keep the client cheaper than the server it measures; a Python client library would
be the bottleneck and every ratio would come out near 1.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

LARGEST_READ = 1 << 18


@dataclass(frozen=True, slots=True)
class Run:
    """What one run measured. ``latencies_s`` has one entry a request, in the order of the answers."""

    requests: int
    seconds: float
    latencies_s: list[float]

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds

    def quantile_ms(self, share: float) -> float:
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000


def whole_resp(answer: bytes) -> bool:
    """Whether these bytes are a whole RESP2 reply: simple, bulk, or an array of bulk strings."""
    end = answer.find(b"\r\n")
    if end < 0:
        return False
    kind, size = answer[:1], answer[1:end]
    if kind == b"$":
        return int(size) < 0 or len(answer) >= end + 4 + int(size)
    if kind == b"*":
        at = end + 2
        for _ in range(int(size)):
            line = answer.find(b"\r\n", at)
            if line < 0:
                return False
            at = line + 4 + int(answer[at + 1 : line])
        return len(answer) >= at
    return True


def whole_http(answer: bytes) -> bool:
    """Whether these bytes are a whole HTTP/1.1 answer with a Content-Length."""
    head_end = answer.find(b"\r\n\r\n")
    if head_end < 0:
        return False
    head = answer[:head_end].lower()
    start = head.index(b"content-length:") + len(b"content-length:")
    stop = head.find(b"\r\n", start)
    return len(answer) >= head_end + 4 + int(head[start : stop if stop > 0 else None])


def resp_command(*parts: str) -> bytes:
    """A command as RESP, ready to send."""
    encoded = [part.encode() for part in parts]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in encoded)


def run_load(
    port: int,
    requests: int,
    connections: int,
    request: Callable[[int], bytes],
    *,
    whole: Callable[[bytes], bool],
    expected: bytes,
) -> Run:
    """Send ``requests`` over loopback; every answer must contain ``expected``, so that errors are not counted as speed.

    Raises ``RuntimeError`` with the answer that did not, or when the server closes a connection.
    """
    poll = select.poll()
    sockets: dict[int, socket.socket] = {}
    sent_at: dict[int, float] = {}
    pending: dict[int, bytes] = {}
    for _ in range(min(connections, requests)):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets[connection.fileno()] = connection
        poll.register(connection, select.POLLIN)
    clock = time.perf_counter
    latencies: list[float] = []
    started, sent = clock(), 0
    for number, connection in sockets.items():
        sent_at[number] = clock()
        connection.sendall(request(sent))
        sent += 1
    while len(latencies) < requests:
        for number, _ in poll.poll():
            connection = sockets[number]
            part = connection.recv(LARGEST_READ)
            if not part:
                raise RuntimeError("the server closed a connection")
            answer = pending.pop(number, b"") + part
            if not whole(answer):
                pending[number] = answer
                continue
            if expected not in answer:
                raise RuntimeError(f"unexpected answer: {answer[:300]!r}")
            now = clock()
            latencies.append(now - sent_at[number])
            if sent < requests:
                sent_at[number] = now
                connection.sendall(request(sent))
                sent += 1
    seconds = clock() - started
    for connection in sockets.values():
        connection.close()
    return Run(requests, seconds, latencies)
