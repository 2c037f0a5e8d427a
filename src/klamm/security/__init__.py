"""Transport security and authentication, without I/O on sockets: TLS contexts, SASL exchanges, and their settings.

`tls/` makes contexts from keystores and principals from certificates. `sasl/` has the exchanges of both sides as state
machines: bytes in, bytes out. The network layer and the client drive them.
"""
