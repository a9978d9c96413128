"""HTTP/1.1 on asyncio protocols: the server that clients speak to, the client that speaks to the engines."""
