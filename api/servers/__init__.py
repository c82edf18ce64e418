"""Servers that a machine may lack: found, started as children, stopped by their own process id."""

from api.servers.account import NoAccount
from api.servers.child import ChildProcess
from api.servers.find import PostgresBinaries, RedisBinary, find_postgres, find_redis, redis_binary
from api.servers.postgres import PostgresServer
from api.servers.process import ServerFailed, ServerProcess, free_port, port_is_free
from api.servers.redis import RedisServer

__all__ = [
    "ChildProcess",
    "NoAccount",
    "PostgresBinaries",
    "PostgresServer",
    "RedisBinary",
    "RedisServer",
    "ServerFailed",
    "ServerProcess",
    "find_postgres",
    "find_redis",
    "free_port",
    "port_is_free",
    "redis_binary",
]
