"""Listening sockets, and how their connections are accepted."""
