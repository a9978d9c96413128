"""Which engines decode may greet before it reads from them. Pure: no vLLM.

vLLM shakes hands with the engine that a waiting request names, to prolong its blocks' time there. For a
handle that lies about that engine it would do so with a layout that is not the engine's, and true requests
would wait for the same handshake, and fail with it. So the holder is asked first whether the handle is its
own.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from pd_connector.sidechannel import Question

Ask = Callable[[Question], "Future[bool]"]
Place = tuple[object, ...]
"""What a handshake depends on."""
_PLACE = ("remote_engine_id", "remote_host", "remote_port", "tp_size", "dcp_size", "pp_size")


class Greetings:
    """Requests that name an engine, until that engine has confirmed it."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._confirmed: set[Place] = set()
        self._waiting: dict[str, tuple[Any, Place, Future[bool]]] = {}

    def may_greet(self, request: Any, question: Question) -> bool:
        """At once, or by a later `confirmed`. `request` is vLLM's, its parameters checked."""
        place = tuple(request.kv_transfer_params.get(name) for name in _PLACE)
        if place in self._confirmed:
            return True
        answer = self._ask(question._replace(reader=""))
        self._waiting[request.request_id] = request, place, answer
        return False

    def confirmed(self) -> list[Any]:
        """The requests whose engine has said yes since the last call."""
        if not self._waiting:
            return []
        agreed = []
        for name, (request, place, answer) in list(self._waiting.items()):
            if not answer.done():
                continue
            del self._waiting[name]
            if answer.exception() is None and answer.result():
                self._confirmed.add(place)
                agreed.append(request)
        return agreed

    def forget(self, request: str) -> None:
        """It has ended, or has its blocks."""
        self._waiting.pop(request, None)
