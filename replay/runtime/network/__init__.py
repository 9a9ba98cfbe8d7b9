"""The recorded network of a program: who answers which request, and how that reaches each HTTP client.

`network.Network` is sans-I/O. The peers (`aiohttp_peer`, `httpcore_peer`, `http_client_peer`) stand in the place of the
sockets of one library each, below its real HTTP parsers. Direct use of sockets is not covered: the guard blocks it.
"""
