"""The scripts of the hot path, as package data: one transition a file, composed by ``engine.scripts``."""
